"""The tests of a promptfoo configuration: read from files, merged with the defaults and expanded as promptfoo does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.importers.promptfoo_assertions import parse_expected
from gradeline.importers.promptfoo_config import PromptfooConfig, as_list, is_code, load_value
from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError
from gradeline.importers.promptfoo_tags import parse_page, render_page
from gradeline.importers.promptfoo_templates import TemplateError
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import read_csv_rows, read_rows
from gradeline.model import clean_text, quote
from gradeline.model.fingerprint import fingerprint
from gradeline.suite.document import read_document

MAX_CASES = 100_000
"""Maximum cases of an imported configuration."""
_MAX_CHARACTERS = 10_000_000
"""Characters of the variables of a test when they refer to each other."""
_PASSES = 5
"""How often variables in variables are replaced."""
_MEDIA = frozenset((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".svg", ".pdf", ".mp3", ".wav", ".mp4"))
_EXPECTED = re.compile(r"__expected(\d{0,4})")
_EXPECTED_CONFIG = re.compile(r"__config:__expected(\d{0,4}):threshold")
_TEST_KEYS = frozenset(
    """
    description vars provider providers prompts providerOutput assert assertScoringFunction options threshold metadata
    """.split()  # noqa: SIM905
)
_OPTIONS = frozenset(
    """
    prefix suffix transform postprocess rubricPrompt provider factuality disableVarExpansion disableConversationVar
    disableDefaultAsserts
    """.split()  # noqa: SIM905
)
"""The options of a test that are read, here or by the mapping of its assertions."""
_DROPPED_OPTIONS: Mapping[str, str] = {
    "transformVars": "is code, which an import never executes; write the values out",
    "storeOutputAs": "cases are independent; write a case whose input lists the turns",
    "runSerially": "cases are independent; write a case whose input lists the turns",
    "repeat": "every case has the suite's number of repeats; write repeats in the suite",
}
_PARTIAL = {
    "provider": "every case runs with every target; a suite of its own can have another one",
    "providers": "every case runs with every target; select runs with --variant and cases with --tag",
    "prompts": "every case runs with every prompt; select runs with --variant and cases with --tag",
    "assertScoringFunction": "is code, which an import never executes; write a reward of kind custom",
}


class PromptfooTest(NamedTuple):
    """A test with its defaults, and one value for each variable."""

    place: str
    description: str | None
    variables: Mapping[str, object]
    assertions: Sequence[object]
    options: Mapping[str, object]
    threshold: float | None
    metadata: Mapping[str, object]
    output: object = None
    """``providerOutput``: a response that the configuration has itself."""

    @property
    def digest(self) -> str:
        """A digest of what the test asks, in eight characters."""
        return fingerprint("promptfoo-test", 1, self.description, dict(self.variables))[:8]

    @property
    def whole_digest(self) -> str:
        """`digest`, but also of what it asserts."""
        return fingerprint("promptfoo-test", 1, self.description, dict(self.variables), list(self.assertions))[:8]


class CaseNames:
    """Names of cases: the description of a test where that is unique, else with a digest of its variables."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, test: PromptfooTest) -> str:
        """The name for the next test."""
        text = clean_text(" ".join((test.description or "").split())[:80]).text
        candidates = [text, f"{text} {test.digest}", f"{text} {test.whole_digest}"]
        if not text:
            candidates = [f"case-{test.digest}", f"case-{test.whole_digest}"]
        for name in candidates:
            if name and name not in self._taken:
                self._taken.add(name)
                return name
        number = 2
        while f"{candidates[-1]}-{number}" in self._taken:
            number += 1
        name = f"{candidates[-1]}-{number}"
        self._taken.add(name)
        return name


