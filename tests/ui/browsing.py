"""What the tests in a browser share."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDE = (1440, 900)
NARROW = (390, 844)


class Complaints(list[str]):
    """What the browser said aloud: errors of scripts, refusals by the content security policy, failed requests."""

    def without(self, *patterns: str) -> list[str]:
        return [one for one in self if not any(re.search(pattern, one) for pattern in patterns)]
