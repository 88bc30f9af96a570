"""Datasets of the Hub, from a stand-in that serves the shapes of the real one."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import gradeline
from gradeline.errors import ConfigError
from gradeline.model.resources import Resources
from gradeline.suite import hub as hub_module
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import DatasetSource, with_local_files
from gradeline.suite.hub import HubDataset
from gradeline.transport import PublicOnly

duckdb = pytest.importorskip("duckdb")
FIRST, SECOND = "a" * 40, "b" * 40
NAME = "hf://datasets/me/quiz/main/test"


class Hub(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.head = FIRST
        self.files: dict[str, dict[str, bytes]] = {FIRST: {}, SECOND: {}}
        self.asked: list[tuple[str, str | None, str | None]] = []
        self.token: str | None = None
        self.fail_after = 10**9
        self.wrong_digest = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.server
        path = unquote(self.path.partition("?")[0])
        hub.asked.append((path, self.headers.get("Range"), self.headers.get("Authorization")))
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self.reply(401, b"{}")
        if path == "/api/datasets/me/quiz/revision/refs/convert/parquet":
            return self.reply(200, json.dumps({"sha": hub.head}).encode())
        if found := re.fullmatch(r"/api/datasets/me/quiz/tree/([0-9a-f]{40})/?(.*)", path):
            return self.tree(hub.files[found[1]], found[2])
        if found := re.fullmatch(r"/datasets/me/quiz/resolve/([0-9a-f]{40})/(.*)", path):
            if len(hub.asked) > hub.fail_after:
                return self.reply(500, b"broken")
            self.send_response(302)
            self.send_header("Location", f"/cdn/{found[1]}/{found[2]}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        if found := re.fullmatch(r"/cdn/([0-9a-f]{40})/(.*)", path):
            start, end = map(int, re.findall(r"\d+", self.headers["Range"]))
            return self.reply(206, hub.files[found[1]][found[2]][start : end + 1])
        return self.reply(404, b"{}")

    def tree(self, files: dict[str, bytes], folder: str) -> None:
        inside = [path.removeprefix(f"{folder}/" if folder else "") for path in files if path.startswith(folder)]
        names = {name.partition("/")[0] for name in inside}
        if not inside:
            return self.reply(404, b"{}")
        page = int((re.search(r"cursor=(\d+)", self.path) or [0, 0])[1])
        entries = [self.entry(files, f"{folder}/{name}".strip("/")) for name in sorted(names, reverse=True)]
        link = None
        if len(entries) > page + 1:
            link = f'<{self.server.url}{self.path.partition("?")[0]}?cursor={page + 1}>; rel="next"'
        return self.reply(200, json.dumps(entries[page : page + 1]).encode(), link)

    def entry(self, files: dict[str, bytes], path: str) -> dict[str, Any]:
        if path not in files:
            return {"type": "directory", "path": path, "size": 0, "oid": "0" * 40}
        digest = "0" * 64 if self.server.wrong_digest else sha256(files[path]).hexdigest()
        size = len(files[path])
        return {"type": "file", "path": path, "size": size, "oid": "1" * 40, "lfs": {"oid": digest, "size": size}}

    def reply(self, status: int, body: bytes, link: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if link:
            self.send_header("Link", link)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    for commit, word in ((FIRST, "old"), (SECOND, "new")):
        for shard in range(2):
            path = tmp_path / f"{shard}.parquet"
            select = f"SELECT '{word} {shard} ' || i AS question, i AS answer FROM range(3) r(i)"
            duckdb.connect(":memory:").execute(f"COPY ({select}) TO '{path}' (FORMAT parquet)")
            server.files[commit][f"main/test/000{shard}.parquet"] = path.read_bytes()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def environment(hub: Hub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "GRADELINE_CACHE": str(tmp_path / "cache")}


def fetch(name: str, environment: dict[str, str], resources: Resources | None = None) -> DatasetSource:
    source = DatasetSource((HubDataset.parse(name),), columns={"input": "question", "ground_truth": "answer"})
    return asyncio.run(with_local_files(source, resources or Resources(), environment))


def inputs(source: DatasetSource) -> list[Any]:
    return [sample.input for sample in open_dataset(source)]


def test_all_shards_come_in_order_and_once(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    source = fetch(NAME, environment)
    assert inputs(source) == [f"old {shard} {i}" for shard in range(2) for i in range(3)]
    assert source.revisions == {NAME: FIRST}
    downloads = len([path for path, *_ in hub.asked if path.startswith("/cdn")])
    assert inputs(fetch(NAME, environment)) == inputs(source)
    assert len([path for path, *_ in hub.asked if path.startswith("/cdn")]) == downloads
    assert not list(tmp_path.rglob("*.partial"))


def test_a_pinned_revision_stays_and_needs_no_hub_a_second_time(hub: Hub, environment: dict[str, str]) -> None:
    pinned = NAME.replace("quiz", f"quiz@{FIRST}")
    first = fetch(pinned, environment)
    hub.head = SECOND
    asked = len(hub.asked)
    assert fetch(pinned, environment).files == first.files
    assert len(hub.asked) == asked
    assert first.revisions == {}
    assert inputs(fetch(NAME, environment))[0] == "new 0 0"


def test_a_download_continues_where_it_was_interrupted(
    hub: Hub, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "_PIECE", 100)
    hub.fail_after = 7
    monkeypatch.setattr("gradeline.transport.client.Backoff.pause", lambda *_: 0.0)
    with pytest.raises(ConfigError, match="answered 500"):
        fetch(NAME, environment)
    hub.fail_after = 10**9
    hub.asked.clear()
    assert len(inputs(fetch(NAME, environment))) == 6
    ranges = [asked for path, asked, _ in hub.asked if path.startswith("/cdn") and path.endswith("0000.parquet")]
    assert ranges[0] != "bytes=0-99"


def test_what_arrives_with_another_digest_is_refused(hub: Hub, environment: dict[str, str], tmp_path: Path) -> None:
    hub.wrong_digest = True
    with pytest.raises(ConfigError, match="does not match its digest"):
        fetch(NAME, environment)
    assert not list(tmp_path.rglob("cache/**/*.parquet*"))


def test_the_token_is_sent_to_the_hub_and_shown_nowhere(hub: Hub, environment: dict[str, str]) -> None:
    hub.token = "hf_secretsecret"
    with pytest.raises(ConfigError, match="access denied; set HF_TOKEN if it is private or gated"):
        fetch(NAME, environment)
    with pytest.raises(ConfigError) as caught:
        fetch(NAME, {**environment, "HF_TOKEN": "hf_wrongwrong"})
    assert "the HF_TOKEN has no access to it" in str(caught.value)
    assert "hf_wrongwrong" not in str(caught.value)
    assert len(inputs(fetch(NAME, {**environment, "HF_TOKEN": hub.token}))) == 6


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf://datasets/me/quis/main/test", "no dataset 'me/quis', or the Hub did not convert it to Parquet"),
        ("hf://datasets/me/quiz/main/tests", "no split 'tests' in 'main'; did you mean 'test'?"),
        ("hf://datasets/me/quiz/mein/test", "no config 'mein'; did you mean 'main'?"),
        (f"hf://datasets/me/quiz@{'c' * 7}/main/test", "no dataset 'me/quiz' with the revision 'ccccccc'"),
    ],
)
def test_a_wrong_name_is_refused_with_what_exists(environment: dict[str, str], name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(name, environment)
    assert f"{name}: {message}" in str(caught.value)


def test_a_part_that_was_converted_is_named(hub: Hub, environment: dict[str, str]) -> None:
    hub.files[FIRST] = {path.replace("/test", "/partial-test"): data for path, data in hub.files[FIRST].items()}
    with pytest.raises(ConfigError, match=r"only the first part of 'test'.*hf://datasets/me/quiz/main/partial-test"):
        fetch(NAME, environment)


def test_the_egress_policy_is_asked(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="a loopback address"):
        fetch(NAME, environment, Resources(policy=PublicOnly()))


def test_a_run_records_the_revision_and_resumes_with_it(
    hub: Hub, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    suite = {
        "name": "hub",
        "dataset": NAME,
        "columns": {"input": "question", "ground_truth": "answer"},
        "target": lambda text: text.rpartition(" ")[2],
        "graders": {"right": {"kind": "string-match"}},
    }
    first = gradeline.run_suite(suite, store="memory://")
    assert (first.run.status, len(list(first.records()))) == ("completed", 6)
    assert json.loads(first.run.definition or "")["revisions"] == {NAME: FIRST}
    hub.head = SECOND
    assert gradeline.run_suite(suite, store="memory://").run.suite_digest != first.run.suite_digest
