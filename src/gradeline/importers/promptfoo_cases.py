"""The cases of an import from promptfoo: the input, the variables, the checks, and what prompts need of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradeline.importers.promptfoo_assertions import AssertionMapper
from gradeline.importers.promptfoo_prompts import (
    QUESTIONS,
    RENDERED,
    VARS,
    PromptfooPrompt,
    PromptPlan,
    input_variable,
    is_variable,
    rendered_prompt,
)
from gradeline.importers.promptfoo_templates import TemplateError, text_of
from gradeline.importers.promptfoo_tests import PromptfooTest
from gradeline.importers.report import ImportReport

_OWN_KEYS = frozenset((VARS, RENDERED, "prefix", "suffix", "promptfoo"))
"""Keys of a case's metadata that the import writes."""
_NO_ASSERTIONS = {"kind": "custom-rules", "rules": [{"condition": "length_min", "value": 0}]}
_JSON_TRANSFORM = re.compile(
    r"\s*+(?:return\s++)?JSON\.parse\(\s*+output\s*+\)(?P<path>(?:\.\w++|\[\d++\])++)\s*+;?+\s*+"
)
_NOT_FOR_TEXT = frozenset(("checks_metric", "cost", "finish_reason", "formula", "latency", "tool_calls", "trajectory"))
"""Kinds of graders that do not grade the text of a response."""


class TestScan:
    """What the tests of a source have in common; memory grows with the number of variables only."""

    __test__ = False  # not a class of tests

    def __init__(self, tests: Iterable[PromptfooTest]) -> None:
        self.count = 0
        self.texts: Counter[str] = Counter()
        """The number of tests in which each variable is a text."""
        self.affixes = False
        self.outputs = 0
        self.transforms: set[str | None] = set()
        for test in tests:
            self.add(test)

    def add(self, test: PromptfooTest) -> None:
        self.count += 1
        for name, value in test.variables.items():
            if isinstance(value, str) and value.strip() and (name in self.texts or len(self.texts) < 10_000):
                self.texts[name] += 1
        self.affixes = self.affixes or bool(test.options.get("prefix") or test.options.get("suffix"))
        self.outputs += test.output is not None
        if len(self.transforms) < 2:
            self.transforms.add(_transform(test))

    def plan(self, prompts: Sequence[PromptfooPrompt], environment: Mapping[str, object]) -> PromptPlan:
        """How prompts and inputs are written for these tests."""
        name = input_variable(prompts, self.texts, self.count)
        renders = name is None and len(prompts) == 1
        return PromptPlan(name, renders_input=renders, affixes=self.affixes, environment=environment)

    @property
    def question(self) -> str | None:
        """The variable that is the question where no prompt says so: the only text of all tests, or by its name."""
        names = [name for name, count in self.texts.items() if count == self.count and is_variable(name)]
        preferred = next((name for name in QUESTIONS if name in names), None)
        return preferred or (names[0] if len(names) == 1 else None)

    @property
    def extractor(self) -> dict[str, object] | None:
        """The extractor that does what the ``transform`` of all tests does; None if there is none."""
        if len(self.transforms) != 1:
            return None
        (code,) = self.transforms
        found = None if code is None else _JSON_TRANSFORM.fullmatch(code)
        return {"extractor": "json", "extractor_config": {"path": found["path"].lstrip(".")}} if found else None


def _transform(test: PromptfooTest) -> str | None:
    code = test.options.get("transform") or test.options.get("postprocess")
    return str(code) if code else None


