"""Hostile agents, called by the real command: each fault has its type, and other cases are not affected.

One run triggers every fault three times, between valid cases, at one server.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import pytest

from gradeline.model import Record
from gradeline.store import SqliteStorage
from gradeline.testing.fault_server import FAULTS, FaultServer
from gradeline_command import COMMAND, run_command

TOKEN = 'tok-wq7zkx"hvr8py'
"""Its quotation mark has JSON spell it in another way. Its parts are no hexadecimal numbers, as ids of traces are, which
had a part of four digits by chance."""
TIMEOUT = 5.0
RETRIES = 2
EACH = 3
GUARD = 60
T = TypeVar("T")

QUERY = ("how", "mb", "after", "s", "status", "to", "framing")
SUITE = {
    "name": "hostile",
    "dataset": "cases.jsonl",
    "max_concurrent": 400,
    "target": {
        "kind": "http",
        "url": "BASE/{{metadata.fault}}/{{metadata.part}}/{{id}}?echo=1&"
        + "&".join(f"{name}={{{{metadata.{name}}}}}" for name in QUERY),
        "headers": {"Authorization": "Bearer ${API_TOKEN}"},
        "timeout": TIMEOUT,
        "retries": RETRIES,
    },
    "graders": {"exact": {"kind": "exact_match"}},
}


class Expected(NamedTuple):
    """The result of a fault: its error type (None: a response), the number of calls, and a part of its message."""

    type: str | None
    attempts: int
    message_part: str = ""


ALL = RETRIES + 1
EXPECTED: dict[str, Expected] = {
    "hang": Expected("timeout", 1, "no complete response within 5 s"),
    "hang?after=2": Expected(
        "timeout", 2, "no complete response within 5 s; the previous attempt failed: answered 503"
    ),
    "drip": Expected("timeout", 1, "no complete response within 5 s"),
    "half-open": Expected("timeout", 1, "no complete response within 5 s"),
    "reset": Expected("reset", ALL, "the connection"),
    "truncated?how=length": Expected("truncated", ALL, "ended early"),
    "truncated?how=chunked": Expected("truncated", ALL, "ended early"),
    "truncated?how=gzip": Expected("truncated", ALL, "ended early"),
    "truncated?how=reset": Expected("reset", ALL, "the connection was lost during the response"),
    "status/400": Expected("status", 1, "answered 400"),
    "status/401": Expected("status", 1, "answered 401"),
    "status/404": Expected("status", 1, "answered 404"),
    "status/408": Expected("status", 1, "answered 408"),
    "status/422": Expected("status", 1, "answered 422"),
    "status/500": Expected("status", ALL, "answered 500"),
    "status/502": Expected("status", ALL, "answered 502"),
    "status/503": Expected("status", ALL, "answered 503"),
    "status/504": Expected("status", ALL, "answered 504"),
    "status/429": Expected("rate_limited", ALL, "answered 429"),
    "status/204": Expected("bad_response", 1, "the body is empty"),
    "status/304": Expected("status", 1, "answered 304"),
    # a response without the field of `response`, with the request's headers instead
    "status/200": Expected("bad_response", 1, "no text under response"),
    "retry-after/seconds?s=0&after=3": Expected(None, 3, "at last"),
    "retry-after/seconds?s=60": Expected("rate_limited", 1, "a pause of 60 s would exceed the deadline of 5 s"),
    "retry-after/seconds?s=60&status=503": Expected("status", 1, "a pause of 60 s would exceed the deadline of 5 s"),
    "retry-after/date?s=60": Expected("rate_limited", 1, "would exceed the deadline of 5 s"),
    "retry-after/date?s=-60&after=3": Expected(None, 3, "at last"),
    "retry-after/date?s=-60": Expected("rate_limited", ALL, "answered 429"),
    "retry-after/negative": Expected("rate_limited", ALL, "answered 429"),
    "retry-after/garbage": Expected("rate_limited", ALL, "answered 429"),
    "retry-after/garbage?status=503": Expected("status", ALL, "answered 503"),
    "retry-after/huge": Expected("rate_limited", ALL, "answered 429"),
    "retry-after/none": Expected("rate_limited", ALL, "answered 429"),
    "bad-json": Expected("bad_response", 1, "no JSON"),
    "deep-json": Expected("bad_response", 1, "nested too deeply"),
    "invalid-utf8": Expected("bad_response", 1, "not valid UTF-8"),
    "garbage": Expected("bad_response", 1, "invalid HTTP response"),
    "encoded/lie": Expected("bad_response", 1, "does not match its Content-Encoding"),
    "encoded/br": Expected("bad_response", 1, "unsupported Content-Encoding 'br'"),
    "redirect": Expected("redirect", 1, "without a Location"),
    "redirect?to=file:///etc/passwd": Expected("redirect", 1, "neither http nor https"),
    "redirect-loop": Expected("redirect", 1, "redirected in a loop"),
    "redirect-chain/9": Expected("redirect", 1, "redirected more than 5 times"),
    "redirect-chain/3": Expected(None, 1, "arrived"),
    "sse": Expected("bad_response", 1, "write stream: sse"),
    "sse-cut": Expected("truncated", ALL, "ended early"),
    "ndjson": Expected("bad_response", 1, "write stream: ndjson"),
    "slow": Expected(None, 1, "late"),
}
HEAVY = {
    "huge": Expected("too_large", 1, "larger than 10,000,000 bytes"),
    "gzip-bomb": Expected("too_large", 1, "larger than 10,000,000 bytes"),
    "endless": Expected("too_large", 1, "larger than 10,000,000 bytes"),
    "truncated?mb=9": Expected("truncated", 1, "ended early"),
}
"""These are asked in a run of their own, without retries, whose memory is measured."""
TYPES = {
    "timeout", "connect", "dns", "tls", "reset", "truncated", "too_large", "bad_response", "redirect", "rate_limited",
    "status",
}  # fmt: skip


class Agent:
    """The fault server in a thread of this process, so that its counts can be read."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self.server = FaultServer()

    def __enter__(self) -> FaultServer:
        self._thread.start()
        self._await(self.server.__aenter__())
        return self.server

    def __exit__(self, *_: object) -> None:
        self._await(self.server.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(GUARD)


@pytest.fixture(scope="module")
def server() -> Iterator[FaultServer]:
    with Agent() as server:
        yield server


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gradeline(folder: Path, *arguments: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command(
        [COMMAND, *arguments],
        cwd=folder,
        env={**environment, "NO_COLOR": "1", "API_TOKEN": TOKEN},
        timeout=GUARD,
    )
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def records(folder: Path) -> dict[str, Record]:
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        return {record.case: record for record in storage.records(storage.find_run("latest").id)}


def sound(name: str) -> dict[str, Any]:
    return {"id": name, "input": name, "ground_truth": name, "metadata": metadata("ok")}


def faulty_case(fault: str, name: str) -> dict[str, Any]:
    return {"id": name, "input": name, "ground_truth": name, "metadata": metadata(fault)}


def metadata(fault: str) -> dict[str, str]:
    place, _, query = fault.partition("?")
    name, _, part = place.partition("/")
    parameters = dict(pair.split("=", 1) for pair in query.split("&") if pair)
    # every other server must wait for a retry that is not the last one for ever
    defaults = {
        "how": "length",
        "mb": "0",
        "after": "1" if name == "hang" else "99",
        "s": "1",
        "to": "",
        "framing": "chunked",
    }
    status = "302" if name == "redirect" else "429"
    return {"fault": name, "part": part or "-", **defaults, "status": status, **parameters}


def write(folder: Path, server: FaultServer, rows: list[dict[str, Any]], **changes: Any) -> None:
    """A suite with these cases; ``changes`` override options of its target."""
    target = {**SUITE["target"], "url": SUITE["target"]["url"].replace("BASE", server.url), **changes}
    (folder / "suite.json").write_text(json.dumps({**SUITE, "target": target}))
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))


