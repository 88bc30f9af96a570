"""What one grade costs, next to the floor and the same graders of other tools.

Each figure is the median of several rounds. The floor is the least Python that gives the same answer
with no options, no reasons and no checks. Other tools are called through their own public interface,
with objects made beforehand, as a loop over samples would.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from gradeline import GradeContext, Sample, StringMatchGrader, TrueFalseGrader
from gradeline.graders import create, run_grader
from measure import exit_code, judged, print_table

Call = Callable[[], object]

TEXT = ("The quick brown fox jumps over the lazy dog near the river bank. " * 4)[:196] + " 42."
OTHER = TEXT.upper()
JSON_TEXT = '{"a": [1, 2, {"b": "c"}], "name": "' + "x" * 160 + '"}'
SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "array"}}}
ROUNDS = 9

TEXT_RULES = [
    {"condition": "contains", "value": "lazy dog"},
    {"condition": "not_contains", "value": "cat"},
    {"condition": "starts_with", "value": "the quick"},
    {"condition": "length_max", "value": 500},
    {"condition": "contains_any", "value": ["river", "lake"]},
]
FAILING = ("lazy dog", "cat", "fox", "river", "lake")
PATTERNS = [r"\d+\.$", r"(?i)LAZY\s+dog", r"\bfox\b", r"[a-z]+ over", r"^The \w+"]
COMPILED = [re.compile(pattern) for pattern in PATTERNS]
TRUE = frozenset(("true", "yes", "1"))


class Line(NamedTuple):
    name: str
    call: Call
    floor: Call | None = None
    budget: float | None = None
    peer: str = ""


def timed(call: Call) -> float:
    """Microseconds a call: the median round."""
    count = 1
    while True:
        started = perf_counter_ns()
        for _ in range(count):
            call()
        if perf_counter_ns() - started > 10_000_000:
            break
        count *= 2
    rounds = []
    for _ in range(ROUNDS):
        started = perf_counter_ns()
        for _ in range(count):
            call()
        rounds.append((perf_counter_ns() - started) / count / 1000)
    return median(rounds)


def floor_string() -> bool:
    return TEXT.casefold() == OTHER.casefold()


def floor_true_false() -> bool:
    return ("yes".strip().lower() in TRUE) == ("true".strip().lower() in TRUE)


def floor_text_rules() -> bool:
    text = TEXT.casefold()
    return (
        "lazy dog" in text
        and "cat" not in text
        and text.startswith("the quick")
        and len(TEXT) <= 500
        and any(word in text for word in ("river", "lake"))
    )


def floor_regex_rules() -> bool:
    return all(pattern.search(TEXT) for pattern in COMPILED)


def ours() -> list[Line]:
    context = GradeContext(Sample(id=0, input="q", ground_truth=OTHER), TEXT)
    pattern = GradeContext(Sample(id=0, input="q", ground_truth=r"\d+\.$"), TEXT)
    missed = GradeContext(Sample(id=0, input="q", ground_truth=OTHER), "zzz " * 50)
    failing = create("custom-rules", {"rules": [{"condition": "contains", "value": word} for word in FAILING]})
    number = GradeContext(Sample(id=0, input="q", ground_truth="42"), TEXT)
    data = GradeContext(Sample(id=0, input="q", ground_truth=JSON_TEXT), JSON_TEXT)
    string, truth = StringMatchGrader(), TrueFalseGrader()
    rules = create("custom-rules", {"rules": TEXT_RULES})
    regexes = create("custom-rules", {"rules": [{"condition": "regex", "value": pattern} for pattern in PATTERNS]})
    if not (rules.grade(context).passed and regexes.grade(context).passed):
        raise SystemExit("the rules must hold, else less than five are timed")
    return [
        Line("string-match", lambda: string.grade(TEXT, OTHER), floor_string, 5.0, "exact"),
        Line("true-false", lambda: truth.grade("yes", "true"), floor_true_false, 5.0),
        Line("five text rules", lambda: rules.grade(context), floor_text_rules, 15.0),
        Line("five text rules, all failing", lambda: failing.grade(missed), None, 15.0),
        Line("five regex rules, all failing", lambda: regexes.grade(missed), None, 40.0),
        Line("five regex rules", lambda: regexes.grade(context), floor_regex_rules, 40.0),
        Line("string-match, as a run records it", lambda: run_grader(string, context), floor_string),
        Line("five text rules, as a run records it", lambda: run_grader(rules, context), floor_text_rules),
        *(
            Line(kind, partial(create(kind, config).grade, ctx), peer=peer)
            for kind, config, ctx, peer in (
                ("exact_match", {}, context, "exact"),
                ("contains", {}, context, "contains"),
                ("regex_match", {}, pattern, ""),
                ("ascii_printable_only", {}, context, ""),
                ("numeric", {}, number, ""),
                ("json_match", {}, data, "json"),
                ("json_schema", {"schema": SCHEMA}, data, "schema"),
                ("similarity", {}, context, "similar"),
                ("rouge", {}, context, ""),
            )
        ),
    ]


def peers() -> dict[str, list[tuple[str, Call]]]:
    """What other tools have of the same, by name of the comparison; empty where they are not installed."""
    try:
        from autoevals import ExactMatch, JSONDiff, Levenshtein, ValidJSON
        from pydantic_evals.evaluators import Contains, EqualsExpected, EvaluatorContext
        from pydantic_evals.otel.span_tree import SpanTree
    except ImportError:
        return {}
    context = EvaluatorContext(
        name="case",
        inputs="q",
        metadata=None,
        expected_output=OTHER,
        output=TEXT,
        duration=0.0,
        _span_tree=SpanTree(),
        attributes={},
        metrics={},
    )
    equals, contains = EqualsExpected(), Contains(value="LAZY DOG", case_sensitive=False)
    exact, similar, valid, diff = ExactMatch(), Levenshtein(), ValidJSON(schema=SCHEMA), JSONDiff()
    return {
        "exact": [
            ("pydantic-evals EqualsExpected", lambda: equals.evaluate(context)),
            ("autoevals ExactMatch", lambda: exact.eval(output=TEXT, expected=OTHER)),
        ],
        "contains": [("pydantic-evals Contains", lambda: contains.evaluate(context))],
        "similar": [("autoevals Levenshtein", lambda: similar.eval(output=TEXT, expected=OTHER))],
        "schema": [("autoevals ValidJSON", lambda: valid.eval(output=JSON_TEXT))],
        "json": [("autoevals JSONDiff", lambda: diff.eval(output=JSON_TEXT, expected=JSON_TEXT))],
    }


def row(line: Line, others: Sequence[tuple[str, Call]]) -> tuple[str, ...]:
    cost = timed(line.call)
    floor = f"{timed(line.floor):.2f}" if line.floor else ""
    beside = ", ".join(f"{name} {timed(call):.2f}" for name, call in others)
    return line.name, f"{cost:.2f}", floor, judged(cost, line.budget, at_least=False), beside


def main() -> int:
    others = peers()
    rows = [row(line, others.get(line.peer, ())) for line in ours()]
    print_table("200-character texts", ("grader", "µs a call", "floor", "budget", "other tools, µs"), rows)
    if not others:
        print("Other tools are not installed; make bench installs them.")
    return exit_code(rows)


if __name__ == "__main__":
    sys.exit(main())