class TestReader:
    """Reads the tests of a configuration, in its order; memory does not grow with their number."""

    __test__ = False  # not a class of tests

    def __init__(self, config: PromptfooConfig, report: ImportReport) -> None:
        self._config = config
        self._report = report
        self._name = config.name

    def tests(self) -> Iterator[PromptfooTest]:
        """The tests; `ConfigError` if there are more than `MAX_CASES`."""
        for count, test in enumerate(self._all(), 1):
            if count > MAX_CASES:
                raise ConfigError(Problem(test.place, f"more than {MAX_CASES:,} cases; split the configuration"))
            yield test

    def _all(self) -> Iterator[PromptfooTest]:
        default = self._default()
        data = self._config.data
        has_tests = False
        for place, written in self._sources(f"{self._name}.tests", data.get("tests")):
            has_tests = True
            yield from self._expanded(place, _merged(default, written))
        scenarios = data.get("scenarios")
        if scenarios is not None:
            has_tests = True
            for place, scenario in self._sources(f"{self._name}.scenarios", scenarios):
                yield from self._scenario(place, scenario, default)
        if not has_tests:
            yield from self._expanded(f"{self._name}.tests", default)

    def _default(self) -> dict[str, Any]:
        place = f"{self._name}.defaultTest"
        try:
            written = load_value(self._config.data.get("defaultTest") or {}, self._config.folder)
        except FileReferenceError as error:
            self._report.not_mapped(place, "defaultTest", f"is not read: {error}")
            return {}
        if not isinstance(written, Mapping):
            self._report.not_mapped(place, "defaultTest", f"is {quote(written, 40)}, and should be a test")
            return {}
        test = self._whole(place, written)
        return {} if test is None else test

    def _scenario(self, place: str, scenario: Mapping[str, Any], default: Mapping[str, Any]) -> Iterator[PromptfooTest]:
        known = {"description", "config", "tests"}
        for key in scenario.keys() - known:
            self._report.not_mapped(place, item_name("scenario", key), "is not a key of a scenario")
        configs = list(islice(self._sources(f"{place}.config", scenario.get("config")), MAX_CASES)) or [(place, {})]
        written = scenario.get("tests")
        for _, partial in configs:
            sources = self._sources(f"{place}.tests", written) if written is not None else iter([(place, {})])
            at = None
            for at, test in sources:
                yield from self._expanded(at, _merged(_merged(default, partial), test))
            if at is None:
                break  # the other configurations have no tests either
        self._report.mapped(place, "scenario", "cases")

    def _sources(self, place: str, written: object) -> Iterator[tuple[str, dict[str, Any]]]:
        """The mappings that are written in a list or in files, each with its place."""
        for index, entry in enumerate(as_list(written)):
            at = f"{place}[{index}]" if isinstance(written, list) else place
            if isinstance(entry, str):
                yield from self._files(at, entry)
            elif isinstance(entry, Mapping) and isinstance(entry.get("path"), str):
                yield from self._files(at, entry["path"])
            elif isinstance(entry, Mapping):
                test = self._whole(at, entry)
                if test is not None:
                    yield at, test
            else:
                self._report.not_mapped(at, "test", f"is {quote(entry, 60)}; write a test, or the name of a file")

    def _whole(self, place: str, entry: Mapping[str, Any]) -> dict[str, Any] | None:
        """A test with its variables from files."""
        test = dict(entry)
        variables = test.get("vars")
        if isinstance(variables, str | list):
            found: dict[str, Any] = {}
            for one in as_list(variables):
                try:
                    for reference in self._config.folder.matches(FileReference.of(str(one))):
                        value = load_value(f"{SCHEME}{reference.path}", self._config.folder)
                        found |= value if isinstance(value, Mapping) else {}
                except FileReferenceError as error:
                    self._report.not_mapped(place, "vars", f"are not read: {error}")
                    return None
            test["vars"] = found
        for key in ("vars", "options", "metadata"):
            if test.get(key) is not None and not isinstance(test[key], Mapping):
                self._report.not_mapped(place, key, f"is {quote(test[key], 40)}, and should be a mapping")
                test[key] = {}
        if test.get("assert") is not None and not isinstance(test["assert"], list):
            self._report.not_mapped(place, "assert", f"is {quote(test['assert'], 40)}, and should be a list")
            test["assert"] = []
        return test

    def _files(self, place: str, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
        what = item_name("tests", text)
        if text.startswith(("http://", "https://", "huggingface://", "hf://")):
            self._report.not_mapped(place, what, "is not downloaded by an import; download it as CSV or JSON Lines")
            return
        try:
            for reference in self._config.folder.matches(FileReference.of(text)):
                yield from self._file(reference, place)
        except FileReferenceError as error:
            self._report.not_mapped(place, what, f"are not read: {error}")
        except ConfigError as error:
            self._report.not_mapped(place, what, f"are not read: {error.problems[0].message}")

    def _file(self, reference: FileReference, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
        what = item_name("tests", reference.path)
        if is_code(reference):
            note = "are code, which an import never executes; write the tests to a file of YAML, JSON Lines or CSV"
            self._report.not_mapped(place, what, note)
        elif reference.suffix in (".xlsx", ".xls"):
            self._report.not_mapped(place, what, "are a spreadsheet; save it as CSV and name that file")
        elif reference.suffix == ".csv":
            for row in read_csv_rows(self._config.folder.path(reference)):
                yield row.place, csv_test(row.place, row.data, self._report)
        elif reference.suffix == ".jsonl" or (reference.suffix == ".json" and self._is_list(reference)):
            for row in read_rows(self._config.folder.path(reference), self._report):
                test = self._whole(row.place, row.data)
                if test is not None:
                    yield row.place, test
        elif reference.suffix in (".yaml", ".yml", ".json"):
            data = read_document(self._config.folder.path(reference), top="any").data
            for index, entry in enumerate(as_list(data)):
                at = f"{reference.path}[{index}]"
                if not isinstance(entry, Mapping):
                    self._report.not_mapped(at, "test", f"is {quote(entry, 60)}; write a test")
                elif (test := self._whole(at, entry)) is not None:
                    yield at, test
        else:
            self._report.not_mapped(place, what, "are of no format that is read; write YAML, JSON, JSON Lines or CSV")

    def _is_list(self, reference: FileReference) -> bool:
        with self._config.folder.path(reference).open("rb") as file:
            return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")

    def _expanded(self, place: str, test: Mapping[str, Any]) -> Iterator[PromptfooTest]:
        """The tests of one test: a variable that lists texts has one value in each."""
        self._report_keys(place, test)
        options = test.get("options") or {}
        written: Mapping[str, Any] = test.get("vars") or {}
        choices: dict[str, list[object]] = {}
        try:
            for name, value in written.items():
                choices[str(name)] = self._choices(value, expands=options.get("disableVarExpansion") is not True)
        except FileReferenceError as error:
            self._report.not_mapped(place, "vars", f"are not read, and the test is left out: {error}")
            return
        number = prod(map(len, choices.values()))
        if number > MAX_CASES:
            note = f"have {quote(number)} combinations, more than {MAX_CASES:,}; list the tests that matter"
            self._report.not_mapped(place, "vars", note)
            return
        for values in product(*choices.values()):
            variables = self._rendered(place, dict(zip(choices, values, strict=True)))
            if variables is None:
                continue
            output = test.get("providerOutput")
            yield PromptfooTest(
                place=place,
                description=str(test["description"]) if test.get("description") else None,
                variables=variables,
                assertions=test.get("assert") or [],
                options=options,
                threshold=test.get("threshold"),
                metadata=test.get("metadata") or {},
                output=output,
            )

    def _choices(self, value: object, *, expands: bool) -> list[object]:
        if isinstance(value, str) and value.startswith(SCHEME):
            return [self._file_value(one) for one in self._config.folder.matches(FileReference.of(value))]
        if expands and isinstance(value, list) and value and isinstance(value[0], str):
            return [one for item in value for one in self._choices(item, expands=False)]
        return [value]

    def _file_value(self, reference: FileReference) -> object:
        if reference.suffix in _MEDIA:
            raise FileReferenceError(f"{quote(reference.path, 80)} is not a text, and inputs are texts")
        value = load_value(f"{SCHEME}{reference.path}", self._config.folder)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _rendered(self, place: str, variables: dict[str, object]) -> dict[str, object] | None:
        """The variables with those in their values replaced; None if that fails."""
        for _ in range(_PASSES):
            templates = [
                name for name, value in variables.items() if isinstance(value, str) and ("{{" in value or "{%" in value)
            ]
            if not templates:
                break
            before = dict(variables)
            for name in templates:
                try:
                    variables[name] = render_page(parse_page(str(before[name])), before)
                except TemplateError as error:
                    note = f"has a template that {error}; its text is kept as it is"
                    self._report.approximated(place, item_name("variable", name), "metadata", note)
            if sum(len(value) for value in variables.values() if isinstance(value, str)) > _MAX_CHARACTERS:
                note = f"have more than {_MAX_CHARACTERS:,} characters when they are replaced; write them out"
                self._report.not_mapped(place, "vars", note)
                return None
            if variables == before:
                break
        return variables

    def _report_keys(self, place: str, test: Mapping[str, Any]) -> None:
        for key, value in test.items():
            if key not in _TEST_KEYS:
                self._report.not_mapped(place, item_name("test", key), "is not a key of a test")
            elif key in _PARTIAL and value:
                self._report.not_mapped(place, f"{key} of a test", _PARTIAL[key])
        options = test.get("options") or {}
        for key, value in options.items():
            what = item_name("option", key)
            if key in _DROPPED_OPTIONS and value:
                self._report.not_mapped(place, what, _DROPPED_OPTIONS[key])
            elif key not in _OPTIONS and key not in _DROPPED_OPTIONS:
                note = "is an option of the provider for some tests; write it in the target, or a suite of its own"
                self._report.not_mapped(place, what, note)


def _merged(default: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, Any]:
    """A test with the defaults: variables, options and metadata by key, assertions after those of the default."""
    merged = {**default, **{key: value for key, value in test.items() if value is not None}}
    for key in ("vars", "options", "metadata"):
        merged[key] = {**(default.get(key) or {}), **(test.get(key) or {})}
    own = list(test.get("assert") or [])
    without = merged["options"].get("disableDefaultAsserts") is True
    merged["assert"] = own if without else [*(default.get("assert") or []), *own]
    return merged


def csv_test(place: str, row: Mapping[str, str], report: ImportReport) -> dict[str, Any]:
    """A row of a CSV file as a test: its columns are variables, but for those that begin with ``__``."""
    test: dict[str, Any] = {"vars": {}, "options": {}, "metadata": {}}
    expected: dict[int, dict[str, Any]] = {}
    thresholds: dict[int, str] = {}
    metric = None
    for written, cell in row.items():
        name, text = written.strip(), cell if isinstance(cell, str) else ""
        if (found := _EXPECTED.fullmatch(name)) is not None:
            if text.strip():
                expected[int(found[1] or 1) * 2 - (not found[1])] = parse_expected(text)
        elif (found := _EXPECTED_CONFIG.fullmatch(name)) is not None:
            thresholds[int(found[1] or 1)] = text
        elif name in ("__prefix", "__suffix"):
            test["options"][name[2:]] = text
        elif name == "__description":
            test["description"] = text
        elif name == "__metric":
            metric = text or None
        elif name == "__threshold":
            test["threshold"] = _number(place, name, text, report)
        elif name == "__providerOutput":
            test["providerOutput"] = text or None
        elif name.startswith("__metadata:"):
            _add_metadata(test["metadata"], name.removeprefix("__metadata:"), text)
        elif name.startswith("__"):
            report.not_mapped(place, item_name("column", name), "is not a column with a meaning; rename it")
        else:
            test["vars"][name] = text
    for number, text in thresholds.items():
        value = _number(place, "threshold", text, report)
        for key in (number * 2, number * 2 - 1):
            if key in expected and value is not None:
                expected[key]["threshold"] = value
    for assertion in expected.values():
        if metric is not None:
            assertion["metric"] = metric
    test["assert"] = [expected[key] for key in sorted(expected)]
    return test


def _number(place: str, name: str, text: str, report: ImportReport) -> float | None:
    if not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        report.not_mapped(place, item_name("column", name), f"is {quote(text, 40)}, and should be a number")
        return None


def _add_metadata(metadata: dict[str, Any], key: str, text: str) -> None:
    if not text:
        return
    if key.endswith("[]"):
        parts = re.split(r"(?<!\\),", text)
        metadata[key[:-2]] = [part.replace("\\,", ",").strip() for part in parts]
    else:
        metadata[key] = text
