"""Grader of tool calls: compares the calls of the agent with the expected ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem, TooLargeError, UngradableError
from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.graders.bfcl import ArgumentValue, Functions, MismatchReason, Signature, plain_name
from gradeline.graders.case_values import REFERENCES, Reference, case_texts, case_value, reference_faults
from gradeline.graders.json_data import maximum_matching
from gradeline.graders.tool_schemas import ToolSchemas, tools_of
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.json_text import NotJsonError, json_key, json_within, parse_json, size_of
from gradeline.parsing.patterns import matches_glob

Mode = Literal["strict", "unordered", "subset", "superset", "schema", "f1"]

MAX_CALLS = 1000
"""Maximum number of expected and of actual calls: every pair may be compared."""
MAX_COMPARISONS = 20_000_000
"""Maximum comparisons of arguments over all pairs of calls: some seconds, in a worker process."""
_COMPARISON_NS = 700
"""Time for each of them, matching included."""

_SHOWN = 5
_SHOWN_CHARS = 80


class ToolCallsConfig(Config, frozen=True):
    """Options of `ToolCallsGrader`."""

    mode: Annotated[
        Mode,
        described(
            "strict (default): the expected calls in order. unordered: the expected calls in any order. "
            "subset: only expected calls. superset: all expected calls, others allowed. schema: every call is valid by "
            "the schemas of the tools, and there is one. f1: F1 of the names of expected and called tools."
        ),
    ] = "strict"
    args: Annotated[
        Literal["exact", "partial"],
        described("exact (default): only the expected arguments. partial: others too, also within objects."),
    ] = "exact"
    ignore: Annotated[
        list[str] | Reference,
        described(
            "Names of arguments that are not compared, with * and ? as wildcards (default none).",
            expected=f"a list of names, {REFERENCES}",
        ),
    ] = []  # noqa: RUF012 - msgspec copies it
    tools: Annotated[
        list[dict[str, Any]] | Reference | UnsetType,
        described(
            "For mode schema: definitions of the tools, in the format of OpenAI, Anthropic or Gemini; $target.tools; "
            f"or {REFERENCES} (default: the case's metadata.tools or metadata.functions).",
            expected=f"a list of tools, {REFERENCES}",
        ),
    ] = UNSET
    threshold: Annotated[float, described("For mode f1: minimum F1 to pass (default 1).", ge=0, le=1)] = 1.0
    preset: Annotated[
        Literal["bfcl"] | UnsetType,
        described(
            "bfcl: rules of the Berkeley function calling leaderboard, with the functions' descriptions "
            "from metadata.functions; always unordered."
        ),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("ignore", self.ignore, "a list of names")
        yield from reference_faults("tools", self.tools, "a list of tools")
        if self.preset == "bfcl" and (self.args != "exact" or self.ignore):
            yield Problem("args" if self.args != "exact" else "ignore", "conflicts with preset bfcl; keep one of them")


class ToolCallsGrader(DeclaredGrader[ToolCallsConfig]):
    """Compares the agent's tool calls with the expected ones and their allowed arguments.

    ``ground_truth`` is JSON: ``[{"name": ..., "arguments": {argument: [allowed, ...]}}]``. An empty string among the
    allowed values makes the argument optional; a value that is not a list is the only one allowed, so a list as a
    value is written ``[[...]]``. The submission is JSON ``[{"name": ..., "arguments": {...}}]``, as returned by the
    extractor ``tool_calls``, the default here; for an agent that writes its calls as JSON into its answer, use
    ``extractor: last_assistant``.
    """

    kind = "tool_calls"
    name = "Tool calls"
    scoring_guide = (
        "1.0 when the calls match in the selected mode, else 0.0; the rationale lists missing, extra and wrong calls. "
        "Mode f1 scores the F1 of the tools' names."
    )
    default_extractor = "tool_calls"
    local_chars = 80_000  # up to 520 ns each, for lists of small objects

    def result(self, ctx: GradeContext) -> GradeResult:
        if self.options.mode == "schema":
            return self._validated(ctx)
        if self.options.mode == "f1":
            return self._overlap(ctx)
        truth = _read_truth(ctx.expected)
        if self.options.preset == "bfcl":
            functions = Functions(ctx.sample.metadata)
            expected = [_ExpectedCall(functions.signature(call.name, call.allowed)) for call in truth]
            mode: Mode = "unordered"
            plain: Callable[[str], str] = plain_name
        else:
            ignored = _Ignored(case_texts(self.options.ignore, ctx, "ignore"))
            partial = self.options.args == "partial"
            expected = [_ExpectedCall(_signature(call, ignored, partial), extra=partial) for call in truth]
            mode = self.options.mode
            plain = str
        try:
            made = _read_made(ctx.submission, plain)
            if self.options.ignore:
                made = [call.without(ignored) for call in made]
        except _NotCallsError as fault:
            return binary_result(False, str(fault), {"matched": 0, "expected": len(truth), "made": 0})
        comparison = _CallMatching(truth, expected, made)
        holds = comparison.holds(mode)
        return binary_result(
            holds,
            comparison.success(mode) if holds else comparison.failure(mode),
            {"matched": len(comparison.pairs), "expected": len(truth), "made": len(made)},
        )

    def _validated(self, ctx: GradeContext) -> GradeResult:
        definitions, path = self._tools(ctx)
        schemas = ToolSchemas(definitions, path)
        try:
            made = _read_made(ctx.submission, str)
        except _NotCallsError as error:
            return binary_result(False, str(error), {"valid": 0, "made": 0})
        if len(made) > MAX_CALLS:
            raise TooLargeError(f"the submission has {len(made):,} calls; tool_calls takes at most {MAX_CALLS:,}")
        faults: list[str] = []
        for number, call in enumerate(made, 1):
            arguments = None if call.arguments is None else {name: one.value for name, one in call.arguments.items()}
            fault = schemas.fault(call.name, arguments, call.sent, len(ctx.submission))
            if fault is not None:
                faults.append(f"call {number}, {_show(call.name)}: {fault}")
        rationale = f"{_count(len(made), 'call')} made, all valid" if made else "No tool was called"
        if faults:
            more = [f"{len(faults) - _SHOWN} more invalid calls"] if len(faults) > _SHOWN else []
            rationale = "; ".join([*faults[:_SHOWN], *more])
        valid = {"valid": len(made) - len(faults), "made": len(made)}
        return binary_result(bool(made) and not faults, rationale, valid)

    def _tools(self, ctx: GradeContext) -> tuple[object, str]:
        tools = self.options.tools
        if tools is UNSET:
            return tools_of(ctx.sample.metadata), "metadata.tools"
        return (case_value(tools, ctx, "tools"), tools) if isinstance(tools, str) else (tools, "tools")

    def _overlap(self, ctx: GradeContext) -> GradeResult:
        expected = _read_names(ctx.expected)
        try:
            called = {call.name for call in _read_made(ctx.submission, str)}
        except _NotCallsError as fault:
            return GradeResult(0.0, str(fault), {"matched": 0, "expected": len(expected), "made": 0}, False)
        total = len(expected) + len(called)
        score = 2 * len(expected & called) / total if total else 1.0
        parts = [f"F1 of the tools' names {score:.3f}, threshold {self.options.threshold:g}"]
        parts += [f"missing: {_names(sorted(expected - called))}"] if expected - called else []
        parts += [f"extra: {_names(sorted(called - expected))}"] if called - expected else []
        counts = {"matched": len(expected & called), "expected": len(expected), "made": len(called)}
        return GradeResult(score, "; ".join(parts), counts, score >= self.options.threshold)


class _TrueCall(NamedTuple):
    """An expected call of the case, with a list of allowed values for each argument."""

    name: str
    allowed: Mapping[str, Sequence[Any]]


class _MadeCall(NamedTuple):
    """A call of the agent; ``arguments`` is None if ``sent`` is not a JSON object."""

    name: str
    plain: str
    arguments: Mapping[str, ArgumentValue] | None
    sent: object

    def without(self, ignored: _Ignored) -> _MadeCall:
        if self.arguments is None:
            return self
        return self._replace(arguments={name: one for name, one in self.arguments.items() if name not in ignored})


class _Ignored:
    """The names of arguments that are not compared."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._globs = globs

    def __contains__(self, name: str) -> bool:
        return any(matches_glob(name, glob) for glob in self._globs)


