"""Runs built from grades, stored and completed by the real store and engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gradeline.engine.aggregate import RunReport, conclude
from gradeline.errors import Fault, Outcome
from gradeline.model import ErrorInfo, Grade, GradeKey, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.store import InMemoryStorage

HOSTILE = (
    "</pre></td></details>]]><script>alert(1)</script><img src=x onerror=alert(2)>&amp; \"'\x1b[31mred\x1b[0m\x00\x08"
    "\u202egnp.exe | cell `code` **bold** _soft_ [link](https://evil.example) ![i](//evil.example/i.png)\r\n"
    "# heading\n@octocat #1 www.evil.example mailto:a@evil.example <!-- \ufffe שלום"
)


class Bench:
    """Makes grades, answers and reports of runs."""

    hostile = HOSTILE

    def grade(self, score: float, rationale: str | None = None) -> Grade:
        passed = score >= 0.5
        return Grade("string-match", "f1", Outcome.PASS if passed else Outcome.FAIL, score, passed, rationale)

    def broken(self, kind: str = "crashed", message: str = "the worker died", traceback: str | None = None) -> Grade:
        return Grade("string-match", "f1", Outcome.ERROR, error=ErrorInfo(kind, message, Fault.GRADER, traceback))

    def skipped(self) -> Grade:
        return Grade("string-match", "f1", Outcome.SKIPPED)

    def timeout(self, message: str = "no answer within 30 s") -> Response:
        return Response("timeout", error=ErrorInfo("timeout", message, Fault.AGENT))

    def answer(self, text: str = "Paris", latency_ms: float | None = 250.0) -> Response:
        return Response(text=text, latency_ms=latency_ms)

    def report(
        self,
        rows: list[tuple[Sample, Response | list[Response], dict[str, Grade]]],
        graders: tuple[str, ...] = ("exact",),
        gate: dict[str, Any] | None = None,
        coverage_floor: float = 0.0,
        **changes: Any,
    ) -> RunReport:
        """The report of a run with these cases, answers and grades; several answers are repeats."""
        storage = InMemoryStorage()
        repeats = max((len(one) for _, one, _ in rows if isinstance(one, list)), default=1)
        rules = {"rules": {"gate": gate, "coverage_floor": coverage_floor}}
        run = Run(
            **{
                "id": "run-1",
                "name": "capitals",
                "suite": "capitals",
                "status": "completed",
                "graders": {key: RunGrader("string-match", "f1") for key in graders},
                "repeats": repeats,
                "total": len(rows) * repeats,
                "started_at": "2026-03-02T09:14:05Z",
                "completed_at": "2026-03-02T09:16:41Z",
                "definition": msgspec.json.encode(rules).decode(),
                **changes,
            }
        )
        storage.save_run(run)
        for sample, answers, grades in rows:
            for repeat, response in enumerate(answers if isinstance(answers, list) else [answers]):
                storage.put_response(ResponseKey(run.id, sample.case_key, repeat), response, sample)
                for key, grade in grades.items():
                    storage.put_grade(GradeKey(run.id, sample.case_key, repeat, key), grade, response.text)
        return conclude(storage, run)

    def mixed(self, **changes: Any) -> RunReport:
        """A pass, a fail, a broken grader, a failed call, and an answer that waits to be graded."""
        return self.report(
            [
                (Sample("france", "Capital of France?", "Paris"), self.answer(), {"exact": self.grade(1.0, "equal")}),
                (
                    Sample("spain", "Capital of Spain?", "Madrid"),
                    self.answer("Sevilla"),
                    {"exact": self.grade(0.25, "not equal")},
                ),
                (Sample("norway", "Capital of Norway?", "Oslo"), self.answer("Oslo"), {"exact": self.broken()}),
                (Sample("peru", "Capital of Peru?", "Lima"), self.timeout(), {"exact": self.skipped()}),
                (Sample("chad", "Capital of Chad?", "N'Djamena"), self.answer("N'Djamena"), {}),
            ],
            **changes,
        )

    def hostile_report(self) -> RunReport:
        """A run whose every text attacks the page it is shown on."""
        text = self.hostile
        rows: list[tuple[Sample, Response | list[Response], dict[str, Grade]]] = [
            (Sample(f"{text}0", text, text), self.answer(text), {text: self.grade(0.0, text)}),
            (Sample(f"{text}1", [text, text], [text]), self.answer(text), {text: self.broken(text, text, text)}),
            (Sample(f"{text}2", text), self.timeout(text), {text: self.skipped()}),
            (Sample(f"{text}3", text), self.answer(text), {text: self.grade(0.75, text)}),
        ]
        return self.report(rows, (text,), name=text, suite=text, target={"kind": text}, group=text)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def written() -> Callable[[Callable[..., None], Any], str]:
    """The output of a writer as a string."""
    from io import StringIO

    def write(writer: Callable[..., None], *arguments: Any) -> str:
        file = StringIO(newline="")
        writer(file, *arguments)
        return file.getvalue()

    return write
