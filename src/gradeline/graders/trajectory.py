"""Grader of trajectories: number of steps and tool calls, which tools, their order, and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Annotated, Any, NamedTuple

from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import MissingDataError, Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.model import Config, GradeContext, GradeResult, ToolCall, Trajectory, canonical_json, described, quote
from gradeline.model.response import UNKNOWN_TOOL_RESULTS

_SHOWN = 8
_SHOWN_CHARS = 80


Count = Annotated[int, Meta(ge=0)]
Tools = Annotated[list[str], Meta(min_length=1)]


class TrajectoryConfig(Config, frozen=True):
    """Options of `TrajectoryGrader`."""

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
    allow_repeats: Annotated[
        bool, described("Allow consecutive tool calls with the same name and arguments (default true).")
    ] = True
    max_errors: Annotated[Count | UnsetType, described("Maximum tool calls that return an error.")] = UNSET

    def faults(self) -> Iterator[Problem]:
        if self.min_steps is not UNSET and self.max_steps is not UNSET and self.min_steps > self.max_steps:
            yield Problem("min_steps", f"{self.min_steps} is more than max_steps, {self.max_steps}")
        forbidden = set(self.forbidden_tools or ())
        for name, tools in (("required_tools", self.required_tools), ("order", self.order)):
            for tool in sorted(forbidden & set(tools or ())):
                yield Problem(name, f"{tool!r} is also in forbidden_tools")

    def has_check(self, name: str) -> bool:
        """Whether this check is enabled."""
        return not self.allow_repeats if name == "allow_repeats" else getattr(self, name) is not UNSET


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
        faults = {option: _CHECKS[option](value, seen) for option, value in enabled.items()}
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
    banned = set(forbidden)
    called = [tool for tool in seen.tools if tool in banned]
    return f"called {_tools(called)}" if called else None


def _required_tools(required: Sequence[str], seen: _Facts) -> str | None:
    called = set(seen.tools)
    missing = [tool for tool in required if tool not in called]
    return f"{_tools(missing)} not called; called {_tools(seen.tools)}" if missing else None


def _order(order: Sequence[str], seen: _Facts) -> str | None:
    calls = iter(seen.tools)
    for position, tool in enumerate(order):
        if tool not in calls:  # advances the iterator past the call that was found
            after = f" after {_tools(order[:position])}" if position else ""
            return f"{_tools([tool])} not called{after}; called {_sequence(seen.tools)}"
    return None


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
    "allow_repeats": _no_repeats,
    "max_errors": _max_errors,
}
"""For each option the check, which returns the problem or None."""


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
