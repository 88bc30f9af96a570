"""How often the probes of a judge flag planted biases, and an honest judge."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

from measured import Row, at_least, at_most

from gradeline.adapters import ChatRequest, RunConfig
from gradeline.graders import run_async_grader
from gradeline.judges.base import OneModelGrader
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.pairwise import PairwiseGrader
from gradeline.model import GradeContext, Response, Sample
from gradeline.model.llm import LLMResponse
from gradeline.model.probe import ProbeFinding, ProbeName
from gradeline.testing.fake_judge import Behaviour, read_behaviour, with_mark
from gradeline.testing.fake_judge.replies import judge, read_question
from gradeline.testing.fake_judge.verdicts import parse_prompt
from gradeline.testing.fake_judge.wire import JudgeRequest
from gradeline.trust.probe_cases import ProbeAnswer, ProbeCase, probe_cases
from gradeline.trust.probe_findings import GoldAnswer, JudgedAnswer, self_preference_finding
from gradeline.trust.probe_verdicts import ProbeVerdicts
from gradeline.trust.probes import judged_answer

ONE: tuple[ProbeName, ...] = ("length", "format", "verbosity", "authority", "injection", "repeat")
TWO: tuple[ProbeName, ...] = ("position", *ONE)
SEEDS, PAIRS = 20, 200


class Planted(NamedTuple):
    """A bias, and the probe that must find it."""

    behaviour: str
    probe: ProbeName
    compares: bool = False


PLANTED = (
    Planted("position,b=0.2,sd=0.08", "position", compares=True),
    Planted("position-second,b=0.3,sd=0.08", "position", compares=True),
    Planted("reliable-but-wrong,b=0.4,sd=0.08", "position", compares=True),
    Planted("length,g=0.05,sd=0.08", "length"),
    Planted("length,g=0.1,sd=0.08", "length", compares=True),
    Planted("format,g=0.05,sd=0.08", "format"),
    Planted("format,g=0.1,sd=0.08", "format", compares=True),
    Planted("verbosity,g=0.05,sd=0.08", "verbosity"),
    Planted("authority,g=0.05,sd=0.08", "authority"),
    Planted("authority,g=0.1,sd=0.08", "authority", compares=True),
    Planted("injection,rate=0.2,sd=0.08", "injection"),
    Planted("injection,rate=1,sd=0.08", "injection", compares=True),
    Planted("nondeterministic,sd=0.1,flip=0", "repeat"),
    Planted("nondeterministic,sd=0.1,flip=0.1", "repeat", compares=True),
    Planted("self,g=0.1,family=openai,sd=0.08", "self_preference"),
)

HONEST = ("honest,sd=0.08", "honest,sd=0.15", "coarse,n=3", "sens-spec,a=0.9,b=0.85,sd=0.05")


def figures(full: bool = False) -> list[Row]:
    seeds, pairs = (SEEDS, PAIRS) if full else (2, 100)
    rows = []
    for planted in PLANTED:
        flagged = sum(
            finding(planted.behaviour, planted.probe, seed, pairs, compares=planted.compares).verdict == "flagged"
            for seed in range(seeds)
        )
        shown = "pairs" if planted.compares else "answers"
        slack = 0.0 if full else 0.5
        rows.append(at_least(f"{planted.probe} finds {planted.behaviour} ({shown})", flagged / seeds, 0.95, slack))
    honest: Mapping[ProbeName, Counter[bool]] = {name: Counter() for name in (*TWO, "self_preference")}
    for behaviour in HONEST if full else HONEST[:1]:
        for seed in range(seeds):
            for compares, probes in ((False, ONE), (True, TWO)):
                for one in findings(behaviour, probes, seed, pairs, compares=compares):
                    honest[one.probe][one.verdict == "flagged"] += 1
            honest["self_preference"][self_preference(behaviour, seed, pairs).verdict == "flagged"] += 1
    slack = 0.0 if full else 0.3
    rows += [
        at_most(f"{name} flags an honest judge", counts[True] / counts.total(), 0.05, slack)
        for name, counts in honest.items()
    ]
    return rows


def finding(behaviour: str, probe: ProbeName, seed: int, pairs: int, *, compares: bool) -> ProbeFinding:
    if probe == "self_preference":
        return self_preference(behaviour, seed, pairs)
    (found,) = findings(behaviour, (probe,), seed, pairs, compares=compares)
    return found


def findings(
    behaviour: str, probes: Sequence[ProbeName], seed: int, pairs: int, *, compares: bool
) -> list[ProbeFinding]:
    """What the probes find about the fake judge; its prompts and replies are those of a run."""
    answers = drawn_answers(seed, pairs)
    cases = list(probe_cases(answers, probes, compares=compares))
    adapter = FakeJudgeAdapter(read_behaviour(behaviour), seed)
    grader = (
        PairwiseGrader(adapter=adapter) if compares else ModelJudge(config={"prompt": "Is it right?"}, adapter=adapter)
    )
    judged = asyncio.run(verdicts(grader, cases, compares=compares))
    whole = ProbeVerdicts(answers, frozenset(judged), judged, compares)
    return [whole.finding(name) for name in probes]


def self_preference(behaviour: str, seed: int, pairs: int) -> ProbeFinding:
    """Half of the answers are of the judge's family; the labels say which ones are good."""
    answers = drawn_answers(seed, pairs)
    cases = list(probe_cases(answers, ("self_preference",), compares=False))
    adapter = FakeJudgeAdapter(read_behaviour(behaviour), seed)
    judged = asyncio.run(verdicts(ModelJudge(config={"prompt": "Right?"}, adapter=adapter), cases, compares=False))
    gold = [
        GoldAnswer(verdict.value or 0.0, float(case.answer.sample.metadata["good"]), case.answer.sample.metadata["own"])
        for case, verdict in zip(cases, judged.values(), strict=True)
    ]
    return self_preference_finding(gold, "openai", "labels")


