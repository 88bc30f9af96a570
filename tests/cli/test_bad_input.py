"""Bad stores, full disks, invalid options and broken files: the real command reports the problem and loses nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from gradeline.model import Record
from gradeline.store import Run, SqliteStorage
from gradeline_command import COMMAND, run_command

GUARD = 60

SUITE = """\
name: echo
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer", isolation: none}
graders:
  same: {kind: contains}
"""
AGENT = """
from pathlib import Path
def answer(text, model=None):
    with Path(__file__).with_name("calls").open("a") as calls:
        calls.write(text + "\\n")
    return text + " " * PADDING
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT.replace("PADDING", "0"))
    write_cases(tmp_path, 8)
    return tmp_path


def write_cases(folder: Path, count: int, name: str = "cases.jsonl") -> None:
    rows = [
        {"id": f"c{number}", "input": f"q{number}", "ground_truth": f"q{number}", "tags": [f"t{number % 2}"]}
        for number in range(count)
    ]
    (folder / name).write_text("\n".join(map(json.dumps, rows)))


def environment() -> dict[str, str]:
    stored = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return {**stored, "NO_COLOR": "1"}


def gradeline(folder: Path, *arguments: str, out: IO[Any] | int = subprocess.PIPE) -> CommandResult:
    done = run_command(
        [COMMAND, *arguments],
        cwd=folder,
        stdout=out,
        env=environment(),
        timeout=GUARD,
    )
    return CommandResult(done.returncode, (done.stdout or b"").decode(), done.stderr.decode())


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def runs(folder: Path, store: str = ".gradeline/store.db") -> list[Run]:
    with SqliteStorage(folder / store) as storage:
        return list(storage.list_runs())


def records(folder: Path, run: str = "latest", store: str = ".gradeline/store.db") -> list[Record]:
    with SqliteStorage(folder / store) as storage:
        return list(storage.records(storage.find_run(run).id))


