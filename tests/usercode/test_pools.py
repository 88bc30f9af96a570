"""Functions with different memory limits, each in a process with its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Response, Sample
from gradeline.usercode.loader import TARGET, CodeRequest, CodeSpec
from gradeline.usercode.pools import WorkerPools
from gradeline.usercode.process_control import GRADER_MEMORY, NO_LIMIT
from gradeline.usercode.protocol import Job, Task, TaskResult

SMALL = 512 * 1024**2
SOURCE = """
import os, resource
from gradeline import GradeResult, extractor, grader

def limit(): return resource.getrlimit(resource.RLIMIT_AS)[0]

def agent(text): return f"{limit()} {os.getpid()}"
def greedy(text): return str(len(bytes(1024**3)))  # zero pages: reserved, never written
def aborts(text):
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\\n")
    os.abort()
@grader
def own(sample, submission): return GradeResult(1.0, f"{limit()} {os.getpid()} {submission}")
@extractor
def whole(trajectory, config): return f"{limit()} {os.getpid()}"
"""
CASE = Sample(1, "hi")


def with_pools(spec: CodeSpec, body: Callable[[WorkerPools], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with WorkerPools(spec, max_size=1) as pools:
            await pools.start()
            return await body(pools)

    return asyncio.run(run())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text(SOURCE)
    return tmp_path


def test_each_limit_has_processes_of_its_own(folder: Path) -> None:
    wanted = (
        CodeRequest("grader", "code.py:own"),
        CodeRequest("grader", "code.py:own", SMALL),
        CodeRequest("extractor", "code.py:whole", SMALL),
        CodeRequest(TARGET, "code.py:agent", NO_LIMIT),
    )
    tasks = (
        Task("grader", "code.py:own", "x"),
        Task("extractor", "code.py:whole", memory=SMALL),
        Task("grader", "code.py:own", extract=1, memory=SMALL),
        Task(TARGET, "code.py:agent", memory=NO_LIMIT),
    )

    async def body(pools: WorkerPools) -> list[TaskResult]:
        return await pools.run(Job(CASE, tasks, Response(text="y")))

    usual, extracted, graded, answered = with_pools(CodeSpec(str(folder), wanted), body)
    assert usual.result.rationale.split()[0] == str(GRADER_MEMORY)
    limit, pid = extracted.text.split()
    assert limit == str(SMALL)
    assert graded.result.rationale == f"{SMALL} {pid} {SMALL} {pid}"
    assert answered.response.text.split()[0] == "-1"
    assert len({usual.result.rationale.split()[1], pid, answered.response.text.split()[1]}) == 3


def test_the_faults_of_all_pools_are_reported_at_once(folder: Path) -> None:
    wanted = (CodeRequest("grader", "code.py:owm"), CodeRequest(TARGET, "code.py:agnt", NO_LIMIT))
    with pytest.raises(ConfigError) as caught:
        with_pools(CodeSpec(str(folder), wanted), lambda pools: asyncio.sleep(0))
    assert len(caught.value.problems) == 2
    assert {"owm" in str(caught.value), "agnt" in str(caught.value)} == {True}


@pytest.mark.parametrize(
    ("name", "limit", "kind", "message"),
    [
        ("greedy", SMALL, "memory", "MemoryError"),
        ("greedy", NO_LIMIT, None, ""),
        ("aborts", SMALL, "memory", "code.py:aborts ran out of memory: 'std::bad_alloc' at its limit of 512 MiB"),
        ("aborts", NO_LIMIT, "crashed", "code.py:aborts ended its process: SIGABRT"),
    ],
)
def test_memory_needs_evidence(folder: Path, name: str, limit: int, kind: str | None, message: str) -> None:
    reference = f"code.py:{name}"
    task = Task(TARGET, reference, memory=limit)
    spec = CodeSpec(str(folder), (CodeRequest(TARGET, reference, limit),))
    (result,) = with_pools(spec, lambda pools: pools.run(Job(CASE, (task,))))
    assert (result.error and result.error.type) == kind
    if kind is not None:
        assert result.error.message.startswith(message)


def test_a_pool_that_runs_only_built_ins_loads_nothing() -> None:
    async def body() -> list[TaskResult]:
        async with WorkerPools() as pools:
            return await pools.run(Job(Sample(1, "hi", "x"), (Task("builtin-grader", "exact_match", "x"),)))

    (result,) = asyncio.run(body())
    assert result.result is not None
    assert result.result.score == 1.0
