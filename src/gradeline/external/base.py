"""What graders in other languages share: the JSON of a case and of a verdict, variables, masks."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar, Self

import msgspec

from gradeline.adapters import sync
from gradeline.errors import BadReplyError, ConfigError, DataError, GraderError, Problem
from gradeline.graders.base import LINEAR_CHARS, C, DeclaredGrader
from gradeline.model import Config, GradeContext, GradeResult, MeteredResult, clean_data, clean_text, quote
from gradeline.model.grade import read_result
from gradeline.model.resources import Resources
from gradeline.model.secrets import MARKER, Mask, contains_secret
from gradeline.model.variables import FilledText, fill_variables
from gradeline.parsing.json_text import NotJsonError, parse_json

MAX_REPLY = 1024 * 1024
"""Maximum size of a verdict in bytes."""
VERDICT = '{"score": 0.0 to 1.0} or {"passed": true or false}'
_MAX_SHOWN = 300


class ExternalError(GraderError):
    """A program or a server gave no verdict, for a reason that a type of `GRADE_POLICY` names."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.type = error_type


class ExternalGrader(DeclaredGrader[C]):
    """A grader that is a program or a server; implement `prepare`, `grade_case` and ``parameters``.

    It gets ``{sample, submission, response, config}`` and returns ``{score | passed, rationale?, metadata?}``.
    """

    caveats: ClassVar[tuple[str, ...]] = ()
    local_chars = 2 * LINEAR_CHARS  # another process grades them
    judges: tuple[str, ...] = ()
    """None: a program or a server is not a model, and needs no calibration."""
    variables: ClassVar[str]
    """The option whose values may have ``${NAME}``."""

    def bind(self, resources: Resources) -> Self:
        bound = super().bind(resources)
        for name in [name for name in vars(bound) if isinstance(getattr(type(self), name, None), cached_property)]:
            del bound.__dict__[name]
        bound.prepare()
        return bound

    @abstractmethod
    def prepare(self) -> None:
        """Check what can be checked without a call; `ConfigError` lists all that is missing."""

    @abstractmethod
    async def grade_case(self, request: bytes) -> MeteredResult:
        """The verdict on the case in the request; may raise `GraderError`."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Any]:
        """What is passed on as ``config``."""

    async def agrade(self, ctx: GradeContext, /) -> MeteredResult:
        """Grade one submission. Raises only `ConfigError`, for faults that affect every case."""
        try:
            return await self.grade_case(encode_case(ctx, self.parameters))
        except GraderError as error:
            return MeteredResult(error)

    def result(self, ctx: GradeContext) -> GradeResult:
        result = sync.run(self.agrade(ctx)).result
        if isinstance(result, GraderError):
            raise result
        return result

    @cached_property
    def values(self) -> dict[str, str]:
        """The option of the variables with their values; `ConfigError` for those that are not set."""
        problems = [
            Problem(f"{self.variables}.{name}", fault) for name, value in self._filled.items() for fault in value.faults
        ]
        if problems:
            raise ConfigError(problems, self.kind)
        return {name: value.text for name, value in self._filled.items()}

    @cached_property
    def mask(self) -> Mask:
        """Masks the values of variables in everything that comes back."""
        return Mask(text for value in self._filled.values() for text in value.values if MARKER not in text)

    @cached_property
    def _filled(self) -> dict[str, FilledText]:
        environment = os.environ if self.resources.environment is None else self.resources.environment
        written: Mapping[str, str] = getattr(self.options, self.variables)
        return {name: fill_variables(value, environment) for name, value in written.items()}

    def shown(self, output: bytes | str) -> str:
        """An output for a message: clean and masked."""
        return self.mask.text(clean_text(output).text).strip()

    def read_verdict(self, body: bytes, who: str, number: int | None = None) -> GradeResult:
        """The result in a JSON text; `BadReplyError` shows the start of anything else.

        ``number`` is that of the request; an answer that has an ``id`` must have this one.
        """
        text = clean_text(self.mask.body(body)).text
        start = quote(text.strip(), _MAX_SHOWN)
        if not text.strip():
            raise BadReplyError(f"{who} returned nothing; write {VERDICT}")
        try:
            data = parse_json(text)
        except NotJsonError as error:
            raise BadReplyError(f"{who} returned {start}, which is not one JSON object: {error}") from None
        if not isinstance(data, dict):
            raise BadReplyError(f"{who} returned {start}; return {VERDICT}")
        if number is not None and data.pop("id", number) != number:
            raise BadReplyError(
                f"{who} answered another request than number {number}: {start}; write one line for each"
            )
        if data.get("score") is not None and data.get("passed") is not None:
            raise BadReplyError(f"{who} returned both score and passed: {start}; return one of them")
        try:
            return read_result(clean_data(data, ""))
        except (ValueError, DataError) as error:
            raise BadReplyError(f"{who} returned {start}: {error}") from None


def encode_case(ctx: GradeContext, parameters: Mapping[str, Any]) -> bytes:
    """The JSON object of a case; sample and response have the form of records."""
    request = {"sample": ctx.sample, "submission": ctx.submission, "response": ctx.response, "config": parameters}
    return msgspec.json.encode(request)


def variable_faults(options: Config, name: str) -> Iterator[Problem]:
    """Values that are secrets themselves, which would be stored with every run."""
    for key, value in getattr(options, name).items():
        if contains_secret(value, key):
            yield Problem(f"{name}.{key}", "contains a secret; put it into the environment or .env and write ${NAME}")
