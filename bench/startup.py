"""What starting costs, next to the floor (a bare interpreter) and other tools in their own environments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

from contest import do
from measure import (
    COMMAND,
    FAILED,
    RunFailedError,
    Timing,
    exit_code,
    finished,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
)
from peers import WITHOUT_PEERS, Absent, Installed, all_peers, print_absent
from tools import Tool, gradeline

ROUNDS, PEER_ROUNDS = 15, 5
FLOOR = "python -c pass (the floor)"
OURS = {
    FLOOR: [sys.executable, "-c", "pass"],
    "import gradeline": [sys.executable, "-c", "import gradeline"],
    "from gradeline import Sample, GradeResult": [sys.executable, "-c", "from gradeline import Sample, GradeResult"],
    "import gradeline.graders": [sys.executable, "-c", "import gradeline.graders"],
    "gradeline --help": [COMMAND, "--help"],
    "gradeline --version": [COMMAND, "--version"],
    "gradeline grade --help": [COMMAND, "grade", "--help"],
    "gradeline run --help": [COMMAND, "run", "--help"],
}
TARGETS = {"gradeline --help": 150.0, "gradeline run, one sample": 500.0}
PROGRAMS = {"inspect-ai": "inspect", "deepeval": "deepeval", "letta-evals": "letta-evals", "promptfoo": "promptfoo"}


class Start(NamedTuple):
    """A call and what it cost, in milliseconds; without a cost, why."""

    name: str
    timing: Timing | None
    failure: str = ""


def timed(name: str, command: list[str], rounds: int, variables: Mapping[str, str] | None = None) -> Start:
    show_progress(f"{name} …")
    with scratch() as folder:
        try:
            finished(command, folder, variables)  # the first one may have to make bytecode
            costs = [finished(command, folder, variables).seconds * 1000 for _ in range(rounds)]
        except RunFailedError as error:
            return Start(name, None, str(error))
    return Start(name, Timing.of(costs))


def one_sample(name: str, tool: Tool) -> Start:
    show_progress(f"{name} …")
    return Start(name, Timing.of([do(tool, 1, 1).seconds * 1000 for _ in range(ROUNDS)]))


def peer_start(env: Installed) -> Start:
    """Its help, or its import where it has no program."""
    program = PROGRAMS.get(env.peer.name)
    variables = {**env.peer.variables, "PROMPTFOO_CONFIG_DIR": "promptfoo"}
    if program is None:
        module = env.peer.name.replace("-", "_")
        command = [*env.program("python"), "-c", f"import {module}"]
        return timed(f"import {module} ({env.label})", command, PEER_ROUNDS, variables)
    return timed(f"{program} --help ({env.label})", [*env.program(program), "--help"], PEER_ROUNDS, variables)


def main() -> int:
    alone = flags(__doc__, without_peers=WITHOUT_PEERS)
    print_machine()
    found = [timed(name, command, ROUNDS) for name, command in OURS.items()]
    found.append(one_sample("gradeline run, one sample", gradeline("none")))
    found.append(one_sample("gradeline run, one sample in a worker", gradeline("worker")))
    if not alone:
        found += [peer_start(env) for env in all_peers() if not isinstance(env, Absent)]
    floor = found[0].timing.median if found[0].timing is not None else 0.0
    show_progress("")
    rows = [row(start, floor) for start in found]
    print_table("start to exit, ms", ("call", "best", "median", "above the floor", "target", ""), rows)
    if not alone:
        print_absent()
    return exit_code(rows)


def row(start: Start, floor: float) -> tuple[str, ...]:
    if start.timing is None:
        return start.name, "", "", "", "", f"{FAILED}{start.failure}"
    cost = start.timing.median
    target = judged(cost, TARGETS.get(start.name), at_least=False)
    return start.name, f"{start.timing.best:.0f}", f"{cost:.0f}", f"{max(0.0, cost - floor):.0f}", target, ""


if __name__ == "__main__":
    sys.exit(main())
