"""API keys and sessions: shown once, stored as a digest, revoked at once."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError, StoreError
from gradeline.service.auth import (
    ApiKey,
    ApiKeys,
    KeyScope,
    MasterKey,
    Sessions,
    looks_like_key,
    read_secret_key,
    without_keys,
)
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database
from gradeline.store.sqlite import SqliteStorage
from gradeline_command import COMMAND, run_command

from .conftest import MASTER_KEY, Call

WITH_KEY = ServeSettings(secret_key=MASTER_KEY)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage.database


@pytest.fixture
def keys(database: Database, clock: Clock) -> ApiKeys:
    return ApiKeys(database, WITH_KEY, clock)


def test_a_key_is_good_and_known_by_its_id(keys: ApiKeys) -> None:
    key, text = keys.create(KeyScope.RUN, "ci")
    assert re.fullmatch(rf"gl_{key.id}_[0-9a-f]{{64}}_[0-9a-f]{{8}}", text)
    assert keys.authenticate(text) == key
    assert [(found.id, found.name, found.scope) for found in keys.all()] == [(key.id, "ci", KeyScope.RUN)]


def test_the_store_never_holds_the_key(tmp_path: Path, keys: ApiKeys) -> None:
    _, text = keys.create(KeyScope.RUN)
    secret = text.split("_")[2]
    for path in tmp_path.iterdir():
        assert secret.encode() not in path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"),
        lambda text: text.replace("gl_", "gk_"),
        lambda text: text.upper(),
        lambda text: text + " ",
        lambda text: text[:40],
        lambda text: "",
        lambda text: "\ud800",
    ],
)
def test_a_changed_key_is_invalid(keys: ApiKeys, change: Any) -> None:
    _, text = keys.create(KeyScope.RUN)
    assert keys.authenticate(change(text)) is None


def test_a_well_formed_key_with_another_secret_is_invalid(keys: ApiKeys, tmp_path: Path) -> None:
    key, _ = keys.create(KeyScope.RUN)
    with SqliteStorage(tmp_path / "other.db") as other:
        _, foreign = ApiKeys(other.database, WITH_KEY).create(KeyScope.ADMIN)
    assert keys.authenticate(foreign) is None
    from zlib import crc32

    start = f"gl_{key.id}_{'0' * 64}"
    assert keys.authenticate(f"{start}_{crc32(start.encode()):08x}") is None


def test_a_key_ends_when_it_expires(keys: ApiKeys, clock: Clock) -> None:
    key, text = keys.create(KeyScope.RUN, lifetime_s=60)
    assert key.expires_at == "1970-01-12T13:47:40.000Z"
    clock.now += 59
    assert keys.authenticate(text) is not None
    clock.now += 1
    assert keys.authenticate(text) is None


def test_a_revoked_key_ends_at_once_also_for_another_process(keys: ApiKeys, database: Database, clock: Clock) -> None:
    key, text = keys.create(KeyScope.RUN)
    assert ApiKeys(database, WITH_KEY, clock).revoke(key.id) is True
    assert keys.authenticate(text) is None
    clock.now += 5
    assert keys.revoke(key.id) is True
    assert keys.revoke("unknown") is False
    assert [found.revoked_at for found in keys.all()] == ["1970-01-12T13:46:40.000Z"]


def test_the_last_use_is_written_once_a_minute(keys: ApiKeys, database: Database, clock: Clock) -> None:
    key, text = keys.create(KeyScope.RUN)

    def last_used() -> str | None:
        found = keys.get(key.id)
        assert found is not None
        return found.last_used_at

    seen = []
    for seconds in (0, 59, 1):
        clock.now += seconds
        keys.authenticate(text)
        seen.append(last_used())
    assert seen == ["1970-01-12T13:46:40.000Z", "1970-01-12T13:46:40.000Z", "1970-01-12T13:47:40.000Z"]


def test_a_store_that_cannot_be_written_still_lets_a_key_in(database: Database, keys: ApiKeys) -> None:
    class ReadOnly:
        dialect = database.dialect

        def read(self, statement: str, *values: Any) -> Any:
            return database.read(statement, *values)

        def transact(self, work: Any) -> Any:
            raise StoreError("the disk is full")

    _, text = keys.create(KeyScope.RUN)
    keys._database = ReadOnly()
    assert keys.authenticate(text) is not None


def test_without_the_secret_key_no_key_is_created_or_valid(database: Database, keys: ApiKeys) -> None:
    _, text = keys.create(KeyScope.RUN)
    bare = ApiKeys(database, ServeSettings())
    assert bare.authenticate(text) is None
    with pytest.raises(ConfigError, match="GRADELINE_SECRET_KEY"):
        bare.create(KeyScope.RUN)
    assert "GRADELINE_SECRET_KEY" in (bare.problem() or "")


def test_another_secret_key_is_reported_at_the_start(database: Database, keys: ApiKeys) -> None:
    _, text = keys.create(KeyScope.RUN)
    other = ApiKeys(database, ServeSettings(secret_key=b"another master key, long enough"))
    assert other.authenticate(text) is None
    assert "another secret key" in (other.problem() or "")
    assert keys.problem() is None


def test_only_expired_and_revoked_keys_are_a_problem(keys: ApiKeys) -> None:
    key, _ = keys.create(KeyScope.RUN)
    keys.revoke(key.id)
    assert "no valid API key" in (keys.problem() or "")


def test_a_key_in_a_text_is_found_and_redacted(keys: ApiKeys) -> None:
    key, text = keys.create(KeyScope.RUN)
    assert looks_like_key(f"a={text}&b") is True
    assert looks_like_key("gl_short") is False
    assert without_keys(f"<{text}>") == f"<gl_{key.id}_[redacted]>"


def test_keys_of_several_purposes_have_nothing_in_common() -> None:
    master = MasterKey(MASTER_KEY)
    made = [master.derive("api keys"), master.derive("secrets"), MasterKey(MASTER_KEY + b"x").derive("secrets")]
    assert len(set(made)) == 3
    assert {len(key) for key in made} == {32}
    assert master.derive("secrets") == MasterKey(MASTER_KEY).derive("secrets")


def test_derived_keys_are_hkdf_of_the_master_key() -> None:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    expected = HKDF(SHA256(), 32, b"gradeline", b"gradeline secrets").derive(MASTER_KEY)
    assert MasterKey(MASTER_KEY).derive("secrets") == expected


def test_the_secret_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    assert read_secret_key(file, {}) == b"0123456789abcdef0123456789abcdef"
    assert read_secret_key(None, {"GRADELINE_SECRET_KEY": "x" * 16}) == b"x" * 16
    assert read_secret_key(None, {}) is None
    with pytest.raises(ConfigError, match="at least 16"):
        read_secret_key(None, {"GRADELINE_SECRET_KEY": "short"})
    with pytest.raises(ConfigError, match="No such file"):
        read_secret_key(tmp_path / "absent", {})


def test_a_session_has_the_rights_of_its_key_and_ends_with_it(keys: ApiKeys, database: Database, clock: Clock) -> None:
    sessions = Sessions(database, keys, WITH_KEY, clock)
    key, _ = keys.create(KeyScope.RUN)
    session = sessions.open(key)
    found = sessions.find(session.token)
    assert found is not None
    assert (found[0], found[1].id) == (session, key.id)
    assert sessions.find("another") is None
    assert session.token not in str(database.read("SELECT * FROM sessions"))
    keys.revoke(key.id)
    assert sessions.find(session.token) is None


def test_a_session_ends_after_its_time_or_when_it_is_closed(keys: ApiKeys, database: Database, clock: Clock) -> None:
    sessions = Sessions(database, keys, WITH_KEY, clock)
    key, _ = keys.create(KeyScope.RUN)
    first, second = sessions.open(key), sessions.open(key)
    sessions.close(first.token)
    assert sessions.find(first.token) is None
    clock.now += 12 * 3600
    assert sessions.find(second.token) is None


def sign_in(call: Call, text: str) -> Any:
    return call("POST", "/api/session", json={"key": text})


def test_signing_in_gives_a_cookie_that_scripts_cannot_read(service: Service, call: Call) -> None:
    key, text = service.keys.create(KeyScope.ADMIN)
    answer = sign_in(call, text)
    assert {**answer.data, "csrf_token": "", "expires_at": ""} == {
        "local": False,
        "scope": "admin",
        "key_id": key.id,
        "csrf_token": "",
        "expires_at": "",
    }
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(r"gradeline_session=[0-9a-f]{64}; HttpOnly; Max-Age=43200; Path=/; SameSite=strict", cookie)
    assert text not in str(answer)


def test_the_cookie_is_secure_wherever_it_can_be(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    answer = call("POST", "/api/session", json={"key": text}, headers={"Host": "evals.example.com"})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-gradeline_session=")
    assert "; Secure" in cookie
    assert "; HttpOnly" in cookie


def test_a_write_with_a_cookie_needs_the_token(service: Service, call: Call) -> None:
    key, text = service.keys.create(KeyScope.ADMIN)
    token = sign_in(call, text).data["csrf_token"]
    body = {"value": "value-of-it", "host": "agent.test"}
    assert call("GET", "/api/secrets").status == 200
    assert call("GET", "/api/session").data["csrf_token"] == token
    refused = call("PUT", "/api/secrets/A", json=body)
    assert (refused.status, refused.error["code"]) == (403, "FORBIDDEN")
    assert call("PUT", "/api/secrets/A", json=body, headers={"X-CSRF-Token": "x" * 64}).status == 403
    assert call("PUT", "/api/secrets/A", json=body, headers={"X-CSRF-Token": token}).status == 200
    service.keys.revoke(key.id)
    assert call("GET", "/api/secrets").status == 401


def test_signing_out_ends_the_session(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.READ)
    token = sign_in(call, text).data["csrf_token"]
    kept = call.client.cookies["gradeline_session"]
    assert call("DELETE", "/api/session", headers={"X-CSRF-Token": token}).status == 204
    assert call("GET", "/api/session").status == 401
    assert call("GET", "/api/session", headers={"Cookie": f"gradeline_session={kept}"}).status == 401


def test_a_wrong_key_does_not_sign_in(service: Service, call: Call) -> None:
    service.keys.create(KeyScope.READ)
    answer = sign_in(call, "gl_wrong")
    assert (answer.status, answer.error["code"]) == (401, "UNAUTHORIZED")
    assert "set-cookie" not in answer.headers


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment}
    return run_command([COMMAND, *arguments], cwd=folder, env=given, text=True, timeout=60)


def test_the_command_makes_lists_and_revokes_keys(tmp_path: Path) -> None:
    secret = {"GRADELINE_SECRET_KEY": MASTER_KEY.decode()}
    made = run(tmp_path, "keys", "create", "--scope", "run", "--name", "ci", "--expires", "90d", **secret)
    assert made.returncode == 0, made.stderr
    text = made.stdout.strip()
    assert "not shown again" in made.stderr
    (listed,) = json.loads(run(tmp_path, "keys", "list", "--json").stdout)["keys"]
    assert (listed["id"], listed["scope"], listed["name"]) == (text.split("_")[1], "run", "ci")
    assert set(listed) == set(ApiKey.__struct_fields__)
    shown = run(tmp_path, "keys", "list")
    assert text.split("_")[2] not in shown.stdout
    assert listed["id"] in shown.stdout
    assert run(tmp_path, "keys", "revoke", listed["id"]).stdout == f"revoked {listed['id']}\n"
    assert json.loads(run(tmp_path, "keys", "list", "--json").stdout)["keys"][0]["revoked_at"] is not None
    with sqlite3.connect(tmp_path / ".gradeline" / "store.db") as database:
        acts = database.execute("SELECT action, request_id FROM audit_log").fetchall()
    database.close()
    assert acts == [("key.create", "command line"), ("key.revoke", "command line")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "--scope", "run"), "an API key requires the service's secret key"),
        (("create", "--scope", "run", "--expires", "soon"), "invalid lifetime 'soon'"),
        (("create", "--scope", "all"), "'all' is not one of"),
        (("create",), "--scope"),
        (("revoke", "nobody"), "unknown key 'nobody': the store has none"),
        (("list", "--store", "memory://"), "memory:// ends with this process"),
    ],
)
def test_an_invalid_call_reports_the_remedy(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, "keys", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
