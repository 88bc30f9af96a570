"""Tests of promptfoo that are imported and graded on given outputs, as `gradeline run` grades them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gradeline import run_suite
from gradeline.importers.promptfoo_assertions import AssertionMapper, MappedCase
from gradeline.importers.report import ImportReport, State
from gradeline.model import Grade, Response, to_json


class GradedTest(NamedTuple):
    """The verdict on a test; without a pass and a score it is an error."""

    passed: bool | None
    score: float | None
    why: str = ""


class PromptfooTests:
    """Maps tests of promptfoo, and runs the suite that they become."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = ImportReport("promptfooconfig.yaml", "promptfoo")
        self.mapper = AssertionMapper(self.report, folder)
        self.gate: str | None = None
        """What the gate decided."""
        self._cases: dict[str, MappedCase] = {}
        self._responses: dict[str, Response] = {}

    def map(
        self,
        *assertions: object,
        variables: Mapping[str, object] | None = None,
        threshold: float | None = None,
        options: Mapping[str, object] | None = None,
        templates: Mapping[str, object] | None = None,
    ) -> MappedCase:
        """What a test becomes."""
        return self.mapper.case(
            "promptfooconfig.yaml:1",
            assertions,
            variables=variables or {},
            threshold=threshold,
            options=options or {},
            templates=templates or {},
        )

    def add(self, name: str, response: str | Response, *assertions: object, **test: Any) -> MappedCase:
        """Map a test, to be run on a response."""
        case = self._cases[name] = self.map(*assertions, **test)
        self._responses[name] = response if isinstance(response, Response) else Response(text=response)
        return case

    def notes(self, state: State) -> list[str]:
        """What differs, or why something is not mapped."""
        return [item.note for item in self.report.items if item.state is state]

    def verdicts(self) -> dict[str, GradedTest]:
        """Run the suite, and return the verdict on each test."""
        names = [name for name, case in self._cases.items() if case.metadata]
        if not names:
            return {}
        rows = [
            {"id": name, "input": "?", "metadata": case.metadata, **({"checks": case.checks} if case.checks else {})}
            for name, case in self._cases.items()
            if name in names
        ]
        self._write("cases.jsonl", "\n".join(map(json.dumps, rows)))
        answers = ({"case": name, "response": json.loads(to_json(self._responses[name]))} for name in names)
        self._write("answers.jsonl", "\n".join(map(json.dumps, answers)))
        for name, text in self.mapper.files.items():
            self._write(name, text)
        suite = {
            "name": "imported",
            "dataset": "cases.jsonl",
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": self.mapper.graders,
            "gate": self.mapper.gate(),
        }
        self._write("suite.json", json.dumps({key: value for key, value in suite.items() if value is not None}))
        result = run_suite(self.folder / "suite.json", store="memory://")
        self.gate = result.verdict.result
        gate: Mapping[str, Any] = self.mapper.gate() or {}
        deciding = [one["metric_key"] for one in gate.get("conditions", [gate] if gate else [])]
        return {record.case: _verdict(record.grades, deciding) for record in result.records()}

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _verdict(grades: Mapping[str, Grade], deciding: Sequence[str]) -> GradedTest:
    """The verdict by the graders that decide, as the gate sees it; those that only measure have a part without them."""
    applied = {name: grade for name, grade in grades.items() if grade.outcome.value != "not_applicable"}
    counted = [applied[name] for name in deciding if name in applied] or list(applied.values())
    broken = next((grade for grade in counted if grade.score is None), None)
    if broken is not None:
        return GradedTest(None, None, str(broken.error.message if broken.error else broken.rationale))
    scores = [grade.score for grade in counted if grade.score is not None]
    return GradedTest(all(grade.passed for grade in counted), sum(scores) / len(scores))
