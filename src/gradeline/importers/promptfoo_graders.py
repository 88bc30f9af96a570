"""promptfoo's assertions about a response and its tool calls, as graders of the suite; types without a counterpart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import floor

from gradeline.importers.promptfoo_code import javascript, python, ruby, webhook
from gradeline.importers.promptfoo_judges import JUDGED
from gradeline.importers.promptfoo_rules import texts_of
from gradeline.importers.promptfoo_types import (
    EXPECTED,
    Assertion,
    NoCounterpartError,
    Outcome,
    Scope,
    SuiteGrader,
    grader_options,
    number_of,
)
from gradeline.model import quote


def latency(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    return SuiteGrader(grader_options("latency", max_ms=_threshold(assertion, "in milliseconds")), "grader latency")


def cost(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    return SuiteGrader(grader_options("cost", max_cost=_threshold(assertion, "in dollars")), "grader cost")


def _threshold(assertion: Assertion, unit: str) -> float:
    if assertion.threshold is None:
        raise NoCounterpartError(f"needs a threshold {unit}")
    return assertion.threshold


def finish_reason(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    if not isinstance(assertion.value, str) or not assertion.value:
        raise NoCounterpartError(f"needs a reason as its value, got {quote(assertion.value, 40)}")
    option = "forbidden" if assertion.negated else "allowed"
    config = grader_options("finish_reason", **{option: EXPECTED})
    return SuiteGrader(config, "grader finish_reason", [assertion.value], inverted=True)


def guardrails(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    differs = "fails where the answer ended with content_filter; map stop_reason under the target's response"
    return SuiteGrader(
        grader_options("finish_reason", forbidden=["content_filter"]), "grader finish_reason", differs=differs
    )


def overlap(kind: str, default: float, differs: str = "", **options: object) -> Callable[[Assertion, Scope], Outcome]:
    """A mapping for a measure of common words; the best of several references counts."""

    def mapping(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
        least = default if assertion.threshold is None else assertion.threshold
        references = assertion.value if isinstance(assertion.value, list) else [assertion.text()]
        if not references or not all(isinstance(text, str) and text for text in references):
            raise NoCounterpartError(f"needs a text or a list of texts as its value, got {quote(references, 60)}")
        config = grader_options(kind, **options, references=EXPECTED, threshold=least)
        return SuiteGrader(config, f"grader {kind}", references, differs)

    return mapping


def tool_call_f1(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    names = texts_of(assertion) if assertion.value else []
    if not names:
        raise NoCounterpartError("needs a list of tools as its value")
    least = 1.0 if assertion.threshold is None else assertion.threshold
    calls = [{"name": name, "arguments": {}} for name in dict.fromkeys(names)]
    differs = "the calls that the target reports are compared, not JSON in the text"
    return SuiteGrader(grader_options("tool_calls", mode="f1", threshold=least), "grader tool_calls", calls, differs)


def valid_calls(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    tools = assertion.config.get("tools", assertion.config.get("functions"))
    config = grader_options("tool_calls", mode="schema", tools=tools if isinstance(tools, list) else "$target.tools")
    differs = "the calls that the target reports are checked against the tools of the target, not JSON in the text"
    return SuiteGrader(config, "grader tool_calls", differs=differs)


_STEPS = "tool calls of the trajectory count; promptfoo reads spans of a trace"


def tools_used(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    value = assertion.value
    if isinstance(value, Mapping):
        name, least, most = _counted(value)
        bounds = {"min": 1 if least is None else least, **({} if most is None else {"max": most})}
        return _trajectory(False, counts={name: bounds})
    tools = value if isinstance(value, list) else [value]
    if not tools or not all(isinstance(tool, str) and tool for tool in tools):
        raise NoCounterpartError(f"needs names of tools as its value, got {quote(value, 60)}")
    return _trajectory(
        assertion.negated, tools, **{"forbidden_tools" if assertion.negated else "required_tools": EXPECTED}
    )


def _trajectory(inverted: bool, expected: object = None, **options: object) -> SuiteGrader:
    return SuiteGrader(grader_options("trajectory", **options), "grader trajectory", expected, _STEPS, inverted)


def _counted(value: Mapping[str, object]) -> tuple[str, int | None, int | None]:
    name = value.get("name", value.get("pattern"))
    if not isinstance(name, str) or not name:
        raise NoCounterpartError("needs a name or a pattern")
    return name, _whole(value.get("min")), _whole(value.get("max"))


def _whole(value: object) -> int | None:
    return None if value is None else floor(number_of(value, "number of calls"))


def _range(negated: bool, least: int | None, most: int | None) -> dict[str, object]:
    if negated:
        return {"max": 0} if least is None or least <= 1 else {"max": least - 1}
    bounds: dict[str, object] = {"min": least if least is not None else (1 if most is None else 0)}
    return bounds if most is None else {**bounds, "max": most}


def tool_sequence(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    value = assertion.value
    steps, mode = (value.get("steps"), value.get("mode")) if isinstance(value, Mapping) else (value, None)
    names = [step.get("name") or step.get("pattern") if isinstance(step, Mapping) else step for step in _listed(steps)]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise NoCounterpartError(f"needs the names of tools as its steps, got {quote(steps, 60)}")
    return _trajectory(False, names, order=EXPECTED, exact=True if mode == "exact" else None)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def tool_arguments(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    value = assertion.value
    if not isinstance(value, Mapping):
        raise NoCounterpartError(f"needs {{name, args}} as its value, got {quote(value, 60)}")
    name = value.get("name", value.get("pattern"))
    args, defaults = value.get("args", value.get("arguments")), value.get("defaults", {})
    mode = value.get("mode", "partial")
    if not isinstance(name, str) or not name:
        raise NoCounterpartError("needs the name of a tool")
    if not isinstance(args, Mapping) or not isinstance(defaults, Mapping):
        raise NoCounterpartError("needs mappings as its args and defaults")
    if mode not in ("partial", "exact"):
        raise NoCounterpartError(f"has the mode {quote(mode, 40)}; write partial or exact")
    allowed: dict[str, object] = {argument: [default, ""] for argument, default in defaults.items()}
    allowed |= {argument: [expected] for argument, expected in args.items()}
    allowed |= {argument: [args[argument], ""] for argument in args if defaults.get(argument) == args[argument]}
    allowed = allowed if mode == "exact" else {argument: allowed[argument] for argument in args}
    config = grader_options("tool_calls", mode="superset", args=mode, ignore=_ignored(value.get("ignore")))
    return SuiteGrader(config, "grader tool_calls", [{"name": name, "arguments": allowed}], _STEPS)


def _ignored(written: object) -> list[str] | None:
    ignored = [written] if isinstance(written, str) else written
    if ignored is None:
        return None
    if not isinstance(ignored, list) or not all(isinstance(name, str) and name for name in ignored):
        raise NoCounterpartError(f"needs names of arguments as its ignore, got {quote(written, 60)}")
    return ignored


def step_count(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    value = (
        assertion.value if isinstance(assertion.value, Mapping) else {"min": assertion.value, "max": assertion.value}
    )
    least, most = _whole(value.get("min")), _whole(value.get("max"))
    if least is None and most is None:
        raise NoCounterpartError("needs min or max")
    if value.get("type") not in (None, "tool") or (value.get("type") is None and value.get("pattern") is not None):
        raise NoCounterpartError("counts steps that are not tool calls, which a trajectory does not have by type")
    if value.get("type") == "tool":
        return _trajectory(False, counts={str(value.get("pattern") or "*"): _range(False, least or 0, most)})
    differs = "a step is a tool call or a message of the agent with text; promptfoo counts spans of a trace"
    return SuiteGrader(
        grader_options("trajectory", min_steps=least, max_steps=most), "grader trajectory", differs=differs
    )


def skill_used(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    value = assertion.value
    tests: list[tuple[object, int | None, int | None]] = [(name, None, None) for name in _listed(value) or [value]]
    if isinstance(value, Mapping):
        tests = [_counted(value)]
    calls: list[dict[str, object]] = []
    for name, least, most in tests:
        if not isinstance(name, str) or not name:
            raise NoCounterpartError(f"needs names of skills as its value, got {quote(value, 60)}")
        bounds = {"min": 0, **_range(True, least, most)} if assertion.negated else _range(False, least, most)
        calls.append({"tool": "Skill", "patterns": {"skill": name}, **bounds})
    if not calls:
        raise NoCounterpartError("needs names of skills")
    differs = "calls of a tool Skill with the argument skill count; promptfoo reads skillCalls of the provider"
    return SuiteGrader(
        grader_options("trajectory", calls=calls), "grader trajectory", differs=differs, inverted=assertion.negated
    )


GRADERS: Mapping[str, Callable[[Assertion, Scope], Outcome]] = {
    **JUDGED,
    "bleu": overlap("bleu", 0.5),
    "cost": cost,
    "finish-reason": finish_reason,
    "gleu": overlap("gleu", 0.5),
    "guardrails": guardrails,
    "is-valid-function-call": valid_calls,
    "is-valid-openai-function-call": valid_calls,
    "is-valid-openai-tools-call": valid_calls,
    "javascript": javascript,
    "latency": latency,
    "python": python,
    "rouge-n": overlap("rouge", 0.75, "words are split at other characters", variant=1),
    "ruby": ruby,
    "skill-used": skill_used,
    "tool-call-f1": tool_call_f1,
    "trajectory:step-count": step_count,
    "trajectory:tool-args-match": tool_arguments,
    "trajectory:tool-sequence": tool_sequence,
    "trajectory:tool-used": tools_used,
    "webhook": webhook,
}
"""The types that become graders of the suite or criteria for a judge, with their mappings."""

UNMAPPED: Mapping[str, str] = {
    "agent-rubric": "needs an agent that inspects the workspace; write a grader of kind command that runs it",
    "classifier": "needs a classification model; put it behind a grader of kind http",
    "contains-sql": "gradeline has no SQL parser; write a grader in Python with sqlglot",
    "human": "is a verdict of a person; import the results file, whose verdicts become labels",
    "is-sql": "gradeline has no SQL parser; write a grader in Python with sqlglot",
    "max-score": "selects the best output of a row; compare the runs with gradeline compare",
    "meteor": "needs WordNet; use token_f1, rouge or a judge",
    "perplexity": "needs log-probabilities of the output, which responses do not have",
    "perplexity-score": "needs log-probabilities of the output, which responses do not have",
    "select-best": "selects the best output of a row; compare two runs with gradeline pair and the same criterion",
    "trace-error-spans": "needs spans of a trace; use a trajectory grader with max_errors for failed tool calls",
    "trace-span-count": "needs spans of a trace; use a trajectory grader with counts for tool calls",
    "trace-span-duration": "needs spans of a trace; use a latency grader for the whole call",
}
"""The types without a counterpart, and what to do instead."""
