"""Answers that were given before: a stored run, a file of responses, or results of letta-evals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, described
from gradeline.model.fingerprint import fingerprint
from gradeline.model.text import quote
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.targets.base import DeclaredTarget, Pricing, TargetConfig

T = TypeVar("T")

MAX_PROBLEMS = 20
"""How many faulty lines are told at once."""


def entries(path: Path, read: Callable[[bytes], T], problems: list[Problem]) -> Iterator[tuple[int, T]]:
    """Each line's offset with what ``read`` makes of it; blank lines are left out.

    Where ``read`` raises `ValueError` the line is added to the problems. Raises `OSError`.
    """
    at = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    entry = read(line)
                except ValueError as error:
                    problems.append(Problem(f"{path}:{number}", str(error)))
                    if len(problems) >= MAX_PROBLEMS:
                        return
                else:
                    yield at, entry
            at += len(line)


def line_at(path: Path, offset: int) -> bytes:
    """The line that begins there."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line, or a `ValueError` that says what is wrong with it."""
    try:
        data = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except NotJsonError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {quote(data)}")
    return data


_NAMES = ("id", "sample_id", "case")
_TEXTS = ("text", "response", "output")


class ReplayConfig(TargetConfig, frozen=True):
    """Options of `ReplayTarget`."""

    run: Annotated[str | None, described("The stored run whose responses are given again.")] = None
    responses: Annotated[
        str | None, described("A JSONL file of {id, text}, or of stored responses {case, response: {…}}.")
    ] = None
    cached: Annotated[str | None, described("A folder of letta-evals' results, of any of its releases.")] = None
    model: Annotated[
        str | None, described("Whose results are taken from `cached`; needed where it holds those of several models.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        if [self.run, self.responses, self.cached].count(None) != 2:
            yield Problem("", "write one of run: ID, responses: FILE and cached: FOLDER")


class _Stored(Protocol):
    """Responses in files."""

    def count(self, sample: Sample) -> int:
        """How many responses to the sample there are."""

    def response(self, sample: Sample, number: int) -> Response:
        """One of them; `OSError` or `ValueError` where the file has changed since."""

    def problems_with(self, sample: Sample) -> list[Problem]:
        """Why the sample cannot have been what was asked."""


class ReplayTarget(DeclaredTarget[ReplayConfig]):
    """Gives again what an agent answered before, without asking it.

    A case that has several responses (repeats of a run) gets them in turn. A failed response is given again as it
    failed.
    """

    kind = "replay"
    name = "Replay"
    timed = False

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        super().__init__(config, secrets)
        self._stored: _Stored | None = None
        self._model: str | None = None
        self._given: Counter[str] = Counter()

    async def open(self) -> None:
        if self.options.cached is not None:
            cache = _letta_cache()(Path(self.options.cached), self.options.model)
            self._stored, self._model = cache, cache.model
        elif self.options.responses is not None:
            self._stored = _ResponseFile(Path(self.options.responses))
        elif self.context.responses is None:
            raise ConfigError(
                Problem("run", f"the run {quote(self.options.run)} needs a store to be read from"), "replay"
            )

    @property
    def model(self) -> str | None:
        """Of letta's results the model whose they are, named or not, once they are open."""
        return self._model or self.options.model

    @property
    def shown(self) -> dict[str, Any]:
        return super().shown if self.model is None else {**super().shown, "model": self.model}

    @cached_property
    def fingerprint(self) -> str:
        """Of files it is the content that counts, not their place."""
        if self.options.cached is not None:
            content = _letta_cache().digest(Path(self.options.cached))
            return fingerprint(self.noun, self.kind, self.version, "cached", content, self.options.model)
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

    def problems_with(self, sample: Sample) -> list[Problem]:
        """A response to another question is none to this one."""
        return [] if self._stored is None else self._stored.problems_with(sample)

    @property
    def pricing(self) -> Pricing:
        return "free"

    async def call(self, sample: Sample) -> Response:
        source = self.context.responses
        response = source(sample) if source is not None else self._next(sample)
        if response is None:
            raise AgentError("bad_response", f"no stored response for case {quote(sample.case_key)}")
        return response

    def _next(self, sample: Sample) -> Response | None:
        if self._stored is None:
            return None
        case = sample.case_key
        count = self._stored.count(sample)
        if not count:
            problems = self._stored.problems_with(sample)
            if problems:
                raise ConfigError(problems, f"case {case!r}")
            return None
        turn = self._given[case]
        self._given[case] += 1
        try:
            return self._stored.response(sample, turn % count)
        except (OSError, ValueError) as error:
            raise AgentError("bad_response", f"the stored response of case {quote(case)} is gone: {error}") from None


class _ResponseFile:
    """Responses a line. Only where they stand is kept: the file itself may be larger than memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._places: dict[str, list[int]] = {}
        problems: list[Problem] = []
        try:
            for offset, (case, _) in entries(path, _entry, problems):
                self._places.setdefault(case, []).append(offset)
        except OSError as error:
            raise _unreadable(path, error) from None
        if problems:
            raise ConfigError(problems, "replay")

    def count(self, sample: Sample) -> int:
        return len(self._places.get(sample.case_key, ()))

    def response(self, sample: Sample, number: int) -> Response:
        return _entry(line_at(self._path, self._places[sample.case_key][number]))[1]

    def problems_with(self, sample: Sample) -> list[Problem]:  # noqa: ARG002 - such a file does not tell its questions
        return []


def _letta_cache() -> Any:
    # letta is a layer above, and its targets inherit from this package
    return import_module("gradeline.letta.cache").LettaCache


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(Problem("responses", f"{path} cannot be read: {error.strerror}"), "replay")


def _entry(line: bytes) -> tuple[str, Response]:
    """The case and the response in a line, or a `ValueError` that says what is wrong with it."""
    data = json_object(line)
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
