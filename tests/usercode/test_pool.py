"""The worker pool survives whatever user code does, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import GradeResult, Message, Response, Sample, ToolCall, Trajectory
from gradeline.usercode.loader import CodeRequest, CodeSpec, LoadError
from gradeline.usercode.pool import WorkerLimits, WorkerPool
from gradeline.usercode.process_control import TOKEN_VARIABLE
from gradeline.usercode.protocol import Job, Task, TaskResult

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks into /proc, which only Linux has")

GRADERS = """
import asyncio, ctypes, os, re, subprocess, sys, time
from gradeline import GradeResult
from gradeline.usercode.decorators import extractor, grader

@grader
def same(sample, submission):
    return GradeResult(score=1.0 if submission == sample.ground_truth else 0.0, rationale="compared")

@grader
async def later(sample, submission):
    await asyncio.sleep(0)
    return GradeResult(score=0.25)

@grader
def prints(sample, submission):
    print("hello", submission)
    sys.stderr.write("and this\\n")
    return GradeResult(score=1.0)

@grader
def endless(sample, submission):
    while True:
        pass

@grader
def regex_hang(sample, submission):
    re.match(r"(a+)+$", "a" * 40 + "b")
    return GradeResult(score=1.0)

@grader
def exits(sample, submission):
    os._exit(0)

@grader
def sys_exits(sample, submission):
    sys.exit(3)

@grader
def segfaults(sample, submission):
    ctypes.string_at(0)

@grader
def memory_bomb(sample, submission):
    return GradeResult(score=float(len("a" * (8 * 1024**3)) > 0))

@grader
def floods(sample, submission):
    for _ in range(100):
        sys.stdout.write("x" * 1_000_000)
    return GradeResult(score=1.0)

@grader
def floods_natively(sample, submission):
    for _ in range(100):
        os.write(1, b"x" * 1_000_000)
    return GradeResult(score=1.0)

@grader
def forks(sample, submission):
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    return GradeResult(score=1.0)

@grader
def returns_from_forks(sample, submission):
    os.fork()
    return GradeResult(score=1.0)

@grader
def setsid_child(sample, submission):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    while True:
        pass

@grader
def setsid_child_then_exit(sample, submission):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    os._exit(7)

@grader
def unserialisable(sample, submission):
    return GradeResult(score=1.0, metadata={"lock": object()})

@grader
def enormous(sample, submission):
    return GradeResult(score=1.0, rationale="x" * 50_000_000)

class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no message for you")

@grader
def hostile_message(sample, submission):
    raise Hostile()

@grader
def closes_pipes(sample, submission):
    os.closerange(3, 200)
    return GradeResult(score=1.0)

@grader
def forges(sample, submission):
    for fd in range(3, 1024):
        try:
            os.write(fd, b"\\xff" * 64)
        except OSError:
            pass
    return GradeResult(score=1.0)

@grader
def returns_seven(sample, submission):
    return 7

@grader
def returns_none(sample, submission):
    return None

@grader
def returns_dict(sample, submission):
    return {"scores": 1.0}

@grader
def share_of_tools(ctx) -> dict[str, float] | float:
    calls = [call.name for turn in ctx.response.trajectory.turns for message in turn for call in message.tool_calls]
    return {"score": calls.count(ctx.submission) / len(calls), "rationale": ", ".join(calls)}

@grader
def was_fast(sample, submission, response) -> bool:
    return response.latency_ms < sample.metadata["max_ms"]

@grader
def half(sample, submission) -> "GradeResult | float":
    return 0.5

@grader
def only_passed(ctx):
    return {"passed": False, "rationale": ctx.sample.input}

@grader
def too_high(sample, submission):
    return GradeResult(score=1.5)

@grader
def not_a_number(sample, submission):
    return GradeResult(score=float("nan"))

@grader
def passed_is_1(sample, submission):
    return GradeResult(0.5, passed=1)

class Unchecked(GradeResult):
    def __post_init__(self):
        pass

@grader
def bypasses(sample, submission):
    return Unchecked(0.5, None, [])

@grader
def past_64_bits(sample, submission):
    return GradeResult(0.5, metadata={"n": 2**70})

@grader
def generator(sample, submission):
    yield GradeResult(0.5)

class HostileRepr:
    def __repr__(self):
        raise SystemExit("no")

@grader
def hostile_repr(sample, submission):
    return HostileRepr()

