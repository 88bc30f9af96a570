"""Commands in messages, for a person to run: complete, so that they can be copied."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from gradeline.model import Storage


def command(verb: str, run: str, store: str | None = None, *options: str) -> str:
    """``gradeline resume RUN``, with the store where it is not the default; a password in its URL is left out."""
    words = ["gradeline", verb, run, *options]
    if store is not None:
        words += ["--store", "URL" if urlsplit(store).password else shlex.quote(store)]
    return " ".join(words)


def how_to_continue(run: str, storage: Storage, store: str | None = None) -> str:
    """How a run that ended early is continued, for the end of a message; ``store`` is how the caller named it."""
    from gradeline.store import InMemoryStorage  # most commands open no such store

    if isinstance(storage, InMemoryStorage):
        return "start the run again: its store was in memory and is not kept, so it cannot be resumed"
    return f"continue with: {command('resume', run, store)}"
