"""The same run with inspect-ai: a solver that asks the agent itself, the exact scorer, its log on disk.

python run_inspect_ai.py CASES LOGS CONCURRENCY [URL]
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from agent import answer
from inspect_ai import Task, eval  # noqa: A004 - its name
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import exact
from inspect_ai.solver import Generate, Solver, TaskState, solver

Ask = Callable[[str], Awaitable[str]]


def over_http(url: str, concurrency: int) -> Ask:
    """Its session is made by the first question: only then is there a loop. It ends with the process."""
    from aiohttp import ClientSession, TCPConnector  # only where it is used

    sessions: list[ClientSession] = []

    async def ask(text: str) -> str:
        if not sessions:
            sessions.append(ClientSession(connector=TCPConnector(limit=concurrency)))
        async with sessions[0].post(url, json={"input": text}) as reply:
            return (await reply.json())["response"]

    return ask


@solver
def asked(ask: Ask) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:  # noqa: ARG001 - its signature
        state.output = ModelOutput.from_content("agent", await ask(state.input_text))
        return state

    return solve


def main(path: str, logs: str, concurrency: str, url: str = "") -> None:
    ask = over_http(url, int(concurrency)) if url else answer
    (log,) = eval(
        Task(
            dataset=json_dataset(path, FieldSpec(id="id", input="input", target="ground_truth")),
            solver=asked(ask),
            scorer=exact(),
        ),
        model="mockllm/model",
        display="none",
        log_dir=logs,
        max_samples=int(concurrency),
    )
    mean = log.results.scores[0].metrics["mean"].value
    print(f"{round(mean * log.results.completed_samples)} of {log.results.total_samples} passed")


if __name__ == "__main__":
    main(*sys.argv[1:])
