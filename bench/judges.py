"""What judging a pair costs: offline vectors, and models that take their time, each next to its floor.

The models take 100 ms: once as adapters in this process, which shows what the pairing costs, once as a server on this
machine that is called over HTTP, which adds the adapters and the other process.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from statistics import median
from time import perf_counter

from gradeline.adapters import create, create_embeddings
from gradeline.judges import EmbeddingSimilarityJudge, LLMJudge, PairedGrader
from gradeline.model import LLMResponse, RunConfig
from measure import exit_code, print_machine, print_table
from measure import judged as held

COMPARISONS = 10_000
PAIRS = 1_000
IN_FLIGHT = 100
CALL_S = 0.1
ROUNDS = 3
IDEAL_S = PAIRS / IN_FLIGHT * 2 * CALL_S
"""Both sides at the same time, then the judge."""
WANTED_COMPARISONS = 5_000.0
WANTED_SHARE = 0.85
CONFIG = RunConfig(model="")
VERDICT = json.dumps({"quality_score": 0.75, "notes": "close"})


class SlowAdapter:
    """Answers after 100 ms."""

    def __init__(self, adapter_id: str, content: str) -> None:
        self.adapter_id = adapter_id
        self._response = LLMResponse(content, finish_reason="stop")

    def complete(self, prompt: str, run_config: RunConfig) -> LLMResponse:
        raise NotImplementedError("it is only waited for")

    async def acomplete(self, prompt: str, run_config: RunConfig) -> LLMResponse:  # noqa: ARG002 - the protocol's
        await asyncio.sleep(CALL_S)
        return self._response


def comparisons() -> tuple[float, float]:
    """Pairs a second that are judged, and that are only made into vectors."""
    adapter = create_embeddings("wordllama")
    judge = EmbeddingSimilarityJudge(adapter)
    pairs = [
        (LLMResponse(f"The capital of country {n} is Paris."), LLMResponse(f"It is Paris, in country {n}."))
        for n in range(COMPARISONS)
    ]
    judge.judge(*pairs[0], prompt="", run_config=CONFIG)
    judged, embedded = [], []
    for _ in range(ROUNDS):
        started = perf_counter()
        for baseline, candidate in pairs:
            judge.judge(baseline, candidate, prompt="", run_config=CONFIG)
        judged.append(COMPARISONS / (perf_counter() - started))
        started = perf_counter()
        for baseline, candidate in pairs:
            adapter.embed([baseline.content, candidate.content])
        embedded.append(COMPARISONS / (perf_counter() - started))
    return median(judged), median(embedded)


async def paired(pair: Callable[[int], Awaitable[object]]) -> float:
    """Seconds for all pairs, with a number of calls in flight."""
    numbers = iter(range(PAIRS))

    async def caller() -> None:
        for number in numbers:
            await pair(number)

    await asyncio.gather(*(pair(number) for number in range(IN_FLIGHT)))  # warm
    started = perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return perf_counter() - started


async def floor(number: int) -> None:  # noqa: ARG001 - every pair takes the same
    await asyncio.gather(asyncio.sleep(CALL_S), asyncio.sleep(CALL_S))
    await asyncio.sleep(CALL_S)


async def in_process() -> tuple[float, float]:
    baseline, candidate = SlowAdapter("baseline", "Paris."), SlowAdapter("candidate", "It is Paris.")
    grader = PairedGrader(LLMJudge(SlowAdapter("judge", VERDICT)))

    async def pair(number: int) -> object:
        return await grader.agrade(baseline, candidate, f"What is the capital of country {number}?", CONFIG)

    rounds = [(await paired(pair), await paired(floor)) for _ in range(ROUNDS)]
    return median(one for one, _ in rounds), median(one for _, one in rounds)


async def over_http(url: str) -> float:
    baseline, candidate = (create("openai", name, base_url=url) for name in ("baseline", "candidate"))
    grader = PairedGrader(LLMJudge(create("openai", "judge", base_url=url)))

    async def pair(number: int) -> object:
        return await grader.agrade(baseline, candidate, f"What is the capital of country {number}?", CONFIG)

    return median([await paired(pair) for _ in range(ROUNDS)])


async def served() -> float:
    """The same with every model behind a server in another process."""
    server = await asyncio.create_subprocess_exec(sys.executable, __file__, "serve", stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        return await over_http((await server.stdout.readline()).decode().strip())
    finally:
        server.kill()
        await server.wait()


async def serve() -> None:
    """A provider whose models take 100 ms."""
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        await asyncio.sleep(CALL_S)
        content = VERDICT if asked["model"] == "judge" else "It is Paris."
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        return web.json_response({"choices": [choice], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await asyncio.Event().wait()


def main() -> int:
    if sys.argv[1:] == ["serve"]:
        asyncio.run(serve())
        return 0
    print_machine()
    judged, embedded = comparisons()
    own, least = asyncio.run(in_process())
    http = asyncio.run(served())
    compared = [
        ("judged", f"{judged:,.0f}", held(judged, WANTED_COMPARISONS, at_least=True), ""),
        ("vectors only (the floor)", f"{embedded:,.0f}", "", ""),
    ]
    print_table(
        f"offline embedding comparisons, {COMPARISONS:,} pairs, medians of {ROUNDS}",
        ("way", "pairs/s", "target", ""),
        compared,
    )
    print()
    graded = [
        _row("adapters in place", own, held(100 * IDEAL_S / own, 100 * WANTED_SHARE, at_least=True)),
        _row("sleeping only (the floor)", least),
        _row("over HTTP", http, note="3,000 calls, the server on the same cores"),
    ]
    print_table(
        f"paired grading, {PAIRS:,} pairs, models and judge of 100 ms, {IN_FLIGHT} in flight, ideal {IDEAL_S:.1f} s",
        ("way", "s", "% of ideal", "target", ""),
        graded,
    )
    return exit_code([*compared, *graded])


def _row(way: str, seconds: float, target: str = "", note: str = "") -> tuple[str, ...]:
    return way, f"{seconds:.2f}", f"{100 * IDEAL_S / seconds:.1f}", target, note


if __name__ == "__main__":
    sys.exit(main())
