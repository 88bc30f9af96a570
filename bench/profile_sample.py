"""Where each microsecond of a sample goes, stage by stage, next to the floor.

Each stage does its work by itself, many times, on the samples, responses and rows of a real run; the whole run and the
whole floor are measured the same way, in this process. Counted is what the processor did, by all threads, in the best
of many short rounds: waiting for the disk is not in it, nor most of what else the machine does. The whole is what a
sample more costs, so that beginning and ending a run are not in it. What the stages leave of the whole is not measured
by itself: tasks that take turns, slots, progress, and what a stage costs more among the others than by itself.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.aggregate import conclude
from gradeline.engine.definition import RunOptions
from gradeline.engine.grade import Grading
from gradeline.engine.lifecycle import run_local
from gradeline.engine.plan import plan
from gradeline.engine.prepare import PreparedRun, prepare
from gradeline.errors import StoreError
from gradeline.model import GradeKey, Response, ResponseKey, Run, Sample
from gradeline.store import SqliteStorage
from gradeline.store.rows import RecordRow, grade_row, response_row
from gradeline.store.sqlite_records import put_rows
from gradeline.store.writer import Writer
from gradeline.suite.read import read_suite
from measure import SCRIPTS, flags, print_machine, print_table, record, scratch, show_progress
from tools import Job, gradeline, write_cases

sys.path.insert(0, str(SCRIPTS))

import floor
from agent import answer

SAMPLES = 2_000
FEW = 200
"""The cost of a run with this number of samples is subtracted before the rest is divided."""
CONCURRENCY = 100
ROUNDS = 15

Stage = Callable[[], object]


class Figure(NamedTuple):
    """Microseconds a sample."""

    stage: str
    ours: float | None
    floor: float | None
    what: str


class Material(NamedTuple):
    """What the stages work on."""

    folder: Path
    prepared: PreparedRun
    run: Run
    samples: list[Sample]
    responses: list[Response]
    rows: list[RecordRow]
    """The rows of the responses, then those of the grades."""


def cost(stage: Stage, before: Stage = lambda: None) -> float:
    """Microseconds of the processor that a sample costs; ``before`` is done before each round, and not counted."""
    rounds = []
    for _ in range(ROUNDS):
        before()
        began = process_time()
        stage()
        rounds.append(process_time() - began)
    return 1e6 * min(rounds) / SAMPLES


async def acost(stage: Callable[[], Coroutine[Any, Any, object]]) -> float:
    return 1e6 * min([await once(stage) for _ in range(ROUNDS)]) / SAMPLES


async def once(stage: Callable[[], Coroutine[Any, Any, object]]) -> float:
    began = process_time()
    await stage()
    return process_time() - began


async def material(folder: Path, storage: SqliteStorage, prepared: PreparedRun) -> Material:
    new = prepared.new_run("profile")
    run = msgspec.structs.replace(new, id=storage.save_run(new))
    samples = [*prepared.samples()]
    responses = [await prepared.target.respond(sample) for sample in samples]
    grading = Grading(prepared.graders, None)
    rows: list[RecordRow] = [
        response_row(ResponseKey(run.id, sample.case_key), response, sample, position)
        for position, (sample, response) in enumerate(zip(samples, responses, strict=True))
    ]
    for sample, response in zip(samples, responses, strict=True):
        for key, (text, grade) in (await grading.grade(sample, response)).items():
            rows.append(grade_row(GradeKey(run.id, sample.case_key, 0, key), grade, text))
    return Material(folder, prepared, run, samples, responses, rows)


def batches(rows: list[RecordRow]) -> Iterator[list[RecordRow]]:
    """As a run commits them: responses with the grades of those before."""
    responses, grades = rows[:SAMPLES], rows[SAMPLES:]
    for start in range(0, SAMPLES, CONCURRENCY):
        yield responses[start : start + CONCURRENCY] + grades[max(0, start - CONCURRENCY) : start]
    yield grades[-CONCURRENCY:]


@contextmanager
def fresh_store(stuff: Material) -> Iterator[sqlite3.Connection]:
    """A store with nothing but the run, set as the program sets it."""
    path = stuff.folder / "stage.db"
    for file in stuff.folder.glob("stage.db*"):
        file.unlink()
    with SqliteStorage(path) as storage:
        storage.save_run(stuff.run)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for pragma in ("synchronous = FULL", "foreign_keys = ON"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection
    finally:
        connection.close()


def committed(stuff: Material) -> float:
    rounds = []
    for _ in range(ROUNDS):
        with fresh_store(stuff) as connection:
            began = process_time()
            for batch in batches(stuff.rows):
                connection.execute("BEGIN IMMEDIATE")
                put_rows(connection, batch)
                connection.execute("COMMIT")
            rounds.append(process_time() - began)
    return 1e6 * min(rounds) / SAMPLES


async def queued(stuff: Material) -> float:
    """Responses and grades through a writer that stores nothing, less what encoding them costs."""
    grading = Grading(stuff.prepared.graders, None)
    graded = [await grading.grade(*pair) for pair in zip(stuff.samples, stuff.responses, strict=True)]

    def nothing(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        return [None] * len(rows)

    async def stage() -> None:
        async with Writer(nothing, nothing) as writer:
            left = iter(range(SAMPLES))

            async def work() -> None:
                for place in left:
                    sample = stuff.samples[place]
                    key = ResponseKey(stuff.run.id, sample.case_key)
                    await writer.put_response(key, stuff.responses[place], sample, place)
                    await writer.post_grades(key, graded[place])

            await asyncio.gather(*(work() for _ in range(CONCURRENCY)))

    return await acost(stage)


async def whole(storage: SqliteStorage, prepared: PreparedRun) -> float:
    async def stage(samples: int) -> None:
        chosen = prepared._replace(options=RunOptions(limit=samples))
        new = chosen.new_run("profile")
        run = msgspec.structs.replace(new, id=storage.save_run(new))
        await run_local(storage, chosen.task(run))

    few, many = [], []
    for _ in range(ROUNDS):
        few.append(await once(lambda: stage(FEW)))
        many.append(await once(lambda: stage(SAMPLES)))
    return 1e6 * (min(many) - min(few)) / (SAMPLES - FEW)


async def ours(folder: Path) -> dict[str, float]:
    suite = read_suite(folder / "suite.json")
    with SqliteStorage(folder / "store.db") as storage:
        async with prepare(suite, RunOptions(), storage) as prepared:
            stuff = await material(folder, storage, prepared)
            found = await in_loop(stuff)
            show_progress("the whole run …")
            found["whole"] = await whole(storage, prepared)
        run = storage.list_runs(limit=1)[0]
        found["sum up"] = cost(lambda: conclude(storage, run))
    found["whole"] += found["sum up"]
    show_progress("commits …")
    found["commit"] = committed(stuff)
    return found


async def in_loop(stuff: Material) -> dict[str, float]:
    """The stages that a run does in its event loop."""
    show_progress("stages …")
    run, graders = stuff.run.id, tuple(use.key for use in stuff.prepared.graders)
    prints = {use.key: use.fingerprint for use in stuff.prepared.graders}
    keys = [ResponseKey(run, sample.case_key) for sample in stuff.samples]
    grading = Grading(stuff.prepared.graders, None)
    pairs = [*zip(stuff.samples, stuff.responses, strict=True)]
    graded = [await grading.grade(*pair) for pair in pairs]

    async def ask() -> None:
        for sample in stuff.samples:
            await stuff.prepared.target.respond(sample)

    async def grade() -> None:
        for sample, response in pairs:
            await grading.grade(sample, response, graders)

    def encode_responses() -> None:
        for place, (key, (sample, response)) in enumerate(zip(keys, pairs, strict=True)):
            response_row(key, response, sample, place)

    def encode_grades() -> None:
        for key, words in zip(keys, graded, strict=True):
            for name, (text, one) in words.items():
                grade_row(GradeKey(*key, name), one, text)

    found = {
        "read": cost(lambda: [*stuff.prepared.samples()]),
        "plan": cost(lambda: [*plan(run, stuff.samples, 1, prints)]),
        "ask": await acost(ask),
        "encode response": cost(encode_responses),
        "grade": await acost(grade),
        "encode grade": cost(encode_grades),
    }
    encoding = found["encode response"] + found["encode grade"]
    found["queue"] = max(0.0, await queued(stuff) - encoding)
    return found


def floors(folder: Path) -> dict[str, float]:
    lines = (folder / "cases.jsonl").read_text().splitlines(keepends=True)
    cases = [json.loads(line) for line in lines]
    texts = [asyncio.run(answer(case["input"])) for case in cases]
    store: list[floor.Store] = []

    def fresh() -> None:
        for file in folder.glob("floor.db*"):
            file.unlink()
        store[:] = [floor.Store(str(folder / "floor.db"))]

    async def ask() -> None:
        for case in cases:
            await answer(case["input"])

    def grade() -> None:
        for case, text in zip(cases, texts, strict=True):
            float(text.strip() == case["ground_truth"].strip())

    async def commit() -> None:
        (own,) = store
        for start in range(0, SAMPLES, CONCURRENCY):
            for place in range(start, start + CONCURRENCY):
                own.put_response(cases[place]["id"], place, lines[place], texts[place], 0.1)
                own.put_grade(cases[place]["id"], True, texts[place])
            own.commit()

    def run(samples: int) -> None:
        asyncio.run(floor.run(iter(lines[:samples]), store[0], CONCURRENCY, answer))

    show_progress("the floor …")
    few, many = cost(lambda: run(FEW), fresh), cost(lambda: run(SAMPLES), fresh)
    return {
        "read": cost(lambda: [json.loads(line) for line in lines]),
        "ask": cost(lambda: asyncio.run(ask())),
        "grade": cost(grade),
        "commit": cost(lambda: asyncio.run(commit()), fresh),
        "whole": (many - few) * SAMPLES / (SAMPLES - FEW),
    }


MEANINGS = {
    "read": "the dataset's line checked, its case's name seen for the first time",
    "plan": "reused, regraded or rerun, with the reason",
    "ask": "the agent's function, the clock, the answer made safe to store",
    "encode response": "sample and response as JSON, the sample's digest",
    "queue": "a place in the queue, and waiting for the commit",
    "commit": "the rows in their tables and indexes, counted, the log written and synced",
    "grade": "the extractor, the grader, its reason and time",
    "encode grade": "the grade as JSON, its score in whole units",
    "sum up": "all scores and times read once more, for intervals and percentiles",
    "turns and slots": "what the stages leave of the whole: tasks that take turns, slots, progress, and being mixed",
    "whole": "",
}


def figures(own: dict[str, float], least: dict[str, float]) -> list[Figure]:
    for found in (own, least):
        found["turns and slots"] = max(0.0, 2 * found["whole"] - sum(found.values()))
    return [Figure(stage, own.get(stage), least.get(stage), what) for stage, what in MEANINGS.items()]


def main() -> int:
    flags(__doc__)
    print_machine()
    with scratch() as folder:
        write_cases(folder / "cases.jsonl", SAMPLES)
        gradeline("none").prepare(Job(folder, SAMPLES, CONCURRENCY))
        found = figures(asyncio.run(ours(folder)), floors(folder))
    show_progress("")
    for figure in found:
        record("stage", **figure._asdict())
    print_table(
        f"where a sample's time goes: µs of the processor, best of {ROUNDS} rounds of {SAMPLES:,} samples",
        ("stage", "gradeline", "floor", "what"),
        [(one.stage, _shown(one.ours), _shown(one.floor), one.what) for one in found],
    )
    return 0


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main())
