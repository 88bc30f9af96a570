"""Several tools at the same job, in turn, so that a busy moment of the machine hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from measure import Finished, RunFailedError, Timing, finished, scratch, show_progress
from tools import Job, Tool, write_cases


class Entry(NamedTuple):
    """A tool with the size of its job."""

    tool: Tool
    samples: int
    rounds: int
    target: float | None = None
    note: str = ""


class Result(NamedTuple):
    """What became of an entry."""

    entry: Entry
    timing: Timing | None
    failure: str = ""
    """Why there is no timing."""


def contest(
    entries: Sequence[Entry],
    concurrency: int,
    url: str = "",
    before: Callable[[], None] = lambda: None,
    after: Callable[[Entry], None] = lambda _: None,
) -> list[Result]:
    """Runs each entry's job several times, in fresh folders; ``before`` and ``after`` are called around each job."""
    seconds: list[list[float]] = [[] for _ in entries]
    failures: dict[int, str] = {}
    for number in range(max(entry.rounds for entry in entries)):
        for place, entry in enumerate(entries):
            if number >= entry.rounds or place in failures:
                continue
            show_progress(f"{entry.tool.name}, round {number + 1} of {entry.rounds} …")
            before()
            try:
                seconds[place].append(do(entry.tool, entry.samples, concurrency, url).seconds)
                after(entry)
            except RunFailedError as error:
                failures[place] = str(error)
    show_progress("")
    return [
        Result(entry, None if place in failures else Timing.of(seconds[place]), failures.get(place, ""))
        for place, entry in enumerate(entries)
    ]


def do(tool: Tool, samples: int, concurrency: int, url: str = "") -> Finished:
    """One job, timed from the start of its process to its end; `RunFailedError` where an answer is not found right."""
    with scratch() as folder:
        job = Job(folder, samples, concurrency, url)
        write_cases(job.cases, samples)
        done = finished(tool.prepare(job), job.folder, tool.variables)
        passed = tool.passed(job, done.output)
        if passed != samples:
            raise RunFailedError(f"it found {passed:,} of {samples:,} answers right")
        return done
