"""Grader of trajectories: number of steps and tool calls, which tools, their order, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Annotated, Any, NamedTuple

from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import MissingDataError, Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.case_values import (
    REFERENCES,
    Reference,
    case_count,
    case_texts,
    case_value,
    is_reference,
    reference_faults,
)
from gradeline.model import Config, GradeContext, GradeResult, ToolCall, Trajectory, canonical_json, described, quote
from gradeline.model.response import UNKNOWN_TOOL_RESULTS
from gradeline.parsing.json_text import json_within
from gradeline.parsing.patterns import matches_glob

_SHOWN = 8
_SHOWN_CHARS = 80


Natural = Annotated[int, Meta(ge=0)]
Count = Natural | Reference
Tools = Annotated[list[str], Meta(min_length=1)] | Reference
_COUNT = "a whole number of at least 0"
_TOOLS = "a list of tools"
_MAX_TESTS = 100


class ToolCount(Config, frozen=True):
    """How often a tool is called."""

    min: Annotated[Count, described("Minimum calls (default 0).", expected=f"{_COUNT}, {REFERENCES}")] = 0
    max: Annotated[
        Count | UnsetType, described("Maximum calls (default: any number).", expected=f"{_COUNT}, {REFERENCES}")
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        for name in ("min", "max"):
            yield from reference_faults(name, getattr(self, name), _COUNT)
        if isinstance(self.min, int) and isinstance(self.max, int) and self.min > self.max:
            yield Problem("min", f"{self.min} is more than max, {self.max}")


class CallTest(ToolCount, frozen=True, kw_only=True):
    """How often a tool is called with certain arguments."""

    tool: Annotated[str, described("Name of the tool, with * and ? as wildcards.", min_length=1)]
    args: Annotated[
        dict[str, Any],
        described(f"Values of arguments, or {REFERENCES}; objects may have more keys (default none)."),
    ] = {}  # noqa: RUF012 - msgspec copies it
    patterns: Annotated[dict[str, str], described("Texts of arguments, with * and ? as wildcards (default none).")] = {}  # noqa: RUF012 - msgspec copies it
    only: Annotated[bool, described("Allow no other arguments (default false).")] = False
    min: Annotated[Count, described("Minimum calls (default 1).", expected=f"{_COUNT}, {REFERENCES}")] = 1


class TrajectoryConfig(Config, frozen=True):
    """Options of `TrajectoryGrader`. Names of tools may have * and ? as wildcards."""

    min_steps: Annotated[
        Count | UnsetType,
        described("Minimum steps. A step is a tool call, or a message of the agent with text."),
    ] = UNSET
    max_steps: Annotated[
        Count | UnsetType,
        described("Maximum steps. A step is a tool call, or a message of the agent with text."),
    ] = UNSET
    max_tool_calls: Annotated[Count | UnsetType, described("Maximum tool calls.")] = UNSET
    forbidden_tools: Annotated[Tools | UnsetType, described("Tools that must not be called.")] = UNSET
    required_tools: Annotated[Tools | UnsetType, described("Tools that must be called, in any order.")] = UNSET
    order: Annotated[
        Tools | UnsetType,
        described("Tools that must be called in this order; other calls may come between them."),
    ] = UNSET
    exact: Annotated[bool, described("With order: no other calls may be made (default false).")] = False
    counts: Annotated[dict[str, ToolCount] | UnsetType, described("Number of calls of tools: {tool: {min, max}}.")] = (
        UNSET
    )
    calls: Annotated[
        list[CallTest] | UnsetType,
        described("Calls with certain arguments that must be made: {tool, args, patterns, only, min, max}."),
    ] = UNSET
    allow_repeats: Annotated[
        bool, described("Allow consecutive tool calls with the same name and arguments (default true).")
    ] = True
    max_errors: Annotated[Count | UnsetType, described("Maximum tool calls that return an error.")] = UNSET

    def faults(self) -> Iterator[Problem]:
        for name in ("min_steps", "max_steps", "max_tool_calls", "max_errors"):
            yield from reference_faults(name, getattr(self, name), _COUNT)
        if isinstance(self.min_steps, int) and isinstance(self.max_steps, int) and self.min_steps > self.max_steps:
            yield Problem("min_steps", f"{self.min_steps} is more than max_steps, {self.max_steps}")
        for name in ("forbidden_tools", "required_tools", "order"):
            yield from reference_faults(name, getattr(self, name), _TOOLS)
        forbidden = set(_listed(self.forbidden_tools))
        for name, tools in (("required_tools", self.required_tools), ("order", self.order)):
            for tool in sorted(forbidden & set(_listed(tools))):
                yield Problem(name, f"{tool!r} is also in forbidden_tools")
        if self.exact and self.order is UNSET:
            yield Problem("exact", "requires order: the tools that must be called")
        for tool, count in (self.counts or {}).items():
            yield from (fault.within(f"counts.{tool}") for fault in count.faults())
        calls = self.calls or []
        for index, test in enumerate(calls):
            yield from (fault.within(f"calls[{index}]") for fault in test.faults())
        if len(calls) > _MAX_TESTS:
            yield Problem("calls", f"has {len(calls)} tests; at most {_MAX_TESTS} are made")

    def has_check(self, name: str) -> bool:
        """Whether this check is enabled."""
        return not self.allow_repeats if name == "allow_repeats" else getattr(self, name) is not UNSET


def _listed(tools: list[str] | str | UnsetType) -> list[str]:
    return tools if isinstance(tools, list) else []


class TrajectoryGrader(DeclaredGrader[TrajectoryConfig]):
    """Checks the path to the answer: number of steps and tool calls, which tools, their order, and errors.

    A step is a tool call, or a message of the agent with text: a message with text and two calls is three steps.
    Without options it checks that no tool call returned an error. A response that does not report tool calls is an
    error of type `missing`; so are `max_errors` and the default check if calls are reported without results.
    """

    kind = "trajectory"
    name = "Trajectory"
    scoring_guide = (
        "The share of the enabled checks that hold; passes only when all of them do. "
        "Without options: no tool call returned an error. Unknown tool use is an error."
    )
    version = 2
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        if ctx.response is None:
            raise MissingDataError("the context has no response")
        seen = _Facts.of(ctx.response.tool_use())
        enabled = {option: getattr(self.options, option) for option in _CHECKS if self.options.has_check(option)}
        enabled = enabled or {"max_errors": 0}
        faults = {option: _CHECKS[option](_resolved(value, ctx, option), seen) for option, value in enabled.items()}
        if self.options.exact:
            order = _resolved(self.options.order, ctx, "order")
            faults["order"] = _exactly(order, seen)
        failed = {option: fault for option, fault in faults.items() if fault is not None}
        if failed:
            rationale = "; ".join(f"{option}: {fault}" for option, fault in failed.items())
        else:
            rationale = "The check holds" if len(enabled) == 1 else f"All {len(enabled)} checks hold"
        metadata = {
            "steps": seen.steps,
            "tool_calls": len(seen.calls),
            "errors": None if seen.unreported else seen.errors,
            "failed": list(failed),
        }
        return GradeResult((len(enabled) - len(failed)) / len(enabled), rationale, metadata, not failed)


def _resolved(value: Any, ctx: GradeContext, option: str) -> Any:
    """An option with the values of the case for its references."""
    if isinstance(value, str):
        return (case_texts if option in _LISTS else case_count)(value, ctx, option)
    if option == "counts":
        return {tool: _bounds(count, ctx, f"counts.{tool}") for tool, count in value.items()}
    if option == "calls":
        return [_Test.of(test, ctx, f"calls[{index}]") for index, test in enumerate(value)]
    return value


class _Bounds(NamedTuple):
    """The numbers of calls that are accepted."""

    min: int
    max: int | None

    def fault(self, number: int, what: str) -> str | None:
        if number < self.min:
            return f"{what} {_count(number, 'time')}, at least {self.min:,}"
        if self.max is not None and number > self.max:
            return f"{what} {_count(number, 'time')}, at most {self.max:,}"
        return None


def _bounds(count: ToolCount, ctx: GradeContext, path: str) -> _Bounds:
    most = None if count.max is UNSET else case_count(count.max, ctx, f"{path}.max")
    return _Bounds(case_count(count.min, ctx, f"{path}.min"), most)


class _Test(NamedTuple):
    """A `CallTest` with the values of the case."""

    test: CallTest
    args: Mapping[str, Any]
    bounds: _Bounds

    @classmethod
    def of(cls, test: CallTest, ctx: GradeContext, path: str) -> _Test:
        args = {
            name: case_value(value, ctx, f"{path}.args.{name}") if is_reference(value) else value
            for name, value in test.args.items()
        }
        return cls(test, args, _bounds(test, ctx, path))

    def holds(self, call: ToolCall) -> bool:
        """Whether a call is of the tool and has the arguments."""
        if not matches_glob(call.name, self.test.tool):
            return False
        arguments = call.parsed()
        expected = self.args.keys() | self.test.patterns.keys()
        if arguments is None or not expected <= arguments.keys() or (self.test.only and len(arguments) > len(expected)):
            return False
        texts = [(arguments[name], pattern) for name, pattern in self.test.patterns.items()]
        return all(isinstance(text, str) and matches_glob(text, pattern) for text, pattern in texts) and all(
            json_within(value, arguments[name]) for name, value in self.args.items()
        )


class _Facts(NamedTuple):
    """The facts of a trajectory that the checks use."""

    steps: int
    calls: Sequence[ToolCall]
    errors: int
    """Calls that are known to have returned an error."""
    unreported: int
    """Calls whose result is not reported: any of them may have returned an error."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> _Facts:
        calls = tuple(trajectory.tool_calls())
        spoken = sum(1 for message in trajectory.messages("assistant") if message.content.strip())
        results = list(trajectory.messages("tool"))
        errors = sum(1 for message in results if message.is_error)
        return cls(spoken + len(calls), calls, errors, max(len(calls) - len(results), 0))

    @property
    def tools(self) -> list[str]:
        return [call.name for call in self.calls]