class _Mismatch(NamedTuple):
    """The argument because of which a call does not match."""

    argument: str
    why: MismatchReason


class _ExpectedCall:
    """An expected call with the rules of its arguments."""

    def __init__(self, signature: Signature, *, extra: bool = False) -> None:
        """``extra``: whether other arguments than the expected ones are allowed."""
        self.name, self._rules, self._required = signature
        self._extra = extra
        self.size = 1 + len(self._required) + sum(rule.size for rule in self._rules.values())

    def mismatch(self, arguments: Mapping[str, ArgumentValue]) -> _Mismatch | None:
        """The first mismatch of these arguments; None if the call matches."""
        for argument in self._required:
            if argument not in arguments:
                return _Mismatch(argument, "missing")
        known = 0
        for argument, rule in self._rules.items():
            given = arguments.get(argument)
            if given is None:
                if not rule.optional:
                    return _Mismatch(argument, "missing")
                continue
            known += 1
            why = rule.mismatch(given)
            if why:
                return _Mismatch(argument, why)
        if known < len(arguments) and not self._extra:
            return _Mismatch(next(argument for argument in arguments if argument not in self._rules), "unexpected")
        return None


class _Exact:
    """An argument whose value is compared as JSON."""

    size = 1

    def __init__(self, allowed: Sequence[Any]) -> None:
        self.optional = "" in allowed
        self._keys = frozenset(map(json_key, allowed))

    def mismatch(self, given: ArgumentValue) -> MismatchReason | None:
        return None if given.key in self._keys else "value"


