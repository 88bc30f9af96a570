"""The event loop of a run: context variables reach threads, and Ctrl-C ends it without a traceback."""

from __future__ import annotations

import asyncio
import gc
from asyncio.base_subprocess import BaseSubprocessTransport
from asyncio.subprocess import PIPE
from contextvars import ContextVar
from threading import Thread

import pytest

from gradeline.engine import lifecycle
from gradeline.engine.lifecycle import run_event_loop


def test_context_variables_reach_threads() -> None:
    """A plugin's code in a thread stays under the egress policy of its run."""
    current: ContextVar[str] = ContextVar("current")

    async def main() -> str:
        current.set("here")
        return await asyncio.get_running_loop().run_in_executor(None, current.get)

    assert run_event_loop(main()) == "here"


def test_processes_threads_and_futures_work() -> None:
    async def main() -> tuple[bytes, str, int]:
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[str] = loop.create_future()
        Thread(target=lambda: loop.call_soon_threadsafe(woken.set_result, "woken")).start()
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        said, _ = await process.communicate(b"said")
        return said, await asyncio.wait_for(woken, 5), await asyncio.to_thread(lambda: 7)

    assert run_event_loop(main()) == (b"said", "woken", 7)


class TestInterruptedTasks:
    """Ctrl-C is raised in whatever runs at that moment, which may be a task that nothing awaits."""

    @staticmethod
    def run_with_a_task_that(raises: BaseException) -> None:
        async def fails() -> None:
            raise raises

        async def main() -> None:
            task = asyncio.ensure_future(fails())
            await asyncio.sleep(0.01)
            del task

        run_event_loop(main())

    def test_ends_the_run_without_a_traceback(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(KeyboardInterrupt):
            self.run_with_a_task_that(KeyboardInterrupt())
        gc.collect()
        assert caplog.text == ""

    def test_other_errors_of_such_a_task_are_logged(self, caplog: pytest.LogCaptureFixture) -> None:
        self.run_with_a_task_that(ValueError("a number was expected"))
        gc.collect()
        assert "a number was expected" in caplog.text

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pipes that asyncio forgot
    def test_a_subprocess_that_was_just_started_is_not_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its transport never learns of its pipes, and so never of its end."""

        async def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        async def main() -> None:
            await asyncio.create_subprocess_exec("cat", stdin=PIPE, stdout=PIPE)

        monkeypatch.setattr(lifecycle, "INTERRUPTED_TASKS_S", 0.1)
        monkeypatch.setattr(BaseSubprocessTransport, "_connect_pipes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_event_loop(main())
        gc.collect()
