"""``gradeline view``: a store in a browser, on this machine only."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gradeline.cli import serve as view_module
from gradeline.model import Run
from gradeline.store.sqlite import SqliteStorage
from gradeline_command import COMMAND, AnyCommand, start_command

Start = Callable[..., AnyCommand]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the command in a folder of its own."""
    started: list[AnyCommand] = []

    def run(*options: str, **environment: str) -> AnyCommand:
        variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment}
        process = start_command([COMMAND, "view", *options], cwd=tmp_path, env=variables)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: AnyCommand) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def get(url: str) -> Any:
    with urlopen(url, timeout=60) as answer:
        return answer.read()


def test_it_serves_the_store_of_the_project_until_it_is_interrupted(tmp_path: Path, start: Start) -> None:
    (tmp_path / ".gradeline").mkdir()
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        run = storage.save_run(Run(name="mine", suite="s", status="completed", total=0))
    process = start("--no-browser", "--json")
    url = json.loads(line(process))["url"]
    assert url.startswith("http://127.0.0.1:")
    listed = json.loads(get(f"{url}/api/evaluations"))["data"]["evaluations"]
    assert [(one["id"], one["name"]) for one in listed] == [(run, "mine")]
    assert b"<html" in get(f"{url}/").lower()
    process.send_signal(signal.SIGINT)
    assert (process.wait(timeout=60), process.communicate()) == (0, ("", ""))


def test_two_servers_use_different_ports(start: Start) -> None:
    urls = {line(start("--no-browser", "--quiet", "--store", "memory://")).strip() for _ in range(2)}
    assert len(urls) == 2


def test_it_prints_its_url_and_opens_it_in_the_browser(tmp_path: Path, start: Start) -> None:
    seen = tmp_path / "seen"
    browser = tmp_path / "browser"
    # the pipe is opened for reading below: the test continues when the browser was called
    os.mkfifo(seen)
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{seen}"\n')
    browser.chmod(0o755)
    process = start("--store", "memory://", BROWSER=str(browser))
    message = line(process)
    url = message.split()[3].rstrip(";")
    assert message == f"gradeline is at {url}; stop with Ctrl-C\n"
    assert seen.read_text() == url


def test_no_browser_option_opens_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    called: list[str] = []
    monkeypatch.setattr(webbrowser, "open", called.append)
    monkeypatch.setattr(view_module, "_announce_view", called.append)
    view_module._opener("http://127.0.0.1:1", browse=False)()
    assert called == ["http://127.0.0.1:1"]


def test_a_store_that_cannot_be_opened_is_reported_in_one_line(tmp_path: Path, start: Start) -> None:
    (tmp_path / "no.db").write_text("this is no database, however long one looks at it" * 10)
    process = start("--no-browser", "--store", str(tmp_path / "no.db"))
    message, error = process.communicate(timeout=60)
    assert (message, process.returncode) == ("", 4)
    assert error.startswith("gradeline: ")
    assert "Traceback" not in error
