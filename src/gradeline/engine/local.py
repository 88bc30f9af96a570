"""A run in this process."""

from __future__ import annotations

from gradeline.engine.carry_out import RunResult, carry_out
from gradeline.engine.keeper import Keeper
from gradeline.engine.phases import Worked
from gradeline.engine.pipeline import Pipeline, RunTask
from gradeline.engine.stop import Stop
from gradeline.model import Run, Storage


async def run_local(storage: Storage, task: RunTask, stop: Stop | None = None) -> RunResult:
    """Do what is missing of a run. ``stop`` ends it early: what is in flight is finished and stored."""

    async def work_through(keeper: Keeper, run: Run, stop: Stop) -> Worked:
        taken = task._replace(run=run, before=storage.counts(run.id))
        planned = taken.plan(storage)
        async with keeper.writer() as writer:
            pipeline = Pipeline(storage, writer, taken, stop)
            await pipeline.work_through(planned)
        return Worked(pipeline.done, pipeline.clock.execute_s, pipeline.clock.grade_s)

    return await carry_out(storage, task, stop, work_through)
