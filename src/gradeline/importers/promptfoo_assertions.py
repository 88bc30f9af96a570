"""The assertions of promptfoo's tests, as checks of cases and graders of the suite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.checks import read_checks
from gradeline.graders.registry import registry
from gradeline.importers.promptfoo_code import in_node
from gradeline.importers.promptfoo_columns import Entry, EntrySet, PromptfooColumns
from gradeline.importers.promptfoo_expressions import NotTranslatedError
from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError, SourceFolder
from gradeline.importers.promptfoo_graders import GRADERS, UNMAPPED
from gradeline.importers.promptfoo_javascript import translate
from gradeline.importers.promptfoo_judges import judge_options
from gradeline.importers.promptfoo_rules import RULES, negate_check, rule_name
from gradeline.importers.promptfoo_types import (
    EXPECTED,
    MAX_ITEMS,
    SPECIAL_TYPES,
    TYPES,
    Assertion,
    JudgedCriterion,
    NoCounterpartError,
    Outcome,
    Rendering,
    RuleCheck,
    Scope,
    Several,
    least_score,
    number_of,
)
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import clean_text, quote

CLAIMED_TYPES = frozenset((*RULES, *GRADERS))
"""The types of assertions that are mapped."""
MAX_ASSERTIONS = 1_000
"""Maximum assertions of a test, with those in sets."""
_MAX_REFERENCES = 20
"""References from template to template."""
_MAX_WEIGHT = 1e6
_MAX_METRIC = 80
_MAX_TYPE = 100
_TEMPLATES = "#/assertionTemplates/"
_PACKAGE = "package:"
_CODE = frozenset(("javascript", "python", "ruby"))
_SCRIPTS = frozenset((".js", ".cjs", ".mjs", ".ts", ".py", ".rb"))
_NOT_OF_OUTPUT = frozenset(
    """
    cost finish-reason guardrails is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call
    latency skill-used tool-call-f1 trajectory:goal-success trajectory:step-count trajectory:tool-args-match
    trajectory:tool-sequence trajectory:tool-used
    """.split()  # noqa: SIM905
)
"""The types that look at something else than the output."""
_NOT_IGNORED = "here not- counts; promptfoo ignores it for this type"
_IGNORES_NOT = frozenset(
    (
        "answer-relevance",
        "context-faithfulness",
        "context-recall",
        "context-relevance",
        "factuality",
        "is-valid-function-call",
        "is-valid-openai-function-call",
        "is-valid-openai-tools-call",
        "model-graded-closedqa",
        "model-graded-factuality",
        "pi",
    )
)
"""The types for which promptfoo accepts ``not-`` and ignores it."""
_KEYS = frozenset(
    """
    description type value config threshold weight provider rubricPrompt metric transform contextTransform assert
    """.split()  # noqa: SIM905
)


class MappedCase(NamedTuple):
    """What a case gets from its assertions.

    ``checks`` is the value of the case's key ``checks``, empty if it has none. ``metadata`` has the key ``promptfoo``,
    with the graders that apply to the case and the values that they read; it is empty without assertions.
    """

    checks: list[dict[str, object]]
    metadata: dict[str, object]


class AssertionMapper:
    """Maps the assertions of an import's tests, one test after the other, those without assertions included.

    When all are mapped, ``graders`` has the graders of the suite, each with the ``when`` of its cases, and ``files``
    the code that they run, by its name in the written folder. Nothing of the source is executed.
    """

    def __init__(self, report: ImportReport, base: Path) -> None:
        self._report = report
        self._folder = SourceFolder(base)
        self._columns = PromptfooColumns()

    @property
    def graders(self) -> dict[str, dict[str, object]]:
        """The graders of the suite, by name."""
        return self._columns.graders

    @property
    def files(self) -> dict[str, str]:
        """The files that graders run, with their text."""
        return self._columns.files

    def gate(self) -> dict[str, object] | None:
        """The rule that every case passes, as in promptfoo; None without a grader that counts."""
        return self._columns.gate()

    def case(
        self,
        place: str,
        assertions: Sequence[object],
        *,
        variables: Mapping[str, object],
        threshold: float | None,
        options: Mapping[str, object],
        templates: Mapping[str, object],
    ) -> MappedCase:
        """Map the assertions of a test; what became of each is in the report, with ``place``.

        ``options`` are the test's, of which ``provider``, ``rubricPrompt`` and ``factuality`` count. ``templates`` are
        those that ``{$ref: "#/assertionTemplates/name"}`` names.
        """
        scope = Scope(variables, options, self._folder)
        reader = _Reader(self._report, place, scope, templates)
        entries = reader.entries(assertions)
        least = self._threshold(place, threshold)
        try:
            case = self._columns.case(entries, scope, least)
        except NoCounterpartError as error:
            self._report.not_mapped(place, "test", f"{error}; none of its assertions is part of the suite")
            return MappedCase([], {})
        for name, why in case.lost:
            self._report.not_mapped(place, item_name("assertion", name), why)
        return MappedCase(case.checks, case.metadata)

    def _threshold(self, place: str, threshold: float | None) -> float | None:
        """The score from which a test passes; None where promptfoo ignores it."""
        if threshold is None:
            return None
        number = isinstance(threshold, int | float) and not isinstance(threshold, bool)
        if number and 0 <= threshold <= 1:
            return float(threshold)
        self._report.not_mapped(place, "threshold", f"is {quote(threshold, 40)}; write a number from 0 to 1")
        return None


class _Reader:
    """Reads the assertions of one test and finds what each becomes."""

    def __init__(self, report: ImportReport, place: str, scope: Scope, templates: Mapping[str, object]) -> None:
        self._report = report
        self._place = place
        self._scope = scope
        self._templates = templates
        self._rendering = Rendering(scope.variables)
        self._count = 0

    def entries(self, assertions: Sequence[object]) -> list[Entry | EntrySet]:
        """The assertions that are mapped; the others are in the report."""
        found: list[Entry | EntrySet] = []
        for written in assertions:
            data = self._resolved(written)
            if data is not None and data.get("type") == "assert-set":
                found += self._set(data)
            elif data is not None:
                found += self._entry(data)
        return found

    def _set(self, data: Mapping[str, object]) -> Iterator[EntrySet]:
        inner = data.get("assert")
        if not isinstance(inner, list):
            self._not_mapped("assertion 'assert-set'", f"needs a list as its assert, got {quote(inner, 60)}")
            return
        members: list[Entry] = []
        for written in inner:
            member = self._resolved(written)
            if member is not None and member.get("type") == "assert-set":
                self._not_mapped("assertion 'assert-set'", "is within a set, and promptfoo runs none there; unnest it")
            elif member is not None:
                members += self._entry(member)
        try:
            weight, metric = self._weight(data), self._metric(data)
            threshold = self._threshold(data)
            if threshold is not None and not 0 <= threshold <= 1:
                raise NoCounterpartError(f"has the threshold {threshold:g}; write a number from 0 to 1")
        except NoCounterpartError as error:
            self._not_mapped("assertion 'assert-set'", str(error))
            return
        if not members:
            return
        if threshold is not None and any(member.metric for member in members):
            differs = "metrics of assertions within a set with a threshold have no column"
            self._report.approximated(self._place, "assertion 'assert-set'", "check weighted", differs)
        else:
            self._report.mapped(self._place, "assertion 'assert-set'", "check weighted, or its assertions")
        yield EntrySet(members, weight, metric, threshold)

    def _entry(self, data: Mapping[str, object]) -> Iterator[Entry]:
        """The assertion, or none if it has no counterpart."""
        self._count += 1
        if self._count > MAX_ASSERTIONS:
            if self._count == MAX_ASSERTIONS + 1:
                self._not_mapped("assertion", f"is after the first {MAX_ASSERTIONS:,} of its test; split the test")
            return
        what = item_name("assertion", data.get("type"))
        unknown = sorted(map(str, set(data) - _KEYS))
        if unknown:
            self._not_mapped(item_name("key", unknown[0]), "is not a key of an assertion; it is ignored")
        try:
            assertion = self._assertion(data)
            outcome = self._outcome(assertion)
            entry = self._checked(assertion, outcome)
        except NoCounterpartError as error:
            self._not_mapped(what, str(error))
            return
        became, differs = _description(outcome)
        if assertion.negated and assertion.type in _IGNORES_NOT:
            differs = f"{differs}; {_NOT_IGNORED}" if differs else _NOT_IGNORED
        if differs:
            self._report.approximated(self._place, what, became, differs)
        else:
            self._report.mapped(self._place, what, became)
        yield entry

    def _not_mapped(self, what: str, why: str) -> None:
        self._report.not_mapped(self._place, what, why)

    def _resolved(self, written: object) -> Mapping[str, object] | None:
        """An assertion with its template filled in; None if there is none, which is in the report."""
        data = written
        for _ in range(_MAX_REFERENCES):
            if not isinstance(data, Mapping):
                self._not_mapped("assertion", f"is {quote(data, 60)}; write a mapping such as {{type: contains}}")
                return None
            reference = data.get("$ref")
            if reference is None:
                return data
            name = reference.removeprefix(_TEMPLATES) if isinstance(reference, str) else ""
            if not name or name == reference or name not in self._templates:
                self._not_mapped(item_name("$ref", reference), f"names no assertion; write {_TEMPLATES}NAME")
                return None
            template = self._templates[name]
            own = {key: value for key, value in data.items() if key != "$ref"}
            data = {**template, **own} if isinstance(template, Mapping) else template
        self._not_mapped(item_name("$ref", written), "refers to itself; write the assertion out")
        return None

    def _assertion(self, data: Mapping[str, object]) -> Assertion:
        """The assertion with its templates rendered; `NoCounterpartError` if it has no counterpart."""
        written = data.get("type")
        if not isinstance(written, str):
            raise NoCounterpartError(f"has the type {quote(written, 40)}; write one of promptfoo's types")
        kind = written if written in SPECIAL_TYPES else written.removeprefix("not-")
        _require_known(kind)
        config = data.get("config") or {}
        if not isinstance(config, Mapping):
            raise NoCounterpartError(f"has the config {quote(config, 60)}; write a mapping")
        own_config = self._rendering.data(config)
        assert isinstance(own_config, dict)  # noqa: S101 - it was a mapping
        return Assertion(
            type=kind,
            negated=kind != written,
            value=self._value(kind, data.get("value")),
            threshold=self._threshold(data),
            weight=self._weight(data),
            metric=self._metric(data),
            config=own_config,
            provider=self._rendering.data(data.get("provider")),
            rubric_prompt=data.get("rubricPrompt"),
            transforms=_transforms(data.get("transform")),
            context_transform=_text(data, "contextTransform"),
        )

    def _value(self, kind: str, value: object) -> object:
        if isinstance(value, str) and value.startswith(_PACKAGE):
            raise NoCounterpartError(f"has the value {quote(value, 60)} of a package; write a file that calls it")
        if isinstance(value, str) and value.startswith(SCHEME):
            return value if kind in _CODE else self._content(value)
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            return self._rendering.value(value)
        files = {at: one for at, one in enumerate(value) if isinstance(one, str) and one.startswith(SCHEME)}
        found = self._rendering.value(["" if at in files else one for at, one in enumerate(value)])
        assert isinstance(found, list)  # noqa: S101 - it was a list
        return [self._content(files[at]) if at in files else one for at, one in enumerate(found)]

    def _content(self, written: str) -> object:
        """The content of a file."""
        reference = FileReference.of(written)
        if reference.suffix in _SCRIPTS:
            raise NoCounterpartError(f"has a value that {quote(reference.path, 60)} computes; write the value out")
        try:
            return self._rendering.data(self._scope.folder.value(reference))
        except FileReferenceError as error:
            raise NoCounterpartError(f"has a value that is not read: {error}") from None

    def _threshold(self, data: Mapping[str, object]) -> float | None:
        written = data.get("threshold")
        return None if written is None else number_of(written, "threshold")

    def _weight(self, data: Mapping[str, object]) -> float:
        written = 0 if data.get("metricOnly") is True else data.get("weight")
        weight = 1.0 if written is None else number_of(written, "weight")
        if not 0 <= weight <= _MAX_WEIGHT:
            raise NoCounterpartError(f"has the weight {weight:g}; write a number from 0 to {_MAX_WEIGHT:,.0f}")
        return weight

    def _metric(self, data: Mapping[str, object]) -> str | None:
        """The name of the metric; None for an empty one, which promptfoo does not count either."""
        written = data.get("metric")
        if written is None:
            return None
        metric = self._rendering.value(written)
        if not isinstance(metric, str) or len(metric) > _MAX_METRIC or not metric.isprintable():
            raise NoCounterpartError(
                f"has the metric {quote(metric, 60)}; write a name of at most {_MAX_METRIC} characters"
            )
        return metric.strip() or None

    def _outcome(self, assertion: Assertion) -> Outcome:
        if assertion.transforms and not _ignores_transforms(assertion):
            return in_node(assertion)
        if assertion.type == "javascript":
            rule = self._translated(assertion)
            if rule is not None:
                return RuleCheck(rule)
        mapping = RULES.get(assertion.type) or GRADERS[assertion.type]
        try:
            return mapping(assertion, self._scope)
        except NotTranslatedError:
            return in_node(assertion)

    def _translated(self, assertion: Assertion) -> dict[str, object] | None:
        """One-line JavaScript as a rule; None if Node must run it."""
        if assertion.threshold is not None or not isinstance(assertion.value, str):
            return None
        try:
            return translate(assertion.value, self._scope.variables, assertion.config)
        except NotTranslatedError:
            return None

    def _checked(self, assertion: Assertion, outcome: Outcome) -> Entry:
        """The entry, if gradeline accepts what it consists of; `NoCounterpartError` otherwise."""
        judge: Mapping[str, object] = {}
        if isinstance(outcome, RuleCheck):
            _require_check(negate_check(outcome) if assertion.negated else outcome.rule)
        elif isinstance(outcome, JudgedCriterion):
            judge = judge_options(self._scope.options.get("provider"))
            _require_check({"judge": outcome.text})
            _require_grader({"kind": "checks", **judge})
        else:
            for grader in outcome.graders if isinstance(outcome, Several) else [outcome]:
                _require_grader(grader.config)
            first = outcome.graders[0] if isinstance(outcome, Several) else outcome
            if assertion.negated and not first.inverted and least_score(first.config) <= 0:
                raise NoCounterpartError("passes from the score 0, so its opposite never does; set a threshold")
        return Entry(outcome, assertion.name, assertion.negated, assertion.weight, assertion.metric, judge)


def _require_known(kind: str) -> None:
    """`NoCounterpartError` for a type that has no counterpart."""
    if kind in CLAIMED_TYPES:
        return
    if kind.startswith("promptfoo:"):
        raise NoCounterpartError("is of red teaming, which gradeline does not do; keep it in promptfoo")
    if kind in UNMAPPED:
        raise NoCounterpartError(UNMAPPED[kind])
    near = closest_match(kind, (*TYPES, *SPECIAL_TYPES)) if len(kind) <= _MAX_TYPE else None
    raise NoCounterpartError(
        f"is not a type of promptfoo; did you mean {near!r}?" if near else "is not a type of promptfoo"
    )


def _text(data: Mapping[str, object], key: str) -> str | None:
    value = data.get(key)
    if value is not None and not isinstance(value, str):
        raise NoCounterpartError(f"has the {key} {quote(value, 60)}; write it as text")
    return None if value is None else clean_text(value).text


def _transforms(written: object) -> tuple[str, ...]:
    """The code that changes the output: that of the assertion, or a list with that of its test before it."""
    found: list[str] = []
    for code in written if isinstance(written, list) else [] if written in (None, "") else [written]:
        if not isinstance(code, str):
            raise NoCounterpartError(f"has the transform {quote(written, 60)}; write it as text")
        if code.startswith(SCHEME):
            raise NoCounterpartError("has a transform in a file; write its code into the transform")
        found.append(clean_text(code).text)
    return tuple(found)


def _ignores_transforms(assertion: Assertion) -> bool:
    """Whether the check is the same without changes of the output."""
    parsed = assertion.type == "is-json" and [code.strip() for code in assertion.transforms] == ["JSON.parse(output)"]
    return parsed or assertion.type in _NOT_OF_OUTPUT


def _require_check(check: Mapping[str, object]) -> None:
    problems: list[Problem] = []
    read_checks([check], "", problems)
    if problems:
        raise NoCounterpartError(f"has no valid check: {problems[0].message}")


_OF_ENTRY = frozenset(("kind", "function", "extractor", "extractor_config", "expected", "pass_threshold"))
"""Keys of a grader in a suite that are not options of its kind."""


def _require_grader(config: Mapping[str, object]) -> None:
    kind = config["kind"]
    if kind == "tool":
        return
    options = {key: value for key, value in config.items() if key not in _OF_ENTRY}
    options = {key: "$metadata.value" if value == EXPECTED else value for key, value in options.items()}
    declaration = registry.get(str(kind))
    assert issubclass(declaration, DeclaredGrader)  # noqa: S101 - every kind that is written is one
    try:
        declaration.check(options)
    except ConfigError as error:
        raise NoCounterpartError(f"has no valid grader: {error.problems[0]}") from None


def _description(outcome: Outcome) -> tuple[str, str]:
    """What an assertion became, and what differs."""
    if isinstance(outcome, RuleCheck):
        return rule_name(outcome.rule), outcome.differs
    if isinstance(outcome, JudgedCriterion):
        return "criterion for a judge", outcome.differs
    if isinstance(outcome, Several):
        combined = "the mean" if outcome.mean else "the best"
        return f"{outcome.graders[0].became}, {combined} of several", outcome.graders[0].differs
    return outcome.became, outcome.differs


_SHORT = {"eval": "javascript", "fn": "javascript", "grade": "llm-rubric"}
_WORDS = "|".join(sorted(map(re.escape, TYPES), key=len, reverse=True))
_FORM = re.compile(
    rf"(?P<short>{'|'.join(_SHORT)}):(?P<text>.*)"
    rf"|(?P<negated>not-)?(?P<type>{_WORDS})(?:\(\s*+(?P<threshold>\d{{1,9}}(?:\.\d{{1,9}})?)\s*+\))?"
    r"(?:\s*+:(?P<value>.*))?",
    re.DOTALL,
)
_CELL_THRESHOLDS = {
    **dict.fromkeys(
        """
        answer-relevance classifier context-faithfulness context-recall context-relevance cost latency levenshtein
        perplexity perplexity-score rouge-n
        """.split(),  # noqa: SIM905
        0.75,
    ),
    "similar": 0.8,
}
"""The thresholds of cells that name none."""


def parse_expected(text: str) -> dict[str, object]:
    """The assertion in a cell ``__expected`` of a CSV file: ``type``, ``type: value`` or ``type(threshold): value``.

    Each may have ``not-`` before it. ``file://…`` is code, in Python or JavaScript. A text that names no assertion must
    equal the output.
    """
    plain = text.strip()
    if plain.startswith(SCHEME):
        return {"type": "python" if FileReference.of(plain).suffix == ".py" else "javascript", "value": plain}
    found = _FORM.fullmatch(plain)
    if found is None:
        return {"type": "equals", "value": text}
    if found["short"] is not None:
        return {"type": _SHORT[found["short"]], "value": found["text"].strip()}
    kind = found["type"]
    assertion: dict[str, object] = {"type": f"not-{kind}" if found["negated"] else kind}
    if found["value"] is not None:
        value = found["value"].strip()
        listed = kind.endswith(("contains-all", "contains-any"))
        assertion["value"] = [text.strip() for text in value.split(",")] if listed else value
    threshold = float(found["threshold"] or 0) or _CELL_THRESHOLDS.get(kind)
    if threshold is not None:
        assertion["threshold"] = threshold
    return assertion
