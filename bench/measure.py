"""What all benchmarks share: whole processes timed, their memory watched, tables, and the machine named."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from threading import Timer
from time import perf_counter
from typing import NamedTuple

import gradeline

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "bench" / "scripts"
COMMAND = str(Path(sys.executable).with_name("gradeline"))
PATIENCE_SECONDS = 1800
EXIT_MISSED = 3
"""A target was missed, or a tool has no figure; 1 is left to what broke."""
MISSED = "MISSED"
FAILED = "failed: "
MACHINE_SAID = "GRADELINE_BENCH_MACHINE_SAID"
JSON_FILE = "GRADELINE_BENCH_JSON"
"""Names the file that gets a line of JSON for every table and figure."""
_NOT_PASSED_ON = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "PYTHONPATH", "GRADELINE_STORE")
"""Like installed programs: with bytecode, and without the caller's store and path."""


class RunFailedError(Exception):
    """A measured program did not do its job; the message has the reason."""


class Finished(NamedTuple):
    """A process from start to exit."""

    seconds: float
    peak_kib: int
    """The most memory its main process held. Linux begins to count with what the parent holds: keep that small."""
    output: str
    cpu_seconds: float = 0.0
    """What its processes computed, which a busy machine stretches less than the time they took."""


class Timing(NamedTuple):
    """Seconds over several rounds."""

    best: float
    median: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Timing:
        return cls(min(rounds), median(rounds))


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a measured process sees of this one's environment."""
    kept = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED_ON}
    return {**kept, "NO_COLOR": "1", **(variables or {})}


def finished(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end, in a folder; `RunFailedError` where it is not 0."""
    with started(command, folder, variables) as process:
        return process.wait()


class Running:
    """A process on its way; its output goes to a file, so that it never waits for a reader."""

    def __init__(self, command: Sequence[str], folder: Path, variables: Mapping[str, str] | None) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._began = perf_counter()
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(variables),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        self.pid = self._process.pid

    def wait(self, accepted: Sequence[int] = (0,)) -> Finished:
        """`RunFailedError` where its exit code is not one of the accepted ones."""
        patience = Timer(PATIENCE_SECONDS, self._process.kill)
        patience.start()
        _, status, usage = os.wait4(self.pid, 0)
        patience.cancel()
        seconds = perf_counter() - self._began
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self._output.seek(0)
        output = self._output.read().decode(errors="replace")
        if seconds > PATIENCE_SECONDS:
            raise RunFailedError(f"not done after {PATIENCE_SECONDS:,} s")
        if code not in accepted:
            raise RunFailedError(f"exit code {code}: {last_line(output)}")
        return Finished(seconds, _kib(usage), output, usage.ru_utime + usage.ru_stime)

    def close(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._output.close()


@contextmanager
def started(command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> Iterator[Running]:
    running = Running(command, folder, variables)
    try:
        yield running
    finally:
        running.close()


def _kib(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss // 1024 if sys.platform == "darwin" else usage.ru_maxrss


def last_line(text: str) -> str:
    """The last line that a program printed: mostly why it ended."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "it printed nothing"


def flags(description: str | None, **known: str) -> frozenset[str]:
    """Which of the known flags the command line has; ``--help`` describes them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, meaning in known.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=meaning)
    return frozenset(name for name, given in vars(parser.parse_args()).items() if given)


def show_progress(text: str) -> None:
    """Progress messages for the terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@contextmanager
def scratch() -> Iterator[Path]:
    """A fresh folder on the project's own disk: where temporary files lie in memory, syncing costs nothing."""
    place = ROOT / ".tools" / "bench"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="run-", dir=place) as name:
        yield Path(name)


def machine() -> str:
    """What the figures belong to."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"gradeline {gradeline.__version__} on {os.cpu_count()} cores ({platform.machine()}), Python"
        f" {platform.python_version()}, {platform.system()} {platform.release()}{load}"
    )


def print_machine() -> None:
    """The first line of the output, printed once."""
    if not os.environ.get(MACHINE_SAID):
        print(f"{machine()}\n")


def record(kind: str, **values: object) -> None:
    """Add a line to the file of results, if one is named."""
    path = os.environ.get(JSON_FILE)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "part": Path(sys.argv[0]).stem, **values}, ensure_ascii=False) + "\n")


def print_table(title: str, headers: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns under a title; the first and the last are text, the others numbers."""
    shown = [tuple(headers), *map(tuple, rows)]
    record("table", title=title, headers=shown[0], rows=shown[1:])
    widths = [max(len(row[column]) for row in shown) for column in range(len(headers))]
    last = len(headers) - 1
    print(title)
    for row in shown:
        cells = [
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def exit_code(rows: Iterable[Sequence[str]]) -> int:
    """`EXIT_MISSED` where a row misses its target, or has no figure at all."""
    missed = any(MISSED in cell or cell.startswith(FAILED) for row in rows for cell in row)
    return EXIT_MISSED if missed else 0


def judged(value: float, target: float | None, *, at_least: bool, digits: int = 0) -> str:
    """The target, and whether it was missed."""
    if target is None:
        return ""
    over = value < target if at_least else value > target
    return f"{'≥' if at_least else '≤'} {target:,.{digits}f}{f' {MISSED}' if over else ''}"
