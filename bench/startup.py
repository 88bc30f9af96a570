"""What starting costs, beside the floor: a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

COMMAND = str(Path(sys.executable).with_name("gradeline"))
ROUNDS = 15
CALLS = {
    "python -c pass (the floor)": [sys.executable, "-c", "pass"],
    "import gradeline": [sys.executable, "-c", "import gradeline"],
    "from gradeline import Sample, GradeResult": [sys.executable, "-c", "from gradeline import Sample, GradeResult"],
    "import gradeline.graders": [sys.executable, "-c", "import gradeline.graders"],
    "gradeline --help": [COMMAND, "--help"],
    "gradeline --version": [COMMAND, "--version"],
    "gradeline grade --help": [COMMAND, "grade", "--help"],
}


def timed(call: list[str]) -> float:
    """Milliseconds from start to exit: the median."""
    rounds = []
    for _ in range(ROUNDS):
        started = perf_counter()
        subprocess.run(call, check=True, capture_output=True)
        rounds.append((perf_counter() - started) * 1000)
    return median(rounds)


def main() -> None:
    floor = timed(CALLS["python -c pass (the floor)"])
    print(f"{'start-up':<44}{'ms':>8}{'above the floor':>18}")
    for name, call in CALLS.items():
        cost = timed(call)
        print(f"{name:<44}{cost:>8.0f}{max(0.0, cost - floor):>18.0f}")


if __name__ == "__main__":
    main()
