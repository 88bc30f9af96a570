"""The progress record: the engine reads it while the worker writes."""

from __future__ import annotations

import subprocess
import sys
from time import monotonic

from gradeline.usercode.protocol import Progress, progress_file

WRITER = """
import sys
from itertools import count
from time import monotonic
from gradeline.usercode.protocol import Progress

progress = Progress(int(sys.argv[1]))
progress.write(1, 1, 0, monotonic())
print("writing", flush=True)
for number in count():
    progress.write(number % 1000, number % 50, 0, monotonic())
"""


def test_a_position_is_never_read_half_written() -> None:
    fd = progress_file()
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(fd)], pass_fds=[fd], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        progress = Progress(fd)
        began = monotonic()
        try:
            earliest = min(progress.read().since for _ in range(100_000))
        finally:
            writer.kill()
    progress.close()
    assert earliest > began - 60
