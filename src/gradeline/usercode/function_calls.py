"""Call users' functions: targets with the values that their parameters name, graders with a check of their result."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import (
    AgentError,
    BadReplyError,
    DataError,
    closest_match,
    response_policy,
)
from gradeline.model import (
    ErrorInfo,
    GradeContext,
    GradeResult,
    Response,
    Sample,
    Trajectory,
    Usage,
    clean_data,
    clean_text,
)
from gradeline.model.context import copy_sample
from gradeline.model.documents import joined_documents
from gradeline.model.grade import is_field_error, plain_scalar, read_result
from gradeline.model.response import usage_of_calls
from gradeline.model.text import exception_text, is_calling_code, is_clean, quote_typed, user_frames, user_traceback
from gradeline.usercode.decorators import POSITIONAL, definition_location
from gradeline.usercode.returned_values import AgentTurn, ReturnedTurns, TurnRequest, read_returned, stored_response

PARAMETER_NAMES = ("input", "messages", "session", "sample", "model")
"""The parameter names that select a value, in any position."""
_INPUT_NAMES = frozenset({"input", "messages", "sample"})
_BY_TURN = frozenset({"input", "messages", "session"})
_REMEDY = "give it a parameter for the user's text, such as def answer(input), or messages or sample"

_Parameter = inspect.Parameter


class ParameterError(TypeError):
    """A function cannot be called as a target; the message says what to change."""


class Parameters(NamedTuple):
    """How a target's function is called: its positional and its keyword arguments."""

    positional: tuple[tuple[str | None, Any], ...]
    """A name of `PARAMETER_NAMES`, or None with the parameter's own default."""
    keywords: tuple[tuple[str, str], ...]
    """Pairs of the parameter's name and a name of `PARAMETER_NAMES`."""
    gets: frozenset[str]

    @property
    def by_turn(self) -> bool:
        """True if it is called once per user turn; a function of ``sample`` gets all turns and is called once."""
        return bool(self.gets & _BY_TURN)

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        positional = [default if name is None else values[name] for name, default in self.positional]
        return function(*positional, **{parameter: values[name] for parameter, name in self.keywords})


ONE_STRING = Parameters((("input", None),), (), frozenset({"input"}))
"""The parameters of a function that is called with only the text."""


def read_parameters(function: Callable[..., Any]) -> Parameters:
    """How to call this function, or `ParameterError`."""
    try:
        return _cached(function)
    except ParameterError:
        raise
    except TypeError:  # the object cannot be hashed
        return _match_parameters(function)


def _match_parameters(function: Callable[..., Any]) -> Parameters:
    """Parameters get the value that they name; without ``input``, the first other parameter gets the text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a callable written in C without a signature
        return ONE_STRING
    text_parameter = _text_parameter(parameters)
    positional: list[tuple[str | None, Any]] = []
    keywords: list[tuple[str, str]] = []
    gets: set[str] = set()
    in_order = True
    for parameter in parameters:
        name = "input" if parameter is text_parameter else parameter.name if parameter.name in PARAMETER_NAMES else None
        if parameter.kind is _Parameter.VAR_KEYWORD or (parameter.kind is _Parameter.VAR_POSITIONAL and name is None):
            continue
        if name is not None:
            gets.add(name)
        if parameter.kind is _Parameter.POSITIONAL_ONLY or parameter.kind is _Parameter.VAR_POSITIONAL:
            positional.append((name, parameter.default))
        elif name is None:
            in_order = False
        elif in_order and parameter.kind is _Parameter.POSITIONAL_OR_KEYWORD:
            positional.append((name, None))
        else:
            keywords.append((parameter.name, name))
    if not gets & _INPUT_NAMES:
        raise ParameterError(f"takes no input; {_REMEDY}")
    matched = Parameters(tuple(positional), tuple(keywords), frozenset(gets))
    return ONE_STRING if matched == ONE_STRING else matched


_cached = lru_cache(maxsize=64)(_match_parameters)


def _text_parameter(parameters: list[inspect.Parameter]) -> inspect.Parameter | None:
    """The parameter with another name, which gets the text; `ParameterError` if there is a second one."""
    others = [one for one in parameters if one.name not in PARAMETER_NAMES and one.kind is not _Parameter.VAR_KEYWORD]
    required = [one for one in others if one.default is one.empty and one.kind is not _Parameter.VAR_POSITIONAL]
    named_input = any(one.name == "input" for one in parameters)
    extra = required if named_input else required[1:]
    if extra:
        name = extra[0].name
        near = closest_match(name, PARAMETER_NAMES)
        hint = (
            f"did you mean {near!r}?"
            if near
            else f"give it a default, or one of the names {', '.join(PARAMETER_NAMES)}"
        )
        raise ParameterError(f"takes the parameter {name!r}, which gets no value; {hint}")
    if named_input:
        return None
    if required:
        return required[0]
    gets_input = any(one.name in _INPUT_NAMES for one in parameters)
    return None if gets_input or not others else others[0]


_LONGEST_MESSAGE = 10_000


class TargetFunction:
    """A target's function, with all that is the same for each of its calls."""

    __slots__ = ("folders", "function", "model", "parameters", "reference", "takes_only_text")

    def __init__(
        self, function: Callable[..., Any], reference: str, model: str | None = None, folders: Sequence[str] = ()
    ) -> None:
        """``folders`` contain the user's own files; messages show locations relative to them."""
        self.function = function
        self.parameters = read_parameters(function)
        self.takes_only_text = self.parameters is ONE_STRING
        self.reference = reference
        self.model = model
        self.folders = folders


