"""Sizes, limits, and what counts as evidence that memory ran out."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from gradeline.usercode import memory
from gradeline.usercode.memory import NO_LIMIT, SIZE_SCHEMA, OomKills, bytes_of, shown_size


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
    assert bytes_of(written) == size
    jsonschema.validate(written, dict(SIZE_SCHEMA))


@pytest.mark.parametrize("written", ["2G", "much", "", "-1GB", "2 GiB of RAM", True, 1.5, [], {}])
def test_what_is_not_a_size_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="write a size such as 512MB or 2GiB, or none"):
        bytes_of(written)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, dict(SIZE_SCHEMA))


@pytest.mark.parametrize("written", [0, 2, "2KB", "1MiB"])
def test_a_size_that_no_interpreter_fits_in_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="too small to start Python in; use at least 64 MiB"):
        bytes_of(written)


def test_sizes_are_shown_with_the_largest_unit() -> None:
    assert [shown_size(size) for size in (5, 2048, 64 * 1024**2, 3 * 1024**3 // 2)] == [
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
        found = memory._events_file(proc, mount)
        assert found == file
        monkeypatch.setattr(memory, "_events_file", lambda: found)
        return file

    def test_each_counts_once(self, events: Path) -> None:
        kills = OomKills()
        assert not kills.one_more()
        events.write_text("oom_kill 6\n")
        assert [kills.one_more() for _ in range(3)] == [True, True, False]

    def test_a_file_that_is_gone_is_no_evidence(self, events: Path) -> None:
        kills = OomKills()
        events.unlink()
        assert not kills.one_more()

    def test_a_system_without_control_groups_has_no_evidence(self, tmp_path: Path) -> None:
        assert memory._events_file(tmp_path / "none", tmp_path) is None
