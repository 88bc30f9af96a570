"""A small dataset with the responses of a demo agent, graded by every family of graders."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from gradeline.engine.grade import SubmittedCase, UserGrader, grade_cases
from gradeline.extractors import create as create_extractor
from gradeline.graders import default_extractor, from_definition, run_grader
from gradeline.model import Grade, GradeContext, Record, Response, Sample
from gradeline.suite.dataset import read_cases
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool


class DemoCase(msgspec.Struct, frozen=True):
    """A sample, the response of the demo agent, and the graders for it."""

    sample: Sample
    response: Response
    graders: dict[str, dict[str, Any]]


def demo_cases() -> list[DemoCase]:
    """The built-in dataset."""
    lines = files("gradeline.demo").joinpath("cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=DemoCase) for line in lines if line]


def grade_custom_demo() -> list[Record]:
    """Grade a few cases with the demo's custom graders, in worker processes."""
    return asyncio.run(_grade_custom())


async def _grade_custom() -> list[Record]:
    folder = Path(str(files("gradeline.demo")))
    spec = CodeSpec(str(folder), (CodeRequest("grader", "custom_graders.py:*"),))
    async with WorkerPool(spec) as pool:
        manifest = await pool.start()
        graders = {
            entry.name: UserGrader(entry.reference, entry.fingerprint, timeout=0.5) for entry in manifest.entries
        }
        cases = (SubmittedCase(sample, submission) for sample, submission in read_cases(folder / "custom_cases.jsonl"))
        return [record async for record in grade_cases(pool, graders, cases, "demo")]


def grade_demo() -> Iterator[Record]:
    """Grade the dataset: one record for each case."""
    for case in demo_cases():
        submissions: dict[str, str] = {}
        grades: dict[str, Grade] = {}
        for key, definition in case.graders.items():
            options = dict(definition)
            usual = default_extractor(options["kind"])
            extractor = create_extractor(options.pop("extractor", usual), options.pop("extractor_config", {}))
            submissions[key] = "" if case.response.error else extractor.extract(case.response)
            context = GradeContext(case.sample, submissions[key], case.response, grades=grades)
            grades[key] = run_grader(from_definition(options), context)
        yield Record("demo", case.sample.case_key, 0, case.sample, case.response, submissions, grades)