class Odd(BaseException):
    pass

@grader
def base_exception(sample, submission):
    raise Odd("very")

@grader
def marks_sample(sample, submission):
    seen = (dict(sample.metadata), list(sample.input))
    sample.metadata["marked"] = True
    sample.metadata["nested"]["list"].append("marked")
    sample.input.append("marked")
    sample.rubric_vars["marked"] = True
    return GradeResult(score=1.0, metadata={"seen": [seen[0], seen[1], dict(sample.rubric_vars)]})

@grader
def raises(sample, submission):
    return 1 / 0

@grader
def slow(sample, submission):
    time.sleep(0.2)
    return GradeResult(score=1.0)

@grader
def pid(sample, submission):
    return GradeResult(score=1.0, metadata={"pid": os.getpid()})

@extractor
def shout(trajectory, config):
    return trajectory[-1][-1].content.upper() + config.get("mark", "")

@extractor
def no_text(trajectory, config):
    return 3
"""

SAMPLE = Sample(id=1, input="q", ground_truth="Paris")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "faulty_graders.py").write_text(GRADERS)
    return tmp_path


def spec(folder: Path, *names: str, **fields: Any) -> CodeSpec:
    wanted = [CodeRequest("extractor" if name in ("shout", "no_text") else "grader", name) for name in names]
    return CodeSpec(folder=str(folder), requests=tuple(wanted), **fields)


def grade(name: str, submission: str = "Paris", timeout: float = 5.0) -> Task:
    return Task("grader", name, submission, timeout=timeout)


def with_pool(
    code: CodeSpec | None,
    body: Callable[[WorkerPool], Awaitable[Any]],
    size: int = 2,
    limits: WorkerLimits | None = None,
) -> Any:
    """Run a coroutine with a pool, and check that no process is left."""

    async def run() -> Any:
        async with WorkerPool(code, size=size, limits=limits) as pool:
            await pool.start()
            return await body(pool)

    result = asyncio.run(run())
    assert left_over() == []
    return result


def left_over() -> list[str]:
    """Live processes that a worker of this test process started, in any session."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            parent = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{TOKEN_VARIABLE}=".encode() in environment and state not in "ZX" and MARK.encode() in environment:
            found.append(f"{entry.name} {parent!r}")
    return found


MARK = f"GRADELINE_TEST_RUN={os.getpid()}"


@pytest.fixture(autouse=True)
def marked_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*MARK.split("="))


def outcomes(
    folder: Path, name: str, timeout: float = 5.0, limits: WorkerLimits | None = None
) -> tuple[TaskResult, list[TaskResult]]:
    """The result of one faulty call among forty valid ones."""

    async def body(pool: WorkerPool) -> tuple[TaskResult, list[TaskResult]]:
        sound = [pool.run(Job(SAMPLE, (grade("same"),))) for _ in range(20)]
        faulty = pool.run(Job(SAMPLE, (grade(name, timeout=timeout),)))
        more = [pool.run(Job(SAMPLE, (grade("same"),))) for _ in range(20)]
        results = await asyncio.gather(*sound, faulty, *more)
        return results[20][0], [result[0] for index, result in enumerate(results) if index != 20]

    one, others = with_pool(spec(folder, "same", name), body, limits=limits)
    assert [other.result.score for other in others] == [1.0] * 40
    assert all(other.error is None for other in others)
    return one, others


