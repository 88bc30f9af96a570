"""The same job for every tool: ask an agent about each case, compare the answer, keep what came of it.

The agent is a function that answers at once, or an address. A tool lays out what it needs in a fresh
folder, gives the command that does the job there, and afterwards counts how many answers were right.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.store import SqliteStorage
from measure import COMMAND, SCRIPTS, RunFailedError
from peers import Installed


class Job(NamedTuple):
    """What is to be done, in a folder of its own."""

    folder: Path
    samples: int
    concurrency: int
    url: str = ""
    """The agent's; without it a function answers."""

    @property
    def cases(self) -> Path:
        return self.folder / "cases.jsonl"

    def rows(self) -> Iterator[dict[str, str]]:
        with self.cases.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


class Tool(NamedTuple):
    """One that can do the job."""

    name: str
    prepare: Callable[[Job], list[str]]
    passed: Callable[[Job, str], int]
    """How many answers were found right, from the job's folder and the program's output."""
    variables: Mapping[str, str] = {}


def write_cases(path: Path, count: int) -> None:
    """A dataset of any size, written as it is made."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            case = {
                "id": f"case-{number}",
                "input": f"What is {number} plus {number}?",
                "ground_truth": f"{2 * number}",
            }
            file.write(json.dumps(case) + "\n")


GRADELINE = {
    "none": ("gradeline, isolation: none", {"isolation": "none"}, {"kind": "exact_match"}),
    "worker": ("gradeline, target in a worker", {}, {"kind": "exact_match"}),
    "custom": (
        "gradeline, custom grader in a worker",
        {"isolation": "none"},
        {"kind": "tool", "function": "graders.py:same"},
    ),
}


def gradeline(variant: str = "none") -> Tool:
    """gradeline with its target, or its grader, in this or another process; its store is a fresh SQLite file."""
    name, options, grader = GRADELINE[variant]
    return Tool(name, partial(_prepare_gradeline, options, grader), _passed_in_store)


def gradeline_http() -> Tool:
    return Tool("gradeline", partial(_prepare_gradeline, {}, {"kind": "exact_match"}), _passed_in_store)


def _prepare_gradeline(options: dict[str, str], grader: dict[str, str], job: Job) -> list[str]:
    if job.url:
        target: dict[str, Any] = {
            "kind": "http",
            "url": f"{job.url}/ask",
            "request": {"input": "{{input}}"},
            "response": {"output": "response"},
        }
    else:
        target = {"kind": "python", "function": "agent.py:answer", **options}
    suite = {
        "name": "bench",
        "dataset": job.cases.name,
        "target": {**target, "concurrency": job.concurrency},
        "graders": {"exact": grader},
        "gate": {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 1.0},
    }
    (job.folder / "suite.json").write_text(json.dumps(suite))
    for name in ("agent.py", "graders.py"):
        shutil.copy(SCRIPTS / name, job.folder)
    return [COMMAND, "run", "suite.json", "--quiet", "--store", "store.db"]


def _passed_in_store(job: Job, _: str) -> int:
    with SqliteStorage(job.folder / "store.db") as storage:
        counts = storage.counts(storage.find_run("latest").id)
    outcomes = {outcome: count for outcome, count in counts.graders["exact"].outcomes.items() if count}
    if outcomes != {"pass": job.samples}:
        raise RunFailedError(f"of {job.samples:,} its store has the responses {counts.responses} and grades {outcomes}")
    return job.samples


def floor(means: str = "asyncio") -> Tool:
    """The least Python that does it."""
    prepare = partial(_script, [sys.executable], "floor.py", "store.db")
    return Tool(f"{means} + sqlite3 (the floor)", prepare, passed_told)


def bare() -> Tool:
    """Less than the job: neither samples nor times are kept, and no answer before it is graded."""
    return Tool("response and score only", partial(_script, [sys.executable], "bare.py", "store.db"), passed_told)


def _script(python: list[str], name: str, kept: str, job: Job) -> list[str]:
    """A script of ours inside a tool's environment; ``kept`` is where it leaves its results, if it keeps any."""
    arguments = [str(job.cases), *([kept] if kept else []), str(job.concurrency)]
    return [*python, str(SCRIPTS / name), *arguments, *([f"{job.url}/ask"] if job.url else [])]