class _Partial:
    """An argument whose value is compared as JSON; objects in it may have more keys than expected."""

    def __init__(self, allowed: Sequence[Any]) -> None:
        self.optional = "" in allowed
        self.size = size_of(list(allowed)).values
        self._allowed = allowed

    def mismatch(self, given: ArgumentValue) -> MismatchReason | None:
        return None if any(json_within(expected, given.value) for expected in self._allowed) else "value"


def _signature(call: _TrueCall, ignored: _Ignored, partial: bool) -> Signature:
    rule = _Partial if partial else _Exact
    rules = {argument: rule(allowed) for argument, allowed in call.allowed.items() if argument not in ignored}
    return Signature(call.name, rules)


class _CallMatching:
    """A maximum matching of the agent's calls with the expected ones."""

    def __init__(
        self, truth: Sequence[_TrueCall], expected: Sequence[_ExpectedCall], made: Sequence[_MadeCall]
    ) -> None:
        _check_size(expected, made)
        self._truth = truth
        self._expected = expected
        self._made = made
        self._fits = [_fitting(call, made) for call in expected]
        self.pairs = maximum_matching(self._fits)
        taken = set(self.pairs.values())
        self._missing = [index for index in range(len(expected)) if index not in self.pairs]
        self._extra = [index for index in range(len(made)) if index not in taken]

    def holds(self, mode: Mode) -> bool:
        if mode == "strict":
            return not self._missing and not self._extra and self._first_out_of_order() is None
        return (mode == "superset" or not self._extra) and (mode == "subset" or not self._missing)

    def success(self, mode: Mode) -> str:
        expected, made = _count(len(self._expected), "expected call"), _count(len(self._made), "call")
        if mode == "subset":
            return f"{made} made, all among the {expected}"
        if mode == "superset":
            return f"{made} made, with all of the {expected}"
        return f"{made} made, as expected" + (" and in order" if mode == "strict" and len(self._made) > 1 else "")

    def failure(self, mode: Mode) -> str:
        out_of_order = None if self._missing or self._extra else self._first_out_of_order()
        if out_of_order is not None:
            return f"The expected calls were made in another order: {self._wrong(out_of_order, out_of_order)}"
        wrong, missing, extra = self._differences()
        parts = [*islice((self._wrong(*pair) for pair in wrong), _SHOWN)]
        if len(wrong) > _SHOWN:
            parts.append(f"{len(wrong) - _SHOWN} more calls with a wrong argument")
        if missing and mode != "subset":
            parts.append(f"missing: {_names(self._truth[index].name for index in missing)}")
        if extra and mode != "superset":
            parts.append(f"extra: {_names(self._made[index].name for index in extra)}")
        return "; ".join(parts)

    def _first_out_of_order(self) -> int | None:
        return next((index for index, fits in enumerate(self._fits) if not fits >> index & 1), None)

    def _differences(self) -> tuple[list[tuple[int, int]], list[int], list[int]]:
        """Unmatched calls with the same name paired as wrong calls, and the remaining expected and actual calls."""
        waiting: dict[str, list[int]] = {}
        for index in reversed(self._missing):
            waiting.setdefault(self._expected[index].name, []).append(index)
        wrong, extra = [], []
        for index in self._extra:
            same_name = waiting.get(self._made[index].plain)
            if same_name:
                wrong.append((same_name.pop(), index))
            else:
                extra.append(index)
        return wrong, sorted(index for indices in waiting.values() for index in indices), extra

    def _wrong(self, expected: int, made: int) -> str:
        call, truth = self._made[made], self._truth[expected]
        lead = f"call {made + 1}, {_show(call.name)}"
        if not matches_glob(call.plain, self._expected[expected].name):
            return f"{lead}: expected {_show(truth.name)}"
        if call.arguments is None or (mismatch := self._expected[expected].mismatch(call.arguments)) is None:
            return f"{lead}: the arguments are not a JSON object but {_show(call.sent)}"
        argument, why = mismatch
        allowed = truth.allowed.get(argument, ())
        if why == "missing":
            return f"{lead}: argument {_show(argument)} is missing{_expectation(allowed)}"
        seen = f"{lead}: argument {_show(argument)} is {_show(call.arguments[argument].value)}"
        if why == "unexpected":
            return f"{seen}, but no such argument is expected"
        return f"{seen}{', which is not of the declared type' if why == 'type' else ''}{_expectation(allowed)}"


