from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradeline.cli.commands import run_command
from gradeline.importers.kinds import KINDS
from gradeline.importers.output import ImportedResult, ImportedRun, ImportOutput
from gradeline.importers.report import MAX_PLACES, ImportReport, State
from gradeline.model import Response, Sample
from gradeline.store import open_storage

ROW = {"doc_id": 0, "doc": {"q": "x"}, "target": "4", "filtered_resps": ["4"], "metrics": ["acc"], "acc": 1.0}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples_t.jsonl").write_text(json.dumps(ROW) + "\n")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "missing.json does not exist"),
        (["samples_t.jsonl", "--from", "lmeval"], "unknown kind 'lmeval'; did you mean 'lm-eval'?"),
        (["notes.txt"], "cannot detect what notes.txt is; use --from with one of "),
    ],
)
def test_what_cannot_be_imported_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (project / "notes.txt").write_text("buy milk")
    assert run_command(["import", *arguments, "--output", "imported"]) == 2
    assert message in capsys.readouterr().err
    assert not (project / "imported").exists()


def test_files_are_never_overwritten(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "imported").mkdir()
    (project / "imported" / "suite.yaml").write_text("mine")
    assert run_command(["import", "samples_t.jsonl", "--output", "imported"]) == 2
    assert "imported has files; choose a new or empty folder" in capsys.readouterr().err
    assert (project / "imported" / "suite.yaml").read_text() == "mine"


def test_a_failed_import_leaves_neither_folder_nor_run(project: Path) -> None:
    (project / "samples_u.jsonl").write_text("not JSON\n")
    (project / "logs").mkdir()
    for name in ("samples_t.jsonl", "samples_u.jsonl"):
        (project / name).rename(project / "logs" / name)
    assert run_command(["import", "logs", "--output", "imported", "--store", "runs.db"]) == 2
    assert [path.name for path in project.iterdir() if path.name.startswith((".imported", "imported"))] == []
    assert not (project / "runs.db").exists()


def test_an_import_that_fails_midway_deletes_its_runs(project: Path) -> None:
    run = ImportedRun(name="r", suite="s", target={}, graders={})
    with open_storage(str(project / "runs.db")) as storage:

        def fail_midway() -> None:
            with ImportOutput(Path("out"), ImportReport("x", "k"), lambda: storage) as output:
                output.add_run(run, [ImportedResult(Sample("a", "hi"), Response(text="ho"))])
                assert storage.list_runs()
                raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            fail_midway()
        assert storage.list_runs() == []
    assert not Path("out").exists()


def test_the_documentation_lists_the_kinds() -> None:
    page = Path(__file__).parents[2] / "docs" / "import.md"
    rows = re.findall(r"^\| `([\w-]+)` \| .* \| \[[^|]*\]\((from-[\w-]+\.md)\) \|$", page.read_text(), re.MULTILINE)
    assert [kind for kind, _ in rows] == list(KINDS)


class TestReport:
    def test_like_items_are_counted(self) -> None:
        report = ImportReport("x.json", "k")
        for number in range(20):
            report.mapped(f"tests[{number}]", "assertion contains", "check contains")
        (item,) = report.items
        assert (item.count, len(item.places), report.exit_code) == (20, MAX_PLACES, 0)

    def test_the_exit_code_is_that_of_the_worst_item(self) -> None:
        report = ImportReport("x.json", "k")
        report.approximated("a", "b", "c", "differs")
        assert report.exit_code == 3
        report.not_mapped("a", "b", "why")
        assert report.exit_code == 1
        assert report.count(State.NOT_MAPPED) == 1

    def test_text_of_the_source_is_inert(self) -> None:
        report = ImportReport("<script>", "k")
        report.not_mapped("a|b", "[x](javascript:alert(1))\n# title \x1b[31m", "![y](z) `code` <b>")
        text = report.markdown()
        assert "\\<script\\>" in text
        assert "\x1b" not in text
        assert "\\[x\\](javascript:alert(1))" in text
        assert text.count("\n#") == text.count("\n## ")
