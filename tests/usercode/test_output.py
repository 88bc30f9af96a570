"""The output of user code, in a worker and in this process."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from pathlib import Path
from threading import Thread

import pytest
from rich.console import Console
from rich.live import Live

from gradeline.model import Sample
from gradeline.usercode import output
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.output import MAX_OUTPUT, OutputFile, captured_output, output_file
from gradeline.usercode.pool import WorkerPool
from gradeline.usercode.protocol import Job, Progress, Task, TaskResult, progress_file

SOURCE = """
import faulthandler, os, subprocess, sys, ctypes


def silent(text): return text
def descriptors(text):
    assert not sys.stdout.isatty()
    faulthandler.enable()
    faulthandler.dump_traceback(file=sys.stderr)
    return f"{sys.stdout.fileno()} {sys.stderr.fileno()} {sys.__stdout__.fileno()}"
def of_a_subprocess(text):
    print("before")
    subprocess.run([sys.executable, "-c", "import sys; print('child'); print('err', file=sys.stderr)"],
                   stdout=sys.stdout, stderr=sys.stderr, check=True)
    print("after")
    return text
def to_the_descriptor(text):
    os.write(2, b"raw \\xff\\n")
    sys.stdout.buffer.write(b"bytes\\n")
    return text
def without_a_line_end(text):
    print("no end", end="")
    return text
def odd(text):
    print("\\udc80 \\0")
    return text
def closes(text):
    sys.stdout.close()
    return text
def replaces(text):
    sys.stdout = open(os.devnull, "w")
    print("nowhere")
    return text
def dies(text):
    print("last words")
    os._exit(3)
def segfaults(text):
    print("last words")
    ctypes.string_at(0)
def hangs(text):
    print("stuck here")
    while True: pass
def floods(text):
    for _ in range(100):
        subprocess.run(["head", "-c", "1000000", "/dev/zero"])
    return text
