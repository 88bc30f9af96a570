"""How a target's function is called: once per user turn, or once for a whole case."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from gradeline.errors import AgentError, response_policy
from gradeline.model import ErrorInfo, Response, Sample, Trajectory, Usage, clean_text
from gradeline.model.context import copy_sample
from gradeline.model.response import usage_of_calls
from gradeline.model.text import is_calling_code, is_clean, user_frames, user_traceback
from gradeline.usercode.parameters import ONE_TEXT, parameters_of
from gradeline.usercode.returned import AgentTurn, ReturnedTurns, TurnRequest, read_returned, stored_response

_LONGEST_MESSAGE = 10_000


class AgentFunction:
    """A target's function, and all of a call that is the same for every case."""

    __slots__ = ("folders", "function", "model", "parameters", "reference", "takes_text")

    def __init__(
        self, function: Callable[..., Any], reference: str, model: str | None = None, folders: Sequence[str] = ()
    ) -> None:
        """``folders`` hold the user's own files; places in them are shown relative to them."""
        self.function = function
        self.parameters = parameters_of(function)
        self.takes_text = self.parameters is ONE_TEXT
        self.reference = reference
        self.model = model
        self.folders = folders


class Conversation:
    """One case as a function is asked it.

    While not `done`: `call` the function, await its value where it is awaitable, and `take` it. The session
    belongs to this conversation only.
    """

    def __init__(self, agent: AgentFunction, sample: Sample) -> None:
        self._agent = agent
        self._sample = sample
        self._whole: Response | None = None
        self.turn = 0
        """The turn that is asked next, from 0."""
        self.done = False
        self._plain = agent.takes_text and not isinstance(sample.input, list)
        """One call with one string, as most are: nothing of what follows is needed unless it returns more than that."""
        if not self._plain:
            self._begin()

    def _begin(self) -> None:
        asked = self._sample.input
        self._inputs: Sequence[str] = asked if isinstance(asked, list) else (asked,)
        self._history: list[Mapping[str, Any]] = []
        self._values: dict[str, Any] = {"session": {}, "model": self._agent.model}
        if "sample" in self._agent.parameters.gets:
            self._values["sample"] = copy_sample(self._sample)
        self._returned: list[ReturnedTurns] = []
        self._turns: list[AgentTurn] = []
        self._latency_ms = 0.0
        self.done = not self._inputs

    def call(self) -> Any:
        """Call the function for the next turn; gives its value, or what has to be awaited for it."""
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
        """Take what the call returned; `AgentError` where it cannot be read."""
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
        """What the whole case is answered with."""
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
        )

    def failure(self, error: BaseException) -> ErrorInfo:
        """Why the case has no answer: what the code raised, with its place, or what is wrong with what it returned."""
        several = not self._plain and self._agent.parameters.by_turn and len(self._inputs) > 1
        turn = f"turn {self.turn + 1} of {len(self._inputs)}: " if several else ""
        if isinstance(error, AgentError):
            info = ErrorInfo(error.type, str(error), response_policy(error.type).fault, error.traceback)
        else:
            info = raised(error, self._agent.folders)
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
        """The sum over the calls; unknown where one of them reported none."""
        return usage_of_calls(one.usage for one in self._returned)


def raised(error: BaseException, folders: Sequence[str] = ()) -> ErrorInfo:
    """An exception of a target's code as a record keeps it: its text, its place and the user's own frames."""
    try:
        text = str(error)
    except BaseException:
        text = "(its text cannot be shown)"
    name = type(error).__name__
    message = f"{name}: {text[:_LONGEST_MESSAGE]}" if text else name
    place = _place(user_frames(error.__traceback__), folders)
    kind = "memory" if isinstance(error, MemoryError) else "agent_error"
    return ErrorInfo(
        kind,
        clean_text(f"{message} ({place})" if place else message).text,
        response_policy(kind).fault,
        user_traceback(error),
    )


def _place(trace: TracebackType | None, folders: Sequence[str]) -> str:
    """Where it was raised: the last line of the user's own files, else of any code but this package's."""
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
    """Relative to the first of these folders that holds it; installed packages are in none of them."""
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
