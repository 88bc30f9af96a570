"""The echo matrix: no stored or returned data contains a secret that an agent echoes in any form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import duckdb
import pytest

from .echoing_agent import COOKIE, STREAMED, VALUE, WAYS, EchoingAgent, echoes_of, forms_of
from .live import Server


@pytest.fixture
def agent() -> Iterator[EchoingAgent]:
    with EchoingAgent().at_work() as server:
        yield server


def raw(server: Server, path: str) -> bytes:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse().read()
    connection.close()
    return answer


def parquet_text(file: bytes, folder: Path) -> bytes:
    """Every value of a Parquet file, whose own bytes are compressed."""
    path = folder / "results.parquet"
    path.write_bytes(file)
    rows = duckdb.sql(f"SELECT * FROM read_parquet('{path}')").fetchall()
    assert rows
    return "\n".join(str(value) for row in rows for value in row).encode()


@pytest.mark.parametrize("place", ["header", "query", "body", "cookie"])
def test_no_stored_or_returned_data_contains_an_echoed_secret(tmp_path: Path, agent: EchoingAgent, place: str) -> None:
    value = COOKIE if place == "cookie" else VALUE
    host = agent.host
    reference = {"secret": "KEY"}
    target: dict[str, Any] = {"kind": "http", "url": f"http://{host}/ask", "retries": 0}
    if place in ("header", "cookie"):
        target["headers"] = {"X-Key" if place == "header" else "Cookie": reference}
    elif place == "query":
        target["query"] = {"key": reference}
    else:
        target["request"] = {"input": "{{input}}", "key": reference}
    store, log, key = tmp_path / "data" / "store.db", tmp_path / "log", tmp_path / "key"
    store.parent.mkdir()
    key.write_text("a master key of the tests, long enough")
    stored = {"value": value, "host": host, "place": "header" if place == "cookie" else place}
    shown = []
    with Server(store, "--secret-key-file", str(key), log=log) as server:
        shown.append(json.dumps(server.data("PUT", "/api/secrets/KEY", stored)).encode())
        for stream, ways in (("none", WAYS), ("sse", STREAMED)):
            echoes = echoes_of(*ways)
            paths = {"output": "delta"} if stream == "sse" else {"tool_calls": "calls", "error": "error"}
            suite = {
                "name": "echo",
                "target": {**target, "stream": stream, "response": paths},
                "graders": {"has": {"kind": "contains"}},
                "dataset": [{"id": one, "input": one, "ground_truth": "you sent"} for one in echoes],
            }
            run = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
            assert server.until_ended(run)["status"] == "completed"
            shown += [json.dumps(list(event)).encode() for event in server.events(run)]
            results = server.data("GET", f"/api/evaluations/{run}/results")["results"]
            masked = {
                one["test_case_id"] for one in results if "***" in f"{one['agent_response']}{one['error_message']}"
            }
            assert masked == set(echoes) - set(echoes_of("redirect loop"))
            paths_shown = ["", "/results", "/suite", *(f"/results/{quote(one['result_id'])}" for one in results)]
            paths_shown += [f"/export?format={kind}" for kind in ("json", "csv", "jsonl", "junit", "html")]
            shown += [raw(server, f"/api/evaluations/{run}{path}") for path in paths_shown]
            shown.append(parquet_text(raw(server, f"/api/evaluations/{run}/export?format=parquet"), tmp_path))
            for one in echoes[:: len(echoes) // 3]:
                shown.append(
                    json.dumps(
                        server.call("POST", "/api/evaluations/try", {"target": suite["target"], "input": one})
                    ).encode()
                )
        shown += [raw(server, path) for path in ("/api/secrets", "/api/audit", "/api/evaluations")]
        kept = {file.name: file.read_bytes() for file in (*store.parent.iterdir(), log)}
        assert server.terminate() == 0
    kept |= {file.name: file.read_bytes() for file in (*store.parent.iterdir(), log)}
    assert len(agent.seen) >= len(echoes_of(*WAYS, *STREAMED))
    assert set(agent.seen) == {value}
    for form in forms_of(value) | forms_of(value.partition("=")[2] or value):
        assert [name for name, content in kept.items() if form in content] == []
        assert [content[:300] for content in shown if form in content] == []
