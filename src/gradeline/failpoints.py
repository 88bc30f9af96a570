"""Named places where a test ends this process as a crash would: at once, with nothing cleaned up.

``GRADELINE_FAILPOINT=name`` (or ``name:3`` for the third time it is passed) arms one of them. Unarmed
they cost a comparison.
"""

from __future__ import annotations

import os
import signal
from itertools import count

FAILPOINTS = (
    "run-saved",
    "response-received",
    "response-stored",
    "graded",
    "grade-queued",
    "batch-begun",
    "batch-written",
    "batch-committed",
    "run-ending",
    "run-ended",
)

_name, _, _nth = os.environ.get("GRADELINE_FAILPOINT", "").partition(":")
_armed = _name if _name in FAILPOINTS else None
_passes = count(1)


def failpoint(name: str) -> None:
    """Ends the process when this is the armed place, and has been passed often enough."""
    if name == _armed and next(_passes) >= int(_nth or 1):
        os.kill(os.getpid(), signal.SIGKILL)
