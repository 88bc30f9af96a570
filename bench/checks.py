"""What checks per case cost: 10,000 cases with three checks each, against the same rules as one custom-rules grader.

The floor is the same run with a grader that does nothing but compare two strings. Time is that of the processor, over
whole runs of the command line; memory is compared with a run of four times as many cases.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import COMMAND, SCRIPTS, Finished, exit_code, finished, flags, judged, print_machine, print_table

CASES = 10_000
ROUNDS = 7
MOST = 1.25
"""The cost of a case with its own checks over that with the rules of a grader."""
MOST_MEMORY = 1.10
"""Peak memory of four times as many cases over that of `CASES`."""
RULES = [
    {"condition": "contains", "value": "1"},
    {"condition": "length_max", "value": 40},
    {"condition": "regex", "value": r"\d+$", "weight": 2},
]
GRADERS: dict[str, dict[str, object]] = {
    "floor": {"kind": "exact_match"},
    "custom-rules": {"kind": "custom-rules", "rules": RULES},
    "checks": {"kind": "checks"},
}


def write(folder: Path, kind: str, cases: int) -> str:
    """The suite of one grader; returns its name."""
    own = {"checks": RULES} if kind == "checks" else {}
    rows = (
        {"id": number, "input": f"What is {number} plus {number}?", "ground_truth": str(2 * number), **own}
        for number in range(cases)
    )
    dataset = f"{kind}-{cases}.jsonl"
    (folder / dataset).write_text("\n".join(map(json.dumps, rows)))
    suite = {
        "name": kind,
        "dataset": dataset,
        "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"},
        "graders": {"grader": GRADERS[kind]},
    }
    name = f"{kind}-{cases}.json"
    (folder / name).write_text(json.dumps(suite))
    return name


def run(folder: Path, suite: str, number: int) -> Finished:
    return finished([COMMAND, "run", suite, "--quiet", "--store", f"{suite}-{number}.db"], folder)


def main() -> int:
    flags(__doc__)
    print_machine()
    with TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(SCRIPTS / "agent.py", folder)
        suites = {kind: write(folder, kind, CASES) for kind in GRADERS}
        rounds: dict[str, list[Finished]] = {kind: [] for kind in GRADERS}
        for number in range(ROUNDS):
            for kind, suite in suites.items():  # in turn, so that a busy moment hits all of them
                rounds[kind].append(run(folder, suite, number))
        large = run(folder, write(folder, "checks", 4 * CASES), 0)
    best = {kind: min(one.cpu_seconds for one in ran) for kind, ran in rounds.items()}
    rows = [
        (
            kind,
            f"{best[kind] / CASES * 1e6:.1f}",
            f"{best[kind] / best['custom-rules']:.3f}",
            f"{max(one.peak_kib for one in rounds[kind]) / 1024:.0f}",
            judged(best[kind] / best["custom-rules"], MOST if kind == "checks" else None, at_least=False, digits=2),
        )
        for kind in GRADERS
    ]
    print_table(
        f"{CASES:,} cases, three checks each; best of {ROUNDS}",
        ("grader", "CPU µs a case", "over custom-rules", "peak MiB", "target"),
        rows,
    )
    peak = max(one.peak_kib for one in rounds["checks"])
    grown = large.peak_kib / peak
    more = [
        (f"{4 * CASES:,}", f"{large.peak_kib / 1024:.0f}", judged(grown, MOST_MEMORY, at_least=False, digits=2)),
    ]
    print_table(f"memory, against {peak / 1024:.0f} MiB of {CASES:,} cases", ("cases", "peak MiB", "target"), more)
    return exit_code([*rows, *more])


if __name__ == "__main__":
    sys.exit(main())
