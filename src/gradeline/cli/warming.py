"""Loading what a run will need while it is still being read: a quarter of a short run's time is imports."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from threading import Thread

_ASKS_BY_HTTP = re.compile(rb"\bkind[\"']?\s*:\s*[\"']?(?:http|openai|anthropic|gemini|ollama|vllm)\b")
_HEAD_BYTES = 100_000


def warm_up(suite: Path) -> None:
    """Begin to load the HTTP client where the suite's target will most likely want it; the reader goes on meanwhile.

    An interpreter that ends in the middle of an import crashes, so the thread is no daemon: the end waits for it.
    """
    try:
        with suite.open("rb") as file:
            wanted = _ASKS_BY_HTTP.search(file.read(_HEAD_BYTES))
    except OSError:
        return  # the reader says it better
    if wanted:
        Thread(target=import_module, args=("gradeline.transport",), name="gradeline-warming").start()
