"""What graders of OpenAI's evals do: templates and the namespaces ``item`` and ``sample`` of hosted evals, and the
matches of the registry.

Files that `gradeline import` writes call `call_grade`, `check_strings`, `match_normalized` and `match_json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

from gradeline.errors import MissingDataError
from gradeline.graders.text_overlap import squad_normal
from gradeline.model import GradeResult, Response, Sample, ToolCall, quote
from gradeline.parsing.json_text import NotJsonError, parse_json

DERIVED = "_imported"
"""Key of a case's metadata with the values that an import computed from the item; the rest is the item itself."""
MAX_TEMPLATE = 1_000_000
"""Maximum characters of a template."""
_MAX_STEPS = 50
_MAX_VARIABLES = 500

_TAG = re.compile(r"\{\{([^{}]*)\}\}")
_OTHER_TAG = re.compile(r"\{%|\{#")
_STEP = re.compile(r"\.([\w-]+)|\[(\d{1,9})\]|\[(?:\"([^\"\\]*)\"|'([^'\\]*)')\]")
_NAMESPACES = ("item", "sample")

Operation = Literal["eq", "ne", "like", "ilike"]
OPERATIONS: tuple[str, ...] = get_args(Operation)


class EvalTemplateError(ValueError):
    """A template that is not supported; the message says why."""


class EvalVariable(NamedTuple):
    """A value that a template inserts, such as ``{{ item.answer }}``."""

    namespace: str
    path: tuple[str | int, ...]

    def __str__(self) -> str:
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return self.namespace + "".join(steps)


Template = Sequence[str | EvalVariable]
Namespaces = Mapping[str, object]


def parse_template(text: str) -> Template:
    """The text and the variables of a template; `EvalTemplateError` for expressions, filters and statements."""
    if len(text) > MAX_TEMPLATE:
        raise EvalTemplateError(f"has {len(text):,} characters; at most {MAX_TEMPLATE:,} are read")
    if _OTHER_TAG.search(text):
        raise EvalTemplateError("has statements or comments ({% … %}); only variables are supported")
    pieces: list[str | EvalVariable] = []
    at = 0
    for count, tag in enumerate(_TAG.finditer(text)):
        if count >= _MAX_VARIABLES:
            raise EvalTemplateError(f"has more than {_MAX_VARIABLES} variables")
        pieces += [text[at : tag.start()], parse_variable(tag[1].strip())]
        at = tag.end()
    return [piece for piece in (*pieces, text[at:]) if piece != ""]


def parse_variable(text: str) -> EvalVariable:
    """A variable such as ``item.answers[0]``; `EvalTemplateError` for anything else."""
    name = next((name for name in _NAMESPACES if text.startswith(name)), None)
    if name is None:
        raise EvalTemplateError(f"{quote(text, 80)} is neither item.NAME nor sample.NAME")
    path: list[str | int] = []
    at = len(name)
    while at < len(text):
        step = _STEP.match(text, at)
        if step is None:
            raise EvalTemplateError(f"{quote(text, 80)} is not a plain path; filters and expressions are not supported")
        path.append(int(step[2]) if step[2] else next(part for part in step.groups() if part is not None))
        at = step.end()
        if len(path) > _MAX_STEPS:
            raise EvalTemplateError(f"{quote(text, 80)} is nested more than {_MAX_STEPS} levels deep")
    return EvalVariable(name, tuple(path))


def whole_variable(template: Template) -> EvalVariable | None:
    """The variable that is all of a template; None for other templates."""
    (only,) = template if len(template) == 1 else (None,)
    return only if isinstance(only, EvalVariable) else None


def variables_of(template: Template) -> list[EvalVariable]:
    """The variables of a template, in order."""
    return [piece for piece in template if isinstance(piece, EvalVariable)]