def _fitting(expected: _ExpectedCall, made: Sequence[_MadeCall]) -> int:
    fits = 0
    for index, call in enumerate(made):
        if call.arguments is None or not matches_glob(call.plain, expected.name):
            continue
        if expected.mismatch(call.arguments) is None:
            fits |= 1 << index
    return fits


def _check_size(expected: Sequence[_ExpectedCall], made: Sequence[_MadeCall]) -> None:
    for what, count in (("ground_truth", len(expected)), ("submission", len(made))):
        if count > MAX_CALLS:
            raise TooLargeError(f"the {what} has {count:,} calls; tool_calls takes at most {MAX_CALLS:,}")
    comparisons = len(made) * sum(call.size for call in expected)
    if comparisons > MAX_COMPARISONS:
        raise TooLargeError(
            f"{len(made):,} calls against {len(expected):,} expected ones may take {comparisons:,} comparisons; "
            f"tool_calls makes at most {MAX_COMPARISONS:,}"
        )
    if too_costly(comparisons * _COMPARISON_NS):
        raise needs_worker(f"comparing {len(made):,} calls with {len(expected):,} expected ones")


class _NotCallsError(ValueError):
    """The submission is not a list of calls."""


def _read_made(submission: str, plain: Callable[[str], str]) -> list[_MadeCall]:
    try:
        calls = parse_json(submission)
    except NotJsonError as error:
        raise _NotCallsError(f"The submission is not JSON ({error}): {_show(submission)}") from None
    if not isinstance(calls, list):
        raise _NotCallsError(f"The submission is not a list of calls: {_show(calls)}")
    made = []
    for number, call in enumerate(calls, 1):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise _NotCallsError(f"Call {number} of the submission is not a call with a name: {_show(call)}")
        name, sent = call["name"], call.get("arguments", {})
        arguments = _as_object(sent)
        given = None if arguments is None else {argument: ArgumentValue(value) for argument, value in arguments.items()}
        made.append(_MadeCall(name, plain(name), given, sent))
    return made


def _as_object(arguments: object) -> dict[str, Any] | None:
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments)
        except NotJsonError:
            return None
    return arguments if isinstance(arguments, dict) else None


def _read_truth(text: str | None) -> list[_TrueCall]:
    if text is None:
        raise UngradableError('ground_truth is missing: tool_calls needs [{"name": ..., "arguments": {...}}] as JSON')
    try:
        calls = parse_json(text)
    except NotJsonError as error:
        raise UngradableError(f"ground_truth is not JSON ({error}): {_show(text)}") from None
    if not isinstance(calls, list):
        raise UngradableError(f"ground_truth must be a list of calls, got {_show(calls)}")
    return [_read_true_call(call, f"ground_truth[{index}]") for index, call in enumerate(calls)]


def _read_names(text: str | None) -> set[str]:
    """The names of the expected calls, which may also be listed without arguments."""
    try:
        calls = parse_json(text or "")
    except NotJsonError:
        calls = None
    if isinstance(calls, list) and calls and all(isinstance(call, str) for call in calls):
        return set(calls)
    return {call.name for call in _read_truth(text)}


def _read_true_call(call: object, path: str) -> _TrueCall:
    if not isinstance(call, dict):
        raise UngradableError(f'{path} must be {{"name": ..., "arguments": {{...}}}}, got {_show(call)}')
    name, arguments = call.get("name"), call.get("arguments")
    if not isinstance(name, str):
        raise UngradableError(f"{path}.name must be a string, got {_show(name)}")
    if not isinstance(arguments, dict):
        raise UngradableError(f"{path}.arguments must map each argument to its allowed values, got {_show(arguments)}")
    for argument, allowed in arguments.items():
        if allowed == []:
            raise UngradableError(f"{path}.arguments.{argument} allows no value; an empty list is written [[]]")
    return _TrueCall(
        name,
        {argument: allowed if isinstance(allowed, list) else [allowed] for argument, allowed in arguments.items()},
    )


def _show(value: object) -> str:
    return quote(value, _SHOWN_CHARS)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _names(names: Iterable[str]) -> str:
    counts = Counter(names)
    shown = [
        f"{_show(name)}{f' ({count} times)' if count > 1 else ''}" for name, count in islice(counts.items(), _SHOWN)
    ]
    if len(counts) > _SHOWN:
        shown.append(f"{len(counts) - _SHOWN} more")
    return ", ".join(shown)


def _expectation(allowed: Sequence[Any]) -> str:
    values = [_show(value) for value in islice((value for value in allowed if value != ""), _SHOWN)]
    return f", expected {' or '.join(values)}" if values else ""
