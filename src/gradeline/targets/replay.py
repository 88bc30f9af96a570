"""Answers that were given before: a stored run, or a file of responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, described
from gradeline.model.fingerprint import fingerprint
from gradeline.model.text import quote
from gradeline.parsing.jsontext import NotJsonError, parse_json
from gradeline.targets.base import DeclaredTarget, TargetConfig

ResponseSource = Callable[[Sample], Response | None]
"""The stored response to a sample, None where there is none."""

_NAMES = ("id", "sample_id", "case")
_TEXTS = ("text", "response", "output")


class ReplayConfig(TargetConfig, frozen=True):
    """Options of `ReplayTarget`."""

    run: Annotated[str | None, described("The stored run whose responses are given again.")] = None
    responses: Annotated[
        str | None, described("A JSONL file of {id, text}, or of stored responses {case, response: {…}}.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        if (self.run is None) == (self.responses is None):
            yield Problem("", "write either run: ID or responses: FILE")


class ReplayTarget(DeclaredTarget[ReplayConfig]):
    """Gives again what an agent answered before, without asking it.

    A case that stands in the file more than once (repeats of a run) gets its responses in turn. A failed response is
    given again as it failed.
    """

    kind = "replay"
    name = "Replay"

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        secrets: Collection[str] = (),
        *,
        responses: ResponseSource | None = None,
    ) -> None:
        """``responses`` gives those of the stored run: only the caller knows the store."""
        super().__init__(config, secrets)
        self._source = responses
        self._places: dict[str, list[int]] = {}
        self._given: Counter[str] = Counter()

    async def open(self) -> None:
        if self.options.responses is not None:
            self._places = _index(Path(self.options.responses))
        elif self._source is None:
            raise ConfigError(
                Problem("run", f"the run {quote(self.options.run)} needs a store to be read from"), "replay"
            )

    @cached_property
    def fingerprint(self) -> str:
        """Of a file it is the content that counts, not its place."""
        if self.options.responses is None:
            return fingerprint(self.noun, self.kind, self.version, "run", self.options.run)
        digest = sha256()
        try:
            with Path(self.options.responses).open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise _unreadable(Path(self.options.responses), error) from None
        return fingerprint(self.noun, self.kind, self.version, "responses", digest.hexdigest())

    async def call(self, sample: Sample) -> Response:
        response = self._source(sample) if self._source is not None else self._from_file(sample.case_key)
        if response is None:
            raise AgentError("bad_response", f"no stored response for case {quote(sample.case_key)}")
        return response

    def _from_file(self, case: str) -> Response | None:
        places = self._places.get(case)
        if places is None or self.options.responses is None:
            return None
        turn = self._given[case]
        self._given[case] += 1
        try:
            with Path(self.options.responses).open("rb") as file:
                file.seek(places[turn % len(places)])
                return _entry(file.readline())[1]
        except (OSError, ValueError) as error:
            raise AgentError("bad_response", f"the stored response of case {quote(case)} is gone: {error}") from None


def _index(path: Path) -> dict[str, list[int]]:
    """Where in the file each case's responses are: the file itself may be larger than memory."""
    places: dict[str, list[int]] = {}
    problems: list[Problem] = []
    at = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    try:
                        places.setdefault(_entry(line)[0], []).append(at)
                    except ValueError as error:
                        problems.append(Problem(f"{path}:{number}", str(error)))
                at += len(line)
    except OSError as error:
        raise _unreadable(path, error) from None
    if problems:
        raise ConfigError(problems[:20], "replay")
    return places


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(Problem("responses", f"{path} cannot be read: {error.strerror}"), "replay")


def _entry(line: bytes) -> tuple[str, Response]:
    """The case and the response in a line, or a `ValueError` that says what is wrong with it."""
    try:
        data = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except NotJsonError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {quote(data)}")
    case = next((data[name] for name in _NAMES if data.get(name) is not None), None)
    if isinstance(case, bool) or not isinstance(case, str | int):
        raise ValueError(f"names no case; write it under {', '.join(_NAMES)}")
    told = next((data[name] for name in _TEXTS if data.get(name) is not None), None)
    if isinstance(told, str):
        return str(case), Response(text=told)
    if not isinstance(told, dict):
        raise ValueError(f"holds no response; write it under {', '.join(_TEXTS)}")
    try:
        response: Response = msgspec.convert(told, Response)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"holds no stored response: {error}") from None
    if response.status == "success" and response.text is None:
        raise ValueError("holds a successful response without a text")
    return str(case), response
