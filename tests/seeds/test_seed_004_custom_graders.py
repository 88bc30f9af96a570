"""Seed 004, "Custom Graders": its code runs as it is written, from the document and from examples/custom_graders."""

from __future__ import annotations

import asyncio
import importlib.machinery
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple

import pytest

from gradeline.engine.grade import to_grade
from gradeline.errors import ConfigError
from gradeline.model import GradeResult, Outcome, Record, Sample, from_json
from gradeline.usercode.loader import CodeRequest, CodeSpec, Manifest
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.protocol import Job, Task, TaskResult
from gradeline_command import COMMAND, run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "custom_graders"
IMPORTS = "from letta_evals.decorators import grader\nfrom letta_evals.models import GradeResult, Sample\n\n"

_BLOCK = re.compile(r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


Blocks = dict[tuple[str, str], list[str]]


@pytest.fixture
def blocks(seed: Callable[[str], str]) -> Blocks:
    """The document's blocks by heading and language."""
    found: Blocks = {}
    heading = ""
    text = seed("004_b071cd191b627a75.txt")
    for match in _BLOCK.finditer(text):
        if match["heading"]:
            heading = match["heading"]
        else:
            found.setdefault((heading, match["language"]), []).append(match["text"])
    assert sum(map(len, found.values())) == text.count("```") // 2
    return found


class GraderCalls(NamedTuple):
    manifest: Manifest
    results: list[TaskResult]


def run(
    folder: Path, reference: str, calls: Sequence[tuple[Sample, str]], setup: str | None = None, suite: Any = None
) -> GraderCalls:
    """Calls one grader in a real pool, a job for each call."""

    async def body() -> GraderCalls:
        spec = CodeSpec(folder=str(folder), requests=(CodeRequest("grader", reference),), setup=setup)
        async with WorkerPool(spec, size=1) as pool:
            manifest = await pool.start()
            if suite is not None:
                await pool.set_up(suite)
            jobs = [pool.run(Job(sample, (Task("grader", reference, submission),))) for sample, submission in calls]
            return GraderCalls(manifest, [results[0] for results in await asyncio.gather(*jobs)])

    return asyncio.run(body())


def grades(folder: Path, reference: str, calls: Sequence[tuple[Sample, str]]) -> list[GradeResult]:
    """The grade of each call; none may end in an error."""
    results = run(folder, reference, calls).results
    assert [result.error for result in results] == [None] * len(calls)
    return [in_order(result.result) for result in results if result.result is not None]


def in_order(result: GradeResult) -> GradeResult:
    """keyword_coverage makes its list of missing keywords from a set."""
    metadata = {key: sorted(value) if key == "missing" else value for key, value in result.metadata.items()}
    return GradeResult(result.score, result.rationale, metadata, result.passed)


def sample(ground_truth: str | None = None, **metadata: Any) -> Sample:
    return Sample(id=0, input="q", ground_truth=ground_truth, metadata=metadata)


class Example(NamedTuple):
    """A grader of the document: its location there and in the examples, and its expected results."""

    name: str
    heading: str
    file: str
    expected: list[tuple[Sample, str, GradeResult]]

    @property
    def calls(self) -> list[tuple[Sample, str]]:
        return [(given, submission) for given, submission, _ in self.expected]

    @property
    def results(self) -> list[GradeResult]:
        return [result for *_, result in self.expected]


USER = sample("name,age,email")
KEYWORDS = sample("light,energy,chlorophyll,oxygen,carbon dioxide")
WEATHER = sample('{"city": "Paris", "days": 3}', expected_tool="get_weather")
RANGE = sample("10,20")
CAPITAL = sample("Paris")
SENTENCE = "The capital of France is Paris, which has been so for many centuries, and it lies on the river Seine"

GRADERS = [
    Example(
        "json_field_validator",
        "Complete Example",
        "custom_graders.py",
        [
            (
                USER,
                '{"name": "Ada", "age": 36, "email": null}',
                GradeResult(1.0, "All required fields present", {"fields_found": ["name", "age", "email"]}),
            ),
            (
                USER,
                '{"name": "Ada", "age": 36}',
                GradeResult(0.6666666666666667, "Missing fields: email", {"missing_fields": ["email"]}),
            ),
            (
                USER,
                '{"age": 36}',
                GradeResult(0.33333333333333337, "Missing fields: name, email", {"missing_fields": ["name", "email"]}),
            ),
            (
                USER,
                "{}",
                GradeResult(0.0, "Missing fields: name, age, email", {"missing_fields": ["name", "age", "email"]}),
            ),
            (
                USER,
                "Ada, 36",
                GradeResult(0.0, "Invalid JSON: Expecting value: line 1 column 1 (char 0)", {"error": "json_decode"}),
            ),
            (
                USER,
                "",
                GradeResult(0.0, "Invalid JSON: Expecting value: line 1 column 1 (char 0)", {"error": "json_decode"}),
            ),
        ],
    ),
    Example(
        "appropriate_length",
        "Length Check",
        "real_world.py",
        [
            (sample(), "x" * 49, GradeResult(0.98, "Too short: 49 chars (min 50)")),
            (sample(), "x" * 50, GradeResult(1.0, "Length 50 is appropriate")),
            (sample(), "x" * 500, GradeResult(1.0, "Length 500 is appropriate")),
            (sample(), "x" * 750, GradeResult(0.5, "Too long: 750 chars (max 500)")),
            (sample(), "x" * 5000, GradeResult(0.0, "Too long: 5000 chars (max 500)")),
            (sample(), "", GradeResult(0.0, "Too short: 0 chars (min 50)")),
        ],
    ),
    Example(
        "keyword_coverage",
        "Keyword Coverage",
        "real_world.py",
        [
            (
                KEYWORDS,
                "LIGHT gives Energy; chlorophyll, oxygen, carbon dioxide.",
                GradeResult(
                    1.0,
                    "Found 5/5 keywords: light, energy, chlorophyll, oxygen, carbon dioxide",
                    {"found": ["light", "energy", "chlorophyll", "oxygen", "carbon dioxide"], "missing": []},
                ),
            ),
            (
                KEYWORDS,
                "Plants turn light into energy.",
                GradeResult(
                    0.4,
                    "Found 2/5 keywords: light, energy",
                    {"found": ["light", "energy"], "missing": ["carbon dioxide", "chlorophyll", "oxygen"]},
                ),
            ),
            (
                sample("moon,gravity"),
                "Nobody knows.",
                GradeResult(0.0, "Found 0/2 keywords: ", {"found": [], "missing": ["gravity", "moon"]}),
            ),
        ],
    ),
    Example(
        "correct_tool_arguments",
        "Tool Call Validation",
        "real_world.py",
        [
            (
                WEATHER,
                '{"tool_name": "get_weather", "city": "Paris", "days": 3, "unit": "C"}',
                GradeResult(1.0, "Tool called with correct arguments"),
            ),
            (
                WEATHER,
                '{"tool_name": "get_weather", "city": "Rome", "days": 3}',
                GradeResult(0.5, "Tool correct but arguments differ"),
            ),
            (WEATHER, '{"tool_name": "get_time"}', GradeResult(0.0, "Wrong tool: expected get_weather, got get_time")),
            (WEATHER, "{}", GradeResult(0.0, "Wrong tool: expected get_weather, got None")),
            (WEATHER, "It is sunny.", GradeResult(0.0, "No valid tool call found")),
        ],
    ),
    Example(
        "numeric_range",
        "Numeric Range Check",
        "real_world.py",
        [
            (RANGE, " 15\n", GradeResult(1.0, "Value 15.0 is within range [10.0, 20.0]")),
            (RANGE, "10", GradeResult(1.0, "Value 10.0 is within range [10.0, 20.0]")),
            (RANGE, "25", GradeResult(0.75, "Value 25.0 outside range [10.0, 20.0]")),
            (RANGE, "5", GradeResult(0.75, "Value 5.0 outside range [10.0, 20.0]")),
            (RANGE, "1e9", GradeResult(0.0, "Value 1000000000.0 outside range [10.0, 20.0]")),
            (RANGE, "nan", GradeResult(0.0, "Value nan outside range [10.0, 20.0]")),
            (RANGE, "warm", GradeResult(0.0, "Invalid numeric value: could not convert string to float: 'warm'")),
            (
                sample("10"),
                "15",
                GradeResult(0.0, "Invalid numeric value: not enough values to unpack (expected 2, got 1)"),
            ),
        ],
    ),
    Example(
        "comprehensive_check",
        "Multi-Criteria",
        "real_world.py",
        [
            (CAPITAL, f"{SENTENCE}.", GradeResult(1.0, "Score: 1.00. All checks passed!", {"issues": []})),
            (
                CAPITAL,
                "It is paris!",
                GradeResult(
                    0.8,
                    "Score: 0.80. Issues: Length 12 not in range [100, 500]",
                    {"issues": ["Length 12 not in range [100, 500]"]},
                ),
            ),
            (
                CAPITAL,
                "badword1",
                GradeResult(
                    0.0,
                    "Score: 0.00. Issues: Missing expected answer; Length 8 not in range [100, 500]; Doesn't start with capital "
                    "letter; Doesn't end with punctuation; Contains inappropriate language",
                    {
                        "issues": [
                            "Missing expected answer",
                            "Length 8 not in range [100, 500]",
                            "Doesn't start with capital letter",
                            "Doesn't end with punctuation",
                            "Contains inappropriate language",
                        ]
                    },
                ),
            ),
        ],
    ),
    Example(
        "context_aware_grader",
        "Accessing Sample Data",
        "context_aware.py",
        [
            (sample("4", category="math"), " 4\n", GradeResult(1.0, "Expected exactly 4")),
            (sample("4", category="math"), "The answer is 4", GradeResult(0.0, "Expected exactly 4")),
            (
                sample("sea", category="creative"),
                "The sea forgets every ship.",
                GradeResult(1.0, "Half for five words, half for the subject", {"long_enough": True, "relevant": True}),
            ),
            (
                sample("sea", category="creative"),
                "The Sea!",
                GradeResult(0.5, "Half for five words, half for the subject", {"long_enough": False, "relevant": True}),
            ),
            (CAPITAL, "It is Paris.", GradeResult(1.0, "Looked for Paris")),
            (sample("Paris", category="other"), "Rome", GradeResult(0.0, "Looked for Paris")),
        ],
    ),
    Example(
        "safe_grader",
        "Error Handling",
        "safe.py",
        [
            (sample(), "3/4", GradeResult(0.75, "Success")),
            (
                sample(),
                "3/0",
                GradeResult(
                    0.0,
                    "Error during grading: division by zero",
                    {"error": "division by zero", "error_type": "ZeroDivisionError"},
                ),
            ),
            (
                sample(),
                "three/four",
                GradeResult(
                    0.0,
                    "Error during grading: invalid literal for int() with base 10: 'three'",
                    {"error": "invalid literal for int() with base 10: 'three'", "error_type": "ValueError"},
                ),
            ),
            (
                sample(),
                "5/4",
                GradeResult(
                    0.0,
                    "Error during grading: score must be a finite number from 0.0 to 1.0, got 1.25",
                    {"error": "score must be a finite number from 0.0 to 1.0, got 1.25", "error_type": "ValueError"},
                ),
            ),
        ],
    ),
]
by_name = pytest.mark.parametrize("example", GRADERS, ids=lambda example: example.name)


def grader_block(blocks: Blocks, example: Example) -> str:
    return next(block for block in blocks[example.heading, "python"] if f"def {example.name}(" in block)


def preamble(example: Example, block: str) -> str:
    """The imports a block leaves out and, from the example's file, the helpers that the document does not define."""
    if example.file in ("context_aware.py", "safe.py"):
        return (EXAMPLES / example.file).read_text(encoding="utf-8").partition("@grader")[0]
    return "" if "from letta_evals" in block else IMPORTS


class TestEveryGrader:
    @by_name
    def test_runs_verbatim_from_the_document(self, blocks: Blocks, tmp_path: Path, example: Example) -> None:
        block = grader_block(blocks, example)
        (tmp_path / "graders.py").write_text(preamble(example, block) + block)
        assert grades(tmp_path, example.name, example.calls) == example.results

    @by_name
    def test_runs_from_its_example_file(self, example: Example) -> None:
        assert grades(EXAMPLES, f"{example.file}:{example.name}", example.calls) == example.results

    @by_name
    def test_is_in_its_example_file_as_the_document_has_it(self, blocks: Blocks, example: Example) -> None:
        block = grader_block(blocks, example).removeprefix("import json\n\n")
        assert block in (EXAMPLES / example.file).read_text(encoding="utf-8")

    def test_has_its_expected_results_above(self) -> None:
        async def marked() -> list[str]:
            files = sorted(EXAMPLES.glob("*.py"))
            wanted = tuple(CodeRequest("grader", f"{file.name}:*") for file in files if file.name != "setup.py")
            async with WorkerPool(CodeSpec(folder=str(EXAMPLES), requests=wanted), size=1) as pool:
                return [entry.name for entry in (await pool.start()).entries]

        assert sorted(asyncio.run(marked())) == sorted([*(example.name for example in GRADERS), "my_grader"])

    @pytest.mark.parametrize(
        ("reference", "given", "submission", "error_type"),
        [
            ("custom_graders.py:json_field_validator", USER, "36", "TypeError"),
            ("custom_graders.py:json_field_validator", sample(None), "{}", "AttributeError"),
            ("real_world.py:correct_tool_arguments", WEATHER, "[]", "AttributeError"),
            ("real_world.py:correct_tool_arguments", sample("Paris"), "{}", "JSONDecodeError"),
            ("real_world.py:numeric_range", sample("-5,0"), "1", "ZeroDivisionError"),
        ],
    )
    def test_that_raises_gives_an_error_and_no_score(
        self, reference: str, given: Sample, submission: str, error_type: str
    ) -> None:
        (result,) = run(EXAMPLES, reference, [(given, submission)]).results
        grade = to_grade(result, "tool", "f")
        assert (grade.outcome, grade.score, grade.passed) == (Outcome.ERROR, None, None)
        assert grade.error is not None
        assert (grade.error.type, grade.error.fault) == (error_type, "grader")


def test_every_python_block_of_the_document_is_run_here(blocks: Blocks) -> None:
    shown_by_graders = {example.heading for example in GRADERS}
    others = {
        "Basic Structure": 1,
        "The @grader Decorator": 1,
        "Function Signature": 1,
        "Return Value": 1,
        "Method 1: Custom Evaluators File": 1,
        "Method 2: Setup Script": 1,
        "Testing Your Grader": 1,
    }
    expected = {**dict.fromkeys(shown_by_graders, 1), **others, "Accessing Sample Data": 2}
    assert {heading: len(found) for (heading, language), found in blocks.items() if language == "python"} == expected


class TestBasicStructure:
    def test_the_block_runs_with_a_custom_helper(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["Basic Structure", "python"]
        assert block.startswith(IMPORTS)
        helper = "def calculate_score(submission, sample):\n    return len(submission) / len(sample.ground_truth)\n\n"
        (tmp_path / "graders.py").write_text(helper + block)
        assert grades(tmp_path, "my_custom_grader", [(CAPITAL, "Pari"), (CAPITAL, "P")]) == [
            GradeResult(0.8, "Explanation of the score", {"extra": "information"}),
            GradeResult(0.2, "Explanation of the score", {"extra": "information"}),
        ]

    def test_a_score_that_is_not_from_0_to_1_is_an_error(self, blocks: Blocks, tmp_path: Path) -> None:
        helper = "def calculate_score(submission, sample):\n    return 1.5\n\n"
        (tmp_path / "graders.py").write_text(helper + blocks["Basic Structure", "python"][0])
        (result,) = run(tmp_path, "my_custom_grader", [(CAPITAL, "Paris")]).results
        assert result.error is not None
        assert (result.error.type, result.error.message) == (
            "ValueError",
            "grader 'my_custom_grader' (graders.py:13): "
            "GradeResult.score must be a finite number from 0.0 to 1.0, got 1.5",
        )

    def test_the_undefined_helper_is_named(self, blocks: Blocks, tmp_path: Path) -> None:
        (tmp_path / "graders.py").write_text(blocks["Basic Structure", "python"][0])
        (result,) = run(tmp_path, "my_custom_grader", [(CAPITAL, "Paris")]).results
        assert result.error is not None
        assert (result.error.type, result.error.message) == ("NameError", "name 'calculate_score' is not defined")


class TestTheGraderDecorator:
    def test_a_body_of_dots_loads_and_its_call_names_what_to_return(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["The @grader Decorator", "python"]
        (tmp_path / "graders.py").write_text(IMPORTS + block)
        (result,) = run(tmp_path, "my_function", [(CAPITAL, "Paris")]).results
        assert result.error is not None
        assert (result.error.type, result.error.message, result.error.fault) == (
            "bad_reply",
            "my_function returned None (NoneType); "
            'return a GradeResult, a bool, a number from 0 to 1, or a dict such as {"score": 0.5}',
            "grader",
        )

    @pytest.mark.skipif(sys.version_info >= (3, 14), reason="annotations are no longer evaluated when a def is")
    def test_the_import_the_block_forgets_is_named(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["The @grader Decorator", "python"]
        (tmp_path / "graders.py").write_text(block)
        with pytest.raises(ConfigError) as caught:
            run(tmp_path, "my_function", [])
        missing, broken = caught.value.problems
        assert missing.path == "my_function"
        assert "graders.py could not be loaded" in missing.message
        assert broken.path == f"{tmp_path / 'graders.py'}:4"
        assert broken.message.endswith("NameError: name 'Sample' is not defined")


class TestFunctionSignature:
    def test_without_the_decorator_it_is_not_discovered(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["Function Signature", "python"]
        (tmp_path / "graders.py").write_text(IMPORTS + block)
        for reference in ("grader_name", "graders:grader_name", "graders.py:grader_name"):
            with pytest.raises(ConfigError, match="'grader_name' is not marked; add @grader above def grader_name"):
                run(tmp_path, reference, [])

    def test_with_the_decorator_the_signature_is_valid(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["Function Signature", "python"]
        (tmp_path / "graders.py").write_text(f"{IMPORTS}@grader\n{block}")
        (entry,) = run(tmp_path, "grader_name", []).manifest.entries
        assert (entry.name, entry.parameters, entry.is_async) == ("grader_name", ("sample", "submission"), False)

    def test_the_return_value_is_a_grade_result(self, blocks: Blocks, tmp_path: Path) -> None:
        (block,) = blocks["Return Value", "python"]
        head = "from letta_evals.decorators import grader\n\n@grader\ndef returns(sample, submission):\n"
        (tmp_path / "graders.py").write_text(head + indent(block, "    "))
        assert grades(tmp_path, "returns", [(CAPITAL, "Paris")]) == [GradeResult(0.85, "Explanation", {"key": "value"})]


FOUND = GradeResult(1.0, "Found 'Paris'")
NOT_FOUND = GradeResult(0.0, "'Paris' not found")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with only the evaluators' file."""
    shutil.copy(EXAMPLES / "custom_evaluators.py", tmp_path)
    return tmp_path


class TestUsingCustomGraders:
    CALLS = [(CAPITAL, "It is paris."), (CAPITAL, "Rome")]

    def test_the_files_are_those_of_the_document(self, blocks: Blocks) -> None:
        def text(name: str) -> str:
            return (EXAMPLES / name).read_text(encoding="utf-8")

        (evaluators,) = blocks["Method 1: Custom Evaluators File", "python"]
        assert text("custom_graders.py") == blocks["Complete Example", "python"][0]
        assert text("setup.py") == blocks["Method 2: Setup Script", "python"][0]
        assert text("custom_evaluators.py").startswith(evaluators.removesuffix("    ...\n"))
        for suite, heading in {
            "suite_json.yaml": "Complete Example",
            "suite_by_file.yaml": "Method 1: Custom Evaluators File",
            "suite_by_setup.yaml": "Method 2: Setup Script",
        }.items():
            assert text(suite).endswith(blocks[heading, "yaml"][0])

    def test_the_datasets_are_those_of_the_document(self, blocks: Blocks) -> None:
        for dataset, heading in {"users.jsonl": "Complete Example", "cases.jsonl": "Keyword Coverage"}.items():
            row = json.loads((EXAMPLES / dataset).read_text(encoding="utf-8").splitlines()[0])
            assert {key: row[key] for key in ("input", "ground_truth")} == json.loads(blocks[heading, "jsonl"][0])

    def test_method_1_a_file_in_the_suite_s_folder_is_discovered(self, project: Path) -> None:
        assert grades(project, "my_grader", self.CALLS) == [FOUND, NOT_FOUND]

    def test_method_1_among_all_the_files_of_the_examples(self) -> None:
        assert grades(EXAMPLES, "my_grader", self.CALLS) == [FOUND, NOT_FOUND]

    def test_method_1_verbatim_loads_and_its_call_names_what_to_return(self, blocks: Blocks, tmp_path: Path) -> None:
        (tmp_path / "custom_evaluators.py").write_text(blocks["Method 1: Custom Evaluators File", "python"][0])
        (result,) = run(tmp_path, "my_grader", [(CAPITAL, "Paris")]).results
        assert result.error is not None
        assert (result.error.type, result.error.message) == (
            "bad_reply",
            "my_grader returned None (NoneType); "
            'return a GradeResult, a bool, a number from 0 to 1, or a dict such as {"score": 0.5}',
        )

    @pytest.mark.parametrize("reference", ["custom_evaluators:my_grader", "custom_evaluators.py:my_grader"])
    def test_a_python_path_names_the_grader(self, project: Path, reference: str) -> None:
        assert grades(project, reference, self.CALLS) == [FOUND, NOT_FOUND]

    def test_all_ways_find_the_same_function(self, project: Path) -> None:
        shutil.copy(EXAMPLES / "setup.py", project)
        setup = "setup.py:prepare_environment"
        ways = [
            run(project, "my_grader", []),
            run(project, "custom_evaluators:my_grader", []),
            run(project, "custom_evaluators.py:my_grader", []),
            run(project, "my_grader", [], setup),
        ]
        found = {
            entry.fingerprint: (entry.file, entry.line)
            for way in ways
            for entry in way.manifest.entries
            if entry.role == "grader"
        }
        assert list(found.values()) == [(str(project / "custom_evaluators.py"), 5)]

    def test_method_2_the_setup_script_imports_it(self, project: Path) -> None:
        shutil.copy(EXAMPLES / "setup.py", project)
        suite = {"name": "custom-graders-by-setup", "setup_script": "setup.py:prepare_environment"}
        loaded = run(project, "my_grader", self.CALLS, suite["setup_script"], suite)
        assert [result.result for result in loaded.results] == [FOUND, NOT_FOUND]
        assert [(entry.role, entry.name) for entry in loaded.manifest.entries] == [
            ("suite_setup", "prepare_environment"),
            ("grader", "my_grader"),
        ]

    def test_method_2_finds_graders_below_the_folder(self, tmp_path: Path) -> None:
        (tmp_path / "lib").mkdir()
        shutil.copy(EXAMPLES / "custom_evaluators.py", tmp_path / "lib")
        source = (EXAMPLES / "setup.py").read_text(encoding="utf-8")
        with pytest.raises(ConfigError, match="no grader named 'my_grader'"):
            run(tmp_path, "my_grader", [])
        (tmp_path / "setup.py").write_text(source.replace("import custom_", "import lib.custom_"))
        loaded = run(tmp_path, "my_grader", self.CALLS, "setup.py:prepare_environment")
        assert [result.result for result in loaded.results] == [FOUND, NOT_FOUND]


REAL_DECORATORS = """
GRADER_REGISTRY = {}

def grader(func):
    GRADER_REGISTRY[func.__name__] = func
    func._is_grader = True
    return func
"""
REAL_MODELS = """
from dataclasses import dataclass, field

@dataclass
class Sample:
    id: int
    input: str

@dataclass
class GradeResult:
    score: float
    rationale: str = ""
    metadata: dict = field(default_factory=dict)
"""
SPEAKS = """
import letta_evals

@grader
def tells_its_package(sample: Sample, submission: str) -> GradeResult:
    return GradeResult(score=0.5, rationale=GradeResult.__module__, metadata={"package": str(letta_evals.__spec__.origin)})
"""


class TestImports:
    def test_letta_evals_is_absent_here_and_its_names_are_gradeline_s_in_workers(self, tmp_path: Path) -> None:
        assert importlib.machinery.PathFinder.find_spec("letta_evals") is None
        (tmp_path / "graders.py").write_text(IMPORTS + SPEAKS)
        assert grades(tmp_path, "tells_its_package", [(CAPITAL, "Paris")]) == [
            GradeResult(0.5, "gradeline.model.grade", {"package": "gradeline.compat"})
        ]

    def test_the_real_package_wins_where_it_is_present(self, tmp_path: Path) -> None:
        package = tmp_path / "letta_evals"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "decorators.py").write_text(REAL_DECORATORS)
        (package / "models.py").write_text(REAL_MODELS)
        (tmp_path / "graders.py").write_text(IMPORTS + SPEAKS)
        expected = GradeResult(0.5, "letta_evals.models", {"package": str(package / "__init__.py")})
        for reference in ("tells_its_package", "graders.py:tells_its_package"):
            assert grades(tmp_path, reference, [(CAPITAL, "Paris")]) == [expected]


class TestAccessingSampleData:
    FIELDS = """\
sample.id  # Sample ID
sample.input  # Input (str or List[str])
sample.ground_truth  # Expected answer (optional)
sample.metadata  # Dict with custom data (optional)
sample.agent_args  # Agent creation args (optional)
"""

    def test_the_fields_are_those_of_the_document(self, blocks: Blocks) -> None:
        assert blocks["Accessing Sample Data", "python"][0] == self.FIELDS

    def test_every_field_is_there(self, tmp_path: Path) -> None:
        full: dict[str, Any] = {
            "id": "case-7",
            "input": ["Hello", "And now?"],
            "ground_truth": "Paris",
            "metadata": {"category": "math", "nested": {"deep": [1, 2.5, None, True]}},
            "agent_args": {"item": "figs"},
        }
        bare = {"id": 0, "input": "q", "ground_truth": None, "metadata": {}, "agent_args": {}}
        listed = ", ".join(f"{name!r}: sample.{name}" for name in full)
        (tmp_path / "graders.py").write_text(
            f"{IMPORTS}@grader\ndef tells(sample: Sample, submission: str) -> GradeResult:\n{indent(self.FIELDS, '    ')}"
            f"    return GradeResult(score=1.0, metadata={{{listed}}})\n"
        )
        results = grades(tmp_path, "tells", [(Sample(**full), "x"), (Sample(id=0, input="q"), "x")])
        assert [result.metadata for result in results] == [full, bare]


class TestErrorHandling:
    def test_a_grader_that_reports_an_error_itself_has_given_a_score(self) -> None:
        results = run(EXAMPLES, "safe.py:safe_grader", [(sample(), "3/4"), (sample(), "3/0")]).results
        fine, failed = (to_grade(result, "tool", "f") for result in results)
        assert (fine.outcome, fine.score, fine.passed, fine.self_reported_error) == (Outcome.PASS, 0.75, True, False)
        assert (failed.outcome, failed.score, failed.passed, failed.error) == (Outcome.FAIL, 0.0, False, None)
        assert failed.self_reported_error is True
        assert failed.metadata == {"error": "division by zero", "error_type": "ZeroDivisionError"}

    def test_evaluation_continues_after_a_sample_that_fails(self) -> None:
        calls = [(sample(), f"{number % 4}/{number % 3}") for number in range(60)]
        results = run(EXAMPLES, "safe.py:safe_grader", calls).results
        scores = [result.result.score if result.result else None for result in results]
        assert scores == [0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] * 5


class TestTestingYourGrader:
    def script(self, folder: Path, block: str) -> subprocess.CompletedProcess[str]:
        head = "from gradeline import compat\ncompat.install()\nfrom custom_evaluators import my_grader\n"
        (folder / "try_it.py").write_text(head + block)
        return subprocess.run(
            [sys.executable, str(folder / "try_it.py")], capture_output=True, text=True, check=False, cwd=folder
        )

    def test_the_block_runs_as_a_plain_script(self, blocks: Blocks, project: Path) -> None:
        done = self.script(project, blocks["Testing Your Grader", "python"][0])
        assert (done.returncode, done.stdout, done.stderr) == (0, "Score: 1.0, Rationale: Found '4'\n", "")

    def test_with_the_document_s_own_my_grader_there_is_no_score_to_print(self, blocks: Blocks, tmp_path: Path) -> None:
        (tmp_path / "custom_evaluators.py").write_text(blocks["Method 1: Custom Evaluators File", "python"][0])
        done = self.script(tmp_path, blocks["Testing Your Grader", "python"][0])
        assert done.returncode == 1
        assert done.stderr.endswith("AttributeError: 'NoneType' object has no attribute 'score'\n")


def gradeline(*arguments: str) -> tuple[int, list[Record]]:
    done = run_command(
        [COMMAND, *arguments, "--json"],
        text=True,
        cwd=EXAMPLES,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.stderr == ""
    return done.returncode, [from_json(Record, line) for line in done.stdout.splitlines()]


class TestCommandLine:
    def test_one_grader_of_a_file(self) -> None:
        code, records = gradeline(
            "grade", str(EXAMPLES / "real_world.py:keyword_coverage"), str(EXAMPLES / "cases.jsonl")
        )
        assert code == 1
        assert [list(record.grades) for record in records] == [["keyword_coverage"]] * 3
        listed = [(record.case, record.grades["keyword_coverage"]) for record in records]
        assert [(case, grade.outcome, grade.score, grade.rationale) for case, grade in listed] == [
            ("photosynthesis", Outcome.PASS, 0.8, "Found 4/5 keywords: light, energy, chlorophyll, oxygen"),
            ("tides", Outcome.PASS, 1.0, "Found 2/2 keywords: moon, gravity"),
            ("rainbow", Outcome.FAIL, 0.0, "Found 0/3 keywords: "),
        ]

    SCORES = {
        "real_world.py cases.jsonl": {
            "appropriate_length": [1.0, 1.0, 0.12],
            "keyword_coverage": [0.8, 1.0, 0.0],
            "correct_tool_arguments": [0.0, 0.0, 0.0],
            "numeric_range": [0.0, 0.0, 0.0],
            "comprehensive_check": [0.4, 0.4, 0.4],
        },
        "real_world.py:keyword_coverage cases.jsonl": {"keyword_coverage": [0.8, 1.0, 0.0]},
        "real_world.py:correct_tool_arguments tool_calls.jsonl": {"correct_tool_arguments": [1.0, 0.5, 0.0]},
        "real_world.py:numeric_range ranges.jsonl": {"numeric_range": [1.0, 0.75, 0.0]},
        "custom_graders.py users.jsonl": {"json_field_validator": [1.0, 0.6666666666666667, 0.0]},
        "custom_evaluators.py answers.jsonl": {"my_grader": [1.0, 1.0, 1.0]},
        "context_aware.py answers.jsonl": {"context_aware_grader": [0.0, 1.0, 1.0]},
        "safe.py shares.jsonl": {"safe_grader": [0.75, 0.0, 0.0]},
    }

    def test_the_readme_has_these_commands(self) -> None:
        (block,) = re.findall(r"```sh\n(.*?)```", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.DOTALL)
        assert block.splitlines() == [f"gradeline grade {arguments}" for arguments in self.SCORES]

    @pytest.mark.parametrize("arguments", SCORES)
    def test_each_command_of_the_readme_gives_its_scores(self, arguments: str) -> None:
        code, records = gradeline("grade", *arguments.split())
        expected = self.SCORES[arguments]
        assert {name: [record.grades[name].score for record in records] for name in expected} == expected
        assert [list(record.grades) for record in records] == [list(expected)] * 3
        assert code == (0 if arguments.startswith("custom_evaluators") else 1)
