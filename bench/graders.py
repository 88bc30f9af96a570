"""What one grade costs, beside the floor: the bare Python that any such check needs.

Each line is the median of several rounds. "floor" is the least code that gives the same answer with
no options, no reasons and no checks; the difference is what gradeline adds.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter_ns

from gradeline import GradeContext, Sample, StringMatchGrader, TrueFalseGrader
from gradeline.graders import create, run_grader

TEXT = ("The quick brown fox jumps over the lazy dog near the river bank. " * 4)[:196] + " 42."
OTHER = TEXT.upper()
ROUNDS = 9
BUDGETS = {"string-match": 5.0, "true-false": 5.0, "five text rules": 15.0, "five regex rules": 40.0}

TEXT_RULES = [
    {"condition": "contains", "value": "lazy dog"},
    {"condition": "not_contains", "value": "cat"},
    {"condition": "starts_with", "value": "the quick"},
    {"condition": "length_max", "value": 500},
    {"condition": "contains_any", "value": ["river", "lake"]},
]
PATTERNS = [r"\d+\.$", r"(?i)LAZY\s+dog", r"\bfox\b", r"[a-z]+ over", r"^The \w+"]


def timed(call: Callable[[], object]) -> float:
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


TRUE = frozenset(("true", "yes", "1"))


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


COMPILED = [re.compile(pattern) for pattern in PATTERNS]


def floor_regex_rules() -> bool:
    return all(pattern.search(TEXT) for pattern in COMPILED)


def main() -> int:
    context = GradeContext(Sample(id=0, input="q", ground_truth=OTHER), TEXT)
    string, truth = StringMatchGrader(), TrueFalseGrader()
    rules = create("custom-rules", {"rules": TEXT_RULES})
    regexes = create("custom-rules", {"rules": [{"condition": "regex", "value": pattern} for pattern in PATTERNS]})
    assert rules.grade(context).passed
    assert regexes.grade(context).passed
    number = GradeContext(Sample(id=0, input="q", ground_truth="42"), TEXT)
    data = GradeContext(Sample(id=0, input="q", ground_truth='{"a": [1, 2, {"b": "c"}]}'), '{"a": [1, 2, {"b": "c"}]}')
    schema = create("json_schema", {"schema": {"type": "object", "required": ["a"]}})
    lines: list[tuple[str, Callable[[], object], Callable[[], object] | None]] = [
        ("string-match", lambda: string.grade(TEXT, OTHER), floor_string),
        ("true-false", lambda: truth.grade("yes", "true"), floor_true_false),
        ("five text rules", lambda: rules.grade(context), floor_text_rules),
        ("five regex rules", lambda: regexes.grade(context), floor_regex_rules),
        ("string-match, as a run records it", lambda: run_grader(string, context), floor_string),
        ("five text rules, as a run records it", lambda: run_grader(rules, context), floor_text_rules),
    ]
    others = [
        ("exact_match", create("exact_match"), context),
        ("contains", create("contains"), context),
        ("regex_match", create("regex_match"), GradeContext(Sample(0, "q", ground_truth=r"\d+\.$"), TEXT)),
        ("ascii_printable_only", create("ascii_printable_only"), context),
        ("numeric", create("numeric"), number),
        ("json_match", create("json_match"), data),
        ("json_schema", schema, data),
        ("similarity", create("similarity"), context),
        ("rouge", create("rouge"), context),
    ]
    lines += [(name, lambda grader=grader, ctx=ctx: grader.grade(ctx), None) for name, grader, ctx in others]
    print(f"{'200-character texts':<38}{'µs a call':>10}{'floor':>9}{'budget':>9}")
    late = []
    for name, call, floor in lines:
        cost = timed(call)
        least = f"{timed(floor):.2f}" if floor else ""
        budget = BUDGETS.get(name)
        if budget is not None and cost > budget:
            late.append(name)
        print(f"{name:<38}{cost:>10.2f}{least:>9}{budget or '':>9}{'  OVER' if name in late else ''}")
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
