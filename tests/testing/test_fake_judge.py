"""The fake judge as a server: its replies, its faults and its records."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest

from gradeline.testing.fake_judge import (
    Behaviour,
    BehaviourRule,
    FakeJudge,
    Truth,
    behaviour_names,
    load_script,
    predict,
    predict_fault,
    with_mark,
)
from gradeline.testing.fake_judge.behaviours import SHAPES
from gradeline.testing.fake_judge.replies import choose_form, draft_reply
from gradeline.testing.fake_judge.verdicts import Draws, FakeVerdict
from gradeline.testing.fake_judge.wire import FAULTS

NOTES = "Measured against the rubric — each point in turn."
ANSWER = with_mark("Paris it is.", "17-a", quality=0.73)
PROMPT = f'ReplyChoice with {{"quality_score": 0..1, "notes": "..."}}.\n<candidate>\n{ANSWER}\n</candidate>'
PAIR = (
    'ReplyChoice with {"winner": "A", "B" or "tie"}.\n'
    f"<answer_a>\n{ANSWER}\n</answer_a>\n<answer_b>\n{with_mark('Lyon.', '17-b', quality=0.2)}\n</answer_b>"
)


class Got(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def data(self) -> Any:
        return json.loads(self.text)

    @property
    def content(self) -> Any:
        return self.data["choices"][0]["message"]["content"]


Post = Callable[..., Coroutine[Any, Any, Got]]


def serve(judge: FakeJudge, talk: Callable[[Post], Coroutine[Any, Any, None]]) -> None:
    """Calls the judge; ``post`` requests a chat completion of the prompt by default."""

    async def run() -> None:
        async with judge, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:

            async def post(
                model: str = "judge",
                prompt: str = PROMPT,
                *,
                path: str = "/v1/chat/completions",
                headers: dict[str, str] | None = None,
                **body: Any,
            ) -> Got:
                request = {"model": model, "messages": [{"role": "user", "content": prompt}], "temperature": 0, **body}
                async with session.post(judge.url + path, json=request, headers=headers) as answer:
                    return Got(answer.status, dict(answer.headers), await answer.text())

            await talk(post)

    asyncio.run(run())


def plain(**fields: object) -> str:
    return json.dumps({"quality_score": 0.73, "notes": NOTES, **fields}, ensure_ascii=False)


SAID = {
    "fenced": f"```json\n{plain()}\n```",
    "text-before": f"Here is my verdict:\n\n{plain()}",
    "text-after": f"{plain()}\n\nLet me know if you need more.",
    "wrapped": f"Here is my verdict:\n\n{plain()}\n\nLet me know if you need more.",
    "bom": f"\ufeff{plain()}",
    "single-quotes": plain().replace('"', "'"),
    "trailing-comma": f"{plain()[:-1]},}}",
    "comments": f"{{ // on the whole\n{plain()[1:]}",
    "invalid-json": "{quality_score = 0.73",
    "prose": "On the whole the answer is rather good, I should think.",
    "two-objects": f"{plain()}\n{plain(quality_score=0.0)}",
    "same-twice": f"{plain()}\n{plain()}",
    "echoed-example": f"The format is {plain(quality_score=0.0, notes='why')}.\n\n{plain()}",
    "score-text": plain(quality_score="0.73"),
    "score-percent": plain(quality_score="73%"),
    "score-fraction": plain(quality_score="7/10"),
    "score-hundred": plain(quality_score=73),
    "score-above": plain(quality_score=1.2),
    "score-below": plain(quality_score=-0.1),
    "score-nan": plain(quality_score=float("nan")),
    "score-infinity": plain(quality_score=float("inf")),
    "score-null": plain(quality_score=None),
    "score-true": plain(quality_score=True),
    "missing-key": '{"notes": "No verdict."}',
    "duplicate-key": f'{{"quality_score": 0.0, {plain()[1:]}',
    "nested": f'{{"result": {plain()}}}',
    "notes-huge": plain(notes="On and on. " * 20_000),
    "notes-control": plain(notes="a bell \x07, a NUL \x00, an escape \x1b[31m, and \u202e backwards"),
    "notes-raw-control": plain(notes="two@lines").replace("@", "\n"),
    "notes-json": plain(notes=f"In short: {plain(quality_score=0.0)}"),
    "long": plain(notes="word " * 600),
    "refusal-text": "I'm sorry, but I can't help with that request.",
    "refusal": None,
    "content-filter": None,
    "truncated": '{"quality_score": 0.73, "notes": "Cut off befo',
    "truncated-whole": plain(),
    "empty": "",
    "blank": " \n",
    "tool-call": None,
}


def test_every_shape_of_a_reply() -> None:
    async def talk(post: Post) -> None:
        replies = {name: await post(f"fake-judge/{name}") for name in SHAPES}
        assert replies.pop("no-choices").data["choices"] == []
        assert {name: reply.content for name, reply in replies.items()} == SAID
        finishes = {name: reply.data["choices"][0]["finish_reason"] for name, reply in replies.items()}
        assert {name: how for name, how in finishes.items() if how != "stop"} == {
            "content-filter": "content_filter",
            "truncated": "length",
            "truncated-whole": "length",
            "tool-call": "tool_calls",
        }
        refusals = [reply.data["choices"][0]["message"]["refusal"] for reply in replies.values()]
        assert [refusal for refusal in refusals if refusal] == ["I'm sorry, but I can't help with that request."]
        call = replies["tool-call"].data["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call == {"name": "record_verdict", "arguments": plain()}

    serve(FakeJudge(), talk)


FORMS = [
    ('Say {"score": 0..1, "rationale": "…"}', None, f'{{"score": 0.73, "rationale": "{NOTES}"}}'),
    ('Say {"quality_score": 0..1, "reason": "…"}', None, f'{{"quality_score": 0.73, "reason": "{NOTES}"}}'),
    ("Rate it from 1 to 10, like this: [[5]].", None, f"{NOTES}\n\n[[8]]"),
    ("Rate it on a scale of 1 to 5, like this: [[5]].", None, f"{NOTES}\n\n[[4]]"),
    ("Judge it.", None, f'{{"quality_score": 0.73, "notes": "{NOTES}"}}'),
    (
        "Judge it.",
        {"why": {"type": "string"}, "points": {"type": "integer", "minimum": 0, "maximum": 4}},
        f'{{"why": "{NOTES}", "points": 3}}',
    ),
    (
        "Judge it.",
        {"score": {"type": "number"}, "polite": {"type": "boolean"}, "verdict": {"enum": ["pass", "fail"]}},
        '{"score": 0.73, "polite": true, "verdict": "pass"}',
    ),
    (
        "Judge it.",
        {"score": {"type": ["number", "null"]}, "checks": {"type": "array", "items": {"properties": {"met": {"type": "boolean"}}}}},
        '{"score": 0.73, "checks": [{"met": true}]}',
    ),
]  # fmt: skip


@pytest.mark.parametrize(("words", "properties", "expected"), FORMS)
def test_the_reply_has_the_requested_form(words: str, properties: dict[str, Any] | None, expected: str) -> None:
    async def talk(post: Post) -> None:
        schema = {"type": "object", "properties": properties}
        response_format = (
            {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}} if properties else None
        )
        answer = await post(prompt=f"{words}\n<answer>\n{ANSWER}\n</answer>", response_format=response_format)
        assert answer.content == expected

    serve(FakeJudge(), talk)


CHECKS: dict[str, Any] = {f"item_{number}": {"type": "boolean"} for number in range(1, 5)}


@pytest.mark.parametrize(("quality", "met"), [(0.0, 0), (0.3, 1), (0.73, 3), (1.0, 4)])
def test_the_share_of_a_checklist_that_is_met_is_the_quality(quality: float, met: int) -> None:
    schema = {"type": "object", "properties": {**CHECKS, "rationale": {"type": "string"}}}
    prompt = f"Judge it.\n<answer>\n{with_mark('Paris.', '17-a', quality=quality)}\n</answer>"

    async def talk(post: Post) -> None:
        response_format = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
        reply = json.loads((await post(prompt=prompt, response_format=response_format)).content)
        assert (list(reply), reply["rationale"]) == ([*CHECKS, "rationale"], NOTES)
        assert [reply[name] for name in CHECKS].count(True) == met
        again = json.loads((await post(prompt=prompt, response_format=response_format)).content)
        assert reply == again

    serve(FakeJudge(), talk)
    assert predict(prompt, "honest", schema=schema).score == met / 4


def test_the_seed_draws_the_points_of_a_checklist_that_are_met() -> None:
    form = choose_form("auto", {"type": "object", "properties": CHECKS}, "Judge it.", ())
    verdict = FakeVerdict(0.5, (0.5,), "tie", 0.0, ())
    drafts = [draft_reply(form, verdict, form.grid(2, None), (), Draws(seed, "question")).fields for seed in range(8)]
    assert {[value for _, value in fields].count(True) for fields in drafts} == {2}
    assert len(set(drafts)) > 1
    assert draft_reply(form, verdict, form.grid(2, None), (), Draws(3, "question")).fields == drafts[3]


PAIR_FORMS = [
    ('Say {"winner": "A", "B" or "tie"}', None, f'{{"winner": "B", "notes": "{NOTES}"}}'),
    ('Say {"preferred": "A", "explanation": "…"}', None, f'{{"preferred": "B", "explanation": "{NOTES}"}}'),
    ("Say [[A]], [[B]], or [[C]] for a tie.", None, f"{NOTES}\n\n[[B]]"),
    ("Say.", {"better": {"enum": ["candidate", "baseline", "tie"]}}, '{"better": "baseline"}'),
    (
        "Say.",
        {"score_a": {"type": "number"}, "score_b": {"type": "number"}, "winner": {"enum": ["first", "second"]}},
        '{"score_a": 0.2, "score_b": 0.73, "winner": "second"}',
    ),
]


@pytest.mark.parametrize(("words", "properties", "expected"), PAIR_FORMS)
def test_the_winner_has_the_requested_label(words: str, properties: dict[str, Any] | None, expected: str) -> None:
    worse = with_mark("Lyon.", "17-b", quality=0.2)

    async def talk(post: Post) -> None:
        schema = {"type": "object", "properties": properties}
        response_format = (
            {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}} if properties else None
        )
        fences = f"<candidate>\n{worse}\n</candidate>\n<baseline>\n{ANSWER}\n</baseline>"
        assert (await post(prompt=f"{words}\n{fences}", response_format=response_format)).content == expected

    serve(FakeJudge(), talk)


def test_shares_of_replies_hold_and_can_be_predicted() -> None:
    behaviour = Behaviour(sd=0.1, replies={"fenced": 0.3, "refusal-text": 0.1})
    prompts = [PROMPT.replace("17-a", f"{number}-a") for number in range(200)]

    async def talk(post: Post) -> None:
        replies = [(await post(prompt=prompt)).content for prompt in prompts]
        fenced = sum(reply.startswith("```") for reply in replies)
        refused = sum("I'm sorry" in reply for reply in replies)
        foreseen = [predict(prompt, behaviour, 7, model="judge") for prompt in prompts]
        shapes = Counter(decision.shape for decision in foreseen)
        assert shapes == {"fenced": fenced, "refusal-text": refused, "plain": 200 - fenced - refused}
        assert (40 < fenced < 80, 8 < refused < 35) == (True, True)
        scores = [json.loads(reply)["quality_score"] for reply in replies if reply.startswith("{")]
        assert scores == [decision.score for decision in foreseen if decision.shape == "plain"]

    serve(FakeJudge(behaviour, seed=7), talk)


def test_a_token_limit_cuts_the_reply() -> None:
    async def talk(post: Post) -> None:
        cut = await post("fake-judge/long?notes_tokens=100", max_tokens=50)
        assert cut.data["choices"][0]["finish_reason"] == "length"
        assert cut.data["usage"]["completion_tokens"] == 50
        whole = await post("fake-judge/long?notes_tokens=100", max_tokens=500)
        assert whole.data["choices"][0]["finish_reason"] == "stop"
        assert json.loads(whole.content)["notes"] == "word " * 100

    serve(FakeJudge(), talk)


def test_usage_can_be_true_partly_cached_zero_or_missing() -> None:
    async def talk(post: Post) -> None:
        usages = [
            (await post(f"fake-judge/{name}")).data.get("usage")
            for name in ("perfect", "perfect?cached_share=0.5", "zero-usage", "no-usage")
        ]
        counts = [
            usage and (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"])
            for usage in usages
        ]  # fmt: skip
        assert counts == [(53, 0, 30), (53, 26, 30), (0, 0, 0), None]
        assert usages[0]["total_tokens"] == 83

    serve(FakeJudge(), talk)


def test_several_choices_differ_unless_the_temperature_is_0() -> None:
    async def talk(post: Post) -> None:
        async def scores(**options: Any) -> list[float]:
            choices = (await post("fake-judge/honest", n=5, **options)).data["choices"]
            return [json.loads(choice["message"]["content"])["quality_score"] for choice in choices]

        assert len(set(await scores())) == 1
        sampled = await scores(temperature=1)
        assert len(set(sampled)) > 1
        assert sampled == await scores(temperature=1)
        assert sampled != await scores(temperature=1, seed=2)
        assert await scores(temperature=1, seed=2) == await scores(temperature=1, seed=2)

    serve(FakeJudge(), talk)


def test_a_nondeterministic_judge_ignores_the_seed() -> None:
    async def talk(post: Post) -> None:
        async def scores(model: str) -> set[float]:
            return {json.loads((await post(model, seed=1)).content)["quality_score"] for _ in range(5)}

        assert len(await scores("fake-judge/nondeterministic")) > 1
        assert len(await scores("fake-judge/honest")) == 1

    judge = FakeJudge()
    serve(judge, talk)
    assert [decision.sighting for decision in judge.decisions] == [*range(5), *range(5)]


def test_log_probabilities_show_the_spread_of_a_score() -> None:
    async def talk(post: Post) -> None:
        answer = await post("fake-judge/honest?digits=1", logprobs=True, top_logprobs=20)
        tokens = answer.data["choices"][0]["logprobs"]["content"]
        assert "".join(token["token"] for token in tokens) == answer.content
        (doubtful,) = [token for token in tokens if len(token["top_logprobs"]) > 1]
        shown = {float(one["token"]): 2.718281828459045 ** one["logprob"] for one in doubtful["top_logprobs"]}
        assert max(shown, key=lambda value: shown[value]) == json.loads(answer.content)["quality_score"]
        assert sum(shown.values()) == pytest.approx(1, abs=1e-6)
        assert sum(value * share for value, share in shown.items()) == pytest.approx(judge.decisions[0].expected)

    judge = FakeJudge(seed=3)
    serve(judge, talk)


def test_a_score_can_be_split_over_tokens_and_its_alternatives_cut() -> None:
    async def talk(post: Post) -> None:
        answer = await post("fake-judge/split-tokens", logprobs=True, top_logprobs=5)
        tokens = answer.data["choices"][0]["logprobs"]["content"]
        start = [token["token"] for token in tokens].index("0")
        score = tokens[start : start + 4]
        assert [token["token"] for token in score] == ["0", ".", "7", "3"]
        assert [one["token"] for one in score[0]["top_logprobs"]] == ["0", "1"]
        assert [one["token"] for one in score[2]["top_logprobs"]] == ["7", "6", "8", "5", "9"]
        assert sum(2.718281828459045 ** one["logprob"] for one in score[3]["top_logprobs"]) < 0.9

    serve(FakeJudge(), talk)


def test_log_probabilities_of_a_pair() -> None:
    async def talk(post: Post) -> None:
        answer = await post(prompt=PAIR, logprobs=True, top_logprobs=2)
        tokens = answer.data["choices"][0]["logprobs"]["content"]
        (doubtful,) = [token["top_logprobs"] for token in tokens if len(token["top_logprobs"]) > 1]
        odds = {one["token"]: 2.718281828459045 ** one["logprob"] for one in doubtful}
        assert odds == pytest.approx({"A": 0.995, "B": 0.005}, abs=0.001)

    serve(FakeJudge(), talk)


def test_drift_can_change_the_fingerprint() -> None:
    async def talk(post: Post) -> None:
        for fingerprint, changed in (("true", "fp_fake_1_changed"), ("false", "fp_fake_1")):
            answers = [(await post(f"fake-judge/drift?k=1&g=-0.2&fingerprint={fingerprint}")).data for _ in range(2)]
            assert [answer["system_fingerprint"] for answer in answers] == ["fp_fake_1", changed]
            scores = [json.loads(answer["choices"][0]["message"]["content"])["quality_score"] for answer in answers]
            assert scores == [0.73, 0.53]
        assert (await post("fake-judge/wrong-model?model=gpt-0")).data["model"] == "gpt-0"

    serve(FakeJudge(), talk)


def test_each_attempt_of_a_request_has_its_own_fault() -> None:
    async def talk(post: Post) -> None:
        assert [(await post()).status for _ in range(4)] == [429, 503, 200, 200]
        assert [(await post(prompt=PAIR)).status for _ in range(3)] == [429, 503, 200]

    judge = FakeJudge(Behaviour(faults=("429", "503"), retry_after_s=0))
    serve(judge, talk)
    counts = judge.counts()
    assert (counts.requests, counts.retries, sorted(counts.tries.values())) == (7, 5, [3, 4])
    assert counts.outcomes == {"429": 2, "503": 2, "200": 3}
    assert len(judge.decisions) == 3


def test_shares_of_faults_can_be_predicted() -> None:
    behaviour = Behaviour(fault_rates={"503": 0.3, "429-bare": 0.2})
    prompts = [PROMPT.replace("17-a", f"{number}-a") for number in range(60)]

    async def talk(post: Post) -> None:
        met = [(await post(prompt=prompt)).status for prompt in prompts]
        foreseen = [predict_fault(prompt, behaviour, 7, model="judge") for prompt in prompts]
        assert met == [int((fault or "200").partition("-")[0]) for fault in foreseen]
        assert {200, 429, 503} == set(met)
        assert {(await post(prompt=prompt)).status for prompt in prompts} == {200}

    serve(FakeJudge(behaviour, seed=7), talk)


def test_every_form_of_retry_after() -> None:
    async def talk(post: Post) -> None:
        retry_after_headers = {}
        for name in ("429", "429-date", "429-bare", "429-absurd", "429-quota"):
            answer = await post(f"fake-judge/{name}?retry_after_s=3")
            assert answer.status == 429
            retry_after_headers[name] = answer.headers.get("Retry-After")
            assert answer.data["error"]["code"] == (
                "insufficient_quota" if name == "429-quota" else "rate_limit_exceeded"
            )
        date = parsedate_to_datetime(retry_after_headers.pop("429-date") or "")
        assert timedelta(seconds=-5) < date - datetime.now(UTC) < timedelta(seconds=4)
        assert retry_after_headers == {"429": "3", "429-bare": None, "429-absurd": "1000000000", "429-quota": None}

    serve(FakeJudge(), talk)


def test_errors_have_their_status_and_a_proxy_error_is_html() -> None:
    async def talk(post: Post) -> None:
        statuses = {name: (await post(f"fake-judge/{name}")).status for name in FAULTS if name[0].isdigit()}
        assert statuses == {name: int(name[:3]) for name in statuses}
        assert (await post("fake-judge/502")).text.startswith("<html>")
        context = (await post("fake-judge/400-context")).data["error"]
        assert (context["code"], context["param"]) == ("context_length_exceeded", "messages")

    serve(FakeJudge(), talk)


@pytest.mark.parametrize("stream", [False, True])
def test_connection_faults(stream: bool) -> None:
    async def talk(post: Post) -> None:
        with pytest.raises(aiohttp.ClientConnectionError):
            await post("fake-judge/reset", stream=stream)
        with pytest.raises(aiohttp.ClientConnectionError):
            await post("fake-judge/close", stream=stream)
        with pytest.raises(aiohttp.ClientPayloadError):
            await post("fake-judge/cut", stream=stream)

    judge = FakeJudge()
    serve(judge, talk)
    assert list(judge.counts().outcomes) == ["reset", "close", "cut"]


def test_slow_and_split_replies_are_complete() -> None:
    async def talk(post: Post) -> None:
        whole = await post("fake-judge/perfect", stream=True)
        for name in ("slow-start", "slow-stream", "split", "keep-alive"):
            assert (await post(f"fake-judge/{name}?delay_s=0.001")).content == plain()
            streamed = await post(f"fake-judge/{name}?delay_s=0.001", stream=True)
            kept = streamed.text.replace(": keep-alive\n\n", "")
            assert (kept == streamed.text) == (name != "keep-alive")
            assert _content(kept) == _content(whole.text) == plain()

    serve(FakeJudge(), talk)


def _content(stream: str) -> str:
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def test_a_stream_can_stop_without_its_end_or_with_an_error() -> None:
    async def talk(post: Post) -> None:
        assert (await post(stream=True)).text.endswith('"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
        assert (await post("fake-judge/no-done", stream=True)).text.endswith('"finish_reason": "stop"}]}\n\n')
        broken = (await post("fake-judge/error-in-stream", stream=True)).text
        assert json.loads(broken.splitlines()[-2][6:])["error"]["type"] == "server_error"
        assert "[DONE]" not in broken

    serve(FakeJudge(), talk)


def test_it_stops_cleanly_during_faults() -> None:
    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            async with FakeJudge() as judge:
                body = {"messages": [{"role": "user", "content": PROMPT}]}
                calls = [
                    asyncio.create_task(
                        _read(session, judge.base_url() + "/chat/completions", {**body, "model": f"fake-judge/{name}"})
                    )
                    for name in ("hang", "stall", "slow-start?delay_s=60")
                ]
                while len(judge.requests) < 3:
                    await asyncio.sleep(0.005)
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, aiohttp.ClientError) for result in results)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


async def _read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> bytes:
    async with session.post(url, json=body) as answer:
        return await answer.read()


def test_a_late_reply_counts_even_if_the_client_has_gone() -> None:
    async def talk(post: Post) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post("fake-judge/slow-start?delay_s=60&tries=1"), 0.2)
        assert (await post("fake-judge/slow-start?delay_s=60&tries=1")).content == plain()

    judge = FakeJudge()
    serve(judge, talk)
    assert (len(judge.decisions), judge.counts().retries) == (2, 1)
    assert judge.decisions[0].question == judge.decisions[1].question


USES = {
    "seed": {"seed": 1},
    "temperature": {},
    "logprobs": {"logprobs": True},
    "response_format": {"response_format": {"type": "json_object"}},
    "n": {"n": 2},
    "max_tokens": {"max_tokens": 100},
    "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
    "stream": {"stream": True},
}


@pytest.mark.parametrize("name", USES)
def test_an_unsupported_parameter_is_refused_by_name(name: str) -> None:
    async def talk(post: Post) -> None:
        model = f"fake-judge/unsupported?param={name}"
        refused = await post(model, **USES[name])
        assert refused.status == 400
        error = refused.data["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert f"'{name}'" in error["message"]
        assert (await post(model, **({"temperature": None} if name == "temperature" else {}))).status == 200

    serve(FakeJudge(), talk)


def test_path_then_model_then_rules_override_the_behaviour() -> None:
    judge = FakeJudge(
        Behaviour(offset=0.1),
        items={"17-a": Truth(quality=0.5)},
        rules=[
            BehaviourRule(item="17-*", contains="Oslo", behaviour={"offset": -0.1}),
            BehaviourRule(model="other*", behaviour="prose"),
        ],
    )
    prompt = PROMPT.replace(" quality=0.73", "")

    async def talk(post: Post) -> None:
        async def reply_to(*arguments: str, **path: str) -> str:
            return (await post(*arguments, **path)).content

        assert json.loads(await reply_to("judge", prompt))["quality_score"] == 0.6
        fenced = await reply_to("judge", prompt, path="/fenced/v1/chat/completions")
        assert fenced.startswith("```")
        assert "0.6" in fenced
        both = await reply_to("fake-judge/perfect?offset=0.2", prompt, path="/fenced/v1/chat/completions")
        assert both.startswith("```")
        assert "0.7" in both
        oslo = await reply_to("fake-judge/perfect?offset=0.2", prompt.replace("Paris", "Oslo"))
        assert json.loads(oslo)["quality_score"] == 0.4
        assert (await reply_to("other-judge", prompt)).startswith("On the whole")

    serve(judge, talk)
    assert judge.base_url("fenced") == f"{judge.url}/fenced/v1"


def test_an_unknown_behaviour_is_a_model_that_does_not_exist() -> None:
    async def talk(post: Post) -> None:
        for refused in (await post("fake-judge/nonsense"), await post(path="/nonsense/v1/chat/completions")):
            assert refused.status == 404
            assert "unknown behaviour 'nonsense'; use one of perfect, " in refused.data["error"]["message"]
        assert (await post("fake-judge/honest?sd=much")).status == 404
        assert (await post(path="/v1/elsewhere")).status == 404

    serve(FakeJudge(), talk)


def test_malformed_requests_are_refused() -> None:
    async def talk(post: Post) -> None:
        wrong = [
            await post(messages=[]),
            await post(messages="hello"),
            await post(max_tokens="many"),
            await post(top_logprobs=5),
            await post(prompt="[item:17 quality=7]"),
        ]
        assert [refused.status for refused in wrong] == [400] * 5
        assert "the quality 7.0 is not in 0..1" in wrong[-1].data["error"]["message"]

    serve(FakeJudge(), talk)


def test_the_api_key_is_checked_as_each_provider_does() -> None:
    gemini, anthropic = "/v1beta/models/judge:generateContent", "/v1/messages"
    contents = {"contents": [{"parts": [{"text": PROMPT}]}]}
    version = {"anthropic-version": "2023-06-01"}

    async def talk(post: Post) -> None:
        assert (await post()).status == 401
        assert (await post(headers={"Authorization": "Bearer wrong"})).status == 401
        assert (await post(headers={"Authorization": "Bearer right"})).status == 200
        assert (await post(path=anthropic, max_tokens=100, headers=version)).status == 401
        assert (await post(path=anthropic, max_tokens=100, headers={**version, "x-api-key": "right"})).status == 200
        assert (await post(path=gemini, **contents)).status == 401
        assert (await post(path=gemini, **contents, headers={"x-goog-api-key": "right"})).status == 200
        assert (await post(path=f"{gemini}?key=right", **contents)).status == 200

    serve(FakeJudge(key="right"), talk)


def test_counts_and_decisions_can_be_requested() -> None:
    with FakeJudge(seed=7).in_thread() as judge:
        body = json.dumps({"model": "fake-judge/position?b=1", "messages": [{"role": "user", "content": PAIR}]})
        for _ in range(2):
            _post(judge.base_url() + "/chat/completions", body)
        counts = _get(f"{judge.url}/fake/counts")
        (digest,) = counts.pop("tries")
        assert counts == {
            "requests": 2,
            "retries": 1,
            "paths": {"/v1/chat/completions": 2},
            "models": {"fake-judge/position?b=1": 2},
            "outcomes": {"200": 2},
        }
        assert [seen.digest for seen in judge.requests] == [digest] * 2
        first, second = _get(f"{judge.url}/fake/decisions")
        question = first.pop("question")
        assert first == {
            "model": "fake-judge/position?b=1",
            "items": ["17-a", "17-b"],
            "qualities": [0.73, 0.2],
            "pair": True,
            "true_winner": "first",
            "winner": "first",
            "score": 0.73,
            "expected": None,
            "causes": ["position"],
            "shape": "plain",
            "choice": 0,
            "sighting": 0,
            "call": 0,
        }
        assert second == {**first, "question": question, "sighting": 1, "call": 1}
        _post(f"{judge.url}/fake/reset", "")
        assert _get(f"{judge.url}/fake/counts")["requests"] == 0
        models = _get(f"{judge.url}/v1/models")["data"]
        assert [model["id"] for model in models] == [f"fake-judge/{name}" for name in behaviour_names()]


def _post(url: str, body: str) -> Any:
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def test_a_script_configures_everything(tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text(
        json.dumps(
            {
                "seed": 7,
                "behaviour": {"accuracy": 0.9},
                "items": {"17-a": 0.8, "17-b": {"quality": 0.2, "family": "gpt"}},
                "rules": [{"model": "x", "behaviour": "fenced"}],
            }
        )
    )
    judge = load_script(path)
    assert (judge.seed, judge.behaviour, judge.items, judge.rules) == (
        7,
        Behaviour(accuracy=0.9),
        {"17-a": Truth(quality=0.8), "17-b": Truth(quality=0.2, family="gpt")},
        (BehaviourRule(model="x", behaviour="fenced"),),
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"sede": 7}, "unknown field `sede`"),
        ({"items": {"17-a": 8}}, "the quality 8.0 is not in 0..1"),
        ({"rules": [{"behaviour": "nonsense"}]}, "unknown behaviour 'nonsense'"),
    ],
)
def test_a_wrong_script_is_refused_with_its_path(tmp_path: Path, wrong: object, why: str) -> None:
    path = tmp_path / "judge.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(ValueError, match=r"judge\.json: .*") as caught:
        load_script(path)
    assert why in str(caught.value)


def test_it_runs_as_a_program(tmp_path: Path) -> None:
    items = tmp_path / "items.json"
    items.write_text('{"17-a": 0.9}')
    arguments = [
        "--port",
        "0",
        "--seed",
        "7",
        "--behaviour",
        '{"accuracy": 1, "position_bias": 0.2}',
        "--items",
        str(items),
    ]
    command = [sys.executable, "-m", "gradeline.testing.fake_judge", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            body = {
                "model": "judge",
                "messages": [{"role": "user", "content": f"Judge it.\n{with_mark('Paris', '17-a')}"}],
            }
            reply = _post(f"{url}/v1/chat/completions", json.dumps(body))["choices"][0]["message"]["content"]
            assert json.loads(reply)["quality_score"] == 0.9
        finally:
            process.terminate()


def test_the_program_reports_a_wrong_behaviour() -> None:
    command = [sys.executable, "-m", "gradeline.testing.fake_judge", "--behaviour", '{"acuracy": 1}']
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert "unknown field `acuracy`" in done.stderr
