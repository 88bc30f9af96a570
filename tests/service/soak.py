"""Keeps a service under mixed load while one of its servers is killed over and over, then checks that nothing is lost.

    make soak-service                                                    an hour
    make soak-service DURATION=120                                       two minutes, as continuous integration does
    python tests/service/soak.py --seconds 60 --backend postgresql       one database only

Two servers share a store. One is killed with SIGKILL, or stopped with SIGTERM, every few seconds; the other one stays, and
its memory is watched. Meanwhile runs are started, cancelled, listened to, exported and deleted, cases are imported and
deleted, and the store is backed up. At the end both servers are killed, a new one finishes what is left, and the store
is compared with everything that was acknowledged.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from threading import Event, Lock, Thread
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

import click

sys.path.insert(0, str(Path(__file__).parent.parent))

from live import EchoAgent, Server, Sse, _events, suite_of

from gradeline.store import PostgresStorage, SqliteStorage, open_storage
from gradeline.store.maintenance import check_store
from postgres_server import Server as PostgresServer

ENDED = ("completed", "failed", "cancelled")
AWAY = (OSError, HTTPException, ValueError)
"""The errors of a caller whose server is killed: no connection, half an answer."""
LISTENERS = 4
PAUSE_S = (2.0, 6.0)
"""Between two kills."""
FINISH_S = 600.0
MOST_GROWTH = 1.5
ALLOWANCE_MIB = 64


class Soak:
    """The load on one store, and what was acknowledged to it."""

    def __init__(self, store: str, folder: Path, seed: int) -> None:
        self.store = store
        self.folder = folder
        self.chance = random.Random(seed)
        self.stop = Event()
        self.failures: list[str] = []
        self.done: Counter[str] = Counter()
        self.memory: list[float] = []
        """Of the server that stays, in MiB."""
        self.runs: dict[str, int] = {}
        """Acknowledged runs that were not deleted, with the number of their cases."""
        self.deleted_runs: set[str] = set()
        self.in_doubt: set[str] = set()
        """Runs whose deletion was not answered."""
        self.imported: dict[str, int] = {}
        """Acknowledged imports: cases by tag."""
        self.deleted_cases: set[str] = set()
        self._lock = Lock()
        self.agent = EchoAgent(0.005)
        self.steady = Server(store)
        self.victim: Server | None = None

    def run(self, seconds: float) -> None:
        """Run all loads concurrently for this time."""
        work: list[Callable[[], None]] = [
            self._kill,
            self._start,
            self._start,
            self._cancel,
            self._import,
            self._export,
        ]
        work += [self._delete_run, self._delete_cases, self._back_up, self._watch_memory]
        work += [self._listen] * LISTENERS
        with self.agent:
            threads = [Thread(target=self._repeated, args=(one,), daemon=True) for one in work]
            for thread in threads:
                thread.start()
            self.stop.wait(seconds)
            self.stop.set()
            for thread in threads:
                thread.join(FINISH_S)
                if thread.is_alive():
                    self.failures.append(f"{thread.name} did not end")
            self.steady.kill()
            if self.victim is not None:
                self.victim.kill()
            self._finish()
        self._compare()

    def _repeated(self, act: Callable[[], None]) -> None:
        while not self.stop.is_set():
            try:
                act()
            except AWAY:
                time.sleep(0.1)
            except Exception:
                self.failures.append(f"{act.__name__}:\n{traceback.format_exc()}")
                self.stop.set()

    # the servers

    def _kill(self) -> None:
        if self.victim is None:
            self.victim = Server(self.store)
        self.stop.wait(self.chance.uniform(*PAUSE_S))
        if self.chance.random() < 0.25:
            code = self.victim.terminate()
            assert code == 0, f"a server that was asked to stop ended with {code}"
            self.done["stops"] += 1
        else:
            self.victim.signal(signal.SIGKILL)
            self.victim.kill()
            self.done["kills"] += 1
        self.victim = None

    def _watch_memory(self) -> None:
        status = Path(f"/proc/{self.steady.pid}/status").read_text()
        self.memory.append(next(int(line.split()[1]) for line in status.splitlines() if line[:6] == "VmRSS:") / 1024)
        self.stop.wait(0.5)

    def _server(self) -> Server:
        victim = self.victim
        return victim if victim is not None and self.chance.random() < 0.5 else self.steady

    # the load

    def _start(self) -> None:
        cases = self.chance.randint(5, 40)
        suite = suite_of(self.agent, cases, prefix=uuid4().hex[:8], concurrency=8, wrong=cases // 4)
        key = {"Idempotency-Key": uuid4().hex}
        while True:  # until it is acknowledged: with its key it is started once
            try:
                status, answer = self._server().call("POST", "/api/evaluations", {"suite": suite}, **key)
            except AWAY:
                status, answer = 0, None
            if status == 201:
                break
            assert status in (0, 409, 429, 503), answer
            time.sleep(0.1)
        with self._lock:
            assert answer["data"]["id"] not in self.runs
            self.runs[answer["data"]["id"]] = cases
        self.done["runs started"] += 1
        self.stop.wait(self.chance.uniform(0.2, 1.0))

    def _cancel(self) -> None:
        self.stop.wait(self.chance.uniform(1.0, 3.0))
        run = self._some_run()
        if run is not None:
            status, answer = self._server().call("POST", f"/api/evaluations/{run}/cancel", {})
            assert status in (202, 200, 404, 409, 429, 503), answer
            self.done["runs cancelled"] += status in (200, 202)

    def _listen(self) -> None:
        """To one run, to its end, through whatever server there is: no event is missing, none comes twice."""
        run = self._some_run()
        if run is None:
            self.stop.wait(0.2)
            return
        last: int | None = None
        while not self.stop.is_set():
            with suppress(*AWAY):
                for event in self._stream(run, last):
                    expected = event.kind == "snapshot" or last is None or event.id == last + 1
                    assert expected, f"run {run}: event {event.id} after {last}"
                    last = event.id
                    self.done["events heard"] += 1
                    if event.kind == "done":
                        self.done["runs heard to the end"] += 1
                        return
                    if self.stop.is_set():
                        return
            if run in self.deleted_runs or run in self.in_doubt:
                return
            time.sleep(0.1)

    def _stream(self, run: str, last: int | None) -> Iterator[Sse]:
        headers = {} if last is None else {"Last-Event-ID": str(last)}
        connection = HTTPConnection(urlsplit(self._server().url).netloc, timeout=30)
        try:
            connection.request("GET", f"/api/evaluations/{run}/events", None, headers)
            response = connection.getresponse()
            if response.status == 200:
                yield from _events(response)
        finally:
            connection.close()

    def _import(self) -> None:
        tag, number = uuid4().hex[:12], self.chance.randint(5, 50)
        rows = [{"input": f"{tag} {n}", "expected_output": "x", "tags": [tag]} for n in range(number)]
        body = "\n".join(json.dumps(row) for row in rows).encode()
        connection = HTTPConnection(urlsplit(self._server().url).netloc, timeout=60)
        try:
            connection.request("POST", "/api/test-cases/import", body, {"Content-Type": "application/x-ndjson"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status in (201, 429, 503), answer
            if response.status == 201:
                self.imported[tag] = number
                self.done["cases imported"] += number
        finally:
            connection.close()
        self.stop.wait(self.chance.uniform(0.2, 1.0))

    def _export(self) -> None:
        self.stop.wait(self.chance.uniform(0.5, 2.0))
        run = self._some_run()
        if run is None:
            return
        server = self._server()
        connection = HTTPConnection(urlsplit(server.url).netloc, timeout=60)
        try:
            connection.request("GET", f"/api/evaluations/{run}/export?format=jsonl")
            response = connection.getresponse()
            lines = response.read().splitlines()
            assert response.status in (200, 404, 429, 503), lines
            keys = [json.loads(line).get("test_case_id") or line for line in lines] if response.status == 200 else []
            assert len(keys) == len(set(keys)), f"run {run}: a result was exported twice"
            self.done["runs exported"] += response.status == 200
        finally:
            connection.close()

    def _delete_run(self) -> None:
        self.stop.wait(self.chance.uniform(2.0, 5.0))
        run = self._some_run()
        if run is None:
            return
        with self._lock:
            self.in_doubt.add(run)
        status, answer = self._server().call("DELETE", f"/api/evaluations/{run}")
        assert status in (204, 404, 409, 429, 503), answer
        with self._lock:
            if status in (204, 404):
                self.deleted_runs.add(run)
                self.runs.pop(run, None)
                self.done["runs deleted"] += status == 204
            elif status == 409:
                self.in_doubt.discard(run)

    def _delete_cases(self) -> None:
        self.stop.wait(self.chance.uniform(1.0, 3.0))
        if not self.imported:
            return
        tag = self.chance.choice(list(self.imported))
        listed = self._server().call("GET", f"/api/test-cases?tag={quote(tag)}&limit=2")
        for case in listed[1]["data"]["test_cases"] if listed[0] == 200 else ():
            status, answer = self._server().call("DELETE", f"/api/test-cases/{case['id']}")
            assert status in (204, 404, 429, 503), answer
            if status == 204:
                self.deleted_cases.add(case["id"])
                self.done["cases deleted"] += 1

    def _back_up(self) -> None:
        self.stop.wait(15)
        file = self.folder / "backup.db"
        command = [
            sys.executable,
            "-m",
            "gradeline",
            "store",
            "backup",
            str(file),
            "--overwrite",
            "--store",
            self.store,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FINISH_S)
        assert done.returncode == 0, done.stdout + done.stderr
        self.done["backups"] += 1

    def _some_run(self) -> str | None:
        with self._lock:
            runs = [run for run in self.runs if run not in self.in_doubt]
        # mostly one that goes on
        return self.chance.choice(runs[-8:] if self.chance.random() < 0.8 else runs) if runs else None

    # the end

    def _finish(self) -> None:
        """A new server resumes every run that has not ended."""
        deadline = time.monotonic() + FINISH_S
        with Server(self.store) as server:
            for run in sorted(self.runs):
                while (found := server.call("GET", f"/api/evaluations/{run}"))[0] == 200:
                    if found[1]["data"]["status"] in ENDED:
                        break
                    assert time.monotonic() < deadline, f"the run {run} did not end: {found}"
                    time.sleep(0.1)

    def _compare(self) -> None:
        """Compare the content of the store with what was acknowledged."""
        with open_storage(self.store) as storage:
            assert isinstance(storage, SqliteStorage | PostgresStorage)
            self.failures += [f"the store: {fault}" for fault in check_store(storage.database).faults]
            read = storage.database.read
            stored = {run.id: run for run in _all_runs(storage)}
            answers = Counter(run for (run,) in read("SELECT run FROM responses"))
            grades = Counter(run for (run,) in read("SELECT run FROM grades"))
            for run, cases in self.runs.items():
                found = stored.get(run)
                if found is None:
                    if run not in self.in_doubt:
                        self.failures.append(f"the run {run} was acknowledged and is gone")
                elif found.status not in ENDED:
                    self.failures.append(f"the run {run} is {found.status}")
                elif found.status == "completed" and (answers[run], grades[run]) != (cases, cases):
                    self.failures.append(
                        f"the run {run} has {answers[run]} answers, {grades[run]} grades of {cases} cases"
                    )
                elif found.status == "failed":
                    self.failures.append(f"the run {run} failed: {found.error_message}")
            self.failures += [f"the deleted run {run} is there" for run in self.deleted_runs if run in stored]
            events = Counter(read("SELECT run, once FROM run_events WHERE once IS NOT NULL"))
            self.failures += [f"the event {event} is there twice" for event, number in events.items() if number > 1]
            live = read("SELECT id, test_case FROM test_cases WHERE deleted = 0")
            self.failures += [f"the deleted case {case} is there" for case, _ in live if case in self.deleted_cases]
            tags = Counter(
                tag for _, text in read("SELECT id, test_case FROM test_cases") for tag in json.loads(text)["tags"]
            )
            for tag, number in self.imported.items():
                if tags[tag] != number:
                    self.failures.append(f"of the import {tag}, {tags[tag]} of {number} cases are there")
        self.failures += self._growth()

    def _growth(self) -> list[str]:
        """Whether the memory of the server that stayed has levelled off, by the last quarter against the second."""
        quarter = len(self.memory) // 4
        if quarter < 4:
            return []
        early, late = median(self.memory[quarter : 2 * quarter]), median(self.memory[-quarter:])
        self.done["MiB of the server early"], self.done["MiB of the server late"] = round(early), round(late)
        if late > early * MOST_GROWTH + ALLOWANCE_MIB:
            return [f"the memory of the server grew from {early:.0f} to {late:.0f} MiB"]
        return []


def _all_runs(storage: Any) -> Iterator[Any]:
    before = None
    while page := storage.list_runs(200, before):
        yield from page
        before = page[-1].id


@contextmanager
def store_of(backend: str, folder: Path) -> Iterator[str]:
    """A store that lasts as long as the soak."""
    if backend == "sqlite":
        yield str(folder / "store.db")
        return
    server = PostgresServer()
    try:
        yield server.url
    finally:
        server.stop()


@click.command()
@click.option("--seconds", type=float, default=3600.0, show_default=True, help="Time of the load, for all databases.")
@click.option("--backend", type=click.Choice(["sqlite", "postgresql", "both"]), default="both", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def main(seconds: float, backend: str, seed: int) -> None:
    """Put a service under load and kill its servers; the exit code is 1 where something was lost."""
    backends = ["sqlite", "postgresql"] if backend == "both" else [backend]
    failed = False
    for one in backends:
        folder = Path(mkdtemp(prefix=f"soak-{one}-"))
        with store_of(one, folder) as store:
            soak = Soak(store, folder, seed)
            try:
                soak.run(seconds / len(backends))
            except Exception:
                soak.failures.append(traceback.format_exc())
            finally:
                soak.steady.kill()
        click.echo(f"{one}: " + ", ".join(f"{number:,} {what}" for what, number in sorted(soak.done.items())))
        for failure in soak.failures:
            click.echo(f"FAILED {failure}")
        failed |= bool(soak.failures)
        if soak.failures:
            click.echo(f"its files are in {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
