"""Memory limits of worker processes, and killing them with everything they started."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import jsonschema
import pytest

from gradeline.usercode import process_control
from gradeline.usercode.process_control import (
    NO_LIMIT,
    SIZE_SCHEMA,
    OomKillCounter,
    exit_description,
    format_size,
    kill_tree,
    parse_size,
)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (512 * 1024**2, 512 * 1024**2),
        ("536870912", 512 * 1024**2),
        ("512MB", 512 * 10**6),
        ("512 mb", 512 * 10**6),
        ("2GiB", 2 * 1024**3),
        ("1.5GiB", 3 * 1024**3 // 2),
        ("1TB", 10**12),
        ("none", NO_LIMIT),
    ],
)
def test_sizes(written: object, size: int) -> None:
    assert parse_size(written) == size
    jsonschema.validate(written, dict(SIZE_SCHEMA))


@pytest.mark.parametrize("written", ["2G", "much", "", "-1GB", "2 GiB of RAM", True, 1.5, [], {}])
def test_what_is_not_a_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="write a size such as 512MB or 2GiB, or none"):
        parse_size(written)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, dict(SIZE_SCHEMA))


@pytest.mark.parametrize("written", [0, 2, "2KB", "1MiB"])
def test_a_size_too_small_for_an_interpreter_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="too small to start Python in; use at least 64 MiB"):
        parse_size(written)


def test_sizes_are_shown_with_the_largest_unit() -> None:
    assert [format_size(size) for size in (5, 2048, 64 * 1024**2, 3 * 1024**3 // 2)] == [
        "5 B", "2 KiB", "64 MiB", "1.5 GiB",
    ]  # fmt: skip


class TestKillsByTheSystem:
    """The kernel counts them per control group; version 2 and version 1 have different files."""

    @pytest.fixture(params=["2", "1"])
    def events(self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        proc, mount = tmp_path / "cgroup", tmp_path / "fs"
        if request.param == "2":
            proc.write_text("0::/user/run\n")
            file = mount / "user" / "run" / "memory.events"
        else:
            proc.write_text("3:cpu:/\n2:memory:/user/run\n0::/\n")
            file = mount / "memory" / "user" / "run" / "memory.oom_control"
        file.parent.mkdir(parents=True)
        file.write_text("low 0\noom 0\noom_kill 4\n")
        found = process_control._events_file(proc, mount)
        assert found == file
        monkeypatch.setattr(process_control, "_events_file", lambda: found)
        return file

    def test_each_counts_once(self, events: Path) -> None:
        kills = OomKillCounter()
        assert not kills.new_kill()
        events.write_text("oom_kill 6\n")
        assert [kills.new_kill() for _ in range(3)] == [True, True, False]

    def test_a_missing_file_is_no_evidence(self, events: Path) -> None:
        kills = OomKillCounter()
        events.unlink()
        assert not kills.new_kill()

    def test_a_system_without_control_groups_has_no_evidence(self, tmp_path: Path) -> None:
        assert process_control._events_file(tmp_path / "none", tmp_path) is None


ROUNDS = 300


def test_a_process_may_end_while_it_is_killed() -> None:
    # its folder in /proc goes at any moment; in some of the rounds between two looks at it
    for _ in range(ROUNDS):
        process = subprocess.Popen(["true"])
        waiting = threading.Thread(target=process.wait)
        waiting.start()
        while waiting.is_alive():
            kill_tree(process.pid)
        waiting.join()


def test_the_whole_tree_is_killed() -> None:
    script = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    leaf = int(process.stdout.readline())
    kill_tree(process.pid)
    assert process.wait() < 0
    process.stdout.close()
    assert _gone(leaf)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "SIGKILL"), (-200, "signal 200")])
def test_the_description_of_an_exit(code: int, words: str) -> None:
    assert exit_description(code) == words
