"""Ending processes that may end by themselves meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gradeline.usercode.processes import end_tree, signal_name

ROUNDS = 300


def test_a_process_may_end_while_it_is_ended() -> None:
    # its folder in /proc goes at any moment; in some of the rounds between two looks at it
    for _ in range(ROUNDS):
        process = subprocess.Popen(["true"])
        waiting = threading.Thread(target=process.wait)
        waiting.start()
        while waiting.is_alive():
            end_tree(process.pid)
        waiting.join()


def test_a_tree_is_ended_to_its_leaves() -> None:
    script = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    leaf = int(process.stdout.readline())
    end_tree(process.pid)
    assert process.wait() < 0
    process.stdout.close()
    assert _gone(leaf)


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.parametrize(("code", "words"), [(3, "exit code 3"), (-9, "SIGKILL"), (-200, "signal 200")])
def test_how_it_ended_is_said_in_words(code: int, words: str) -> None:
    assert signal_name(code) == words