def value_of(variable: EvalVariable, namespaces: Namespaces) -> object:
    """The value of a variable; `MissingDataError` if there is none, or null."""
    value = namespaces.get(variable.namespace)
    for step in variable.path:
        value = _part(value, step)
    if value is None:
        raise MissingDataError(f"the case has no {variable}")
    return value


def _part(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def text_of(value: object) -> str:
    """A value in a text: strings unchanged, other data as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def render(template: Template, namespaces: Namespaces) -> str:
    """The text of a template; values are inserted as they are and never parsed again."""
    return "".join(piece if isinstance(piece, str) else text_of(value_of(piece, namespaces)) for piece in template)


def item_of(sample: Sample) -> dict[str, Any]:
    """The namespace ``item`` of an imported case."""
    return {name: value for name, value in sample.metadata.items() if name != DERIVED}


def sample_of(submission: str, response: Response) -> dict[str, Any]:
    """The namespace ``sample`` of a response. Without JSON it has no ``output_json``, with unknown tools no tools."""
    found: dict[str, Any] = {"output_text": submission}
    with suppress(NotJsonError):
        found["output_json"] = parse_json(submission)
    message: dict[str, Any] = {"role": "assistant", "content": submission}
    if response.trajectory is not None and response.trajectory.tools_known:
        calls = [_tool_call(call) for call in response.trajectory.tool_calls()]
        found["output_tools"] = calls
        message |= {"tool_calls": calls} if calls else {}
    found["choices"] = [{"index": 0, "finish_reason": response.stop_reason, "message": message}]
    return found


def _tool_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def call_grade(grade: Callable[..., object], sample: Sample, submission: str, response: Response) -> GradeResult:
    """The result of a ``grade(sample, item)`` as a grade; its score must be from 0 to 1."""
    score = grade(sample_of(submission, response), item_of(sample))
    if isinstance(score, bool | int | float):
        return GradeResult(float(score))
    raise TypeError(f"grade() returned {quote(score)}; return a number from 0 to 1")


def check_strings(
    operation: Operation, left: str, right: str, sample: Sample, submission: str, response: Response
) -> GradeResult:
    """A string check of two templates: eq, ne, like (the first contains the second) or ilike (without case)."""
    namespaces = {"item": item_of(sample), "sample": sample_of(submission, response)}
    value, reference = (render(parse_template(text), namespaces) for text in (left, right))
    match operation:
        case "eq":
            holds = value == reference
        case "ne":
            holds = value != reference
        case "like":
            holds = reference in value
        case "ilike":
            holds = reference.casefold() in value.casefold()
    return GradeResult(float(holds), f"{quote(value, 80)} {operation} {quote(reference, 80)}: {holds}")


def match_normalized(sample: Sample, submission: str) -> GradeResult:
    """FuzzyMatch: without case, punctuation and articles the response contains an ideal answer, or is part of one."""
    ideal = next((one for one in _ideals(sample) if _contain(squad_normal(submission), squad_normal(one))), None)
    return GradeResult(float(ideal is not None), "no match" if ideal is None else f"matches {quote(ideal, 80)}")


def _contain(left: str, right: str) -> bool:
    return left in right or right in left if left and right else left == right


def match_json(sample: Sample, submission: str) -> GradeResult:
    """JsonMatch: the response is the same JSON as an ideal answer; null is never the same."""
    try:
        data = parse_json(submission)
    except NotJsonError as error:
        return GradeResult(0.0, f"the response is not JSON: {error}")
    ideal = next((one for one in _ideals(sample) if _same_json(data, parse_json(one))), None)
    return GradeResult(float(ideal is not None), "no match" if ideal is None else f"matches {quote(ideal, 80)}")


def _same_json(left: object, right: object) -> bool:
    if left is None or right is None:
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same_json(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same_json, left, right))
    return left == right


def _ideals(sample: Sample) -> list[str]:
    ideals = sample.metadata.get("ideal")
    if not isinstance(ideals, list) or not ideals:
        raise MissingDataError("the case has no metadata.ideal")
    return [str(ideal) for ideal in ideals]
