"""The loader: discovery of functions, its faults, and what a fingerprint covers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from gradeline import GradeResult, Sample, compat
from gradeline.usercode.loader import CodeRequest, CodeSpec, LoadedFunctions, LoadFault, ReservedName, load

HEAD = "from gradeline import GradeResult, Sample\nfrom gradeline.usercode.decorators import *\n"
GRADER = """
@grader
def {name}(sample: Sample, submission: str) -> GradeResult:
    return GradeResult({score})
"""
SAMPLE = Sample(0, "q", "a")

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo the changes that loading makes to the process, which tests share."""
    path, modules = list(sys.path), dict(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name not in modules]:
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes files into the suite's folder: ``write(graders_py="source")``."""

    def write(name: str, source: str = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(source))
        return path

    return write


def graders(*names: str, score: object = 1.0, head: str = "") -> str:
    return head + HEAD + "".join(GRADER.format(name=name, score=score) for name in names)


def loaded(folder: Path, *references: str, role: str = "grader", **more: Any) -> LoadedFunctions:
    wanted = tuple(CodeRequest(role, reference) for reference in references)
    return load(CodeSpec(str(folder), wanted, **more))


def fault(folder: Path, reference: str, role: str = "grader", **more: Any) -> LoadFault:
    (found,) = loaded(folder, reference, role=role, **more).manifest.faults
    assert found.reference == reference
    return found


def score(code: LoadedFunctions, reference: str) -> float:
    assert code.manifest.faults == ()
    result: GradeResult = code.function("grader", reference)(SAMPLE, "text")
    return result.score


