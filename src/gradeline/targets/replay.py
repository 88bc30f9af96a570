"""Stored responses as a target: of a stored run, a file of responses, or results of letta-evals."""

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
from gradeline.model.config import canonical_options
from gradeline.model.fingerprint import fingerprint
from gradeline.model.text import quote
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.targets.base import DeclaredTarget, Pricing, TargetConfig

T = TypeVar("T")

MAX_PROBLEMS = 20
"""Maximum number of faulty lines to report at once."""


def entries(path: Path, read: Callable[[bytes], T], problems: list[Problem]) -> Iterator[tuple[int, T]]:
    """The offset of each line with the result of ``read``; blank lines are skipped.

    A `ValueError` of ``read`` is added to the problems with its line number. Raises `OSError`.
    """
    offset = 0
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
                    yield offset, entry
            offset += len(line)


def line_at(path: Path, offset: int) -> bytes:
    """The line at an offset."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()


def json_object(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; `ValueError` if it is not valid."""
    try:
        data = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except NotJsonError as error:
        raise ValueError(f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {quote(data)}")
    return data


_NAMES = ("id", "sample_id", "case")
_TEXTS = ("text", "response", "output")


class ReplayConfig(TargetConfig, frozen=True):
    """Options of `ReplayTarget`."""

    run: Annotated[str | None, described("Stored run whose responses to use.")] = None
    responses: Annotated[
        str | None, described("JSONL file of {id, text}, or of stored responses {case, response: {…}}.")
    ] = None
    cached: Annotated[str | None, described("Folder with results of letta-evals, of any release.")] = None
    model: Annotated[
        str | None, described("Model whose results to use from `cached`; required if there are several.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        if [self.run, self.responses, self.cached].count(None) != 2:
            yield Problem("", "write one of run: ID, responses: FILE and cached: FOLDER")


class _StoredResponses(Protocol):
    """Responses in files."""

    def count(self, sample: Sample) -> int:
        """Number of responses to the sample."""

    def response(self, sample: Sample, number: int) -> Response:
        """A response by number; `OSError` or `ValueError` if the file has changed."""

    def problems_with(self, sample: Sample) -> list[Problem]:
        """Problems if the stored responses belong to another question."""


class ReplayTarget(DeclaredTarget[ReplayConfig]):
    """Returns the stored responses of an agent without calling it.

    A case with several responses (repeats of a run) gets them in turn. A failed response fails again in the same way.
    """

    kind = "replay"
    name = "Replay"
    timed = False

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        super().__init__(config, secrets)
        self._stored: _StoredResponses | None = None
        self._model: str | None = None
        self._responses_given: Counter[str] = Counter()

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
        """The model; for results of letta-evals known once the target is open."""
        return self._model or self.options.model

    @property
    def shown(self) -> dict[str, Any]:
        return super().shown if self.model is None else {**super().shown, "model": self.model}

    @cached_property
    def fingerprint(self) -> str:
        """For files a digest of the content, independent of their path."""
        documents = self.options.documents
        source = () if documents is None else (canonical_options(documents),)
        if self.options.cached is not None:
            content = _letta_cache().digest(Path(self.options.cached))
            return fingerprint(self.noun, self.kind, self.version, "cached", content, self.options.model, *source)
        if self.options.responses is None:
            return fingerprint(self.noun, self.kind, self.version, "run", self.options.run, *source)
        digest = sha256()
        try:
            with Path(self.options.responses).open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise _unreadable(Path(self.options.responses), error) from None
        return fingerprint(self.noun, self.kind, self.version, "responses", digest.hexdigest(), *source)

    def problems_with(self, sample: Sample) -> list[Problem]:
        """Problems if the stored responses belong to another question."""
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
        number = self._responses_given[case]
        self._responses_given[case] += 1
        try:
            return self._stored.response(sample, number % count)
        except (OSError, ValueError) as error:
            message = f"the stored response of case {quote(case)} can no longer be read: {error}"
            raise AgentError("bad_response", message) from None


class _ResponseFile:
    """A file with one response per line; only their offsets are held in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, list[int]] = {}
        problems: list[Problem] = []
        try:
            for offset, (case, _) in entries(path, _entry, problems):
                self._offsets.setdefault(case, []).append(offset)
        except OSError as error:
            raise _unreadable(path, error) from None
        if problems:
            raise ConfigError(problems, "replay")

    def count(self, sample: Sample) -> int:
        return len(self._offsets.get(sample.case_key, ()))

    def response(self, sample: Sample, number: int) -> Response:
        return _entry(line_at(self._path, self._offsets[sample.case_key][number]))[1]

    def problems_with(self, sample: Sample) -> list[Problem]:  # noqa: ARG002 - the file does not contain the questions
        return []


def _letta_cache() -> Any:
    # a higher layer: letta's targets inherit from this package
    return import_module("gradeline.letta.cache").LettaCache


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(Problem("responses", f"{path} cannot be read: {error.strerror}"), "replay")


def _entry(line: bytes) -> tuple[str, Response]:
    """The case and the response in a line; `ValueError` if it is not valid."""
    data = json_object(line)
    case = next((data[name] for name in _NAMES if data.get(name) is not None), None)
    if isinstance(case, bool) or not isinstance(case, str | int):
        raise ValueError(f"has no case; write it under {', '.join(_NAMES)}")
    value = next((data[name] for name in _TEXTS if data.get(name) is not None), None)
    if isinstance(value, str):
        return str(case), Response(text=value)
    if not isinstance(value, dict):
        raise ValueError(f"has no response; write it under {', '.join(_TEXTS)}")
    try:
        response: Response = msgspec.convert(value, Response)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(f"has an invalid response: {error}") from None
    if response.status == "success" and response.text is None:
        raise ValueError("has a successful response without text")
    return str(case), response
