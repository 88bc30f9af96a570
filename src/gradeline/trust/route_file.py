"""Route files: the baseline, the candidates, the judge, and the limits of a route. All faults are reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gradeline.errors import ConfigError, Problem
from gradeline.model import Config, described, quote, read_struct
from gradeline.model.config import config_schema
from gradeline.model.fingerprint import fingerprint
from gradeline.model.text import clean_text
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.suite.declaration import PriceSpec
from gradeline.suite.document import SuiteDocument, read_document
from gradeline.suite.problems import DocumentError, path_steps
from gradeline.suite.schema import DIALECT, OWN
from gradeline.trust.policy import PolicyRules

MAX_FAMILY = 100
"""Maximum characters of the name of a task family; longer ones are cut."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._:-]*$"
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_EXPECTED = "a name of letters, digits and . _ : -"
_SHARE = "a number from 0 to 1"
OPENAI = "https://api.openai.com/v1"

_Share = Annotated[float, Meta(ge=0, le=1)]


class ArmEntry(Config, frozen=True, kw_only=True):
    """A model that requests can be sent to, behind an OpenAI-compatible API."""

    name: Annotated[str, described("Name of the arm in tables and logs.", expected=_NAME_EXPECTED, max_length=100)]
    model: Annotated[str, described("Model that requests ask for.", expected="the name of a model", min_length=1)]
    base_url: Annotated[str, described("Base URL of the API.", expected="a URL such as https://api.openai.com/v1")] = (
        OPENAI
    )
    api_key_env: Annotated[
        str | None,
        described("Environment variable with the API key; only sent to base_url.", expected="a variable's name"),
    ] = None
    cost: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        described(
            "Mean cost of a request in US dollars (default: that of the run's responses).", expected="a number from 0"
        ),
    ] = None
    price: Annotated[
        PriceSpec | None, described("Price of the model, for logged costs (default: the known price).")
    ] = None
    run: Annotated[
        str | None,
        described("Run with the arm's results (default: the latest run of the suite with this variant or model)."),
    ] = None

    def faults(self) -> Iterator[Problem]:
        if not re.fullmatch(_NAME, self.name):
            yield Problem("name", f"expected {_NAME_EXPECTED}, got {quote(self.name)}")
        yield from _url_faults(self.base_url, with_key=self.api_key_env is not None)
        if self.api_key_env is not None and not _VARIABLE.fullmatch(self.api_key_env):
            # it may be the key itself, which no message may show
            yield Problem("api_key_env", "expected the name of an environment variable, such as OPENAI_API_KEY")


class FamilyRule(Config, frozen=True, kw_only=True):
    """Where the task family of a request is found; exactly one key."""

    header: Annotated[str | None, described("Header of the request.", expected="the name of a header")] = None
    body: Annotated[str | None, described("JMESPath in the body of the request.", expected="a JMESPath")] = None
    fixed: Annotated[
        Annotated[str, Meta(min_length=1)] | None, described("The same family for every request.", expected="a name")
    ] = None

    def faults(self) -> Iterator[Problem]:
        if sum(one is not None for one in (self.header, self.body, self.fixed)) != 1:
            yield Problem("", "write exactly one of header, body and fixed")
        if self.header is not None and not _HEADER.fullmatch(self.header):
            yield Problem("header", f"invalid header name {quote(self.header)}")
        if self.body is not None:
            try:
                JmesPath(self.body)
            except BadPathError as error:
                yield Problem("body", str(error))