def restart(folder: Path) -> None:
    """As a new worker process would see it."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


class TestDiscovery:
    def test_a_file_in_the_folder_is_found_by_its_functions_name(self, tmp_path: Path, write: Write) -> None:
        write("custom_evaluators.py", graders("my_grader"))
        assert score(loaded(tmp_path, "my_grader"), "my_grader") == 1.0

    @pytest.mark.parametrize("reference", ["custom_evaluators.py:my_grader", "custom_evaluators:my_grader"])
    def test_a_path_names_a_function(self, tmp_path: Path, write: Write, reference: str) -> None:
        write("custom_evaluators.py", graders("my_grader"))
        write("other.py", "raise AssertionError('a path needs no discovery')")
        assert score(loaded(tmp_path, reference), reference) == 1.0

    def test_a_setup_script_imports_it(self, tmp_path: Path, write: Write) -> None:
        write("evaluators/custom.py", graders("my_grader"))
        write("setup.py", "import evaluators.custom\ndef prepare_environment(suite): return suite\n")
        write("other.py", "raise AssertionError('what the setup imports needs no discovery')")
        code = loaded(tmp_path, "my_grader", setup="setup.py:prepare_environment")
        assert score(code, "my_grader") == 1.0
        assert code.setup is not None
        assert code.setup("given") == "given"
        assert [(entry.role, entry.name, entry.parameters) for entry in code.manifest.entries] == [
            ("suite_setup", "prepare_environment", ("suite",)),
            ("grader", "my_grader", ("sample", "submission")),
        ]

    def test_names_the_setup_does_not_import_are_discovered(self, tmp_path: Path, write: Write) -> None:
        write("a.py", graders("first"))
        write("b.py", graders("second"))
        write("setup.py", HEAD + "import a\n@suite_setup\nasync def prepare(client): ...\n")
        code = loaded(tmp_path, "first", "second", setup="setup:prepare")
        assert [entry.name for entry in code.manifest.entries] == ["prepare", "first", "second"]

    def test_a_setup_script_can_import_graders_from_outside_the_folder(self, tmp_path: Path, write: Write) -> None:
        write("lib/house_graders.py", graders("strict"))
        write("suite/setup.py", "import house_graders\ndef prepare(): ...\n")
        sys.path.append(str(tmp_path / "lib"))
        assert score(loaded(tmp_path / "suite", "strict", setup="setup.py:prepare"), "strict") == 1.0

    def test_an_entry_has_the_location_and_signature(self, tmp_path: Path, write: Write) -> None:
        file = write(
            "mine.py", HEAD + "\n@grader(\n  name='x'\n)\nasync def f(sample, submission):\n  return GradeResult(0.5)"
        )
        code = loaded(tmp_path, "x")
        (entry,) = code.manifest.entries
        assert (entry.role, entry.reference, entry.name) == ("grader", "x", "x")
        assert (entry.file, entry.line, entry.is_async) == (str(file), 7, True)
        assert asyncio.run(code.function("grader", "x")(SAMPLE, "")) == GradeResult(0.5)

    def test_a_path_takes_the_name_of_the_function_or_of_its_mark(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", HEAD + "@grader(name='x')\ndef f(sample, submission): ...")
        first, second = loaded(tmp_path, "mine.py:x", "mine.py:f").manifest.entries
        assert (first.name, first.fingerprint) == (second.name, second.fingerprint)

    def test_all_roles_are_found(self, tmp_path: Path, write: Write) -> None:
        write(
            "mine.py",
            HEAD
            + "@extractor\ndef same(trajectory, config): ...\n"
            + "@reward_composer\ndef reward(ctx): ...\n@agent_factory\nasync def make(client, sample): ...\n",
        )
        write("other.py", graders("same"))
        wanted = (("extractor", "same"), ("grader", "same"), ("reward_composer", "reward"), ("agent_factory", "make"))
        code = load(CodeSpec(str(tmp_path), tuple(CodeRequest(*pair) for pair in wanted)))
        assert code.manifest.faults == ()
        assert tuple((entry.role, entry.name) for entry in code.manifest.entries) == wanted

    def test_string_annotations_work(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", graders("f", head="from __future__ import annotations\n"))
        assert score(loaded(tmp_path, "f"), "f") == 1.0

    def test_a_mark_under_another_decorator_is_found(self, tmp_path: Path, write: Write) -> None:
        write(
            "timing.py",
            "import functools\ndef timed(f):\n  @functools.wraps(f)\n  def w(*a): return f(*a)\n  return w\n",
        )
        file = write(
            "mine.py",
            HEAD + "from timing import timed\n@timed\n@grader\ndef f(sample, submission): return GradeResult(1)\n",
        )
        code = loaded(tmp_path, "f")
        assert score(code, "f") == 1.0
        assert (code.manifest.entries[0].file, code.manifest.entries[0].line) == (str(file), 6)

    def test_imports_and_aliases_of_one_function_are_one(self, tmp_path: Path, write: Write) -> None:
        write("a_user.py", "from mine import f\ng = f")
        file = write("mine.py", graders("f") + "alias = f\n")
        assert loaded(tmp_path, "f").manifest.entries[0].file == str(file)

    def test_init_main_and_excluded_files_are_not_discovered(self, tmp_path: Path, write: Write) -> None:
        for name in ("__init__.py", "__main__.py", "agent.py", ".hidden.py"):
            write(name, "raise SystemExit")
        write("_private.py", graders("f"))
        assert score(loaded(tmp_path, "f", exclude=("agent.py",)), "f") == 1.0


class TestExecution:
    COUNT = "import sys\nsys.counted = getattr(sys, 'counted', 0) + 1\n"

    @pytest.fixture(autouse=True)
    def counted(self) -> Iterator[None]:
        yield
        vars(sys).pop("counted", None)

    def test_each_file_is_executed_once_under_its_plain_name(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", self.COUNT + graders("f", "g"))
        write("user.py", "import mine")
        references = ("mine.py:f", f"{tmp_path}/mine.py:g", "mine:f", "f", "./mine.py:f")
        code = loaded(tmp_path, *references, setup="mine.py:f")
        assert vars(sys)["counted"] == 1
        assert code.function("grader", "f") is sys.modules["mine"].f
        assert {id(code.function("grader", each)) for each in references if each.endswith("f")} == {
            id(sys.modules["mine"].f)
        }

    def test_a_file_that_fails_is_not_loaded_again(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", self.COUNT + "1 / 0")
        assert len(loaded(tmp_path, "mine.py:f", "mine:f", "f").manifest.faults) >= 3
        assert vars(sys)["counted"] == 1

    @pytest.mark.parametrize("name", ["json.py", "my-graders.py", "gradeline.py", "sub folder/x.py"])
    def test_a_file_that_import_would_not_find_is_loaded(self, tmp_path: Path, write: Write, name: str) -> None:
        write(name, graders("f"))
        before = sys.modules["json"]
        assert score(loaded(tmp_path, f"{name}:f"), f"{name}:f") == 1.0
        assert sys.modules["json"] is before

    def test_relative_imports_of_a_package_file_work(self, tmp_path: Path, write: Write) -> None:
        write("pkg/__init__.py")
        write("pkg/values.py", "SCORE = 0.25")
        write("pkg/mine.py", "from .values import SCORE\n" + graders("f", score="SCORE"))
        assert score(loaded(tmp_path, "pkg/mine.py:f", "pkg.mine:f"), "pkg/mine.py:f") == 0.25

    def test_files_outside_the_folder_can_be_named(self, tmp_path: Path, write: Write) -> None:
        write("shared/mine.py", graders("f"))
        write("suite/mine.py", graders("f", score=0.5))
        code = loaded(tmp_path / "suite", "../shared/mine.py:f", f"{tmp_path}/shared/mine.py:f", "f")
        assert [score(code, entry.reference) for entry in code.manifest.entries] == [1.0, 1.0, 0.5]

    def test_the_folder_leads_sys_path_once(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", graders("f"))
        loaded(tmp_path, "f")
        sys.path.insert(0, "/elsewhere")
        loaded(tmp_path, "f")
        assert sys.path[0] == str(tmp_path)
        assert sys.path.count(str(tmp_path)) == 1

    def test_objects_that_raise_on_attribute_access_are_ignored(self, tmp_path: Path, write: Write) -> None:
        proxy = "class Proxy:\n  def __getattribute__(self, name): raise SystemExit\n  def __call__(self): ...\n"
        write("mine.py", proxy + "proxy = Proxy()\n" + graders("f"))
        write("setup.py", "from mine import *\ndef prepare(): ...\n")
        assert score(loaded(tmp_path, "f", setup="setup.py:prepare"), "f") == 1.0
        assert fault(tmp_path, "proxy").message.startswith("no grader named 'proxy'")
        assert fault(tmp_path, "mine.py:proxy").message == "'proxy' is of type Proxy, not a function; name a def"

    def test_a_module_that_replaces_itself_is_a_fault(self, tmp_path: Path, write: Write) -> None:
        write("mine.py", "import sys\nsys.modules[__name__] = object()")
        assert (
            "mine replaces itself in sys.modules with an object of type object" in fault(tmp_path, "mine.py:f").message
        )

    def test_an_import_that_prints_is_loaded(
        self, tmp_path: Path, write: Write, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write("mine.py", "print('hello')\n" + graders("f"))
        assert score(loaded(tmp_path, "f"), "f") == 1.0
        assert capsys.readouterr().out == "hello\n"


class TestFaults:
    def test_a_broken_file_that_is_not_needed_is_not_a_fault(self, tmp_path: Path, write: Write) -> None:
        write("broken.py", "def (")
        write("exits.py", "import sys; sys.exit(3)")
        write("mine.py", graders("f"))
        assert score(loaded(tmp_path, "f"), "f") == 1.0

    @pytest.mark.parametrize(
        ("source", "line", "message"),
        [
            ("x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
            ("def g():\n  1 / 0\nf = 1\ng()\n", 2, "ZeroDivisionError: division by zero"),
            ("\nf = 1; import sys; sys.exit(3)", 2, "SystemExit: 3; a file must not exit while it loads"),
            ("f = 1; raise KeyboardInterrupt", 1, "KeyboardInterrupt"),
            (
                "f = 1\nimport no_such_thing",
                2,
                "No module named 'no_such_thing'; run: pip install no_such_thing, or remove the import",
            ),
            (HEAD + "@grader\ndef f(a, b): ...", 4, "write `def f(sample, submission) -> GradeResult`"),
            ("f = 1\nclass E(Exception):\n  def __str__(self): raise E\nraise E", 4, "E: <message cannot be shown>"),
        ],
    )
    @pytest.mark.parametrize("reference", ["f", "mine:f", "mine.py:f"])
    def test_a_file_that_fails_to_load_is_named_with_its_line(
        self, tmp_path: Path, write: Write, source: str, line: int, message: str, reference: str
    ) -> None:
        file = write("mine.py", source)
        write("unrelated.py", "1 / 0")
        *unknown, found = loaded(tmp_path, reference).manifest.faults
        assert (found.file, found.line) == (str(file), line)
        assert message in found.message
        if reference == "f":
            assert [one.message.rpartition("; ")[2] for one in unknown] == ["mine.py, unrelated.py could not be loaded"]

    @pytest.mark.parametrize(
        ("module", "command"),
        [
            ("sklearn.metrics", "pip install scikit-learn"),
            ("letta_evals.core", "pip install letta-evals"),
            ("duckdb", "pip install 'gradeline[export]'"),
        ],
    )
    def test_the_fault_of_a_missing_package_has_the_install_command(
        self, tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, module: str, command: str
    ) -> None:
        monkeypatch.setitem(sys.modules, module.partition(".")[0], None)
        write("mine.py", f"import {module}\n")
        assert f"; run: {command}, or remove the import" in fault(tmp_path, "mine.py:f").message

    def test_a_name_missing_from_the_installed_letta_client_is_reported_with_the_release_that_has_it(
        self, tmp_path: Path, write: Write
    ) -> None:
        write("letta_client.py", "class AsyncLetta: ...\n")
        write("mine.py", "from letta_client import CreateBlock\n")
        remedy = "run: pip install 'letta-client>=1,<2', or for code from before its release 1.0: pip install 'letta-client<1'"
        assert fault(tmp_path, "mine.py:f").message.endswith(remedy)

    def test_an_error_in_an_imported_file_names_both(self, tmp_path: Path, write: Write) -> None:
        file = write("mine.py", "import helper\nf = 1\n")
        write("helper.py", "\n\n1 / 0")
        found = fault(tmp_path, "mine.py:f")
        assert (found.file, found.line) == (str(file), 1)
        assert found.message == "ZeroDivisionError: division by zero (raised at helper.py:3)"

    def test_all_failed_files_are_reported_if_none_mentions_the_name(self, tmp_path: Path, write: Write) -> None:
        write("broken.py", "1 / 0")
        write("mine.py", graders("my_grader", "other"))
        first, second = loaded(tmp_path, "my_gradr").manifest.faults
        assert first.message == (
            f"no grader named 'my_gradr' in a .py file of {tmp_path}; did you mean 'my_grader'? found: my_grader, other"
            "; broken.py could not be loaded"
        )
        assert (second.file, second.line) == (str(tmp_path / "broken.py"), 1)

    def test_an_empty_folder_is_reported(self, tmp_path: Path) -> None:
        assert fault(tmp_path, "f").message == (
            f"no grader named 'f' in a .py file of {tmp_path}; no function is marked @grader"
        )

    @pytest.mark.parametrize("reference", ["my_grader", "mine.py:my_grader"])
    def test_a_missing_decorator_is_reported_at_the_def(self, tmp_path: Path, write: Write, reference: str) -> None:
        file = write("mine.py", "\n\ndef my_grader(sample, submission): ...")
        assert fault(tmp_path, reference) == LoadFault(
            reference, str(file), 3, "'my_grader' is not marked; add @grader above def my_grader", "grader"
        )

    @pytest.mark.parametrize("reference", ["f", "mine.py:f"])
    def test_a_mark_hidden_by_another_decorator_is_explained(
        self, tmp_path: Path, write: Write, reference: str
    ) -> None:
        source = "def timed(f): return lambda *a: f(*a)\n@timed\n@grader\ndef f(sample, submission): ...\n"
        file = write("mine.py", HEAD + source)
        message = "a decorator above @grader hides the mark of 'f'; use functools.wraps in it"
        assert fault(tmp_path, reference) == LoadFault(reference, str(file), 6, message, "grader")

    @pytest.mark.parametrize("reference", ["f", "mine.py:f"])
    def test_a_function_of_another_role_is_reported(self, tmp_path: Path, write: Write, reference: str) -> None:
        file = write("mine.py", HEAD + "@extractor\ndef f(trajectory, config): ...\n")
        message = "'f' is marked @extractor, not @grader; name a function marked @grader"
        assert fault(tmp_path, reference) == LoadFault(reference, str(file), 4, message, "grader")

    def test_two_functions_with_one_name_are_reported_with_both_locations(self, tmp_path: Path, write: Write) -> None:
        file = write("a.py", graders("f"))
        write("b.py", HEAD + "@grader(name='f')\ndef other(sample, submission): ...\n")
        message = "2 functions are marked as grader 'f': a.py:5 and b.py:4; rename one"
        assert fault(tmp_path, "f") == LoadFault("f", str(file), 5, message, "grader")
        assert loaded(tmp_path, "a.py:f", "b.py:other").manifest.faults == ()

    @pytest.mark.parametrize("reference", ["f", "a.py:f"])
    def test_a_def_that_replaces_one_of_the_same_name_is_refused(
        self, tmp_path: Path, write: Write, reference: str
    ) -> None:
        write("a.py", graders("f", "f"))
        assert "2 functions are marked as grader 'f': a.py:5 and a.py:9" in fault(tmp_path, reference).message

    @pytest.mark.parametrize("name", ["contains", "string_match"])
    def test_a_built_ins_name_is_refused_unless_a_path_is_given(self, tmp_path: Path, write: Write, name: str) -> None:
        file = write("mine.py", graders(name))
        found = fault(tmp_path, name)
        assert (found.file, found.line) == (str(file), 5)
        assert found.message == (
            f"{name!r} is the name of a built-in grader, and a function is marked @grader with the same name at"
            f" mine.py:5; write function: mine.py:{name} for that function, or kind: {name} for the built-in grader"
        )
        assert score(loaded(tmp_path, f"mine.py:{name}"), f"mine.py:{name}") == 1.0

    @pytest.mark.parametrize(
        ("file", "setup", "reference"),
        [
            ("mine.py", "setup.py:prepare", "mine.py:contains"),
            ("lib/mine.py", None, "lib/mine.py:contains"),
        ],
    )
    def test_a_loaded_function_with_a_name_that_the_suite_uses_for_a_built_in_is_refused(
        self, tmp_path: Path, write: Write, file: str, setup: str | None, reference: str
    ) -> None:
        """Also where the source text does not show it: here the name is computed."""
        path = write(file, graders("other") + "@grader(name='con' + 'tains')\ndef contains(sample, submission): ...\n")
        write("setup.py", "import mine\ndef prepare(): ...\n")
        reserved = (
            ReservedName("grader", "contains", "built-in grader"),
            ReservedName("grader", "numeric", "built-in grader"),
        )
        found = loaded(tmp_path, f"{file}:other", setup=setup, reserved=reserved).manifest.faults
        message = (
            "'contains' is the name of a built-in grader, and a function is marked @grader with the same name at"
            f" {file}:8; write function: {reference} for that function, or kind: contains for the built-in grader"
        )
        assert found == (LoadFault("contains", str(path), 8, message, "grader"),)

    def test_an_imported_built_in_is_not_a_function_of_the_suite(self, tmp_path: Path, write: Write) -> None:
        compat.install()
        write("mine.py", graders("f") + "from letta_evals.extractors import last_assistant\n")
        reserved = (ReservedName("extractor", "last_assistant", "built-in extractor"),)
        assert loaded(tmp_path, "mine.py:f", reserved=reserved).manifest.faults == ()
        compat.uninstall()

    def test_a_value_that_is_not_a_function_is_reported(self, tmp_path: Path, write: Write) -> None:
        file = write("mine.py", "f = {}")
        message = "'f' is of type dict, not a function; name a def"
        assert fault(tmp_path, "mine.py:f") == LoadFault("mine.py:f", str(file), None, message, "grader")

    @pytest.mark.parametrize(
        ("reference", "message"),
        [
            ("custom_evaluator.py:f", "no file 'custom_evaluator.py'; did you mean 'custom_evaluators.py'?"),
            ("zzz.py:f", "no file 'zzz.py'; {folder} has custom_evaluators.py"),
            ("custom_evaluator:f", "no module named 'custom_evaluator'; did you mean 'custom_evaluators'?"),
            ("no_such.deep:f", "no module named 'no_such'; install it or put it into {folder}"),
            (":f", "':f' does not name a function; write file.py:function or module:function"),
            (
                "custom_evaluators:",
                "'custom_evaluators:' does not name a function; write file.py:function or module:function",
            ),
        ],
    )
    def test_a_wrong_path_suggests_the_closest(
        self, tmp_path: Path, write: Write, reference: str, message: str
    ) -> None:
        write("custom_evaluators.py", graders("f"))
        assert fault(tmp_path, reference) == LoadFault(reference, None, None, message.format(folder=tmp_path), "grader")

    def test_a_name_that_is_not_in_the_file_suggests_those_that_are(self, tmp_path: Path, write: Write) -> None:
        file = write("mine.py", graders("my_grader"))
        message = "no grader named 'my_gradr' in mine.py; did you mean 'my_grader'? found: my_grader"
        assert fault(tmp_path, "mine.py:my_gradr") == LoadFault("mine.py:my_gradr", str(file), None, message, "grader")

    @pytest.mark.parametrize(
        ("setup", "message"),
        [
            ("setup.py:prepare", "prepare(a, b) cannot set up a suite: it must take (client), (), "),
            ("setup.py:number", "'number' is of type int, not a function"),
            ("setup.py:marked", "'marked' is marked @grader, not @suite_setup"),
            ("setup.py:absent", "no suite_setup named 'absent' in setup.py"),
            ("setup.py", "'setup.py' does not name a function; write file.py:function"),
            ("broken.py:prepare", "ZeroDivisionError"),
        ],
    )
    def test_a_wrong_setup_is_reported_with_all_other_faults(
        self, tmp_path: Path, write: Write, setup: str, message: str
    ) -> None:
        write("setup.py", "def prepare(a, b): ...\nnumber = 1\n" + graders("marked"))
        write("broken.py", "1 / 0")
        write("mine.py", graders("f"))
        code = loaded(tmp_path, "mine.py:absent", "f", "absent.py:f", setup=setup)
        assert [found.reference for found in code.manifest.faults] == [setup, "mine.py:absent", "absent.py:f"]
        assert message in code.manifest.faults[0].message
        assert code.setup is None
        assert code.function("grader", "f")(SAMPLE, "") == GradeResult(1.0)
        with pytest.raises(LookupError, match=r"no grader 'absent\.py:f' was loaded"):
            code.function("grader", "absent.py:f")

    def test_an_undecorated_setup_can_name_its_parameter_freely(self, tmp_path: Path, write: Write) -> None:
        write("setup.py", "def prepare(spec): ...")
        assert loaded(tmp_path, setup="setup.py:prepare").manifest.entries[0].parameters == ("spec",)


class TestFingerprint:
    def entry_print(self, folder: Path, reference: str = "f") -> str:
        restart(folder)
        (entry,) = loaded(folder, reference).manifest.entries
        return entry.fingerprint

    @pytest.fixture
    def suite(self, tmp_path: Path, write: Write) -> Path:
        write("mine.py", "import helper\nfrom pkg import deep\n" + graders("f", "g"))
        write("helper.py", "def late():\n    import lazy\n")
        write("lazy.py", "")
        write("pkg/__init__.py", "")
        write("pkg/deep.py", "from . import sibling\nfrom .sub.leaf import X\n")
        write("pkg/sibling.py", "import mine\n")
        write("pkg/sub/leaf.py", "X = 1\n")
        write("unrelated.py", "")
        return tmp_path

    @pytest.mark.parametrize(
        "name",
        ["mine.py", "helper.py", "lazy.py", "pkg/__init__.py", "pkg/deep.py", "pkg/sibling.py", "pkg/sub/leaf.py"],
    )
    def test_it_changes_with_the_file_and_all_it_imports_from_the_folder(self, suite: Path, name: str) -> None:
        before = self.entry_print(suite)
        assert self.entry_print(suite) == before
        with (suite / name).open("a") as file:
            file.write("# changed\n")
        assert self.entry_print(suite) != before

    def test_it_does_not_change_with_anything_else(self, suite: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        before = self.entry_print(suite)
        (suite / "unrelated.py").write_text("x = 1")
        (suite / "data.json").write_text("{}")
        assert self.entry_print(suite) == before
        moved = tmp_path_factory.mktemp("moved") / "suite"
        suite.rename(moved)
        assert self.entry_print(moved) == before
        assert self.entry_print(moved, "mine.py:f") == before

    def test_functions_of_one_file_differ(self, suite: Path) -> None:
        assert self.entry_print(suite, "f") != self.entry_print(suite, "g")

    def test_an_edit_after_loading_has_no_effect(self, suite: Path) -> None:
        code = loaded(suite, "f")
        (entry,) = code.manifest.entries
        (suite / "mine.py").write_text("broken(")
        (suite / "helper.py").write_text("broken(")
        assert code.manifest.entries[0].fingerprint == entry.fingerprint
        assert loaded(suite, "f").manifest.entries == (entry,)


class TestAllOfAFile:
    def test_every_function_of_the_role_in_the_files_order(self, tmp_path: Path, write: Write) -> None:
        write("other.py", graders("imported"))
        write(
            "mine.py",
            "from other import imported\n"
            + graders("z", "a")
            + "@extractor\ndef e(trajectory, config): ...\ndef plain(): ...\n",
        )
        manifest = loaded(tmp_path, "mine.py:*").manifest
        assert manifest.faults == ()
        assert [(entry.role, entry.reference, entry.line) for entry in manifest.entries] == [
            ("grader", "mine.py:z", 6),
            ("grader", "mine.py:a", 10),
        ]
        assert loaded(tmp_path, "mine.py:z").manifest.entries == manifest.entries[:1]

    def test_functions_created_by_another_file_belong_to_this_file(self, tmp_path: Path, write: Write) -> None:
        write("factory.py", "def make(n):\n  def f(sample, submission): return n\n  return f\n")
        write(
            "mine.py",
            HEAD + "from factory import make\none = grader(name='one')(make(1))\ntwo = grader(name='two')(make(2))\n",
        )
        manifest = loaded(tmp_path, f"{tmp_path / 'mine.py'}:*").manifest
        assert [entry.name for entry in manifest.entries] == ["one", "two"]
        assert len({entry.fingerprint for entry in manifest.entries}) == 2

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("mine.py", "ZeroDivisionError"),
            ("min.py", "did you mean 'mine.py'?"),
            ("empty.py", "no function is marked @grader"),
        ],
    )
    def test_a_file_without_functions_of_the_role_is_a_fault(
        self, tmp_path: Path, write: Write, name: str, message: str
    ) -> None:
        write("mine.py", "1 / 0")
        write("empty.py", "def f(sample, submission): ...")
        (found,) = loaded(tmp_path, f"{name}:*").manifest.faults
        assert message in str(found)


class TestTheProjectsOwnPackage:
    """A suite in a folder of a repository, and the package of that repository."""

    @pytest.fixture(params=["pyproject.toml", "setup.py", ".git", ".gradeline"])
    def mark(self, request: pytest.FixtureRequest) -> str:
        name: str = request.param
        return name

    def agent(self, folder: Path) -> str:
        code = loaded(folder, "agent.py:answer", role="target")
        assert code.manifest.faults == ()
        answer: str = code.function("target", "agent.py:answer")("hi")
        return answer

    def entry(self, folder: Path) -> str:
        restart(folder.parents[1])
        (entry,) = loaded(folder, "agent.py:answer", role="target").manifest.entries
        return entry.fingerprint

    @pytest.mark.parametrize("place", ["", "src/"])
    def test_can_be_imported(self, tmp_path: Path, write: Write, mark: str, place: str) -> None:
        write(f"{mark}/x" if mark.startswith(".") else mark)
        write(f"{place}shop/__init__.py")
        write(f"{place}shop/prices.py", "def price(): return 'of the package'")
        write("evals/deep/agent.py", "from shop.prices import price\ndef answer(text): return price()")
        assert self.agent(tmp_path / "evals" / "deep") == "of the package"

    def test_comes_after_the_suites_folder(self, tmp_path: Path, write: Write) -> None:
        write("pyproject.toml")
        write("shop.py", "name = 'of the project'")
        write("evals/shop.py", "name = 'of the suite'")
        write("evals/agent.py", "import shop\ndef answer(text): return shop.name")
        assert self.agent(tmp_path / "evals") == "of the suite"

    def test_the_nearest_project_counts(self, tmp_path: Path, write: Write) -> None:
        write("pyproject.toml")
        write("outer.py", "name = 'outer'")
        write("inner/pyproject.toml")
        write("inner/evals/agent.py", "import outer\ndef answer(text): return outer.name")
        found = fault(tmp_path / "inner" / "evals", "agent.py:answer", role="target")
        assert "No module named 'outer'" in found.message

    def test_is_part_of_the_fingerprint(self, tmp_path: Path, write: Write) -> None:
        folder = tmp_path / "evals" / "deep"
        write("pyproject.toml")
        write("src/shop/__init__.py")
        write("src/shop/prices.py", "from .rates import rate")
        write("src/shop/rates.py", "rate = 1")
        write("src/shop/unused.py", "x = 1")
        write("evals/deep/agent.py", "def answer(text):\n    from shop.prices import rate\n    return str(rate)")
        before = self.entry(folder)
        write("src/shop/unused.py", "x = 2")
        assert self.entry(folder) == before
        write("src/shop/rates.py", "rate = 2")
        assert self.entry(folder) != before


def test_a_target_that_cannot_be_called_is_refused_with_its_location(tmp_path: Path, write: Write) -> None:
    write("agent.py", "\ndef answer(text, history):\n    return text")
    found = fault(tmp_path, "agent.py:answer", role="target")
    assert (found.file, found.line) == (str(tmp_path / "agent.py"), 2)
    assert found.message == (
        "answer(text, history) takes the parameter 'history', which gets no value; give it a default, or one of the names"
        " input, messages, session, sample, model"
    )
