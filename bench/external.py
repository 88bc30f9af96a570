"""What a grade costs by a grader in TypeScript, as a process that stays and as one process per case.

The floor is a grader that runs in gradeline's own process; next to it is the same check in Python, in a worker.
Compiling TypeScript needs the packages of the web interface (``make ui``).
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from measure import COMMAND, ROOT, SCRIPTS, finished, flags, print_machine, print_table, scratch

CASES = 2_000
ONCE_CASES = 200
"""A process per case takes long, so there are fewer of them."""
ROUNDS = 3
_NODE_MODULES = ROOT / "ui" / "node_modules"
_WORDS = """
from gradeline import grader


@grader
def words(sample, submission) -> dict:
    expected, actual = sample.ground_truth.lower().split(), submission.lower().split()
    found = [word for word in expected if word in actual]
    return {"score": len(found) / len(expected), "rationale": f"{len(found)} of {len(expected)} expected words"}
"""
_COMMAND = {"kind": "command", "command": ["node", "dist/check.js"]}
GRADERS: dict[str, tuple[int, dict[str, Any]]] = {
    "none but exact_match (floor)": (CASES, {"kind": "exact_match"}),
    "Python, in a worker": (CASES, {"kind": "tool", "function": "words.py:words"}),
    "TypeScript, protocol: jsonl": (CASES, {**_COMMAND, "protocol": "jsonl"}),
    "TypeScript, protocol: once": (ONCE_CASES, _COMMAND),
}


def prepare(folder: Path) -> None:
    """The agent, both checks, and the datasets."""
    example = ROOT / "examples" / "typescript_grader"
    for name in ("check.ts", "tsconfig.json", "package.json"):
        shutil.copy(example / name, folder)
    compiler = str(_NODE_MODULES / "typescript" / "bin" / "tsc")
    finished(["node", compiler, "-p", ".", "--typeRoots", str(_NODE_MODULES / "@types")], folder)
    shutil.copy(SCRIPTS / "agent.py", folder)
    (folder / "words.py").write_text(_WORDS)
    for cases in (CASES, ONCE_CASES):
        rows = ({"id": n, "input": f"What is {n} plus {n}?", "ground_truth": "the answer"} for n in range(cases))
        (folder / f"{cases}.jsonl").write_text("\n".join(map(json.dumps, rows)))


def seconds(folder: Path, label: str, number: int) -> float:
    """The time of a whole run with this grader."""
    cases, grader = GRADERS[label]
    suite = {
        "name": "external",
        "dataset": f"{cases}.jsonl",
        "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
        "graders": {"grader": grader},
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    return finished([COMMAND, "run", "suite.json", "--quiet", "--store", f"{number}.db"], folder).seconds


def main() -> int:
    flags(__doc__)
    print_machine()
    best: dict[str, float] = {}
    with scratch() as folder:
        prepare(folder)
        for number in range(ROUNDS * len(GRADERS)):  # in turn, so that a busy moment affects all of them
            label = list(GRADERS)[number % len(GRADERS)]
            took = seconds(folder, label, number) / GRADERS[label][0]
            best[label] = min(took, best.get(label, took))
    floor = best[next(iter(GRADERS))]
    rows = [
        (label, f"{GRADERS[label][0]:,}", f"{took * 1e6:,.0f}", f"{(took - floor) * 1e6:,.0f}")
        for label, took in best.items()
    ]
    print_table(
        f"a grade by a program; whole runs, best of {ROUNDS}",
        ("grader", "cases", "µs a case", "of these for the grade"),
        rows,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