def passed_told(_: Job, output: str) -> int:
    found = re.search(r"^(\d+) of \d+ passed$", output, re.MULTILINE)
    return int(found[1]) if found else 0


def _prepare_letta(env: Installed, job: Job) -> list[str]:
    """It can ask no agent but letta's: it grades a run that is laid out as if it had been one of its own."""
    cache = job.folder / "cache"
    cache.mkdir()
    suite = {
        "name": "bench",
        "dataset": job.cases.name,
        "target": {"kind": "letta_code", "base_url": "http://127.0.0.1:9"},
        "graders": {"exact": {"kind": "tool", "function": "exact_match"}},
        "reward": {"kind": "metric", "metric_key": "exact"},
    }
    (job.folder / "suite.yaml").write_text(json.dumps(suite))  # JSON is YAML
    times = dict.fromkeys(("mean_total", "mean_target", "p50_total", "p95_total"), 0)
    model = {"model": "default", "n_total": job.samples, "n_attempted": job.samples, "reward": 1.0, "per_metric": {}}
    (cache / "summary.json").write_text(
        json.dumps({"suite": "bench", "models": [{**model, "usage": {}, "timing": times}]})
    )
    (cache / "suite.json").write_text(json.dumps({"suite": "bench", "config": suite, "samples": list(job.rows())}))
    with (cache / "default.jsonl").open("w") as results:
        for row in job.rows():
            message = {"message_type": "assistant_message", "id": "m", "date": "2026-11-01T00:00:00Z"}
            answered = {
                "sample_id": row["id"],
                "agent_id": "agent",
                "model_handle": "default",
                "trajectory": [[{**message, "content": row["ground_truth"]}]],
                "timing": {"total": 0, "target": 0},
            }
            results.write(json.dumps(answered) + "\n")
    arguments = ["run", "suite.yaml", "--cached", "cache", "--output", "output", "--quiet"]
    return [*env.program("letta-evals"), *arguments, "--max-concurrent", str(job.concurrency)]


def _passed_letta(job: Job, _: str) -> int:
    (model,) = json.loads((job.folder / "output" / "summary.json").read_text())["models"]
    return round(float(model["n_attempted"] * model["reward"]))


def _prepare_promptfoo(env: Installed, job: Job) -> list[str]:
    shutil.copy(SCRIPTS / "promptfoo_agent.mjs", job.folder / "agent.mjs")
    over_http = {
        "id": f"{job.url}/ask",
        "config": {
            "method": "POST",
            "headers": {"Content-Type": "application/json"},
            "body": {"input": "{{prompt}}"},
            "transformResponse": "json.response",
        },
    }
    config = {
        "prompts": ["{{input}}"],
        "providers": [over_http if job.url else "file://agent.mjs"],
        "tests": "file://tests.jsonl",
        "defaultTest": {"assert": [{"type": "equals", "value": "{{expected}}"}]},
    }
    (job.folder / "promptfooconfig.json").write_text(json.dumps(config))
    with (job.folder / "tests.jsonl").open("w") as tests:
        for row in job.rows():
            tests.write(json.dumps({"vars": {"input": row["input"], "expected": row["ground_truth"]}}) + "\n")
    quiet = ["--no-cache", "--no-table", "--no-progress-bar", "--no-share"]
    return [*env.program("promptfoo"), "eval", "-c", "promptfooconfig.json", *quiet, "-j", str(job.concurrency)]


def _passed_promptfoo(_: Job, output: str) -> int:
    found = re.search(r"([\d,]+) passed", output)
    return int(found[1].replace(",", "")) if found else 0


def peer(env: Installed) -> Tool:
    """The tool that an environment holds."""
    name = env.peer.name
    if name == "letta-evals":
        return Tool(env.label, partial(_prepare_letta, env), _passed_letta, env.peer.variables)
    if name == "promptfoo":
        # its settings and its database stay in the job's folder, where the command runs
        variables = {**env.peer.variables, "PROMPTFOO_CONFIG_DIR": "promptfoo"}
        return Tool(env.label, partial(_prepare_promptfoo, env), _passed_promptfoo, variables)
    script, kept = {
        "pydantic-evals": ("run_pydantic_evals.py", ""),
        "inspect-ai": ("run_inspect_ai.py", "logs"),
        "deepeval": ("run_deepeval.py", ""),
    }[name]
    return Tool(env.label, partial(_script, env.program("python"), script, kept), passed_told, env.peer.variables)
