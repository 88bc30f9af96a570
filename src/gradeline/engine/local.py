"""A run in this process."""

from __future__ import annotations

from collections import Counter

from gradeline.engine.carry_out import RunResult, carry_out
from gradeline.engine.keeper import Keeper
from gradeline.engine.pipeline import Pipeline, RunTask
from gradeline.engine.plan import Work
from gradeline.engine.stop import Stop
from gradeline.model import Run, Storage


async def run_local(storage: Storage, task: RunTask, stop: Stop | None = None) -> RunResult:
    """Do what is missing of a run. ``stop`` ends it early: what is in flight is finished and stored."""

    async def work_through(keeper: Keeper, run: Run, stop: Stop) -> Counter[Work]:
        planned = task._replace(run=run).plan(storage)
        async with keeper.writer() as writer:
            pipeline = Pipeline(storage, writer, task, stop)
            await pipeline.work_through(planned)
        return pipeline.done

    return await carry_out(storage, task, stop, work_through)
