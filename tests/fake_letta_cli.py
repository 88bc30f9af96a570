"""Replaces the program ``letta`` in tests: takes its arguments, calls its server, prints its events.

The environment variable ``LETTA_FAKE`` selects one of the `FAILURES`; ``LETTA_FAKE_LOG`` names a file
that gets a line of JSON with the arguments of the call.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_KEPT = ("LETTA_BASE_URL", "LETTA_API_KEY", "MEMORY_DIR", "LETTA_MEMORY_DIR", "WHO")


def ask(path: str, data: Mapping[str, Any]) -> Any:
    """POST to the server."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('LETTA_API_KEY', '')}"}
    url = os.environ["LETTA_BASE_URL"] + path
    request = urllib.request.Request(url, json.dumps(data).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def emit(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def hang() -> None:
    """Never end, and start a child that never ends in a session of its own; both process ids are in the log's folder."""
    log = os.environ.get("LETTA_FAKE_LOG")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if log is not None:
        Path(log).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def crash() -> None:
    sys.stderr.write("the engine room is on fire\n")
    emit(type="error", message="no credits left", stop_reason="error")
    sys.exit(1)


def garbage() -> None:
    sys.stdout.buffer.write(b'\xff\xfe not json\n[1, 2\n{"type": "system", "subtype": "init"}\n"init"\n' + b"\0" * 10)
    sys.exit(0)


def long_line() -> None:
    """Print a line without end."""
    while True:
        sys.stdout.write("x" * 1_000_000)


def leak() -> None:
    """Print the API key."""
    sys.exit(f"the key is {os.environ.get('LETTA_API_KEY')}")


FAILURES: Mapping[str, Callable[[], None]] = {
    "hang": hang,
    "crash": crash,
    "garbage": garbage,
    "long-line": long_line,
    "leak": leak,
}
"""Ways to fail before the agent is created; with the prefix ``late-``, after its first event."""


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--agent")
    parser.add_argument("--new-agent", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--output-format", required=True)
    parser.add_argument("-p", action="store_true", required=True)
    args, _ = parser.parse_known_args()
    prompt = sys.stdin.read()
    log = os.environ.get("LETTA_FAKE_LOG")
    call = {"argv": sys.argv[1:], "prompt": prompt, "cwd": str(Path.cwd())}
    call["env"] = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if log is not None:
        with Path(log).open("a") as file:
            file.write(json.dumps(call) + "\n")
    failure = os.environ.get("LETTA_FAKE", "")
    if failure == "crash-once":
        once = Path(os.environ["LETTA_FAKE_ONCE"])
        if not once.exists():
            once.touch()
            crash()
    elif failure in FAILURES:
        FAILURES[failure]()
    agent = args.agent or ask("/v1/agents", {"name": "letta-code", "model": args.model})["id"]
    emit(type="system", subtype="init", session_id="s-1", agent_id=agent, model=args.model, tools=["Bash", "Read"])
    if failure.startswith("late-"):
        ask(f"/v1/agents/{agent}/messages", {"messages": [{"role": "user", "content": prompt}]})
        FAILURES[failure.removeprefix("late-")]()
    answer = ask(f"/v1/agents/{agent}/messages", {"messages": [{"role": "user", "content": prompt}]})
    sys.stdout.write("\nan update is available\n")
    for message in answer["messages"]:
        emit(type="message", **message)
    subtype = "error" if failure == "error-result" else "success"
    emit(type="result", subtype=subtype, agent_id=agent, result="done", usage=answer["usage"], num_turns=1)


if __name__ == "__main__":
    main()
