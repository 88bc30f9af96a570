"""The settings of a service can be shown without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from gradeline.service.settings import ServeSettings

SECRET = b"a master key that nobody may see"


def test_the_secret_key_never_shows() -> None:
    settings = ServeSettings(store="store.db", secret_key=SECRET, graders_dir=Path("graders"))
    shown = repr(settings)
    assert shown.startswith("ServeSettings(host='127.0.0.1', port=8000, store='store.db', secret_key='<hidden>', ")
    assert "graders_dir=PosixPath('graders')" in shown
    for text in (shown, str(settings), f"{settings}", pretty_repr(settings), repr([settings])):
        assert "master key" not in text
    assert settings.secret_key == SECRET


def test_it_shows_that_there_is_no_secret_key() -> None:
    assert "secret_key=None" in repr(ServeSettings())


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("", ""),
        ("memory://", "memory://"),
        ("/a@b/store.db", "/a@b/store.db"),
        ("sqlite:///a/store.db", "sqlite:///a/store.db"),
        ("postgresql://me:hunter2@db:5432/runs?sslmode=require", "postgresql://db:5432/runs"),
        ("postgresql://db/runs?password=hunter2", "postgresql://db/runs"),
        ("postgresql://me:hun@ter2@db/runs", "<hidden>"),
        ("mysql://me:hunter2@db/runs", "<hidden>"),
    ],
)
def test_a_store_is_shown_without_its_password(store: str, shown: str) -> None:
    assert f"store={shown!r}," in repr(ServeSettings(store=store))
