"""Where a command finds its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradeline.cli.settings import Settings
from gradeline.model import Storage
from gradeline.store import open_storage


@contextmanager
def open_store(settings: Settings) -> Iterator[Storage]:
    """The store that the call names, else that of the project folder."""
    with open_storage(store_url(settings)) as storage:
        yield storage


def store_url(settings: Settings) -> str:
    """Where the store is that the call names, else that of the project folder. It may hold a password."""
    return settings.store or os.environ.get("GRADELINE_STORE") or str(_project_folder() / ".gradeline" / "store.db")


def _project_folder() -> Path:
    """The nearest folder upwards that has a store, else this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".gradeline").is_dir()), here)
