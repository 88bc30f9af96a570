"""Stands for the program ``letta`` in tests: takes its arguments, talks to its server, prints its events.

``LETTA_FAKE`` in the environment tells it to fail in one of the ways of `WAYS`; ``LETTA_FAKE_LOG`` names a file
that gets a line of JSON with what it was called with.
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


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def hang() -> None:
    """Never ends, and neither does a child in a session of its own; their ids are in the log's folder."""
    log = os.environ.get("LETTA_FAKE_LOG")
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if log is not None:
        Path(log).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
    time.sleep(600)


def crash() -> None:
    sys.stderr.write("the engine room is on fire\n")
    tell(type="error", message="no credits left", stop_reason="error")
    sys.exit(1)


def garbage() -> None:
    sys.stdout.buffer.write(b'\xff\xfe not json\n[1, 2\n{"type": "system", "subtype": "init"}\n"init"\n' + b"\0" * 10)
    sys.exit(0)


def long_line() -> None:
    """A line without an end."""
    while True:
        sys.stdout.write("x" * 1_000_000)


def leak() -> None:
    """Says what it was let in with."""
    sys.exit(f"the key is {os.environ.get('LETTA_API_KEY')}")


WAYS: Mapping[str, Callable[[], None]] = {
    "hang": hang,
    "crash": crash,
    "garbage": garbage,
    "long-line": long_line,
    "leak": leak,
}
"""They come before the agent is made; with ``late-`` before their names, after its first event."""


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--agent")
    parser.add_argument("--new-agent", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--output-format", required=True)
    parser.add_argument("-p", action="store_true", required=True)
    asked, _ = parser.parse_known_args()
    prompt = sys.stdin.read()
    log = os.environ.get("LETTA_FAKE_LOG")
    told = {"argv": sys.argv[1:], "prompt": prompt, "cwd": str(Path.cwd())}
    told["env"] = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if log is not None:
        with Path(log).open("a") as file:
            file.write(json.dumps(told) + "\n")
    way = os.environ.get("LETTA_FAKE", "")
    if way == "crash-once":
        once = Path(os.environ["LETTA_FAKE_ONCE"])
        if not once.exists():
            once.touch()
            crash()
    elif way in WAYS:
        WAYS[way]()
    agent = asked.agent or ask("/v1/agents", {"name": "letta-code", "model": asked.model})["id"]
    tell(type="system", subtype="init", session_id="s-1", agent_id=agent, model=asked.model, tools=["Bash", "Read"])
    if way.startswith("late-"):
        ask(f"/v1/agents/{agent}/messages", {"messages": [{"role": "user", "content": prompt}]})
        WAYS[way.removeprefix("late-")]()
    answer = ask(f"/v1/agents/{agent}/messages", {"messages": [{"role": "user", "content": prompt}]})
    sys.stdout.write("\nan update is available\n")
    for message in answer["messages"]:
        tell(type="message", **message)
    subtype = "error" if way == "error-result" else "success"
    tell(type="result", subtype=subtype, agent_id=agent, result="done", usage=answer["usage"], num_turns=1)


if __name__ == "__main__":
    main()
