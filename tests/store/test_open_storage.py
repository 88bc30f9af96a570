"""From a URL to a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gradeline.store
from gradeline.errors import ConfigError
from gradeline.model import Grade, Record, TestCase
from gradeline.store import InMemoryStorage, Run, SqliteStorage, open_storage


def test_the_public_names() -> None:
    assert [name for name in gradeline.store.__all__ if not hasattr(gradeline.store, name)] == []
    assert set(gradeline.store.__all__) <= set(dir(gradeline.store))
    with pytest.raises(AttributeError, match=r"'gradeline\.store' has no attribute 'Runs'"):
        _ = gradeline.store.Runs


def test_the_nouns_of_the_seed() -> None:
    store = gradeline.store
    assert (store.EvaluationRun, store.EvaluationResult, store.Score, store.TestCase) == (Run, Record, Grade, TestCase)


@pytest.mark.parametrize("form", ["sqlite:///{}", "{}"])
def test_a_file_and_its_folders_are_created(tmp_path: Path, form: str) -> None:
    path = tmp_path / "new" / "folder" / "store 1.db"
    with open_storage(form.format(path)) as storage:
        assert isinstance(storage, SqliteStorage)
        assert storage.path == path
        assert path.exists()


def test_a_url_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_storage("sqlite:///here/store.db").close()
    open_storage(Path("there.db")).close()
    assert (tmp_path / "here" / "store.db").exists()
    assert (tmp_path / "there.db").exists()


def test_memory() -> None:
    assert isinstance(open_storage("memory://"), InMemoryStorage)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (":memory:", "write memory://"),
        ("sqlite:///:memory:", "write memory://"),
        ("sqlite://", "needs a file: sqlite:///path"),
        (
            "sqlite://store.db",
            "sqlite://; write sqlite:///path, a path, postgresql://host/database, or memory://",
        ),
        ("sqlite:store.db", "; write sqlite:///path"),
        ("", "; write sqlite:///path"),
        ("mysql://me:secret@host/db", "mysql://; write sqlite:///path"),
        ("memory://x", "invalid store memory://"),
        ("postgresql://me:secret@host", "names no database; write postgresql://user@host:5432/database"),
        ("postgres://me:secret@host/", "names no database"),
    ],
)
def test_an_invalid_url_shows_the_valid_forms(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message) as caught:
        open_storage(url)
    assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_reading_a_store_does_not_load_asyncio(tmp_path: Path) -> None:
    script = (
        "import sys; from gradeline.store import open_storage\n"
        "assert 'sqlite3' not in sys.modules\n"
        "with open_storage(sys.argv[1]) as store: store.list_runs()\n"
        "assert 'asyncio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "store.db")], check=True)