class Conversation:
    """The calls of a target's function for one case.

    While not `done`: `call` the function, await its value if that is awaitable, and `take` the value. The session
    belongs to this conversation only.
    """

    def __init__(self, agent: TargetFunction, sample: Sample) -> None:
        self._agent = agent
        self._sample = sample
        self._whole: Response | None = None
        self.turn = 0
        """The next turn, from 0."""
        self.done = False
        self._plain = agent.takes_only_text and not isinstance(sample.input, list)
        """True for one call with one string, the usual case: the other attributes are set only if it returns more."""
        if not self._plain:
            self._begin()

    def _begin(self) -> None:
        turns = self._sample.input
        self._inputs: Sequence[str] = turns if isinstance(turns, list) else (turns,)
        self._history: list[Mapping[str, Any]] = []
        self._values: dict[str, Any] = {"session": {}, "model": self._agent.model}
        if "sample" in self._agent.parameters.gets:
            self._values["sample"] = copy_sample(self._sample)
        self._returned: list[ReturnedTurns] = []
        self._turns: list[AgentTurn] = []
        self._latency_ms = 0.0
        self.done = not self._inputs

    def call(self) -> Any:
        """Call the function for the next turn; returns its value or an awaitable."""
        if self._plain:
            return self._agent.function(self._sample.input)
        if self.turn < len(self._inputs):
            text = self._inputs[self.turn]
            self._history.append({"role": "user", "content": text})
            self._values["input"] = text
        if "messages" in self._agent.parameters.gets:
            self._values["messages"] = [_copied(message) for message in self._history]
        return self._agent.parameters.call(self._agent.function, self._values)

    def take(self, value: object, latency_ms: float) -> None:
        """Read the value that the call returned; `AgentError` where it is invalid."""
        if self._plain and type(value) is str and is_clean(value):
            self._whole, self.done = Response(text=value, latency_ms=latency_ms), True
            return
        if self._plain:
            self._begin()
            self._history.append({"role": "user", "content": self._inputs[0]})
        if isinstance(value, Response) and not isinstance(self._sample.input, list):
            self._whole = _timed(stored_response(value, self._agent.reference), latency_ms)
            self.done = True
            return
        returned = read_returned(value, self._request())
        self._returned.append(returned)
        self._latency_ms += latency_ms if returned.latency_ms is None else returned.latency_ms
        for turn in returned.turns:
            self._turns.append(turn)
            own = {"role": "assistant", "content": turn.text}
            self._history += [own] if turn.history is None else turn.history
        self.turn = len(self._turns)
        self.done = self.turn >= len(self._inputs)

    def response(self) -> Response:
        """The response to the whole case."""
        if self._whole is not None:
            return self._whole
        known = all(turn.tools_known for turn in self._turns)
        memory = next((one.memory for one in reversed(self._returned) if one.memory is not None), None)
        trajectory = None
        if known or any(turn.messages for turn in self._turns) or isinstance(self._sample.input, list):
            trajectory = Trajectory(tuple(turn.steps for turn in self._turns), memory, known)
        return Response(
            text=self._turns[-1].text if self._turns else "",
            trajectory=trajectory,
            usage=self._usage(),
            latency_ms=self._latency_ms,
            cleaned=any(one.cleaned for one in self._returned),
            documents=joined_documents([one.documents for one in self._returned]),
            stop_reason=self._returned[-1].stop_reason if self._returned else None,
        )

    def failure(self, error: BaseException) -> ErrorInfo:
        """Why the case has no response: the exception with its location, or what is wrong with the returned value."""
        several = not self._plain and self._agent.parameters.by_turn and len(self._inputs) > 1
        turn = f"turn {self.turn + 1} of {len(self._inputs)}: " if several else ""
        if isinstance(error, AgentError):
            info = ErrorInfo(error.type, str(error), response_policy(error.type).fault, error.traceback)
        else:
            info = target_error(error, self._agent.folders)
        return msgspec.structs.replace(info, message=turn + info.message) if turn else info

    def _request(self) -> TurnRequest:
        return TurnRequest(
            self._agent.reference,
            self._inputs,
            self.turn,
            self._history,
            [turn.text for turn in self._turns],
            self._agent.parameters.by_turn,
            "sample" in self._agent.parameters.gets,
        )

    def _usage(self) -> Usage | None:
        """The sum over the calls; None where a call reported no usage."""
        return usage_of_calls(one.usage for one in self._returned)