def _min_steps(limit: int, seen: _Facts) -> str | None:
    return None if seen.steps >= limit else f"{_count(seen.steps, 'step')}, at least {limit:,}"


def _max_steps(limit: int, seen: _Facts) -> str | None:
    return _at_most(limit, seen.steps, "step")


def _max_tool_calls(limit: int, seen: _Facts) -> str | None:
    return _at_most(limit, len(seen.calls), "tool call")


def _max_errors(limit: int, seen: _Facts) -> str | None:
    if seen.errors <= limit < seen.errors + seen.unreported:
        raise MissingDataError(UNKNOWN_TOOL_RESULTS)
    return _at_most(limit, seen.errors, "error")


def _forbidden_tools(forbidden: Sequence[str], seen: _Facts) -> str | None:
    called = [tool for tool in seen.tools if any(matches_glob(tool, glob) for glob in forbidden)]
    return f"called {_tools(called)}" if called else None


def _required_tools(required: Sequence[str], seen: _Facts) -> str | None:
    called = set(seen.tools)
    missing = [tool for tool in required if not any(matches_glob(name, tool) for name in called)]
    return f"{_tools(missing)} not called; called {_tools(seen.tools)}" if missing else None


def _order(order: Sequence[str], seen: _Facts) -> str | None:
    calls = iter(seen.tools)
    for position, tool in enumerate(order):
        if not any(matches_glob(name, tool) for name in calls):  # advances past the call that was found
            after = f" after {_tools(order[:position])}" if position else ""
            return f"{_tools([tool])} not called{after}; called {_sequence(seen.tools)}"
    return None


