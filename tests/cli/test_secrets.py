"""`gradeline secrets`: what it stores is what the service sends, and no output contains a value."""

from __future__ import annotations

import json
import os
import pty
import sys
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from gradeline.cli import run_cli as run_command
from gradeline.service.audit import Audit
from gradeline.service.auth import ApiKeys, KeyScope, read_secret_key
from gradeline.service.secrets import SecretInfo, Secrets
from gradeline.service.settings import ServeSettings
from gradeline.store.sqlite import SqliteStorage

COMMAND = str(Path(sys.executable).with_name("gradeline"))
MASTER_KEY = "a master key of the tests, long enough"
VALUE = "Bearer very-hidden-value"


class CommandResult(NamedTuple):
    code: int
    stdout: str
    stderr: str


class Run(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", master: str | None = MASTER_KEY) -> CommandResult: ...


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command in this process, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: str, stdin: str = "", master: str | None = MASTER_KEY) -> CommandResult:
        monkeypatch.setenv("GRADELINE_SECRET_KEY", master or "")
        monkeypatch.setattr(sys, "stdin", StringIO(stdin))
        return CommandResult(run_command(["secrets", *arguments]), *capsys.readouterr())

    return called


def stored(folder: Path) -> tuple[dict[str, str], list[SecretInfo], list[dict[str, Any]]]:
    """The values and the secrets as the service reads them, and the audit log."""
    with SqliteStorage(folder / ".gradeline" / "store.db") as storage:
        secrets = Secrets(storage.database, ServeSettings(secret_key=MASTER_KEY.encode()))
        found = secrets.all()
        values = {name: secret.value for name, secret in secrets.open(one.name for one in found).items()}
        acts = [
            {"action": act.action, "subject": act.subject, "details": act.details, "request_id": act.request_id}
            for act in Audit(storage.database).entries()
        ]
    return values, found, acts


def test_a_secret_is_set_listed_replaced_and_deleted(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--host", "agent.test", "--host", "Other.test:8443", "--scope", "run", "--place", "query")
    done = run("set", "TOKEN", *options, stdin=f"{VALUE}\n")
    assert done.code == 0, done.stderr
    message = (
        "stored TOKEN: sent to agent.test, other.test:8443 by https in the query, for keys of scope admin and run\n"
    )
    assert (done.stdout, done.stderr) == (message, "")
    binding = {
        "hosts": ["agent.test", "other.test:8443"],
        "scheme": "https",
        "place": "query",
        "scopes": ["admin", "run"],
        "keys": [],
    }
    values, _, acts = stored(tmp_path)
    assert values == {"TOKEN": VALUE}
    assert acts == [
        {"action": "secret.put", "subject": "TOKEN", "details": binding, "request_id": "command line"},
    ]

    (listed,) = json.loads(run("list", "--json", master=None).stdout)["secrets"]
    assert set(listed) == set(SecretInfo.__struct_fields__)
    assert {name: listed[name] for name in binding} == binding
    table = run("list", master=None).stdout
    assert "TOKEN" in table
    assert "agent.test, other.test:8443" in table

    monkeypatch.setenv("MINE", "another-value")
    replaced = run("set", "TOKEN", "--host", "agent.test", "--from-env", "MINE", "--json")
    assert json.loads(replaced.stdout)["hosts"] == ["agent.test"]
    assert stored(tmp_path)[0] == {"TOKEN": "another-value"}

    assert run("delete", "TOKEN", master=None).stdout == "deleted TOKEN\n"
    _, found, acts = stored(tmp_path)
    assert found == []
    assert [act["action"] for act in acts] == ["secret.put", "secret.put", "secret.delete"]
    assert "No secrets. Store one with" in run("list").stdout
    for file in (tmp_path / ".gradeline").iterdir():
        assert b"hidden-value" not in file.read_bytes()


def test_a_secret_may_be_for_a_key_of_the_store(tmp_path: Path, run: Run) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        key, _ = ApiKeys(storage.database, ServeSettings(secret_key=MASTER_KEY.encode())).create(KeyScope.READ)
    options = ("--store", "store.db", "--host", "agent.test", "--key", key.id)
    assert f"for keys of scope admin, and {key.id}" in run("set", "TOKEN", *options, stdin=VALUE).stdout


def test_in_a_terminal_the_value_is_prompted_for_and_not_shown(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["GRADELINE_SECRET_KEY"] = MASTER_KEY
        os.execv(COMMAND, [COMMAND, "secrets", "set", "TOKEN", "--host", "agent.test"])
    output = b""
    try:
        while b"Value: " not in output:
            output += os.read(terminal, 1024)
        os.write(terminal, f"{VALUE}\n".encode())
        while b"stored TOKEN" not in output:
            output += os.read(terminal, 1024)
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert b"hidden" not in output
    assert stored(tmp_path)[0] == {"TOKEN": VALUE}


def test_secrets_encrypted_with_another_key_are_noted(run: Run) -> None:
    run("set", "OLD", "--host", "agent.test", stdin=VALUE)
    done = run("set", "NEW", "--host", "agent.test", stdin=VALUE, master="another master key, long enough")
    assert done.code == 0
    assert "note: stored with another secret key: OLD;" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        (("set", "A", "--host", "agent.test", VALUE), "", "the value of a secret is not an argument"),
        (("set", "A"), VALUE, "Missing option '--host'"),
        (("set", "A", "--host", "agent.test"), "", "value: string should have at least 8 characters"),
        (
            ("set", "A", "--host", "agent.test"),
            "Bearer short",
            "value: a secret must have at least 8 characters after Bear",
        ),
        (
            ("set", "A", "--host", "agent.test"),
            "two\nlines of it",
            "value: a secret must not be blank or contain line breaks",
        ),
        (("set", "A", "--host", "http://agent.test"), VALUE, "--host: write host or host:port"),
        (("set", "A", "--host", "agent.test", "--key", "0123456789ab"), VALUE, "no key '0123456789ab'"),
        (("set", "A", "--host", "agent.test", "--from-env", "ABSENT"), "", "the variable 'ABSENT' is not set"),
        (("set", "A/B", "--host", "agent.test"), VALUE, "'A/B' is not a valid name"),
        (("set", "A", "--host", "agent.test", "--scope", "read"), VALUE, "'read' is not one of"),
        (("delete", "NONE"), "", "unknown secret 'NONE': the store has none"),
        (("list", "--store", "memory://"), "", "memory:// ends with this process"),
    ],
)
def test_invalid_usage_has_a_remedy_and_repeats_no_value(
    run: Run, arguments: tuple[str, ...], stdin: str, message: str
) -> None:
    done = run(*arguments, stdin=stdin)
    assert done.code == 2
    assert message in done.stderr
    assert "hidden-value" not in done.stdout + done.stderr


def test_without_the_services_secret_key_nothing_is_stored(tmp_path: Path, run: Run) -> None:
    done = run("set", "A", "--host", "agent.test", stdin=VALUE, master=None)
    assert done.code == 2
    assert "set GRADELINE_SECRET_KEY, or name a file with --secret-key-file" in done.stderr
    (tmp_path / "key").write_text(f"{MASTER_KEY}\n")
    options = ("--host", "agent.test", "--secret-key-file", "key")
    assert run("set", "A", *options, stdin=VALUE, master=None).code == 0
    assert read_secret_key(tmp_path / "key") == MASTER_KEY.encode()
    assert stored(tmp_path)[0] == {"A": VALUE}