def target_error(error: BaseException, folders: Sequence[str] = ()) -> ErrorInfo:
    """An exception of a target as a record stores it, with its location and the user's own frames."""
    text = exception_text(error)
    name = type(error).__name__
    message = f"{name}: {text[:_LONGEST_MESSAGE]}" if text else name
    location = _location(user_frames(error.__traceback__), folders)
    kind = "memory" if isinstance(error, MemoryError) else "agent_error"
    return ErrorInfo(
        kind,
        clean_text(f"{message} ({location})" if location else message).text,
        response_policy(kind).fault,
        user_traceback(error),
    )


def _location(trace: TracebackType | None, folders: Sequence[str]) -> str:
    """The line where it was raised: the last one of the user's own files, else of any code outside this package."""
    found: tuple[str, TracebackType] | None = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        shown = _shown(file, folders)
        if shown != file or found is None or found[0] == found[1].tb_frame.f_code.co_filename:
            found = shown, trace
        trace = trace.tb_next
    if found is None or is_calling_code(found[0]):
        return ""
    return f"{found[0]}:{found[1].tb_lineno} in {found[1].tb_frame.f_code.co_name}"


def _shown(file: str, folders: Sequence[str]) -> str:
    """The path relative to the first of these folders that contains it; unchanged for installed packages."""
    if f"{os.sep}site-packages{os.sep}" in file:
        return file
    return next((os.path.relpath(file, folder) for folder in folders if file.startswith(folder + os.sep)), file)


def _timed(response: Response, latency_ms: float) -> Response:
    if response.latency_ms is not None:
        return response
    return msgspec.structs.replace(response, latency_ms=latency_ms)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


_PACKAGE_FOLDER = str(Path(__file__).parent.parent)


def call_grader(call: Callable[[], object], function: Callable[..., Any], reference: str) -> GradeResult:
    """The grade that the call returns; the error for an invalid `GradeResult` field names the grader and the line."""
    try:
        return validated_grade(call(), reference)
    except ValueError as error:
        if not is_field_error(error):
            raise
        raise with_grader_location(error, function, reference) from None


def with_grader_location(error: ValueError, function: object, reference: str) -> ValueError:
    """The error with the grader's name and the line in its code, else the line of its definition."""
    where = _line_of(error.__traceback__) or _definition_of(function)
    found = ValueError(f"grader {reference!r}{where and f' ({where})'}: GradeResult.{error}")
    return found.with_traceback(error.__traceback__)