class RouteFile(Config, frozen=True, kw_only=True):
    """A route: which arms it has, by which judge, and within which limits."""

    route: Annotated[str, described("Name of the route, under which decisions are logged.", expected=_NAME_EXPECTED)]
    suite: Annotated[str, described("Suite whose runs are the evidence.", expected="the name of a suite", min_length=1)]
    grader: Annotated[str, described("Grader whose verdicts count.", expected="the name of a grader", min_length=1)]
    baseline: Annotated[
        ArmEntry, described("The arm to fall back to.", expected="a mapping such as {name: …, model: …}")
    ]
    candidates: Annotated[
        tuple[ArmEntry, ...], described("The other arms.", expected="a list of at least one arm", min_length=1)
    ]
    family: Annotated[FamilyRule, described("Where the task family of a request is found (default: one family).")] = (
        FamilyRule(fixed="default")
    )
    cost_weight: Annotated[
        Annotated[float, Meta(ge=0)],
        described("λ: how much quality one US dollar per request is worth (default 0).", expected="a number from 0"),
    ] = msgspec.field(name="lambda", default=0.0)
    exploration: Annotated[
        _Share, described("Maximum share of requests for unproven arms (default 0.05).", expected=_SHARE)
    ] = 0.05
    baseline_share: Annotated[
        _Share, described("Minimum share of requests for the baseline (default 0.05).", expected=_SHARE)
    ] = 0.05
    minimum_samples: Annotated[
        Annotated[int, Meta(ge=1)],
        described(
            "Results per arm and family before an arm is proven (default 30).", expected="a whole number, at least 1"
        ),
    ] = 30
    margin: Annotated[_Share, described("Largest loss of quality of a proven arm (default 0.05).", expected=_SHARE)] = (
        0.05
    )
    alpha: Annotated[
        _Share,
        described(
            "Maximum share of routed requests worse than the baseline, 90 % sure (default 0.1).", expected=_SHARE
        ),
    ] = 0.1
    max_cost: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        described(
            "Maximum mean cost of a request of a candidate, in US dollars (default: none).",
            expected="a number above 0",
        ),
    ] = None
    half_life_days: Annotated[
        Annotated[float, Meta(gt=0)],
        described("Days after which evidence counts half (default 30).", expected="a number of days above 0"),
    ] = 30.0
    max_age_days: Annotated[
        Annotated[float, Meta(gt=0)],
        described("Days after which evidence and tables expire (default 90).", expected="a number of days above 0"),
    ] = 90.0
    require_probes: Annotated[bool, described("Whether the judge's probes must have passed (default true).")] = True
    enabled: Annotated[bool, described("false sends every request to the baseline (default true).")] = True
    timeout: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)],
        described("Timeout of a call in seconds (default 600).", expected="a number of seconds above 0"),
    ] = 600.0
    first_byte_timeout: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)],
        described(
            "Seconds for the first byte of a candidate's stream before the baseline is called (default 30).",
            expected="a number of seconds above 0",
        ),
    ] = 30.0
    answer_timeout: Annotated[
        Annotated[float, Meta(gt=0, le=86_400)],
        described(
            "Seconds for a candidate's answer without streaming before the baseline is called (default 120).",
            expected="a number of seconds above 0",
        ),
    ] = 120.0

    def faults(self) -> Iterator[Problem]:
        if not re.fullmatch(_NAME, self.route):
            yield Problem("route", f"expected {_NAME_EXPECTED}, got {quote(self.route)}")
        seen = {self.baseline.name}
        for place, arm in enumerate(self.candidates):
            if arm.name in seen:
                yield Problem(f"candidates[{place}].name", f"{quote(arm.name)} is the name of another arm")
            seen.add(arm.name)

    @property
    def arms(self) -> tuple[ArmEntry, ...]:
        """All arms, the baseline first."""
        return (self.baseline, *self.candidates)

    @property
    def rules(self) -> PolicyRules:
        """The limits of the policy."""
        return PolicyRules(
            cost_weight=self.cost_weight,
            exploration=self.exploration,
            minimum_samples=self.minimum_samples,
            margin=self.margin,
            baseline_share=self.baseline_share,
        )

    @property
    def digest(self) -> str:
        """Changes whenever the arms or a limit change, but not with addresses and keys."""
        arms = [(arm.name, arm.model) for arm in self.arms]
        return fingerprint("route", self.suite, self.grader, arms, self.rules, self.alpha, self.max_cost)


