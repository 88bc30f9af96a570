"""The decorators: what they accept, what they refuse, and that they only mark."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import pytest

from gradeline import GradeResult, Sample
from gradeline.usercode.decorators import (
    Mark,
    agent_factory,
    definition_location,
    extractor,
    grader,
    mark_of,
    reward_composer,
    suite_setup,
)

SAMPLE = Sample(0, "q", "a")


def execute(source: str) -> dict[str, Any]:
    """The globals of a source, executed without the annotations future of this module."""
    space: dict[str, Any] = {"__name__": "executed"}
    exec(compile(source, "executed.py", "exec", dont_inherit=True), space)
    return space


class TestMarking:
    @pytest.mark.parametrize(
        ("decorate", "name"),
        [(grader, "mine"), (grader(), "mine"), (grader(name="x"), "x"), (grader(name=None), "mine")],
    )
    def test_the_decorator_returns_the_same_function(self, decorate: Any, name: str) -> None:
        def mine(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(1.0)

        assert decorate(mine) is mine
        assert mark_of(mine) == vars(mine)["__gradeline_mark__"] == Mark("grader", name)
        assert mine(SAMPLE, "text") == GradeResult(1.0)

    def test_an_async_grader_stays_async(self) -> None:
        @grader
        async def mine(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(0.5)

        assert asyncio.run(mine(SAMPLE, "text")) == GradeResult(0.5)

    @pytest.mark.parametrize(
        ("decorator", "source"),
        [
            (extractor, "def f(trajectory, config): ..."),
            (extractor, "def f(trajectory, config=None, agent_state=None) -> str: ..."),
            (reward_composer, "def f(ctx): ..."),
            (reward_composer, "async def f(ctx) -> float: ..."),
            (agent_factory, "async def f(client, sample) -> str: ..."),
            (agent_factory, "def f(client, sample): ..."),
            (suite_setup, "def f(): ..."),
            (suite_setup, "async def f(client) -> None: ..."),
            (suite_setup, "def f(client, model_handle): ..."),
            (suite_setup, "def f(client, model_name): ..."),
            (suite_setup, "def f(suite): ..."),
            (grader, "def f(sample, submission, /): ..."),
            (grader, "def f(sample, submission, response): ..."),
            (grader, "async def f(ctx): ..."),
        ],
    )
    def test_each_role_has_its_signatures(self, decorator: Any, source: str) -> None:
        assert mark_of(decorator(execute(source)["f"])) == Mark(decorator.role, "f")

    @pytest.mark.parametrize(
        "source",
        [
            "from gradeline import GradeResult\ndef f(sample, submission) -> GradeResult: ...",
            "from gradeline import GradeResult as R\ndef f(sample, submission) -> R: ...",
            "class GradeResult: ...\ndef f(sample, submission) -> GradeResult: ...",
            "class GradeResult: ...\nclass Mine(GradeResult): ...\ndef f(sample, submission) -> Mine: ...",
            "def f(sample, submission) -> 'GradeResult': ...",
            "def f(sample, submission) -> 'letta_evals.models.GradeResult': ...",
            "from __future__ import annotations\ndef f(sample: Nowhere, submission: str) -> GradeResult: ...",
            "from __future__ import annotations\ndef f(sample, submission) -> 'GradeResult': ...",
            "from __future__ import annotations\n"
            "from gradeline import GradeResult as R\ndef f(sample, submission) -> R: ...",
            "def f(sample, submission) -> float: ...",
            "def f(sample, submission) -> bool: ...",
            "def f(sample, submission) -> dict[str, object]: ...",
            "def f(sample, submission) -> dict[str, int | None] | float: ...",
            "from __future__ import annotations\ndef f(ctx) -> dict[str, int | None] | GradeResult: ...",
            "from __future__ import annotations\ndef f(ctx) -> typing.Union[bool, 'GradeResult']: ...",
        ],
    )
    def test_every_form_of_the_return_annotation_is_accepted(self, source: str) -> None:
        assert mark_of(grader(execute(source)["f"])) == Mark("grader", "f")

    def test_importing_the_decorators_imports_nothing_heavy(self) -> None:
        code = "import sys, gradeline.usercode.decorators; print(*{'msgspec', 'asyncio', 'gradeline.model'} & {*sys.modules})"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ""


class TestRefusals:
    @pytest.mark.parametrize(
        ("decorator", "source", "message"),
        [
            (
                grader,
                "def f(output, ground_truth) -> float: ...",
                "f(output, ground_truth) -> float: it must take (sample, submission), (sample, submission, response)"
                " or (ctx); "
                "write `def f(sample, submission) -> GradeResult`",
            ),
            (grader, "async def f(sample): ...", "write `async def f(ctx) -> GradeResult`"),
            (grader, "def f(submission, sample): ...", "f(submission, sample): it must take (sample, submission)"),
            (grader, "def f(sample, submission, extra=1): ...", "it must take (sample, submission)"),
            (grader, "def f(sample, *submission): ...", "its parameters must be positional"),
            (grader, "def f(sample, *, submission): ...", "its parameters must be positional"),
            (grader, "def f(sample, submission=''): ...", "its parameters must have no defaults"),
            (grader, "def f(sample, submission) -> str: ...", "it must return GradeResult, bool, float or dict; write"),
            (grader, "def f(sample, submission) -> 'float | None': ...", "it must return GradeResult, bool, float or"),
            (grader, "def f(sample, submission) -> 'nonsense(': ...", "it must return GradeResult, bool, float or"),
            (grader, "def f(sample, submission) -> 'NotAGradeResult': ...", "it must return GradeResult"),
            (grader, "def f(sample, submission) -> None: ...", "it must return GradeResult"),
            (
                extractor,
                "async def f(trajectory, config): ...",
                "it must not be async; write `def f(trajectory, config) -> str`",
            ),
            (extractor, "def f(trajectory, config) -> dict: ...", "it must return str"),
            (
                extractor,
                "def f(messages): ...",
                "it must take (trajectory, config) or (trajectory, config, agent_state)",
            ),
            (reward_composer, "def f(ctx, more): ...", "write `def f(ctx)`"),
            (agent_factory, "def f(sample, client): ...", "write `def f(client, sample)`"),
            (suite_setup, "def f(a, b): ...", "write `def f(client, model_handle)`"),
        ],
    )
    def test_the_message_has_the_signature_and_the_remedy(self, decorator: Any, source: str, message: str) -> None:
        with pytest.raises(TypeError) as caught:
            decorator(execute(source)["f"])
        assert str(caught.value).startswith(f"executed.py:1: @{decorator.role} cannot mark f(")
        assert message in str(caught.value)

    def test_the_location_is_the_def_line_below_the_decorators(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.py"
        file.write_text(
            "from gradeline.usercode.decorators import grader\n\n@grader(\n    name='x',\n)\nasync def f(a): ...\n"
        )
        with pytest.raises(TypeError) as caught:
            exec(compile(file.read_text(), str(file), "exec", dont_inherit=True), {})
        assert str(caught.value).startswith(f"{file}:6: @grader cannot mark f(a)")

    @pytest.mark.parametrize("value", ["x", 3, int, functools.partial(print)])
    def test_only_functions_are_marked(self, value: Any) -> None:
        with pytest.raises(TypeError, match="@grader marks functions, got"):
            grader(value)

    def test_a_name_without_its_keyword_gets_a_hint(self) -> None:
        decorate: Any = grader
        with pytest.raises(TypeError, match=r'write @grader\(name="strict"\)'):
            decorate("strict")

    @pytest.mark.parametrize("name", ["", " ", "a:b", 3])
    def test_an_invalid_name_is_refused(self, name: Any) -> None:
        with pytest.raises(TypeError, match="a name is a non-empty string"):
            grader(name=name)


class TestMarkOf:
    def test_an_unmarked_value_has_no_mark(self) -> None:
        for value in (None, 3, print, int, lambda: None, mock.call, mock.MagicMock(), grader):
            assert mark_of(value) is None

    def test_the_mark_is_found_through_wrappers(self) -> None:
        @functools.lru_cache
        @grader(name="cached")
        def mine(sample: Sample, submission: str) -> GradeResult:
            return GradeResult(1.0)

        assert mark_of(mine) == Mark("grader", "cached")
        assert definition_location(mine.__wrapped__).file == __file__

    @pytest.mark.parametrize("role", ["grader", "extractor", "agent_factory", "suite_setup", "reward_composer"])
    def test_marks_of_letta_are_read(self, role: str) -> None:
        def mine() -> None: ...

        setattr(mine, f"_is_{role}", True)
        assert mark_of(mine) == Mark(role, "mine")

    def test_the_name_of_a_letta_mark_is_in_its_registry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def mine() -> None: ...

        vars(mine)["_is_grader"] = True

        @functools.wraps(mine)
        def wrapper() -> None: ...

        decorators = ModuleType("letta_evals.decorators")
        vars(decorators)["GRADER_REGISTRY"] = {"other": print, "strict": mine}
        monkeypatch.setitem(sys.modules, "letta_evals.decorators", decorators)
        assert mark_of(wrapper) == Mark("grader", "strict")