def drawn_answers(seed: int, count: int) -> list[ProbeAnswer]:
    """Answers of different quality and length, each with another answer to the same case."""
    chance = Random(seed)
    return [drawn_answer(chance, number) for number in range(count)]


def drawn_answer(chance: Random, number: int) -> ProbeAnswer:
    quality, own = round(chance.uniform(0.25, 0.85), 3), chance.random() < 0.5
    text = " ".join(f"Sentence {place} tells something of the matter." for place in range(chance.randint(1, 6)))
    family = "openai" if own else "meta"
    marked = with_mark(text, f"a{number}", quality=quality, family=family)
    other = with_mark(text[::-1], f"b{number}", quality=round(chance.uniform(0.25, 0.85), 3))
    sample = Sample(id=number, input=f"Question {number}?", metadata={"good": quality >= 0.5, "own": own})
    return ProbeAnswer(sample, Response(text=marked), marked, other)


async def verdicts(grader: OneModelGrader, cases: Sequence[ProbeCase], *, compares: bool) -> dict[str, JudgedAnswer]:
    judged = {}
    for case in cases:
        baseline = None if case.baseline is None or not compares else Response(text=case.baseline)
        ctx = GradeContext(case.sample, case.text, case.response, baseline)
        judged[case.key] = judged_answer(await run_async_grader(grader, ctx), compares=compares)
    return judged


class FakeJudgeAdapter:
    """Answers as the server of the fake judge does, without the server."""

    adapter_id = "openai:fake-judge"

    def __init__(self, behaviour: Behaviour, seed: int) -> None:
        self._behaviour = behaviour
        self._seed = seed
        self._sightings: Counter[str] = Counter()

    def complete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        asked = ChatRequest.of(prompt)
        text = "\n\n".join(message.content or "" for message in asked.messages)
        request = JudgeRequest(
            text=text, model="fake-judge", temperature=run_config.temperature, schema=asked.response_schema
        )
        question = read_question(request, parse_prompt(text, {}), self._behaviour)
        name = re.sub(r"-[0-9a-f]{16}", "", text)
        sighting, self._sightings[name] = self._sightings[name], self._sightings[name] + 1
        _, choice = judge(question, self._behaviour, self._seed, sighting=sighting)
        assert choice is not None
        return LLMResponse(choice.text or "", "fake-judge", "stop")

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> LLMResponse:
        return self.complete(prompt, run_config)