class FamilyFinder:
    """Finds the task family of a request."""

    def __init__(self, rule: FamilyRule) -> None:
        self._rule = rule
        self._path = None if rule.body is None else JmesPath(rule.body)
        self.needs_body = self._path is not None

    def find(self, headers: Mapping[str, str], body: object) -> str:
        """The family; empty where the request names none. Never raises: a strange request has no family."""
        if self._rule.fixed is not None:
            return self._rule.fixed
        value: object = None
        if self._rule.header is not None:
            value = headers.get(self._rule.header)
        elif self._path is not None:
            try:
                value = self._path.search(body)
            except Exception:  # it is the client's data; routing must not fail because of it
                return ""
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return ""
        return family_name(str(value))


def family_name(text: str) -> str:
    """A task family as it is logged: without characters that cannot be stored, at most `MAX_FAMILY` long."""
    return clean_text(text).text.strip()[:MAX_FAMILY]


def read_route(path: Path) -> RouteFile:
    """Read a route file; `DocumentError` lists every fault with file, line and column."""
    document = read_document(path)
    problems: list[Problem] = []
    candidates = document.data.get("candidates")
    readers: dict[str, Any] = {"baseline": _read_arm, "family": _read_family}
    if isinstance(candidates, list) and candidates:
        readers["candidates"] = _read_arms
    reading = read_struct(RouteFile, document.data, "", readers)
    problems += [*reading.problems, *reading.unknown]
    if problems or reading.options is None:
        raise DocumentError(_located(document, problem) for problem in problems)
    return reading.options


def route_schema() -> dict[str, Any]:
    """The JSON Schema of route files."""
    schema = config_schema(RouteFile)
    for definition in schema.get("$defs", {}).values():
        definition.pop("title", None)
        definition["additionalProperties"] = False
        definition["patternProperties"] = OWN
    return {
        "$schema": DIALECT,
        "title": "gradeline route",
        "description": RouteFile.__doc__,
        "type": "object",
        **schema,
    }


def arm_keys(route: RouteFile, environment: Mapping[str, str] | None = None) -> dict[str, str | None]:
    """The API key of each arm; `ConfigError` names every variable that is not set."""
    known = os.environ if environment is None else environment
    missing = [arm for arm in route.arms if arm.api_key_env is not None and not known.get(arm.api_key_env)]
    if missing:
        raise ConfigError(
            Problem(f"{arm.name}.api_key_env", f"the environment variable {arm.api_key_env} is not set; export it")
            for arm in missing
        )
    return {arm.name: known[arm.api_key_env] if arm.api_key_env is not None else None for arm in route.arms}


def _read_arm(value: object, path: str, problems: list[Problem]) -> ArmEntry | None:
    reading = read_struct(ArmEntry, value, path)
    problems += [*reading.problems, *reading.unknown]
    return reading.options


def _read_arms(value: object, path: str, problems: list[Problem]) -> tuple[ArmEntry | None, ...]:
    assert isinstance(value, list)  # noqa: S101 - checked before
    return tuple(_read_arm(one, f"{path}[{place}]", problems) for place, one in enumerate(value))


def _read_family(value: object, path: str, problems: list[Problem]) -> FamilyRule | None:
    reading = read_struct(FamilyRule, value, path)
    problems += [*reading.problems, *reading.unknown]
    return reading.options


def _located(document: SuiteDocument, problem: Problem) -> Any:
    return document.problem(tuple(path_steps(problem.path.strip("."))), problem.message)


def _url_faults(url: str, *, with_key: bool) -> Iterator[Problem]:
    from gradeline.transport import HttpRequest  # loads aiohttp
    from gradeline.transport.secrets import is_loopback

    try:
        checked = HttpRequest("POST", url).checked_url()
    except ConfigError as error:
        yield from (Problem("base_url", problem.message) for problem in error.problems)
        return
    if with_key and checked.scheme == "http" and not is_loopback(checked.raw_host or ""):
        yield Problem("base_url", "would send the API key unencrypted; use https")