class TestValidCode:
    def test_graders_grade(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> list[TaskResult]:
            return await pool.run(Job(SAMPLE, (grade("same"), grade("same", "Rome"), grade("later"))))

        results = with_pool(spec(folder, "same", "later"), body)
        assert [result.result.score for result in results] == [1.0, 0.0, 0.25]
        assert results[0].result.rationale == "compared"
        assert all(result.latency_ms >= 0 for result in results)

    @pytest.mark.parametrize(
        ("name", "score", "passed", "rationale"),
        [
            ("share_of_tools", 0.5, True, "search, open"),
            ("was_fast", 1.0, True, None),
            ("half", 0.5, True, None),
            ("only_passed", 0.0, False, "q"),
        ],
    )
    def test_graders_take_the_response_or_the_context_and_return_plain_values(
        self, folder: Path, name: str, score: float, passed: bool, rationale: str | None
    ) -> None:
        calls = (ToolCall("search", "{}"), ToolCall("open", "{}"))
        response = Response(text="a", trajectory=Trajectory(((Message("assistant", "", calls),),)), latency_ms=80.0)
        job = Job(Sample(1, "q", metadata={"max_ms": 100}), (Task("grader", name, "search"),), response)
        ((found,),) = with_pool(spec(folder, name), lambda pool: asyncio.gather(pool.run(job)))
        assert found.error is None
        assert found.result == GradeResult(score, rationale, {}, passed)

    def test_the_output_comes_with_the_result(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> list[TaskResult]:
            return await pool.run(Job(SAMPLE, (grade("prints"), grade("same"))))

        printed, silent = with_pool(spec(folder, "prints", "same"), body)
        assert printed.output == "hello Paris\nand this\n"
        assert silent.output is None

    def test_extractor_and_grader_share_one_message(self, folder: Path) -> None:
        extract = Task("extractor", "shout", config={"mark": "!"})
        job = Job(SAMPLE, (extract, Task("grader", "same", extract=0)), Response(text="paris"))

        async def body(pool: WorkerPool) -> list[TaskResult]:
            return await pool.run(job)

        extracted, graded = with_pool(spec(folder, "shout", "same"), body)
        assert extracted.text == "PARIS!"
        assert graded.result.score == 0.0

    def test_a_thousand_jobs_get_their_own_results(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> list[list[TaskResult]]:
            jobs = [
                Job(Sample(index, "", str(index)), (grade("same", str(index if index % 3 else -1)),))
                for index in range(1000)
            ]
            return await asyncio.gather(*map(pool.run, jobs))

        answers = with_pool(spec(folder, "same"), body)
        assert [answer[0].result.score for answer in answers] == [1.0 if index % 3 else 0.0 for index in range(1000)]

    def test_a_pattern_that_only_re_knows_runs_in_a_worker(self) -> None:
        sample = Sample(1, "", r"(?=P)\w+(?<=s)")

        async def body(pool: WorkerPool) -> list[TaskResult]:
            return await pool.run(
                Job(
                    sample,
                    (Task("builtin-grader", "regex_match", "Paris"), Task("builtin-grader", "regex_match", "paris")),
                )
            )

        assert [result.result.rationale for result in with_pool(None, body)] == [
            "Regex match: True",
            "Regex match: False",
        ]


def _with_lines(message: str, name: str) -> str:
    """The message with the numbers of the line that defines a grader, and of the last line of its body."""
    lines = GRADERS.split("\n")
    first = next(number for number, line in enumerate(lines, 1) if f"def {name}(" in line)
    last = next((number for number, line in enumerate(lines[first:], first) if not line), first)
    return message.replace("{def}", str(first)).replace("{line}", str(last))


class TestCopies:
    def test_each_task_of_a_job_sees_the_sample_as_it_was_sent(self, folder: Path) -> None:
        sample = Sample(1, ["a", "b"], metadata={"nested": {"list": []}})

        async def body(pool: WorkerPool) -> Any:
            return await pool.run(Job(sample, (Task("grader", "marks_sample", "x"),) * 3))

        found = [result.result.metadata["seen"] for result in with_pool(spec(folder, "marks_sample"), body)]
        # the metadata that is shown shares its inner list with the copy that was marked
        assert found == [[{"nested": {"list": ["marked"]}}, ["a", "b"], {"marked": True}]] * 3

    def test_a_case_that_cannot_be_encoded_is_an_error_of_that_case_only(self, folder: Path) -> None:
        huge = Sample(1, "q", "a", metadata={"n": 2**70})

        async def body(pool: WorkerPool) -> Any:
            jobs = (Job(sample, (Task("grader", "same", "a"),)) for sample in (huge, Sample(2, "q", "a")))
            return await asyncio.gather(*map(pool.run, jobs))

        (lost,), (graded,) = with_pool(spec(folder, "same"), body)
        assert lost.error is not None
        assert lost.error.message.startswith("case '1' cannot be sent to a worker process: ")
        assert graded.result.score == 1.0


class TestFaults:
    @pytest.mark.parametrize(
        ("name", "error_type", "message"),
        [
            ("sys_exits", "SystemExit", "3"),
            ("raises", "ZeroDivisionError", "division by zero"),
            ("hostile_message", "Hostile", "<message cannot be shown>"),
            ("unserialisable", "bad_reply", "unserialisable returned a GradeResult whose metadata.lock: <object"),
            ("enormous", "too_large", "enormous returned 50,000,"),
            (
                "returns_seven",
                "bad_reply",
                "returns_seven returned 7 (int): score must be a finite number from 0.0 to 1.0, got 7",
            ),
            (
                "returns_none",
                "bad_reply",
                "returns_none returned None (NoneType); return a GradeResult, a bool, a number from 0 to 1, or a dict"
                ' such as {"score": 0.5}',
            ),
            (
                "returns_dict",
                "bad_reply",
                "returns_dict returned {'scores': 1.0} (dict): unknown key 'scores'; did you mean 'score'?",
            ),
            (
                "too_high",
                "ValueError",
                "grader 'too_high' (faulty_graders.py:{line}): "
                "GradeResult.score must be a finite number from 0.0 to 1.0, got 1.5",
            ),
            ("passed_is_1", "ValueError", "grader 'passed_is_1' (faulty_graders.py:{line}): GradeResult.passed must"),
            ("bypasses", "ValueError", "grader 'bypasses' (faulty_graders.py:{def}): GradeResult.metadata must be a"),
            ("past_64_bits", "bad_reply", "past_64_bits returned a value that cannot be sent: "),
            ("generator", "bad_reply", "generator returned <generator object generator at "),
            ("hostile_repr", "bad_reply", "hostile_repr returned <HostileRepr> (HostileRepr); return a GradeRe"),
            ("base_exception", "Odd", "very"),
            ("memory_bomb", "MemoryError", ""),
            ("exits", "crashed", "exits ended its process: exit code 0"),
            ("segfaults", "crashed", "segfaults ended its process: SIGSEGV; Fatal Python error: Segmentation fault"),
            ("closes_pipes", "crashed", "closes_pipes ended its process"),
            ("setsid_child_then_exit", "crashed", "setsid_child_then_exit ended its process: exit code 7"),
        ],
    )
    def test_each_fault_has_its_own_error_and_affects_no_other_call(
        self, folder: Path, name: str, error_type: str, message: str
    ) -> None:
        faulty, _ = outcomes(folder, name)
        assert faulty.result is None
        assert faulty.error is not None
        assert (faulty.error.type, faulty.error.fault) == (error_type, "grader")
        assert faulty.error.message.startswith(_with_lines(message, name))

    @pytest.mark.parametrize("name", ["endless", "regex_hang", "setsid_child"])
    def test_a_call_that_hangs_is_killed_at_its_time_limit(self, folder: Path, name: str) -> None:
        faulty, _ = outcomes(folder, name, timeout=0.3)
        assert faulty.error is not None
        assert (faulty.error.type, faulty.error.message) == ("timeout", f"{name} took longer than 0.3 s")

    def test_the_traceback_of_an_exception_is_stored(self, folder: Path) -> None:
        faulty, _ = outcomes(folder, "raises")
        assert faulty.error.traceback.endswith("ZeroDivisionError: division by zero\n")
        assert "faulty_graders.py" in faulty.error.traceback

    def test_excessive_output_is_cut_and_the_grade_counts(self, folder: Path) -> None:
        faulty, _ = outcomes(folder, "floods", timeout=30)
        assert faulty.result.score == 1.0
        kept, _, rest = faulty.output.partition("\n… and ")
        assert kept == "x" * 2**20
        assert rest.endswith(" bytes more")

    @pytest.mark.parametrize("name", ["floods_natively", "forks", "returns_from_forks"])
    def test_a_call_that_leaves_processes_behind_keeps_its_grade(self, folder: Path, name: str) -> None:
        faulty, _ = outcomes(folder, name, timeout=30)
        assert faulty.error is None
        assert faulty.result.score == 1.0

    def test_garbage_in_the_pipe_is_a_bad_reply(self, folder: Path) -> None:
        faulty, _ = outcomes(folder, "forges")
        assert faulty.error is not None
        assert faulty.error.type in ("bad_reply", "crashed")

    def test_a_worker_killed_by_a_signal_has_crashed(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> TaskResult:
            running = asyncio.create_task(pool.run(Job(SAMPLE, (grade("endless"),))))
            await asyncio.sleep(0.3)
            os.kill(pool.pids[0], signal.SIGKILL)
            return (await running)[0]

        killed = with_pool(spec(folder, "endless"), body, size=1)
        assert (killed.error.type, killed.error.message) == ("crashed", "endless ended its process: SIGKILL")

    def test_unexpected_ends_of_workers_are_counted_by_reason(self, folder: Path) -> None:
        deaths: list[str] = []
        names = ("same", "segfaults", "endless")

        async def run() -> None:
            async with WorkerPool(spec(folder, *names), size=1, on_death=deaths.append) as pool:
                await pool.start()
                for name in names:
                    await pool.run(Job(SAMPLE, (grade(name, timeout=0.5),)))

        asyncio.run(run())
        assert deaths == ["crashed", "timeout"]

    def test_the_other_tasks_of_the_job_still_count(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> list[TaskResult]:
            tasks = (grade("same"), grade("exits"), grade("later"), grade("segfaults"), grade("same", "Rome"))
            return await pool.run(Job(SAMPLE, tasks))

        results = with_pool(spec(folder, "same", "exits", "later", "segfaults"), body)
        assert [result.error.type if result.error else result.result.score for result in results] == [
            1.0,
            "crashed",
            0.25,
            "crashed",
            0.0,
        ]

    def test_a_grader_whose_extractor_fails_has_nothing_to_grade(self, folder: Path) -> None:
        job = Job(SAMPLE, (Task("extractor", "no_text"), Task("grader", "same", extract=0)), Response(text="x"))

        async def body(pool: WorkerPool) -> list[TaskResult]:
            return await pool.run(job)

        extracted, graded = with_pool(spec(folder, "no_text", "same"), body)
        assert extracted.error.message == "no_text returned 3 (int); return a text (str)"
        assert graded.error is not None

    def test_queueing_does_not_count_as_time_of_the_call(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> list[list[TaskResult]]:
            return await asyncio.gather(*(pool.run(Job(SAMPLE, (grade("slow", timeout=0.4),))) for _ in range(8)))

        answers = with_pool(spec(folder, "slow"), body, size=1)
        assert [answer[0].error for answer in answers] == [None] * 8


class TestWorkers:
    def test_workers_are_replaced_after_their_maximum_of_calls(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> set[int]:
            seen = set()
            for _ in range(40):
                answer = await pool.run(Job(SAMPLE, (grade("pid"),)))
                seen.add(answer[0].result.metadata["pid"])
                await asyncio.sleep(0.02)
            return seen

        assert len(with_pool(spec(folder, "pid"), body, size=1, limits=WorkerLimits(calls_per_worker=10))) >= 3

    def test_closing_while_a_call_hangs_leaves_no_process(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> None:
            tasks = [asyncio.create_task(pool.run(Job(SAMPLE, (grade("setsid_child", timeout=60),)))) for _ in range(3)]
            await asyncio.sleep(0.5)
            await pool.close()
            gone = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in gone)

        with_pool(spec(folder, "setsid_child"), body)

    def test_run_waits_while_the_queue_is_full(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> tuple[int, int]:
            callers = [asyncio.create_task(pool.run(Job(SAMPLE, (grade("slow"),)))) for _ in range(2_000)]
            await asyncio.sleep(0.3)
            waiting = pool.waiting
            for caller in callers:
                caller.cancel()
            return waiting, len(callers)

        waiting, callers = with_pool(spec(folder, "slow"), body, size=1)
        assert 0 < waiting <= 256 < callers

    def test_a_cancelled_caller_delays_no_other(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> float:
            gone = asyncio.create_task(pool.run(Job(SAMPLE, (grade("slow"),))))
            await asyncio.sleep(0.05)
            gone.cancel()
            answer = await pool.run(Job(SAMPLE, (grade("same"),)))
            return answer[0].result.score

        assert with_pool(spec(folder, "slow", "same"), body, size=1) == 1.0

    def test_memory_does_not_grow_with_the_calls(self, folder: Path) -> None:
        def resident(pid: int) -> int:
            fields = Path(f"/proc/{pid}/statm").read_text().split()
            return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

        async def body(pool: WorkerPool) -> tuple[list[int], list[int]]:
            async def caller() -> None:
                for _ in range(20_000 // 64):
                    await pool.run(Job(SAMPLE, (grade("same"),)))

            sizes = []
            for _ in range(5):
                await asyncio.gather(*(caller() for _ in range(64)))
                sizes.append([resident(pid) for pid in (os.getpid(), *pool.pids)])
            return sizes[0], sizes[-1]

        before, after = with_pool(spec(folder, "same"), body, limits=WorkerLimits(calls_per_worker=10**9))
        for early, late in zip(before, after, strict=True):
            assert late - early < 4_096, (before, after)


class TestLoading:
    def test_all_faults_are_reported_at_once_before_anything_runs(self, folder: Path) -> None:
        with pytest.raises(ConfigError) as caught:
            with_pool(spec(folder, "sme", "endles"), lambda pool: asyncio.sleep(0))
        assert ["did you mean 'same'" in str(caught.value), "did you mean 'endless'" in str(caught.value)] == [
            True,
            True,
        ]
        assert len(caught.value.problems) == 2
        assert left_over() == []

    @pytest.mark.parametrize("source", ["\nwhile True: pass", "\nimport helper"])
    def test_code_that_hangs_while_it_loads_is_reported_by_file_and_line(self, tmp_path: Path, source: str) -> None:
        (tmp_path / "a.py").write_text("x = 1\n")
        (tmp_path / "hangs.py").write_text(source)
        (tmp_path / "helper.py").write_text("from time import sleep\nsleep(600)\n")
        with pytest.raises(LoadError) as caught:
            with_pool(spec(tmp_path, "hangs.py:f"), lambda pool: asyncio.sleep(0), limits=WorkerLimits(load_seconds=5))
        (found,) = caught.value.faults
        file = tmp_path / ("helper.py" if "helper" in source else "hangs.py")
        assert (found.file, found.line) == (str(file), 2)
        assert found.message == (
            "took longer than 5 s to load; if it does slow work, move it into a function, or below"
            ' if __name__ == "__main__"'
        )
        assert left_over() == []

    @pytest.mark.parametrize(
        ("source", "line", "how"),
        [
            ("import os\nos._exit(9)", 2, "(exit code 9)"),
            ("import helper", 3, "(exit code 9)"),
            (
                "import ctypes\nctypes.string_at(0)",
                2,
                "(SIGSEGV), after it printed: Fatal Python error: Segmentation fault",
            ),
            ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", None, "(SIGKILL)"),
        ],
    )
    def test_code_that_ends_the_process_while_it_loads_is_reported_by_file(
        self, tmp_path: Path, source: str, line: int | None, how: str
    ) -> None:
        (tmp_path / "ends.py").write_text(source)
        (tmp_path / "helper.py").write_text("import os\n\nos._exit(9)\n")
        with pytest.raises(LoadError) as caught:
            with_pool(spec(tmp_path, "ends.py:f"), lambda pool: asyncio.sleep(0))
        (found,) = caught.value.faults
        file = tmp_path / ("helper.py" if "helper" in source else "ends.py")
        assert (found.file, found.line) == (str(file), line)
        assert found.message == (
            f"ended the process that loads it {how}; if it exits or crashes, move it into a function, or below"
            ' if __name__ == "__main__"'
        )

    def test_a_file_that_was_only_searched_is_left_out_if_it_ends_the_process(self, folder: Path) -> None:
        (folder / "a_script.py").write_text("import os\nos._exit(0)\n")
        with_pool(spec(folder, "same"), lambda pool: asyncio.sleep(0))

    def test_other_faults_are_reported_too(self, folder: Path) -> None:
        (folder / "a_script.py").write_text("import os\nos._exit(0)\n")
        (folder / "b_script.py").write_text("while True: pass\n")
        code = spec(folder, "sme", "a_script.py:f")
        with pytest.raises(LoadError) as caught:
            with_pool(code, lambda pool: asyncio.sleep(0), limits=WorkerLimits(load_seconds=5))
        found = [(Path(fault.file or "").name, fault.reference, fault.message[:20]) for fault in caught.value.faults]
        assert sorted(found) == [
            ("", "sme", "no grader named 'sme"),
            ("a_script.py", "", "ended the process th"),
            ("a_script.py", "a_script.py:f", "ended the process th"),
            ("b_script.py", "", "took longer than 5 s"),
        ]
        assert "write FILE.py:sme to load only the file that has it" in str(caught.value)

    def test_code_that_changes_while_it_is_in_use_is_refused(self, folder: Path) -> None:
        async def body(pool: WorkerPool) -> None:
            await asyncio.sleep(1.0)
            (folder / "faulty_graders.py").write_text(GRADERS + "\n# edited\n")
            for _ in range(3):
                await pool.run(Job(SAMPLE, (grade("exits"),)))
                await asyncio.sleep(0.5)
            await pool.run(Job(SAMPLE, (grade("same"),)))

        with pytest.raises(ConfigError, match="changed while it was in use; run again"):
            with_pool(spec(folder, "exits", "same"), body, size=1)

    def test_the_setup_function_runs_once_with_the_suite(self, tmp_path: Path) -> None:
        (tmp_path / "prepare.py").write_text(
            "def prepare_environment(suite):\n    open('ran', 'a').write(suite.name + '\\n')\n    print('prepared')\n"
        )
        (tmp_path / "graders.py").write_text(
            "from gradeline import GradeResult\nfrom gradeline.usercode.decorators import grader\n"
            "@grader\ndef one(sample, submission):\n    return GradeResult(score=1.0)\n"
        )
        where = tmp_path / "ran"
        (tmp_path / "prepare.py").write_text((tmp_path / "prepare.py").read_text().replace("'ran'", repr(str(where))))

        async def body(pool: WorkerPool) -> str | None:
            printed = await pool.set_up({"name": "capitals"})
            await asyncio.gather(*(pool.run(Job(SAMPLE, (grade("one"),))) for _ in range(50)))
            return printed

        assert with_pool(spec(tmp_path, "one", setup="prepare.py:prepare_environment"), body) == "prepared\n"
        assert where.read_text() == "capitals\n"

    def test_a_setup_that_fails_is_reported(self, tmp_path: Path) -> None:
        (tmp_path / "prepare.py").write_text("def prepare_environment(suite):\n    raise OSError('no disk')\n")
        with pytest.raises(ConfigError, match=r"prepare\.py:prepare_environment: OSError: no disk"):
            with_pool(
                spec(tmp_path, setup="prepare.py:prepare_environment"), lambda pool: pool.set_up({"name": "capitals"})
            )


def test_workers_end_when_the_engine_is_killed(folder: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    script = tmp_path / "elsewhere" / "engine.py"
    script.parent.mkdir()
    script.write_text(
        "import asyncio, sys\n"
        "from gradeline.usercode.loader import CodeSpec, CodeRequest\n"
        "from gradeline.usercode.pool import WorkerPool\n"
        "from gradeline.model import Sample\n"
        "from gradeline.usercode.protocol import Job, Task\n"
        "async def main():\n"
        f"    pool = WorkerPool(CodeSpec(folder={str(folder)!r}, requests=(CodeRequest('grader', 'endless'),)), size=2)\n"
        "    await pool.start()\n"
        "    hanging = asyncio.create_task(pool.run(Job(Sample(0, ''), (Task('grader', 'endless', 'x', timeout=60),))))\n"
        "    await asyncio.sleep(0.5)\n"
        "    print('up', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    engine = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    assert engine.stdout.readline() == "up\n"
    engine.kill()
    engine.wait()
    engine.stdout.close()
    for _ in range(100):
        if not left_over():
            break
        time.sleep(0.05)
    assert left_over() == []


SLOW_AGENT = """
import time
from pathlib import Path

def answer(text):
    here = Path(__file__).parent
    (here / f"{text}.began").touch()
    while len(list(here.glob("*.began"))) < 8:
        time.sleep(0.01)
    return text
"""


def test_slow_calls_run_in_more_workers_than_cores(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(SLOW_AGENT)
    reference = "agent.py:answer"

    async def answers() -> list[str | None]:
        async with WorkerPool(CodeSpec(str(tmp_path), (CodeRequest("target", reference),)), size=2, max_size=8) as pool:
            await pool.start()
            jobs = [
                pool.run(Job(Sample(number, str(number)), (Task("target", reference, timeout=60.0),)))
                for number in range(8)
            ]
            results = await asyncio.gather(*jobs)
            return [one.response.text if one.response else None for (one,) in results]

    assert asyncio.run(answers()) == [str(number) for number in range(8)]


def test_quick_calls_add_no_workers(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def answer(text): return text")
    reference = "agent.py:answer"

    async def pids() -> int:
        async with WorkerPool(CodeSpec(str(tmp_path), (CodeRequest("target", reference),)), size=2, max_size=8) as pool:
            await pool.start()
            job = Job(Sample(1, "q"), (Task("target", reference, "x"),))
            await asyncio.gather(*(pool.run(job) for _ in range(500)))
            return len(pool.pids)

    assert asyncio.run(pids()) == 3