def leaks(folder: Path, *ran: CommandResult) -> list[str]:
    """Where a part of the token can be read: files of the folder, the store's among them, or what was printed."""
    places = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for one in ran:
        places |= {"stdout": one.out.encode(), "stderr": one.err.encode()}
    return [place for place, content in places.items() if b"wq7zkx" in content or b"hvr8py" in content]


def attempts(server: FaultServer) -> dict[str, int]:
    """The number of calls per case, without requests after a redirect."""
    return {path.rpartition("/")[2]: count for path, count in server.hits.items()}


def slug(fault: str, number: int) -> str:
    return re.sub(r"[^a-z0-9-]+", "_", fault) + f"_{number}"


class HostileRun(NamedTuple):
    """The run of all faults."""

    folder: Path
    ran: CommandResult
    records: dict[str, Record]
    attempts: dict[str, int]


@pytest.fixture(scope="module")
def everything(server: FaultServer, tmp_path_factory: pytest.TempPathFactory) -> HostileRun:
    folder = tmp_path_factory.mktemp("everything")
    rows = []
    for number in range(EACH):
        for fault in EXPECTED:
            rows += [faulty_case(fault, slug(fault, number)), sound(f"sound_{len(rows)}")]
    write(folder, server, rows)
    ran = gradeline(folder, "run", "suite.json", "--json")
    return HostileRun(folder, ran, records(folder), attempts(server))