def check_error(ran: CommandResult, code: int, *words: str) -> None:
    """The exit code, and one readable message: no traceback, no mention of a bug."""
    assert ran.code == code, ran.err
    assert "Traceback" not in ran.err
    assert "bug in gradeline" not in ran.err
    for word in words:
        assert word in ran.err


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own; skips where mounting is not allowed."""
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


def a_folder(folder: Path) -> str:
    (folder / "store").mkdir()
    return "store"


def no_database(folder: Path) -> str:
    (folder / "store").write_text("name: capitals\n" * 100)
    return "store"


def of_another_program(folder: Path) -> str:
    with closing(sqlite3.connect(folder / "theirs.db")) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    return "theirs.db"


def of_a_newer_gradeline(folder: Path) -> str:
    SqliteStorage(folder / "newer.db").close()
    with closing(sqlite3.connect(folder / "newer.db")) as connection:
        connection.execute("PRAGMA user_version = 999")
    return "newer.db"


def below_a_file(folder: Path) -> str:
    (folder / "file").write_text("")
    return "file/store.db"


class TestStores:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (a_folder, "the store store is a folder; name a file in it, such as store/store.db"),
            (no_database, "the store store is not a gradeline store (not a SQLite database); use another file"),
            (of_another_program, "theirs.db is a SQLite database of another program; use another file"),
            (of_a_newer_gradeline, "its schema has version 999, this one supports 1"),
            (below_a_file, "the folder file of the store cannot be created"),
            (lambda _: "/proc/nowhere/store.db", "the folder /proc/nowhere of the store cannot be created"),
            (lambda _: "/sys/store.db", "the store /sys/store.db cannot be opened; check that its folder"),
        ],
    )
    def test_an_unusable_store_is_not_changed(self, folder: Path, make: Callable[[Path], str], message: str) -> None:
        store = make(folder)
        before = (folder / store).read_bytes() if (folder / store).is_file() else None
        ran = gradeline(folder, "run", "suite.yaml", "--store", store)
        check_error(ran, 4, f"gradeline: {message}" if not message.startswith("its") else message)
        assert len(ran.err.splitlines()) == 1
        assert calls(folder) == []
        if before is not None:
            assert (folder / store).read_bytes() == before

    @pytest.mark.parametrize("url", ["mysql://me:hunter2@db/x", "postgresql://me:hunter2@db", "sqlite://"])
    def test_an_invalid_store_url_is_shown_without_its_password(self, folder: Path, url: str) -> None:
        ran = gradeline(folder, "run", "suite.yaml", "--store", url)
        check_error(ran, 2, "gradeline: store: ")
        assert "hunter2" not in ran.err
        assert calls(folder) == []

    def test_a_read_only_file_system(self, folder: Path) -> None:
        with mounted(folder / "disk", "4m") as disk:
            assert gradeline(folder, "run", "suite.yaml", "--store", "disk/store.db", "--quiet").code == 0
            remount(disk, "ro")
            for store in ("disk/store.db", "disk/new.db"):
                ran = gradeline(folder, "run", "suite.yaml", "--store", store)
                check_error(ran, 4, f"disk/{'store.db' if 'store' in store else ''}".rstrip("/"), "use another store")
            assert len(calls(folder)) == 8
            remount(disk, "rw")
            assert len(records(folder, store="disk/store.db")) == 8

    def test_two_suites_write_to_one_store_at_the_same_time(self, folder: Path) -> None:
        write_cases(folder, 300)
        write_cases(folder, 200, "others.jsonl")
        (folder / "others.yaml").write_text(SUITE.replace("echo", "others").replace("cases.jsonl", "others.jsonl"))
        children = [
            subprocess.Popen([COMMAND, "run", suite, "--quiet"], cwd=folder, env=environment(), stdout=subprocess.PIPE)
            for suite in ("suite.yaml", "others.yaml")
        ]
        for child in children:
            child.communicate(timeout=GUARD)
            assert child.returncode == 0
        found = {run.name: run for run in runs(folder)}
        assert {name: (run.status, run.total) for name, run in found.items()} == {
            "echo": ("completed", 300),
            "others": ("completed", 200),
        }
        for name, count in (("echo", 300), ("others", 200)):
            stored = records(folder, found[name].id)
            assert [record.case for record in stored] == [f"c{number}" for number in range(count)]
            assert all(record.grades["same"].passed for record in stored)
        assert len(calls(folder)) == 500


class TestFullDisk:
    CONCURRENCY = 4

    def test_acknowledged_records_survive_and_resume_continues(self, folder: Path) -> None:
        write_cases(folder, 120)
        (folder / "agent.py").write_text(AGENT.replace("PADDING", "20_000"))
        with mounted(folder / "disk", "2m") as disk:
            ran = gradeline(
                folder, "run", "suite.yaml", "--store", "disk/store.db", "--concurrency", str(self.CONCURRENCY)
            )
            check_error(ran, 4, "the store disk/store.db cannot grow: the disk is full; free some space, then resume")
            assert len(ran.err.splitlines()) == 1
            number_of_calls = len(calls(folder))
            remount(disk, "size=40m")
            stored = records(folder, store="disk/store.db")
            assert 0 < len(stored) < 120
            assert number_of_calls - self.CONCURRENCY <= len(stored) <= number_of_calls
            resumed = gradeline(folder, "resume", "latest", "--store", "disk/store.db", "--json")
            assert (resumed.code, resumed.json["run"]["status"]) == (0, "completed")
            assert resumed.json["summary"]["graders"]["same"]["passed"] == 120
            assert len(calls(folder)) == number_of_calls + 120 - len(stored)

    def test_an_export_that_does_not_fit_leaves_no_file(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("PADDING", "20_000"))
        gradeline(folder, "run", "suite.yaml", "--quiet")
        with mounted(folder / "disk", "64k") as disk:
            ran = gradeline(folder, "export", "--output", "disk/out.jsonl")
            assert ran.code in (2, 4)
            check_error(ran, ran.code, "disk/out.jsonl: cannot write: No space left on device")
            assert list(disk.iterdir()) == []

    @pytest.mark.parametrize("command", [("run", "suite.yaml", "--json"), ("export",), ("show", "--json")])
    def test_a_full_standard_output_is_reported(self, folder: Path, command: tuple[str, ...]) -> None:
        if command[0] != "run":
            gradeline(folder, "run", "suite.yaml", "--quiet")
        with open("/dev/full", "wb") as full:  # noqa: PTH123 - a device
            ran = gradeline(folder, *command, out=full)
        check_error(ran, 4, "No space left on device")
        assert [(run.status, run.total) for run in runs(folder)] == [("completed", 8)]

    def test_a_device_named_as_output_stays_a_device(self, folder: Path) -> None:
        device = folder / "full"
        try:
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        except PermissionError:
            pytest.skip("a device cannot be made here")
        gradeline(folder, "run", "suite.yaml", "--quiet")
        ran = gradeline(folder, "export", "--output", "full")
        assert stat.S_ISCHR(device.stat().st_mode)
        assert ran.code in (2, 4)
        check_error(ran, ran.code, "full: cannot write: No space left on device")

    @pytest.mark.parametrize("place", ["suite.yaml", "/proc/nowhere/out"])
    def test_a_results_folder_that_cannot_be_created_loses_no_run(self, folder: Path, place: str) -> None:
        ran = gradeline(folder, "run", "suite.yaml", "--output", place)
        assert ran.code in (2, 4)
        check_error(ran, ran.code, place)
        assert (folder / "suite.yaml").read_text() == SUITE
        assert len(calls(folder)) == (len(records(folder)) if calls(folder) else 0)


class TestOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ("--set nme=x", "suite.yaml:1:1: nme: unknown key; did you mean 'name'?"),
            ("--set target.isolaton=none", "target.isolaton: unknown option; did you mean 'isolation'?"),
            ("--set graders.same.mode=x", "graders.same.mode: unknown option"),
            ("--set graders.nobody.kind=contain", "graders.nobody.kind: no grader named 'contain'; did you mean"),
            ("--set gate=[", "--set: 'gate=[': not YAML"),
            ("--set repeats=many", "repeats: expected a whole number, at least 1, got 'many'"),
            ("--set repeats", "--set: 'repeats': write key=value"),
            ("--set name.first=x", "--set: 'name.first=x': name is 'echo', which has no keys"),
            ("--set dataset[0].input=x", "--set: 'dataset[0].input=x': dataset has no item [0]"),
            ("--sample nobody", "--sample: the dataset has no case 'nobody'"),
            ("--tag nobody", "'nobody'"),
            ("--grader nobody", "--grader: no grader 'nobody' in the suite; it has same"),
            ("--budget five", "invalid budget 'five': use an amount such as 5usd, or 1000calls"),
            ("--budget 1.5calls", "'1.5calls': calls are whole numbers"),
            ("--budget -1usd", "invalid budget '-1usd'"),
            ("--failed-of nobody", "no run 'nobody'"),
            ("--baseline nobody", "no run 'nobody'"),
            ("--cached nowhere", "'nowhere' does not exist"),
            ("--cached bare", "bare holds no results of letta-evals"),
            ("--limit -1", "-1 is not in the range"),
            ("--set dataset=nowhere.jsonl", "dataset: no file 'nowhere.jsonl'"),
            ("--set dataset=empty.jsonl", "empty.jsonl: holds no case to run"),
            ("--set dataset=[]", "dataset"),
        ],
    )
    def test_an_invalid_option_makes_no_calls(self, folder: Path, arguments: str, message: str) -> None:
        (folder / "bare").mkdir()
        (folder / "empty.jsonl").write_text("\n\n")
        ran = gradeline(folder, "run", "suite.yaml", *arguments.split())
        check_error(ran, 2, message)
        assert ran.out == ""
        assert calls(folder) == []
        # what never began must not be what "latest" means, and least of all a success
        assert [run.status for run in runs(folder) if run.status == "completed"] == []

    @pytest.mark.parametrize("command", [("resume",), ("show",), ("export",), ("regrade",)])
    def test_the_error_for_an_unknown_run_names_the_newest(self, folder: Path, command: tuple[str, ...]) -> None:
        check_error(gradeline(folder, *command, "nobody"), 2, "no run 'nobody'")

    def test_rerunning_failures_without_a_failure_is_refused(self, folder: Path) -> None:
        gradeline(folder, "run", "suite.yaml", "--quiet", "--name", "sound")
        ran = gradeline(folder, "run", "suite.yaml", "--failed-of", "sound")
        check_error(ran, 2, "--failed-of: every case of ", "passed; there is nothing to run")
        assert len(calls(folder)) == 8

    @pytest.mark.parametrize(
        "setting",
        [
            "target.headers.Authorization=Bearer hunter2-hunter2",
            "target.headers={Authorization: Bearer hunter2-hunter2}",
            "target={kind: http, url: http://127.0.0.1:9/, headers: {X-Api-Key: hunter2-hunter2}}",
            "target.url=http://127.0.0.1:9/?api_key=hunter2-hunter2",
        ],
    )
    def test_a_secret_by_value_is_refused_and_not_stored(self, folder: Path, setting: str) -> None:
        target = "target: {kind: http, url: http://127.0.0.1:9/, timeout: 5}"
        lines = [target if line.startswith("target:") else line for line in SUITE.splitlines()]
        (folder / "suite.yaml").write_text("\n".join(lines))
        ran = gradeline(folder, "run", "suite.yaml", "--set", setting, "--set", "target.retries=0")
        stored = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
        assert b"hunter2" not in stored
        assert "hunter2" not in ran.out + ran.err
        check_error(ran, 2, "may be a secret; export it and write")

    def test_a_budget_ends_a_run_and_another_one_finishes_it(self, folder: Path) -> None:
        ran = gradeline(folder, "run", "suite.yaml", "--budget", "5calls", "--json")
        run = ran.json["run"]["id"]
        assert (ran.code, ran.json["run"]["status"]) == (3, "cancelled")
        assert f"the budget of 5 calls is spent; continue with: gradeline resume {run}" in ran.err
        assert (len(calls(folder)), len(records(folder))) == (5, 5)
        again = gradeline(folder, "resume", run, "--json")
        assert (again.code, len(calls(folder))) == (3, 5)
        more = gradeline(folder, "resume", run, "--budget", "100calls", "--json")
        assert (more.code, more.json["run"]["status"], more.json["summary"]["cases"]) == (0, "completed", 8)
        assert sorted(calls(folder)) == [f"q{number}" for number in range(8)]

    def test_fail_fast_ends_at_the_first_failure(self, folder: Path) -> None:
        rows = [{"id": f"c{number}", "input": "q", "ground_truth": "q" if number < 3 else "z"} for number in range(500)]
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        ran = gradeline(folder, "run", "suite.yaml", "--fail-fast", "--concurrency", "1", "--json")
        assert (ran.code, ran.json["verdict"]["result"]) == (1, "fail")
        assert "fail-fast: case 'c3': same is fail; continue with: gradeline resume" in ran.err
        assert ran.json["run"]["status"] == "cancelled"
        assert len(calls(folder)) < 500

    def test_two_models_are_two_runs_of_one_group(self, folder: Path) -> None:
        agent = AGENT.replace("text + ", "f'{text} {model}' + ").replace("PADDING", "0")
        (folder / "agent.py").write_text(agent)
        ran = gradeline(folder, "run", "suite.yaml", "--model", "a", "--model", "b", "--json")
        assert (ran.code, set(ran.json)) == (0, {"runs", "exit_code"})
        one, two = (shown["run"] for shown in ran.json["runs"])
        assert (one["name"], two["name"]) == ("echo [a]", "echo [b]")
        assert one["group"] == two["group"] is not None
        for run, model in ((one, "a"), (two, "b")):
            texts = [record.response.text for record in records(folder, run["id"])]
            assert texts == [f"q{number} {model}" for number in range(8)]


def alias_bomb() -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    return "\n".join(lines).encode()


class TestSuiteFiles:
    @pytest.mark.parametrize(
        ("content", "line", "message"),
        [
            (alias_bomb(), None, "alias"),
            (b"name: x\n" + b"#" * 11_000_000, 0, "is larger than 10 MB"),
            (b"name: " + b"[" * 5000 + b"]" * 5000, 1, "deep"),
            (SUITE.encode() + b"name: again\n", 6, "the key is written twice (first in line 1"),
            (SUITE.replace("  same", "\tsame").encode(), 5, "indent with spaces, not with tabs"),
            (SUITE.encode("utf-16"), 0, "save it as UTF-8"),
            (SUITE.replace("echo", "\xe9cho").encode("latin-1"), 1, "is not UTF-8: byte 0xe9"),
            (b"", 0, "is empty"),
        ],
    )
    def test_an_invalid_suite_is_reported_with_its_line(
        self, folder: Path, content: bytes, line: int | None, message: str
    ) -> None:
        (folder / "suite.yaml").write_bytes(content)
        ran = gradeline(folder, "validate", "suite.yaml", "--json")
        assert (ran.code, ran.json["valid"], ran.err) == (2, False, "")
        found = ran.json["errors"]
        assert any(message in error["message"] and line in (None, error["line"]) for error in found), found
        assert {error["file"] for error in found} == {"suite.yaml"}

    def test_a_byte_order_mark_is_accepted(self, folder: Path) -> None:
        (folder / "suite.yaml").write_bytes(b"\xef\xbb\xbf" + SUITE.encode())
        assert gradeline(folder, "validate", "suite.yaml", "--json").json["valid"]

    def test_a_dataset_without_a_case_is_not_valid(self, folder: Path) -> None:
        (folder / "cases.jsonl").write_text("")
        ran = gradeline(folder, "validate", "suite.yaml", "--json")
        assert (ran.code, ran.json["valid"]) == (2, False)


CODE = """
from gradeline import GradeResult, grader, reward_composer

