"""How a run begins: calls that are waited for begin one after the other, so that they do not end together."""

from __future__ import annotations

import asyncio

from gradeline.engine.execute import CallLimits
from gradeline.engine.lifecycle import run_local
from gradeline.engine.pipeline import RunTask
from gradeline.model import Response, Run, Sample
from gradeline.store import InMemoryStorage

CONCURRENCY = 10


class Agent:
    """Notes in which turn of the event loop it was asked."""

    fingerprint = "f"

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.turn = 0
        self.asked: list[int] = []
        self.most_at_once = self.open = 0

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    async def respond(self, sample: Sample) -> Response:
        self.asked.append(self.turn)
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)
        if self.waits:
            await asyncio.sleep(0.05)
        self.open -= 1
        return Response(text="a")

    def cache_key(self, sample: Sample, repeat: int) -> str:
        return f"{sample.case_key}/{repeat}"


def asked(agent: Agent) -> None:
    async def main() -> None:
        storage = InMemoryStorage()
        run = storage.get_run(storage.save_run(Run(name="n", suite="s")))
        assert run is not None
        cases = [Sample(number, "q") for number in range(3 * CONCURRENCY)]
        counting = asyncio.create_task(agent.count_turns())
        await run_local(storage, RunTask(run, lambda: cases, agent, (), CallLimits(concurrency=CONCURRENCY)))
        counting.cancel()

    asyncio.run(main())


def test_calls_that_are_waited_for_begin_in_turns_of_their_own() -> None:
    agent = Agent(waits=True)
    asked(agent)
    first = agent.asked[:CONCURRENCY]
    assert len(set(first)) == CONCURRENCY
    assert agent.most_at_once == CONCURRENCY, "and all of them are in flight at last"


def test_an_agent_that_answers_at_once_is_not_kept_waiting() -> None:
    agent = Agent(waits=False)
    asked(agent)
    assert len(set(agent.asked[1:CONCURRENCY])) == 1