"""


def run(tmp_path: Path, *names: str, timeout: float = 30.0) -> list[TaskResult]:
    (tmp_path / "agent.py").write_text(SOURCE)
    tasks = tuple(Task("target", f"agent.py:{name}", timeout=timeout) for name in names)
    spec = CodeSpec(str(tmp_path), tuple(CodeRequest("target", task.reference) for task in tasks))

    async def body() -> list[TaskResult]:
        async with WorkerPool(spec, size=1) as pool:
            return await pool.run(Job(Sample(1, "hi"), tasks))

    return asyncio.run(body())


def printed(tmp_path: Path, *names: str) -> list[str | None]:
    results = run(tmp_path, *names)
    assert [result.error for result in results] == [None] * len(names)
    return [result.output for result in results]


class TestInAWorker:
    def test_streams_have_real_descriptors(self, tmp_path: Path) -> None:
        (result,) = run(tmp_path, "descriptors")
        assert result.response is not None
        assert result.response.text == "1 2 1"
        assert result.output is not None
        assert result.output.startswith("Current thread")

    def test_output_of_subprocesses_is_stored_in_order(self, tmp_path: Path) -> None:
        assert printed(tmp_path, "of_a_subprocess") == ["before\nchild\nerr\nafter\n"]

    def test_each_call_has_its_own_output(self, tmp_path: Path) -> None:
        names = ("without_a_line_end", "silent", "to_the_descriptor", "odd", "silent")
        assert printed(tmp_path, *names) == ["no end", None, "raw \ufffd\nbytes\n", "\\udc80 \u2400\n", None]

    @pytest.mark.parametrize("name", ["closes", "replaces"])
    def test_code_that_changes_its_streams_does_not_affect_other_calls(self, tmp_path: Path, name: str) -> None:
        first, second = run(tmp_path, name, "to_the_descriptor" if name == "replaces" else "silent")
        assert (first.error, second.error) == (None, None)

    @pytest.mark.parametrize(
        ("name", "kind", "text"),
        [("dies", "crashed", "last words\n"), ("hangs", "timeout", "stuck here\n")],
    )
    def test_the_output_of_a_call_that_ends_its_process_is_stored(
        self, tmp_path: Path, name: str, kind: str, text: str
    ) -> None:
        (result, after) = run(tmp_path, name, "silent", timeout=1.0)
        assert result.error is not None
        assert (result.error.type, result.output) == (kind, text)
        assert after.output is None

    def test_the_traceback_of_a_native_crash_is_stored(self, tmp_path: Path) -> None:
        (result,) = run(tmp_path, "segfaults")
        assert result.error is not None
        assert result.error.type == "crashed"
        assert result.error.message == (
            "agent.py:segfaults ended its process: SIGSEGV; Fatal Python error: Segmentation fault"
        )
        assert result.error.traceback is not None
        assert 'agent.py", line' in result.error.traceback
        assert result.output is not None
        assert result.output.startswith("last words\n")

    def test_a_flood_of_a_subprocess_is_cut(self, tmp_path: Path) -> None:
        (result,) = run(tmp_path, "floods")
        assert result.response is not None
        assert result.output is not None
        kept, _, rest = result.output.partition("\n… and ")
        assert len(kept) == MAX_OUTPUT
        assert rest.endswith(" bytes more")


class TestTheFile:
    @pytest.fixture
    def file(self) -> OutputFile:
        self.progress = Progress(progress_file())
        self.fd = output_file()
        return OutputFile(self.fd, self.progress)

    def test_is_taken_in_parts(self, file: OutputFile) -> None:
        assert file.take() is None
        for text in ("one", "two"):
            os.write(self.fd, text.encode())
            assert file.text() == text
            assert file.take() == text
        assert file.take() is None

    def test_counts_the_dropped_bytes(self, file: OutputFile) -> None:
        os.write(self.fd, b"before")
        file.take()
        os.write(self.fd, b"x" * (MAX_OUTPUT + 5))
        assert file.take() == "x" * MAX_OUTPUT + "\n… and 5 bytes more"

    def test_is_cut_while_it_grows_and_truncated_when_it_was_large(
        self, file: OutputFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(output, "_CUT_ABOVE", 2 * MAX_OUTPUT)
        os.write(self.fd, b"x" * (3 * MAX_OUTPUT))
        file.cut()
        assert os.fstat(self.fd).st_size == MAX_OUTPUT
        os.write(self.fd, b"the end")
        assert file.tail().endswith("xthe end")
        assert file.take() == "x" * MAX_OUTPUT + f"\n… and at least {2 * MAX_OUTPUT + 7:,} bytes more"
        assert os.fstat(self.fd).st_size == 0
        os.write(self.fd, b"next")
        assert file.take() == "next"

    def test_forged_numbers_in_the_shared_memory_are_ignored(self, file: OutputFile) -> None:
        os.write(self.fd, b"text")
        self.progress.output_begin, self.progress.output_cut = -(2**62), -1
        assert (file.text(), file.tail()) == ("text", "text")


class TestInThisProcess:
    def test_concurrent_calls_have_their_own_output(self, capsys: pytest.CaptureFixture[str]) -> None:
        async def call(name: str) -> str | None:
            with captured_output() as kept:
                print(name, "begins")  # noqa: T201
                await asyncio.sleep(0)
                await asyncio.to_thread(print, name, "ends")
            return kept.text()

        async def both() -> list[str | None]:
            return await asyncio.gather(call("a"), call("b"))

        before = sys.stdout
        assert asyncio.run(both()) == ["a begins\na ends\n", "b begins\nb ends\n"]
        assert sys.stdout is before
        assert sorted(capsys.readouterr().out.splitlines()) == ["a begins", "a ends", "b begins", "b ends"]

    def test_can_appear_on_standard_error_only(self, capsys: pytest.CaptureFixture[str]) -> None:
        with captured_output(to_stderr=True) as kept:
            print("out")  # noqa: T201
            print("err", file=sys.stderr)  # noqa: T201
        print("mine")  # noqa: T201
        assert kept.text() == "out\nerr\n"
        assert capsys.readouterr() == ("mine\n", "out\nerr\n")

    def test_is_stored_even_if_a_live_display_replaces_the_streams(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first, second = io.StringIO(), io.StringIO()
        monkeypatch.setattr(sys, "stdout", first)
        output.OUTPUT_CAPTURE.install()
        before, sys.stdout = sys.stdout, second
        with captured_output() as kept:
            print("shown")  # noqa: T201
        sys.stdout = before
        output.OUTPUT_CAPTURE.uninstall()
        assert sys.stdout is first
        assert (kept.text(), second.getvalue(), first.getvalue()) == ("shown\n", "shown\n", "")

    def test_output_of_other_code_is_not_part_of_the_call(self) -> None:
        with captured_output() as kept:
            other = Thread(target=print, args=("elsewhere",))
            other.start()
            other.join()
            print("here")  # noqa: T201
        assert kept.text() == "here\n"

    def test_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        with captured_output() as kept:
            print("x" * (MAX_OUTPUT + 4))  # noqa: T201
        assert kept.text() == "x" * MAX_OUTPUT + "\n… and 5 characters more"

    @pytest.mark.parametrize("to_stderr", [True, False])
    def test_appears_once_above_a_live_display_that_started_later(
        self, capsys: pytest.CaptureFixture[str], to_stderr: bool
    ) -> None:
        console = Console(stderr=True, force_terminal=True, width=80)
        output.OUTPUT_CAPTURE.install()
        try:
            with Live("progress", console=console, auto_refresh=False), captured_output(to_stderr=to_stderr) as kept:
                print("hello")  # noqa: T201
        finally:
            output.OUTPUT_CAPTURE.uninstall()
        assert kept.text() == "hello\n"
        assert capsys.readouterr().err.count("hello") == 1