class TestEveryFault:
    def test_every_fault_is_tested(self) -> None:
        assert {re.split(r"[/?]", fault)[0] for fault in (*EXPECTED, *HEAVY)} | {"ok"} == set(FAULTS)
        error_types = {expected.type for expected in EXPECTED.values() if expected.type is not None}
        assert error_types == TYPES - {"too_large", "connect", "dns", "tls"}

    @pytest.mark.parametrize("fault", EXPECTED)
    def test_it_has_its_error_type_and_number_of_attempts(self, everything: HostileRun, fault: str) -> None:
        expected = EXPECTED[fault]
        for number in range(EACH):
            name = slug(fault, number)
            response = everything.records[name].response
            grade = everything.records[name].grades["exact"]
            assert everything.attempts[name] == expected.attempts
            if expected.type is None:
                assert (response.status, response.text, response.error) == ("success", expected.message_part, None)
                continue
            assert response.error is not None, response
            assert response.error.type == expected.type
            assert response.status == ("timeout" if expected.type == "timeout" else "error")
            assert expected.message_part in response.error.message
            assert (grade.outcome.value, grade.score, grade.passed) == ("skipped", None, None)

    @pytest.mark.parametrize("fault", [fault for fault, expected in EXPECTED.items() if expected.type is not None])
    def test_its_message_names_the_place_and_is_short(
        self, everything: HostileRun, server: FaultServer, fault: str
    ) -> None:
        for number in range(EACH):
            error = everything.records[slug(fault, number)].response.error
            assert error is not None
            place = re.split(r"[/?]", fault)[0]
            assert f"{server.url}/{place}/" in error.message
            assert len(error.message.encode()) < 2048 + 600
            tried = EXPECTED[fault].attempts
            assert (f"(tried {tried} times)" in error.message) is (tried > 1)

    def test_a_deadline_is_kept(self, everything: HostileRun) -> None:
        for fault, expected in EXPECTED.items():
            for number in range(EACH):
                took = everything.records[slug(fault, number)].response.latency_ms
                assert took is not None
                assert (took > TIMEOUT * 999) is (expected.type == "timeout")


