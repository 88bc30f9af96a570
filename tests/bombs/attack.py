"""Sends the corpus to a server that runs under a memory limit, one after the other and then at once.

    python tests/bombs/attack.py [--bombs 200] [--at-once 32] [--memory BYTES] [--deadline 5]

Meanwhile another run is worked on and ``/api/ready`` is asked all the time. Exits with 1 where the server process
died, was not ready once, answered with a 5xx or did not finish the other run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "service"))

from corpus import GraderBomb, grader_bombs
from live import EchoAgent, Server

TOO_MANY = 429
LARGEST = 5_000_000
"""Characters of a request; a body may have at most ten megabytes."""


def bombs() -> list[GraderBomb]:
    """The bombs that fit into a request."""
    return [bomb for bomb in grader_bombs() if len(json.dumps(bomb._asdict())) < LARGEST]


_LIMITED = """
import resource, sys
from gradeline.cli import main
from gradeline.usercode import pools
memory, pools.DEADLINE_S = int(sys.argv[1]), float(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
sys.argv = sys.argv[3:]
main()
"""


def limited(memory: int, deadline_s: float) -> list[str]:
    """Runs the server with a memory limit, and with another deadline for evaluations in workers."""
    return [sys.executable, "-c", _LIMITED, str(memory), str(deadline_s)]


class Watch:
    """Polls ``/api/ready`` until it is stopped."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._over = Event()
        self.asked = 0
        self.failed: list[str] = []
        self.slowest_s = 0.0
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            began = time.monotonic()
            try:
                status = self._server.call("GET", "/api/ready")[0]
            except OSError as error:
                status, result = 0, str(error)
            else:
                result = str(status)
            self.asked += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            if status != 200:
                self.failed.append(result)


def preview(server: Server, bomb: GraderBomb) -> str:
    """The result of a bomb as a preview: the status of the score, or the error code."""
    body = {
        "definition": {"type": bomb.kind, "config": bomb.config},
        "agent_response": bomb.submission,
        "expected_output": bomb.expected or "",
    }
    while (answered := server.call("POST", "/api/graders/new/preview", body))[0] == TOO_MANY:
        time.sleep(0.05)  # as many previews of one caller are under way as may be
    status, answer = answered
    if status >= 500:
        return f"HTTP {status}"
    if status >= 300:
        return str(answer["error"]["code"])
    score = answer["data"]
    return str(score["error_type"] or score["score_status"])


def run_of(agent: EchoAgent, cases: int, graders: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": "run",
        "dataset": [{"id": f"q{n}", "input": f"q {n}", "ground_truth": "q"} for n in range(cases)],
        "target": {"kind": "http", "url": agent.url, **more},
        "graders": graders,
    }


def attack(server: Server, agent: EchoAgent, count: int, at_once: int) -> dict[str, Any]:
    """Previews of the corpus over and over, ``at_once`` at a time, while a run of many cases is worked on."""
    watch = Watch(server)
    plain = server.data("POST", "/api/evaluations", {"suite": run_of(agent, 500, {"a": {"kind": "contains"}})})["id"]
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as threads:
        chosen = list(itertools.islice(itertools.cycle(bombs()), count))
        found = Counter(threads.map(lambda bomb: preview(server, bomb), chosen))
    done = server.until_ended(plain)
    watch.stop()
    return {
        "bombs": count,
        "at once": at_once,
        "seconds": round(time.monotonic() - began, 1),
        "outcomes": dict(found.most_common()),
        "ready asked": watch.asked,
        "ready failed": watch.failed[:5],
        "ready slowest s": round(watch.slowest_s, 2),
        "other run": done["status"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--bombs", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--deadline", type=float, default=5.0, help="seconds of one evaluation")
    parser.add_argument("--memory", type=int, default=3 * 1024**3, help="bytes of the server process")
    options = parser.parse_args()
    through = limited(options.memory, options.deadline)
    with (
        tempfile.TemporaryDirectory() as folder,
        EchoAgent() as agent,
        Server(Path(folder, "store.db"), through=through) as server,
    ):
        result = []
        for at_once in (1, options.at_once):
            result.append(attack(server, agent, options.bombs, at_once))
            sys.stdout.write(json.dumps(result[-1], indent=1) + "\n")
            sys.stdout.flush()
        alive = server._process.poll() is None
    sys.stdout.write("the server process lives\n" if alive else "the server process died\n")
    bad = [one for one in result if one["ready failed"] or one["other run"] != "completed"]
    bad += [one for one in result if any(name.startswith("HTTP 5") for name in one["outcomes"])]
    return 0 if alive and not bad else 1


if __name__ == "__main__":
    sys.exit(main())
