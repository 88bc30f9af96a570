"""Stand-ins for letta's packages are used only if the real ones are not installed."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gradeline
from gradeline import compat
from gradeline.compat.stand_ins import TABLES, StandInFinder, StandInModule

SEED = "004_b071cd191b627a75.txt"
SEED_LINES = [
    "from letta_evals.decorators import grader",
    "from letta_evals.models import GradeResult",
    "from letta_evals.models import GradeResult, Sample",
    "from letta_evals.models import Sample, GradeResult",
    "from letta_evals.models import SuiteSpec",
]
LINES_IN_THE_WILD = [
    "from letta_evals import GradeResult, RewardOutput, Sample, agent_factory, extractor, grader, reward_composer",
    "from letta_evals.decorators import EXTRACTOR_REGISTRY, GRADER_REGISTRY, suite_setup",
    "from letta_evals.extractors.builtin import last_assistant",
    "from letta_evals.extractors.utils import flatten_content, get_assistant_messages",
    "from letta_evals.models import AgentState, LettaMessageUnion",
    "from letta_client import AgentState, AssistantMessage, AsyncLetta, CreateBlock, LettaMessageUnion, MessageCreate",
    "from letta_client.client import BaseTool",
    "from letta_client.types import AgentState, CreateBlockParam, MessageCreateParam, ToolReturnMessage",
    "from letta_client.types.agents import AssistantMessage, Message as LettaMessageUnion, ToolCall, ToolCallMessage",
    "from letta_client.types.tool import BaseTool",
]


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """Restore the import system after the test."""
    finders, modules, path = list(sys.meta_path), dict(sys.modules), list(sys.path)
    yield
    sys.meta_path[:], sys.path[:] = finders, path
    # a second import of gradeline itself would make a second class of each name
    for name in [name for name in sys.modules if name not in modules and name.partition(".")[0] != "gradeline"]:
        del sys.modules[name]


@pytest.fixture
def installed() -> None:
    compat.install()


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


@pytest.mark.usefixtures("installed")
class TestStandIns:
    @pytest.mark.parametrize("line", [*SEED_LINES, *LINES_IN_THE_WILD])
    def test_an_import_of_suite_code_works(self, line: str) -> None:
        run(line)

    def test_every_import_of_the_seed_document_works(self, seed: Callable[[str], str]) -> None:
        lines = re.findall(r"^(?:from|import) letta_\S+.*$", seed(SEED), re.MULTILINE)
        assert set(lines) == set(SEED_LINES)
        for line in lines:
            run(line)

    def test_every_name_of_the_tables_exists(self) -> None:
        for name, table in TABLES.items():
            module = importlib.import_module(name)
            assert isinstance(module, StandInModule)
            assert {attribute for attribute in table if getattr(module, attribute, None) is None} == set()

    def test_sample_and_grade_result_are_from_gradeline(self) -> None:
        names = run("from letta_evals.models import GradeResult, Sample")
        assert (names["GradeResult"], names["Sample"]) == (gradeline.GradeResult, gradeline.Sample)

    def test_submodules_are_attributes(self) -> None:
        names = run(
            "import letta_evals\nsample = letta_evals.models.Sample\nlast = letta_evals.extractors.builtin.last_turn"
        )
        assert names["sample"] is gradeline.Sample
        assert names["last"].__name__ == "last_turn"

    def test_a_star_import_has_the_names_of_the_table(self) -> None:
        names = run("from letta_evals.models import *")
        assert set(names) - {"__builtins__"} == set(TABLES["letta_evals.models"])
        assert set(TABLES["letta_evals.models"]) <= set(dir(sys.modules["letta_evals.models"]))

    def test_a_grader_of_the_documents_runs(self) -> None:
        names = run(
            "from letta_evals.decorators import grader\n"
            "from letta_evals.models import GradeResult, Sample\n"
            "@grader\n"
            "def my_grader(sample: Sample, submission: str) -> GradeResult:\n"
            "    return GradeResult(score=0.85, rationale=sample.ground_truth, metadata={'key': 'value'})\n"
            "result = my_grader(Sample(id=0, input='What is 2+2?', ground_truth='4'), 'The answer is 4')\n"
        )
        assert names["result"] == gradeline.GradeResult(0.85, "4", {"key": "value"})

    @pytest.mark.parametrize("path", ["letta_client", "letta_client.types", "letta_client.types.agents"])
    def test_a_message_class_is_the_same_by_old_and_new_paths(self, path: str) -> None:
        from letta_client.types.agents import AssistantMessage

        cls = importlib.import_module(path).AssistantMessage
        assert isinstance(AssistantMessage(content="hi"), cls)

    def test_the_client_raises_that_it_is_a_stand_in(self) -> None:
        from letta_client import AsyncLetta

        with pytest.raises(ImportError, match=r"AsyncLetta cannot reach a server.*pip install 'letta-client>=1,<2'"):
            AsyncLetta(base_url="http://localhost:8283")

    def test_installing_again_changes_nothing(self) -> None:
        compat.install()
        assert sum(isinstance(finder, StandInFinder) for finder in sys.meta_path) == 1
        assert isinstance(sys.meta_path[-1], StandInFinder)

    def test_uninstalling_removes_everything(self) -> None:
        run("import letta_evals.models, letta_client.types.agents")
        compat.uninstall()
        assert not any(name.startswith("letta_") for name in sys.modules)
        with pytest.raises(ModuleNotFoundError, match="No module named 'letta_evals'"):
            run("import letta_evals")


@pytest.mark.usefixtures("installed")
class TestUnknownNames:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            (
                "from letta_evals.models import GradeResul",
                "gradeline's stand-in for letta_evals has no letta_evals.models.GradeResul; "
                "did you mean 'GradeResult'? The real package has everything: pip install letta-evals",
            ),
            (
                "import letta_evals.extractor",
                "gradeline's stand-in for letta_evals has no letta_evals.extractor; "
                "did you mean 'extractors'? The real package has everything: pip install letta-evals",
            ),
            (
                "from letta_evals import Runner",
                "gradeline's stand-in for letta_evals has no letta_evals.Runner. "
                "The real package has everything: pip install letta-evals",
            ),
            (
                "import letta_client.resources.agents",
                "gradeline's stand-in for letta_client has no letta_client.resources. "
                "The real package has everything: pip install 'letta-client>=1,<2'",
            ),
        ],
    )
    def test_a_failed_import_has_a_remedy(self, line: str, message: str) -> None:
        with pytest.raises(ModuleNotFoundError) as caught:
            run(line)
        assert str(caught.value) == message

    def test_a_missing_attribute_has_a_remedy(self) -> None:
        with pytest.raises(AttributeError, match=r"no letta_evals\.models\.Smaple; did you mean 'Sample'\?"):
            run("import letta_evals\nletta_evals.models.Smaple")

    def test_hasattr_of_an_unknown_attribute_is_false(self) -> None:
        assert run("import letta_evals\nfound = hasattr(letta_evals, 'Runner')")["found"] is False

    def test_other_packages_are_not_affected(self) -> None:
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'letta_eval'$"):
            run("import letta_eval")


class TestTheRealPackage:
    @pytest.fixture
    def real(self, tmp_path: Path) -> Path:
        package = tmp_path / "letta_evals"
        package.mkdir()
        (package / "__init__.py").write_text("from letta_evals.models import Sample\n")
        (package / "models.py").write_text("class Sample: ...\n")
        sys.path.insert(0, str(tmp_path))
        compat.install()
        return package

    def test_has_priority(self, real: Path) -> None:
        names = run("import letta_evals\nfrom letta_evals.models import Sample")
        assert names["letta_evals"].__file__ == str(real / "__init__.py")
        assert names["Sample"] is names["letta_evals"].Sample is not gradeline.Sample

    @pytest.mark.usefixtures("real")
    @pytest.mark.parametrize("line", ["import letta_evals.decorators", "from letta_evals.models import GradeResult"])
    def test_is_not_completed_by_the_stand_in(self, line: str) -> None:
        with pytest.raises(ImportError) as caught:
            run(line)
        assert "stand-in" not in str(caught.value)
        assert not any(isinstance(module, StandInModule) for module in sys.modules.values())

    @pytest.mark.usefixtures("real")
    def test_leaves_the_other_package_to_the_stand_in(self) -> None:
        assert isinstance(run("import letta_evals, letta_client")["letta_client"], StandInModule)


class TestStartUp:
    def loaded(self, statement: str) -> tuple[list[str], list[str]]:
        report = "import sys, json; print(json.dumps([[type(f).__name__ for f in sys.meta_path], list(sys.modules)]))"
        done = subprocess.run(
            [sys.executable, "-c", f"{statement}\n{report}"], capture_output=True, text=True, check=True
        )
        finders, modules = json.loads(done.stdout)
        return finders, modules

    def test_importing_gradeline_installs_nothing(self) -> None:
        finders, modules = self.loaded("import gradeline, gradeline.compat")
        assert "StandInFinder" not in finders
        assert not any(name.startswith("letta_") for name in modules)

    def test_installing_loads_nothing_heavy(self) -> None:
        finders, modules = self.loaded("from gradeline import compat; compat.install(); import letta_evals.models")
        assert "StandInFinder" in finders
        assert not {"msgspec", "gradeline.model", "gradeline.letta.evals"} & set(modules)