ContextArguments = Callable[[GradeContext], tuple[object, ...]]
"""Picks the arguments of a grader's function."""
_ARGUMENTS_BY_NUMBER: Mapping[int, ContextArguments] = {
    1: lambda ctx: (ctx.submission,),
    2: attrgetter("sample", "submission"),
    3: attrgetter("sample", "submission", "response"),
}
_CONTEXT_NAMES = frozenset({"sample", "submission", "response"})
_GRADER_REMEDY = "write it as (sample, submission), (sample, submission, response) or (ctx)"


def read_grader_parameters(function: Callable[..., Any]) -> ContextArguments:
    """The arguments for a grader's function: what its parameters are named after.

    Parameters with other names get the submission, ``(sample, submission)`` or ``(sample, submission, response)``, by
    their number. Raises `ParameterError` for a function that needs anything else.
    """
    try:
        return _cached_grader_parameters(function)
    except ParameterError:
        raise
    except TypeError:  # a callable object without a hash
        return _match_grader_parameters(function)


def _match_grader_parameters(function: Callable[..., Any]) -> ContextArguments:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ParameterError(f"has no signature; wrap it in a function and {_GRADER_REMEDY}") from None
    if any(one.kind is _Parameter.KEYWORD_ONLY and one.default is one.empty for one in parameters):
        raise ParameterError(f"requires an argument by keyword; {_GRADER_REMEDY}")
    positional = [one for one in parameters if one.kind in POSITIONAL]
    names = [one.name for one in positional if one.default is one.empty or one.name in _CONTEXT_NAMES]
    if names == ["ctx"]:
        return lambda ctx: (ctx,)
    if names and _CONTEXT_NAMES.issuperset(names):
        return lambda ctx: tuple(getattr(ctx, name) for name in names)
    if not names and any(one.kind is _Parameter.VAR_POSITIONAL for one in parameters):
        return _ARGUMENTS_BY_NUMBER[2]
    if len(names) not in _ARGUMENTS_BY_NUMBER:
        raise ParameterError(f"takes {len(names)} arguments; {_GRADER_REMEDY}")
    return _ARGUMENTS_BY_NUMBER[len(names)]


_cached_grader_parameters = lru_cache(maxsize=64)(_match_grader_parameters)


def call_with_context(function: Callable[..., Any], ctx: GradeContext) -> object:
    """The value of a grader's function, see `read_grader_parameters`."""
    return function(*read_grader_parameters(function)(ctx))


def validated_grade(value: object, reference: str) -> GradeResult:
    """The grade that a custom grader returned; `BadReplyError` says what to return instead."""
    result = _as_result(value, reference)
    try:
        metadata = clean_data(result.metadata, "metadata")
    except DataError as error:
        raise BadReplyError(f"{reference} returned a GradeResult whose {error}") from None
    rationale = result.rationale
    if isinstance(rationale, str):
        rationale = clean_text(str.__str__(rationale)).text
    return GradeResult(result.score, rationale, metadata, result.passed)


def _as_result(value: object, reference: str) -> GradeResult:
    """A result from what a grader may return: a `GradeResult`, a bool, a number from 0 to 1, or a dict."""
    if isinstance(value, GradeResult):
        return value
    plain = plain_scalar(value)
    try:
        if isinstance(plain, int | float):
            return GradeResult(plain + 0.0)
        if isinstance(plain, dict):
            return read_result(plain)
        if type(value).__name__ == "GradeResult":  # the real letta package has a class of its own
            foreign: Any = value
            return GradeResult(foreign.score, foreign.rationale, foreign.metadata, getattr(foreign, "passed", None))
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise BadReplyError(f"{reference} returned {quote_typed(value)}: {error}") from None
    raise BadReplyError(f"{reference} returned {quote_typed(value)}; return {_RETURNABLE}")


_RETURNABLE = 'a GradeResult, a bool, a number from 0 to 1, or a dict such as {"score": 0.5}'


def _line_of(trace: TracebackType | None) -> str:
    """The innermost line of user code, as ``file.py:line``."""
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_PACKAGE_FOLDER):
            found = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _definition_of(function: object) -> str:
    if not isinstance(function, FunctionType):
        return ""
    file, line = definition_location(function)
    return f"{Path(file).name}:{line}"