class TestEverythingAtOnce:
    def test_the_valid_cases_all_pass(self, everything: HostileRun) -> None:
        names = [name for name in everything.records if name.startswith("sound_")]
        assert len(names) == EACH * len(EXPECTED)
        for name in names:
            record = everything.records[name]
            assert (record.response.text, record.grades["exact"].passed) == (name, True)
            assert everything.attempts[name] == 1

    def test_the_summary_counts_each_error_type(self, everything: HostileRun) -> None:
        types = [expected.type for expected in EXPECTED.values()]
        late, answered = types.count("timeout"), types.count(None)
        summary = everything.ran.json["summary"]
        assert summary["responses"] == {
            "success": EACH * (len(types) + answered),
            "error": EACH * (len(types) - late - answered),
            "timeout": EACH * late,
        }
        exact = summary["graders"]["exact"]
        assert (exact["passed"], exact["failed"]) == (EACH * len(types), EACH * answered)
        assert (exact["errors"], exact["skipped"]) == (0, EACH * (len(types) - answered))
        assert exact["scored"] == EACH * (len(types) + answered)

    def test_too_many_failed_calls_are_undecided(self, everything: HostileRun) -> None:
        assert everything.ran.code == 3
        assert everything.ran.json["run"]["status"] == "completed"
        assert "Traceback" not in everything.ran.err

    def test_the_token_was_sent_and_is_not_stored(self, everything: HostileRun, server: FaultServer) -> None:
        assert {request.headers.get("authorization") for request in server.received} == {f"Bearer {TOKEN}"}
        echoed = everything.records[slug("status/500", 0)].response.error
        assert echoed is not None
        assert "authorization" in echoed.message
        assert not leaks(everything.folder, everything.ran)

    def test_a_token_echoed_in_a_valid_response_is_not_stored(self, server: FaultServer, tmp_path: Path) -> None:
        write(tmp_path, server, [faulty_case("status/200", "echo")], response={"output": "error"})
        ran = gradeline(tmp_path, "run", "suite.json", "--json")
        record = records(tmp_path)["echo"]
        assert record.response.status == "success"
        assert record.response.cleaned
        assert json.loads(record.response.text or "")["authorization"] == "***"
        assert not leaks(tmp_path, ran)


class TestNoServer:
    """Faults before any request: there is no server to count."""

    @pytest.mark.parametrize(
        ("url", "error_type", "message_part"),
        [
            ("http://127.0.0.1:{closed}/", "connect", "(tried 3 times): could not connect"),
            ("http://nowhere.invalid/", "dns", "(tried 3 times): the host name could not be resolved"),
            ("https://127.0.0.1:{open}/", "tls", "/: TLS connection failed"),
        ],
    )
    def test_the_error_has_its_type(
        self, server: FaultServer, tmp_path: Path, url: str, error_type: str, message_part: str
    ) -> None:
        with socket.socket() as held:  # bound, but not listening
            held.bind(("127.0.0.1", 0))
            place = url.format(closed=held.getsockname()[1], open=server.url.rpartition(":")[2])
            write(tmp_path, server, [sound("a"), sound("b")], url=place)
            ran = gradeline(tmp_path, "run", "suite.json", "--json")
        assert ran.code == 4
        assert ran.json["summary"]["responses"] == {"success": 0, "error": 2, "timeout": 0}
        for record in records(tmp_path).values():
            assert record.response.error is not None
            assert (record.response.status, record.response.error.type) == ("error", error_type)
            assert record.response.error.message.startswith(f"POST {place}")
            assert message_part in record.response.error.message


class TestStreams:
    @pytest.mark.parametrize(
        ("stream", "faults"),
        [
            (
                "sse",
                {
                    "sse": Expected(None, 1, "Paristwo\nlines"),
                    "sse-cut": Expected("truncated", ALL, "ended early"),
                    "sse-cut?framing=close": Expected("truncated", 1, "without its end marker"),
                    "endless": Expected("too_large", 1, "larger than 10,000,000 bytes"),
                    "ok": Expected("bad_response", 1, "no event"),
                },
            ),
            (
                "ndjson",
                {
                    "ndjson": Expected(None, 1, "Paris"),
                    "bad-json": Expected("bad_response", 1, "no JSON"),
                    "endless": Expected("too_large", 1, "larger than 10,000,000 bytes"),
                },
            ),
        ],
    )
    def test_a_truncated_or_endless_stream_is_an_error(
        self, server: FaultServer, tmp_path: Path, stream: str, faults: dict[str, Expected]
    ) -> None:
        rows = [faulty_case(fault, slug(f"{stream}-{fault}", 0)) for fault in faults]
        write(tmp_path, server, rows, stream=stream, timeout=30)
        assert gradeline(tmp_path, "run", "suite.json", "--json").code == 3
        for fault, record in zip(faults, records(tmp_path).values(), strict=True):
            found = Expected(
                record.response.error.type if record.response.error else None,
                attempts(server)[record.case],
                faults[fault].message_part,
            )
            assert found == faults[fault], record.response
            assert found.message_part in (
                record.response.error.message if record.response.error else record.response.text or ""
            )