@grader
def length(sample, submission):
    return GradeResult(score=min(1.0, len(submission) / 4), rationale=f"{len(submission)} characters")

@reward_composer
def compose(ctx):
    return ctx.grades["same"].score * ctx.grades["length"].score
"""
GRADED = """\
name: graded
dataset:
  - {id: short, input: ab, ground_truth: ab}
  - {id: long, input: abcd, ground_truth: abcd}
  - {id: wrong, input: abcd, ground_truth: zzzz}
target: {kind: python, function: "agent.py:answer"}
graders:
  same: {kind: exact_match}
  length: {kind: tool, function: "rewards.py:length"}
  rules: {kind: custom-rules, rules: [{condition: contains, value: ab}]}
"""


class TestGraders:
    def test_several_graders_make_one_reward(self, folder: Path) -> None:
        (folder / "rewards.py").write_text(CODE)
        (folder / "suite.yaml").write_text(
            GRADED
            + 'reward: {kind: custom, function: "rewards.py:compose"}\n'
            + "gate: {kind: simple, metric_key: reward, aggregation: avg_score, op: gte, value: 0.5}\n"
        )
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert (ran.code, ran.json["verdict"]["result"]) == (0, "pass"), ran.err
        scores = {record.case: {key: grade.score for key, grade in record.grades.items()} for record in records(folder)}
        assert scores == {
            "short": {"same": 1.0, "length": 0.5, "rules": 1.0, "reward": 0.5},
            "long": {"same": 1.0, "length": 1.0, "rules": 1.0, "reward": 1.0},
            "wrong": {"same": 0.0, "length": 1.0, "rules": 1.0, "reward": 0.0},
        }

    def test_the_reward_can_be_one_graders_score(self, folder: Path) -> None:
        (folder / "rewards.py").write_text(CODE)
        (folder / "suite.yaml").write_text(
            GRADED
            + "reward: {kind: metric, metric_key: length}\n"
            + "gate: {kind: simple, metric_key: length, aggregation: avg_score, op: gte, value: 0.9}\n"
        )
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert (ran.code, ran.json["verdict"]["result"]) == (1, "fail"), ran.err
        assert ran.json["summary"]["graders"]["length"]["mean"] == pytest.approx(2.5 / 3)

    def test_turns_are_graded_one_by_one(self, folder: Path) -> None:
        rows = [
            {"id": "all", "input": ["a", "b"], "ground_truth": ["a", "b"]},
            {"id": "half", "input": ["a", "b"], "ground_truth": ["a", "z"]},
            {"id": "none", "input": ["a", "b", "c"], "ground_truth": ["x", "y", "z"]},
        ]
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "suite.yaml").write_text(
            SUITE.replace(", isolation: none", "").replace("kind: contains", "kind: exact_match")
        )
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert ran.code == 0, ran.err
        found = {record.case: record for record in records(folder)}
        assert {case: record.grades["same"].score for case, record in found.items()} == {
            "all": 1.0,
            "half": 0.5,
            "none": 0.0,
        }
        assert found["half"].submissions == {"same": "[Turn 0] a | [Turn 1] b"}
        assert len(calls(folder)) == 7


def test_a_suite_refused_while_the_http_client_loads_exits_cleanly(tmp_path: Path) -> None:
    """The import continues in a thread; an interpreter that exited in the middle of it crashed sometimes."""
    (tmp_path / "suite.yaml").write_text("name: x\ntarget: {kind: http, url: 'http://127.0.0.1:9'}\n")
    codes = [gradeline(tmp_path, "run", "suite.yaml").code for _ in range(8)]
    assert codes == [2] * 8


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("'q' AS input, 'a'::BLOB AS picture", "picture: the column is binary"),
        ("'q' AS question", "input: is required"),
    ],
)
def test_a_faulty_parquet_file_is_one_line(folder: Path, select: str, message: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with closing(duckdb.connect(":memory:")) as connection:
        connection.execute(f"COPY (SELECT {select}) TO '{folder / 'cases.parquet'}' (FORMAT parquet)")
    (folder / "suite.yaml").write_text(SUITE.replace("cases.jsonl", "cases.parquet"))
    # not a fork of the template: DuckDB reports what is open when the interpreter ends
    result = subprocess.run(
        [COMMAND, "run", "suite.yaml"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