class CaseMaker:
    """Makes a case of each test, and the graders of the suite of all their assertions."""

    def __init__(
        self,
        prompts: Sequence[PromptfooPrompt],
        plan: PromptPlan,
        scan: TestScan,
        mapper: AssertionMapper,
        templates: object,
        report: ImportReport,
        *,
        outputs_data: bool = False,
    ) -> None:
        self._prompts = prompts
        self._plan = plan
        self._extractor = scan.extractor
        self._mapper = mapper
        self._templates = templates if isinstance(templates, Mapping) else {}
        self._report = report
        self._outputs_data = outputs_data
        """Whether the output is JSON that promptfoo parses, because the model has a schema of its response."""

    def case(self, test: PromptfooTest, name: str, prompt: str | None = None) -> dict[str, Any] | None:
        """The case with the keys of a dataset; None for one without an input, which is reported.

        ``prompt`` is the input where the source has it.
        """
        try:
            text = self._input(test, prompt)
            metadata = self._metadata(test)
        except TemplateError as error:
            self._report.not_mapped(test.place, "test", f"its prompt {error}; write the prompt out")
            return None
        if not text.strip():
            self._report.not_mapped(test.place, "test", "its input is empty; give it a variable or a prompt with text")
            return None
        mapped = self._mapper.case(
            test.place,
            self._assertions(test),
            variables=test.variables,
            threshold=test.threshold,
            options=test.options,
            templates=self._templates,
        )
        case: dict[str, Any] = {"id": name, "input": text, "metadata": {**metadata, **mapped.metadata}}
        if mapped.checks:
            case["checks"] = mapped.checks
        self._report.mapped(test.place, "test", "case")
        return case

    def graders(self) -> dict[str, object]:
        """The keys ``graders`` and ``gate`` of the suite."""
        graders: dict[str, dict[str, object]] = dict(self._mapper.graders)
        if self._extractor is not None:
            for name, grader in graders.items():
                in_node = str(grader.get("command")).startswith("['node'")  # those have the transform in their code
                if grader.get("kind") not in _NOT_FOR_TEXT and not in_node and "extractor" not in grader:
                    graders[name] = {**grader, **self._extractor}
        if not graders:
            return {"graders": {"answered": _NO_ASSERTIONS}}
        gate = self._mapper.gate()
        return {"graders": graders, **({} if gate is None else {"gate": gate})}

    @property
    def files(self) -> Mapping[str, str]:
        """The code that the graders run."""
        return self._mapper.files

    def _input(self, test: PromptfooTest, prompt: str | None) -> str:
        if self._plan.input_name is not None:
            return text_of(test.variables[self._plan.input_name])
        if prompt is not None:
            return prompt
        if self._plan.renders_input:
            prefix, suffix = self._affixes(test)
            return f"{prefix}{self._rendered(self._plan.input_template(self._prompts[0]), test)}{suffix}"
        texts = [value for value in test.variables.values() if isinstance(value, str) and value.strip()]
        if len(texts) == 1:
            return texts[0]
        return json.dumps(dict(test.variables), ensure_ascii=False) if test.variables else test.description or "test"

    def _metadata(self, test: PromptfooTest) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for key, value in test.metadata.items():
            metadata[f"{key}_" if key in _OWN_KEYS else str(key)] = value
        if test.description:
            metadata.setdefault("description", test.description)
        metadata[VARS] = {**dict.fromkeys(self._plan.names, ""), **test.variables}
        rendered = {key: self._rendered(text, test) for key, text in self._plan.rendered.items()}
        if self._plan.affixes and not self._plan.renders_input:
            metadata["prefix"], metadata["suffix"] = prefix, suffix = self._affixes(test)
            rendered |= {key: f"{prefix}{rendered[key]}{suffix}" for key in self._plan.whole}
        if rendered:
            metadata[RENDERED] = rendered
        return metadata

    def _affixes(self, test: PromptfooTest) -> tuple[str, str]:
        prefix, suffix = test.options.get("prefix") or "", test.options.get("suffix") or ""
        return self._rendered(text_of(prefix), test), self._rendered(text_of(suffix), test)

    def _rendered(self, text: str, test: PromptfooTest) -> str:
        return rendered_prompt(text, test.variables, self._plan.environment)

    def _assertions(self, test: PromptfooTest) -> list[object]:
        """The assertions, with the ``transform`` of the test unless an extractor does the same."""
        code = _transform(test)
        if code is None:
            parsed = "JSON.parse(output)"
            return [_with_data(one, parsed) for one in test.assertions] if self._outputs_data else list(test.assertions)
        if self._extractor is not None:
            note = "a response in which nothing is found scores 0; in promptfoo it is an error"
            self._report.approximated(test.place, "option 'transform'", "extractor json", note)
            return [_with_data(one, code) for one in test.assertions]
        if code.strip() in ("output", "output.trim()"):
            self._report.approximated(test.place, "option 'transform'", "nothing", "whitespace around an output stays")
            return list(test.assertions)
        self._report.mapped(test.place, "option 'transform'", "the transform of each assertion")
        return [_transformed(assertion, code) for assertion in test.assertions]


def _transformed(assertion: object, code: str) -> object:
    """An assertion of the output that the transform of its test changes first."""
    if not isinstance(assertion, Mapping):
        return assertion
    inner = assertion.get("assert")
    if isinstance(inner, list):
        return {**assertion, "assert": [_transformed(one, code) for one in inner]}
    own = assertion.get("transform")
    return {**assertion, "transform": [code, own] if own else code}


def _with_data(assertion: object, code: str) -> object:
    """An assertion in JavaScript that gets the data in the output, not its text."""
    if isinstance(assertion, Mapping) and isinstance(assertion.get("assert"), list):
        return {**assertion, "assert": [_with_data(one, code) for one in assertion["assert"]]}
    if not isinstance(assertion, Mapping) or assertion.get("type") not in ("javascript", "not-javascript"):
        return assertion
    own = assertion.get("transform")
    return {**assertion, "transform": [code, own] if own else code}