class TestExitCodes:
    GATE = {"kind": "simple", "metric_key": "exact", "aggregation": "avg_score", "op": "gte", "value": 0.9}

    @pytest.mark.parametrize(
        ("good", "bad", "rules", "code", "result"),
        [
            (19, 1, {}, 0, "none"),
            (19, 1, {"gate": GATE}, 0, "pass"),
            (18, 2, {"gate": GATE}, 3, "undecided"),
            (17, 3, {"gate": GATE, "agent_errors": "fail"}, 1, "fail"),
            (0, 2, {"gate": GATE}, 4, "undecided"),
        ],
    )
    def test_failed_calls_are_neither_passes_nor_failures(
        self, server: FaultServer, tmp_path: Path, good: int, bad: int, rules: dict[str, Any], code: int, result: str
    ) -> None:
        rows = [sound(f"good_{number}") for number in range(good)]
        rows += [faulty_case("status/404", f"bad_{number}") for number in range(bad)]
        write(tmp_path, server, rows)
        suite = json.loads((tmp_path / "suite.json").read_text())
        (tmp_path / "suite.json").write_text(json.dumps({**suite, **rules}))
        ran = gradeline(tmp_path, "run", "suite.json", "--json")
        assert (ran.code, ran.json["exit_code"], ran.json["verdict"]["result"]) == (code, code, result)
        exact = ran.json["summary"]["graders"]["exact"]
        assert (exact["passed"], exact["failed"], exact["errors"], exact["skipped"]) == (good, 0, 0, bad)


MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, timeout=60)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
CAP = 10_000_000


class TestMemory:
    def test_endless_bodies_do_not_accumulate_in_memory(self, server: FaultServer, tmp_path: Path) -> None:
        """One call at a time: one truncated body, twice while its buffer grows, and the allocator's overhead."""
        peaks = []
        for name, faults in (("sound", []), ("heavy", list(HEAVY) * EACH)):
            folder = tmp_path / name
            folder.mkdir()
            rows = [sound(f"{name}_sound_{number}") for number in range(10)]
            rows[5:5] = [faulty_case(fault, slug(fault, number)) for number, fault in enumerate(faults)]
            write(folder, server, rows, timeout=30, concurrency=1, retries=0)
            # what a process has used is also counted for the one it becomes, so the child is of a small parent
            done = subprocess.run(
                [sys.executable, "-c", MEASURE, COMMAND, "run", "suite.json", "--quiet"],
                cwd=folder, capture_output=True, check=True, timeout=GUARD, env={**os.environ, "API_TOKEN": TOKEN},
            )  # fmt: skip
            code, peak = map(int, done.stdout.split())
            assert code == (3 if faults else 0)
            peaks.append(peak)
            found = records(folder)
            for row in rows:
                record = found[row["id"]]
                if "sound" in row["id"]:
                    assert (record.response.text, record.grades["exact"].passed) == (row["id"], True)
            for number, fault in enumerate(faults):
                self.check(found[slug(fault, number)], HEAVY[fault], server)
        assert peaks[1] - peaks[0] < 3 * CAP

    def check(self, record: Record, expected: Expected, server: FaultServer) -> None:
        error = record.response.error
        assert error is not None
        assert (error.type, expected.message_part in error.message) == (expected.type, True)
        assert attempts(server)[record.case] == expected.attempts
