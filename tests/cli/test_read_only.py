"""Commands that read: they create nothing, and a store that cannot be written can be read whole."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.model import Run
from gradeline.store import SqliteStorage
from gradeline_command import COMMAND, run_command

SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer"}
graders: {exact: {kind: string-match, mode: contains}}
"""
READING = ("list", "list --json", "show", "show --records", "export", "compare latest~1 latest", "ledger")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text("def answer(text): return 'Paris'\n")
    (tmp_path / "cases.jsonl").write_text('{"input": "France", "ground_truth": "Paris"}\n')
    return tmp_path


@pytest.fixture
def stored(folder: Path) -> Path:
    for _ in range(2):
        assert command(folder, "run suite.yaml").returncode == 0
    return folder


def command(folder: Path, arguments: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command([*prefix, COMMAND, *arguments.split()], cwd=folder, env=environment, text=True)


class ReadOnlyFolder:
    """Runs commands for whom a folder cannot be written; permissions do not stop root, a read-only mount does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, arguments: str) -> subprocess.CompletedProcess[str]:
        if os.geteuid() != 0:
            return command(self._folder, arguments)
        script = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && cd "$0" && exec "$@"'
        return command(self._folder, arguments, "unshare", "-m", "sh", "-c", script, str(self._folder))


@pytest.fixture
def read_only(stored: Path) -> Iterator[ReadOnlyFolder]:
    if os.geteuid() == 0:
        mounting = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$0"', str(stored)]
        if shutil.which("unshare") is None or subprocess.run(mounting, check=False, capture_output=True).returncode:
            pytest.skip("root writes everywhere, and this container may not mount")
        yield ReadOnlyFolder(stored)
        return
    places = [stored / ".gradeline", *(stored / ".gradeline").iterdir()]
    before = [(place, place.stat().st_mode) for place in places]
    for place, mode in before:
        place.chmod(mode & ~0o222)
    yield ReadOnlyFolder(stored)
    for place, mode in before:
        if place.exists():
            place.chmod(mode)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


class TestNothingIsCreated:
    @pytest.mark.parametrize(
        ("arguments", "code", "message"),
        [
            ("list", 0, "No runs yet in FOLDER/.gradeline/store.db. Start one with: gradeline run SUITE\n"),
            ("list --json", 0, '{"runs": []}\n'),
            ("list --store other/runs.db", 0, "No runs yet in other/runs.db. Start one with: gradeline run SUITE\n"),
            (
                "show",
                2,
                "gradeline: no run 'latest'; the store has no runs yet; start one with: gradeline run SUITE\n",
            ),
            ("show x", 2, "gradeline: no run 'x'; the store has no runs yet; start one with: gradeline run SUITE\n"),
            (
                "export x",
                2,
                "gradeline: no run 'x'; the store has no runs yet; start one with: gradeline run SUITE\n",
            ),
            ("compare x y", 2, "gradeline: no run 'x'; the store has no runs yet"),
            ("resume x", 2, "gradeline: no run 'x'; the store has no runs yet"),
            ("regrade x", 2, "gradeline: no run 'x'; the store has no runs yet"),
            ("ledger", 0, "No observations yet."),
            ("keys list", 0, "No keys."),
            ("keys revoke x", 2, "gradeline: unknown key 'x'"),
            ("graders", 0, ""),
            ("validate suite.yaml", 0, "suite.yaml: valid"),
        ],
    )
    def test_without_a_store(self, folder: Path, arguments: str, code: int, message: str) -> None:
        before = files(folder)
        ran = command(folder, arguments)
        assert ran.returncode == code, ran.stderr
        assert (ran.stdout + ran.stderr).startswith(message.replace("FOLDER", str(folder)))
        assert files(folder) == before

    @pytest.mark.parametrize("arguments", READING)
    def test_next_to_a_store(self, stored: Path, arguments: str) -> None:
        before = files(stored)
        content = (stored / ".gradeline" / "store.db").read_bytes()
        command(stored, arguments)
        assert files(stored) == before
        assert (stored / ".gradeline" / "store.db").read_bytes() == content


class TestReadOnlyStore:
    @pytest.mark.parametrize("arguments", READING)
    def test_it_can_be_read(self, stored: Path, read_only: ReadOnlyFolder, arguments: str) -> None:
        usual = command(stored, arguments)
        ran = read_only(arguments)
        assert (ran.returncode, ran.stdout, ran.stderr) == (usual.returncode, usual.stdout, usual.stderr)
        assert ran.stdout

    def test_a_run_is_refused_with_a_remedy(self, stored: Path, read_only: ReadOnlyFolder) -> None:
        ran = read_only("run suite.yaml")
        assert ran.returncode == 4
        assert "read-only; make it writable, or use another store" in ran.stderr
        assert "Traceback" not in ran.stderr
        assert len(json.loads(command(stored, "list --json").stdout)["runs"]) == 2

    def test_rows_only_in_the_wal_are_read(self, stored: Path, request: pytest.FixtureRequest) -> None:
        """As a process that was killed leaves it: the newest run is not in the file, and there is no index."""
        store = stored / ".gradeline" / "store.db"
        saved = stored / "saved"
        saved.mkdir()
        with SqliteStorage(store) as storage:
            storage.save_run(Run(name="newest", suite="s", status="completed"))
            for name in ("store.db", "store.db-wal"):
                shutil.copy(store.with_name(name), saved / name)
        for name in ("store.db", "store.db-wal"):
            shutil.move(saved / name, store.with_name(name))
        names = sorted(path.name for path in store.parent.iterdir())
        assert names == ["store.db", "store.db-wal"]
        ran = request.getfixturevalue("read_only")("list --json")
        assert ran.stderr == ""
        assert [run["name"] for run in json.loads(ran.stdout)["runs"]] == ["newest", "capitals", "capitals"]
        assert sorted(path.name for path in store.parent.iterdir()) == names

    def test_rows_just_written_by_another_process_are_read(self, stored: Path, request: pytest.FixtureRequest) -> None:
        with SqliteStorage(stored / ".gradeline" / "store.db") as storage:
            storage.save_run(Run(name="newest", suite="s", status="completed"))
            ran = request.getfixturevalue("read_only")("list --json")
            assert json.loads(ran.stdout)["runs"][0]["name"] == "newest", ran.stderr


def test_an_empty_file_is_a_store_without_runs(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    assert command(tmp_path, "list --json --store new.db").stdout == '{"runs": []}\n'
    assert (tmp_path / "new.db").read_bytes() == b""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no database" * 100, "is not a gradeline store (not a SQLite database); use another file"),
        (None, "is a folder; name a file in it, such as"),
    ],
)
def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    place = tmp_path / "store.db"
    if content is None:
        place.mkdir()
    else:
        place.write_bytes(content)
    ran = command(tmp_path, "list --store store.db")
    assert ran.returncode == 4
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