def _exactly(order: Sequence[str], seen: _Facts) -> str | None:
    if len(seen.tools) == len(order) and all(map(matches_glob, seen.tools, order)):
        return None
    return f"called {_sequence(seen.tools)}, expected exactly {_sequence(order)}"


def _counts(counts: Mapping[str, _Bounds], seen: _Facts) -> str | None:
    numbers = {tool: sum(matches_glob(name, tool) for name in seen.tools) for tool in counts}
    return _joined(bounds.fault(numbers[tool], f"{_name(tool)} called") for tool, bounds in counts.items())


def _calls(tests: Sequence[_Test], seen: _Facts) -> str | None:
    return _joined(
        test.bounds.fault(sum(map(test.holds, seen.calls)), f"{_name(test.test.tool)} called with the arguments")
        for test in tests
    )


def _joined(faults: Iterable[str | None]) -> str | None:
    return "; ".join(fault for fault in faults if fault) or None


def _no_repeats(_: bool, seen: _Facts) -> str | None:
    keys = [(call.name, _arguments_key(call)) for call in seen.calls]
    repeated = [name for (name, key), following in pairwise(keys) if (name, key) == following]
    return f"repeated {_tools(repeated)}" if repeated else None


_CHECKS: Mapping[str, Callable[[Any, _Facts], str | None]] = {
    "min_steps": _min_steps,
    "max_steps": _max_steps,
    "max_tool_calls": _max_tool_calls,
    "forbidden_tools": _forbidden_tools,
    "required_tools": _required_tools,
    "order": _order,
    "counts": _counts,
    "calls": _calls,
    "allow_repeats": _no_repeats,
    "max_errors": _max_errors,
}
"""For each option the check, which returns the problem or None."""
_LISTS = frozenset({"forbidden_tools", "required_tools", "order"})
"""Checks that take a list of tools."""


def _at_most(limit: int, number: int, noun: str) -> str | None:
    return None if number <= limit else f"{_count(number, noun)}, at most {limit:,}"


def _arguments_key(call: ToolCall) -> bytes | str:
    """Equal for the same JSON, independent of spacing and key order."""
    arguments = call.parsed()
    try:
        return call.arguments if arguments is None else canonical_json(arguments)
    except RecursionError:
        return call.arguments


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _tools(names: Iterable[str]) -> str:
    """The tools' names, each once, with the number of occurrences."""
    counts = Counter(names)
    return _shown(
        [
            f"{_name(name)}{f' ({count:,} times)' if count > 1 else ''}"
            for name, count in islice(counts.items(), _SHOWN)
        ],
        len(counts),
    )


def _sequence(names: Sequence[str]) -> str:
    return _shown([_name(name) for name in names[:_SHOWN]], len(names))


def _shown(shown: Sequence[str], total: int) -> str:
    more = [f"{total - len(shown):,} more"] if total > len(shown) else []
    return ", ".join([*shown, *more]) or "none"


def _name(name: str) -> str:
    return quote(name, _SHOWN_CHARS)
