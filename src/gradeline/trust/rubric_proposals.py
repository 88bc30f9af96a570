"""Rubrics that a model proposes, after it has seen where a judge and the labels disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradeline.errors import DataError
from gradeline.judges.fencing import Fence
from gradeline.model import quote
from gradeline.model.llm import LLMAdapter, RunConfig
from gradeline.model.response import Usage
from gradeline.parsing.json_text import NotJsonError, find_json

MAX_RUBRIC_CHARS = 20_000
MAX_PROPOSALS = 10
_MAX_SHOWN = 20
"""Disagreements that the model is shown."""
_MAX_TEXT = 3_000
"""Characters of an input or answer that it is shown."""
_MAX_TOKENS = 8_192

_REQUEST = """\
A model grades the answers of an agent by a rubric. People labelled some of the answers pass or fail. Below are the
rubric and cases in which the model and the people disagree. Write {count} different rubrics with which the model would
agree with the people on new cases of the same kind: state the rule behind the disagreements, not the cases.

Each rubric is complete and replaces the present one. It contains the placeholder {{submission}} once, where the answer
is inserted, and may contain {{input}} and {{ground_truth}}. It does not ask for a format of the reply.

{notice}

The present rubric:
{rubric}

{cases}

Reply with one JSON object: {{"rubrics": ["…", …]}} with {count} strings."""


class Disagreement(NamedTuple):
    """A result on which a judge and the label differ."""

    task: str
    answer: str
    label_passes: bool
    rationale: str | None


class Proposals(NamedTuple):
    """The rubrics that a model proposes, and what asking for them took."""

    rubrics: tuple[str, ...]
    usage: Usage | None


async def propose_rubrics(
    adapter: LLMAdapter, model: str, rubric: str, disagreements: Sequence[Disagreement], count: int
) -> Proposals:
    """Ask a model for rubrics; `DataError` if its reply has none."""
    fence = Fence()
    cases = "\n\n".join(_case(fence, number, one) for number, one in enumerate(disagreements[:_MAX_SHOWN], 1))
    prompt = _REQUEST.format(count=count, notice=fence.notice, rubric=fence.wrap("rubric", rubric), cases=cases)
    config = RunConfig(model=model, temperature=0.7, max_tokens=_MAX_TOKENS)
    response = await adapter.acomplete(prompt, config)
    return Proposals(read_proposals(response.content, count), response.usage)


def read_proposals(reply: str, count: int) -> tuple[str, ...]:
    """The rubrics in a reply, each once; `DataError` if there is none."""
    try:
        found = find_json(reply)
    except NotJsonError as error:
        raise DataError(f"the model proposed no rubric: {error}, got {quote(reply, 200)}") from None
    rubrics = found.get("rubrics") if isinstance(found, dict) else None
    texts = [one for one in rubrics if isinstance(one, str)] if isinstance(rubrics, list) else []
    usable = [one.strip() for one in texts if "{submission}" in one and len(one) <= MAX_RUBRIC_CHARS]
    if not usable:
        raise DataError(f"the model proposed no rubric with the placeholder {{submission}}, got {quote(reply, 200)}")
    return tuple(dict.fromkeys(usable))[:count]


def _case(fence: Fence, number: int, one: Disagreement) -> str:
    verdict = "pass, the model fail" if one.label_passes else "fail, the model pass"
    why = f"\nThe model's reason:\n{fence.wrap('reason', one.rationale[:_MAX_TEXT])}" if one.rationale else ""
    return (
        f"Case {number}: people say {verdict}.\n{fence.wrap('task', one.task[:_MAX_TEXT])}\n"
        f"{fence.wrap('answer', one.answer[:_MAX_TEXT])}{why}"
    )
