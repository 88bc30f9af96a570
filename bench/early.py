"""What looks cost: a run with --stop-early that is never decided, against the same run without.

The target is for an agent on the network that takes 100 ms, a hundred calls at once, by the time a user waits. The
agent in the same process does nothing, so its row shows what the looks themselves compute: the shuffled cases in a
temporary file, the baseline read before the first case, each case added to its sums, rows written in random order.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from concurrency import CONCURRENCY, agent
from measure import COMMAND, SCRIPTS, Finished, exit_code, flags, judged, print_machine, print_table, started

ROUNDS = 5
MOST = 1.05
"""The cost of a case with looks over that without."""
UNDECIDED = 3
GATE = {"kind": "regression", "baseline": "base", "margin": 1e-6}
"""A margin that no number of cases can settle, so every look is taken."""


class Agent(NamedTuple):
    name: str
    target: dict[str, object]
    cases: int
    most: float | None


@contextmanager
def agents() -> Iterator[list[Agent]]:
    with agent() as served:
        over_http = {
            "kind": "http",
            "url": f"{served.url}/ask",
            "request": {"input": "{{input}}"},
            "response": {"output": "response"},
        }
        in_process = {"kind": "python", "function": "agent.py:answer", "isolation": "none"}
        yield [Agent("over HTTP, 100 ms", over_http, 5_000, MOST), Agent("in this process", in_process, 10_000, None)]


def run(folder: Path, suite: str, *arguments: str) -> Finished:
    command = [COMMAND, "run", suite, *arguments, "--quiet", "--store", "store.db"]
    with started(command, folder) as process:
        return process.wait(accepted=(0, UNDECIDED))


def measured(one: Agent) -> tuple[str, ...]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(SCRIPTS / "agent.py", folder)
        rows = (
            {"id": number, "input": f"What is {number} plus {number}?", "ground_truth": str(2 * number)}
            for number in range(one.cases)
        )
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        suite: dict[str, object] = {
            "name": "looks",
            "dataset": "cases.jsonl",
            "target": one.target,
            "graders": {"right": {"kind": "exact_match"}},
            "concurrency": CONCURRENCY,
        }
        (folder / "base.json").write_text(json.dumps(suite))
        (folder / "suite.json").write_text(json.dumps({**suite, "gate": GATE}))
        run(folder, "base.json", "--name", "base")
        without, with_looks = [], []
        for _ in range(ROUNDS):
            without.append(run(folder, "suite.json", "--seed", "1"))
            with_looks.append(run(folder, "suite.json", "--seed", "1", "--stop-early"))
    before, after = (median(process.seconds for process in rounds) for rounds in (without, with_looks))
    spent, more = (median(process.cpu_seconds for process in rounds) for rounds in (without, with_looks))
    return (
        one.name,
        f"{one.cases:,}",
        f"{before / one.cases * 1e6:.0f}",
        f"{after / one.cases * 1e6:.0f}",
        f"{after / before:.3f}",
        f"{spent / one.cases * 1e6:.0f}",
        f"{more / one.cases * 1e6:.0f}",
        judged(after / before, one.most, at_least=False, digits=2),
    )


def main() -> int:
    flags(__doc__)
    print_machine()
    with agents() as found:
        shown = [measured(one) for one in found]
    columns = ("agent", "cases", "µs a case", "with looks", "ratio", "CPU µs", "with looks", "target")
    print_table("looks at a run that is not decided early", columns, shown)
    return exit_code(shown)


if __name__ == "__main__":
    sys.exit(main())
