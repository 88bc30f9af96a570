"""From a request to its replies: pure, so that a test can foresee what the server will say."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from gradeline.testing.fake_judge.behaviours import Behaviour, read_behaviour
from gradeline.testing.fake_judge.exchange import Asked, Call, Reply, Token
from gradeline.testing.fake_judge.forms import Form, Grid, draft, wanted
from gradeline.testing.fake_judge.shapes import SHAPES, Draft, Said, plain
from gradeline.testing.fake_judge.tokens import Likely, expected_score, label_distribution, score_distribution, tokenise
from gradeline.testing.fake_judge.truth import Prompt, Truths, take_apart
from gradeline.testing.fake_judge.verdicts import Draws, Occasion, Verdict, Winner, decide, true_winner

_TOOL = "record_verdict"


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about a question, and what would have been true."""

    question: str
    """A digest of the model and the prompt; the same for every repeat."""
    model: str
    items: tuple[str, ...]
    """The answers shown, in order."""
    qualities: tuple[float, ...]
    pair: bool
    """Whether the better of two answers was asked for, or a score."""
    true_winner: Winner | None
    """The better of the first two answers shown; None where there is one only."""
    winner: Winner | None
    """Who won; None where no winner was asked for."""
    score: float
    """In 0..1, rounded as the reply has it; of the first answer, where the better of two was asked for."""
    expected: float | None
    """The mean of the scores by their log-probabilities; None where these were not asked for."""
    causes: tuple[str, ...]
    shape: str
    """How it was said: ``plain``, or one of the odd shapes."""
    choice: int = 0
    sighting: int = 0
    call: int = 0


class Question(NamedTuple):
    """A request understood."""

    asked: Asked
    prompt: Prompt
    form: Form
    digest: str

    def draws(self, seed: int) -> Draws:
        return Draws(seed, self.digest)

    def sample(self, choice: int) -> str:
        """What tells a sample from others: nothing at temperature 0, else the seed asked for and the choice."""
        if self.asked.temperature == 0:
            return ""
        return f"#{'' if self.asked.seed is None else self.asked.seed}#{choice}"


def understand(asked: Asked, prompt: Prompt, behaviour: Behaviour) -> Question:
    """Finds the reply that is wanted."""
    schema = asked.forced_tool.schema if asked.forced_tool else asked.schema
    form = wanted(behaviour.form, schema, prompt.around, prompt.shown)
    digest = blake2b(f"{asked.model}\0{prompt.key}".encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return Question(asked, prompt, form, digest)


def fault_of(question: Question, behaviour: Behaviour, seed: int, attempt: int) -> str | None:
    """What the attempt (from 1) at a request meets instead of an answer; None: nothing."""
    planned = len(behaviour.faults)
    if attempt <= planned:
        fault = behaviour.faults[attempt - 1]
        return None if fault == "ok" else fault
    if behaviour.fault_tries and attempt > planned + behaviour.fault_tries:
        return None
    return question.draws(seed).pick("fault", behaviour.fault_rates)


def foresee(
    prompt: str,
    behaviour: Behaviour | str,
    seed: int = 0,
    items: Truths | None = None,
    *,
    choice: int = 0,
    sighting: int = 0,
    call: int = 0,
    **asked: Any,
) -> Decision:
    """The decision on a prompt, as a server with this seed makes it.

    Further arguments are those of `Asked`; the model is ``fake-judge`` and the temperature 0 unless told.
    """
    told = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour)
    question = _question(prompt, told, items or {}, asked)
    return judge(question, told, seed, choice=choice, sighting=sighting, call=call)[0]


def foresee_fault(
    prompt: str,
    behaviour: Behaviour | str,
    seed: int = 0,
    items: Truths | None = None,
    *,
    attempt: int = 1,
    **asked: Any,
) -> str | None:
    """What an attempt at a prompt meets instead of an answer; the arguments are those of `foresee`."""
    told = behaviour if isinstance(behaviour, Behaviour) else read_behaviour(behaviour)
    return fault_of(_question(prompt, told, items or {}, asked), told, seed, attempt)


def _question(prompt: str, behaviour: Behaviour, items: Truths, asked: dict[str, Any]) -> Question:
    told = {"model": "fake-judge", "temperature": 0, **asked}
    return understand(Asked(text=prompt, **told), take_apart(prompt, items), behaviour)


def judge(
    question: Question, behaviour: Behaviour, seed: int, *, choice: int = 0, sighting: int = 0, call: int = 0
) -> tuple[Decision, Reply | None]:
    """The decision and the reply of one choice; None where the odd shape is to have no choice."""
    asked, prompt, form, digest = question
    draws = question.draws(seed)
    occasion = Occasion(question.sample(choice), sighting, call, choice)
    verdict = decide(behaviour, prompt.shown, draws, occasion, pair=form.pair)
    grid = form.grid(behaviour.digits, behaviour.levels)
    shape = draws.pick(f"shape{occasion.sample}", behaviour.replies)
    drafted = draft(form, verdict, grid, prompt.shown, draws)
    said = SHAPES[shape](drafted, behaviour.notes_tokens) if shape else plain(drafted)
    decision = Decision(
        question=digest,
        model=asked.model,
        items=tuple(one.item for one in prompt.shown),
        qualities=tuple(one.truth.quality for one in prompt.shown),
        pair=form.pair,
        true_winner=true_winner(prompt.shown),
        winner=verdict.winner if form.pair else None,
        score=grid.share(grid.nearest(verdict.score)),
        expected=None if asked.top_logprobs is None else expected_score(grid, verdict.score, behaviour.spread),
        causes=verdict.causes,
        shape=shape or "plain",
        choice=choice,
        sighting=sighting,
        call=call,
    )
    return decision, None if said.missing else _reply(asked, behaviour, form, grid, verdict, drafted, said)


def _reply(
    asked: Asked, behaviour: Behaviour, form: Form, grid: Grid, verdict: Verdict, drafted: Draft, said: Said
) -> Reply:
    if said.text is None:
        return Reply(None, said.finish, said.refusal)
    tokens = _tokens(asked, behaviour, form, grid, verdict, drafted, said.text)
    finish = said.finish
    if asked.max_tokens is not None and len(tokens) > asked.max_tokens:
        tokens, finish = tokens[: asked.max_tokens], "length"
    text = "".join(token.text for token in tokens)
    if said.calls or asked.forced_tool:
        tool = asked.forced_tool or (asked.tools[0] if asked.tools else None)
        return Reply(None, finish, call=Call(tool.name if tool else _TOOL, text), tokens=tokens)
    return Reply(text, finish, tokens=tokens)


def _tokens(
    asked: Asked, behaviour: Behaviour, form: Form, grid: Grid, verdict: Verdict, drafted: Draft, text: str
) -> tuple[Token, ...]:
    value = str(drafted.value) if form.pair else json.dumps(drafted.value)
    before = "[[" if form.brackets else f'"{form.key}":'
    start = text.find(before)
    at = text.find(value, start + len(before)) if start >= 0 else -1
    likely: list[Likely] = []
    if asked.top_logprobs is not None and form.pair:
        likely = label_distribution(form, verdict, behaviour.spread)
    elif asked.top_logprobs is not None:
        likely = score_distribution(grid, verdict.score, behaviour.spread)
    return tokenise(text, at, value, likely, split=behaviour.score_tokens == "split" and not form.pair)
