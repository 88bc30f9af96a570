"""All benchmarks in one go, each in a process of its own, so that none weighs on the next.

Goes on whatever a part comes to, and names at the end what missed its target; only what broke makes the
exit code 1. ``--strict`` makes it 3 where a target was missed. ``--json`` keeps every table and figure, a line each,
from which ``bench/figure.py`` makes the page of the documentation.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from measure import EXIT_MISSED, JSON_FILE, MACHINE_SAID, machine, print_machine, record

PARTS = (
    "peers",
    "startup",
    "overhead",
    "early",
    "checks",
    "external",
    "concurrency",
    "reused_connections",
    "memory",
    "growth",
    "profile_sample",
    "graders",
    "judges",
    "route",
    "pool",
    "store",
    "compare",
    "postgres",
    "exports",
    "inspect_import",
    "service",
    "pages",
    "ray_workers",
)


HERE = Path(__file__).parent
LARGER = {"growth": "--large", "memory": "--million"}
WITH_PEERS = ("startup", "overhead", "concurrency", "reused_connections")


class Order(NamedTuple):
    """What is to be run, and how."""

    parts: tuple[str, ...]
    strict: bool
    large: bool
    peers: bool
    results: Path | None

    def arguments(self, part: str) -> list[str]:
        larger = [LARGER[part]] if self.large and part in LARGER else []
        return [*larger, *(["--without-peers"] if not self.peers and part in WITH_PEERS else [])]


def order() -> Order:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all by default: {', '.join(PARTS)}")
    parser.add_argument("--strict", action="store_true", help="exit with 3 where a target was missed")
    parser.add_argument("--large", action="store_true", help="also a million samples, which takes minutes")
    parser.add_argument("--without-peers", action="store_true", help="only gradeline and the floor")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, a line of JSON each")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    # a part that is named must be there; of all, those are run that there are
    parts = given.parts or [part for part in PARTS if script(part).exists()]
    if given.without_peers:
        parts = [part for part in parts if part != "peers"]
    return Order(tuple(parts), given.strict, given.large, not given.without_peers, given.json)


def main() -> int:
    chosen = order()
    if chosen.results is not None:
        chosen.results.write_text("", encoding="utf-8")
        os.environ[JSON_FILE] = str(chosen.results.resolve())
        record("machine", text=machine())
    print_machine()
    codes = {part: ran(part, chosen.arguments(part)) for part in chosen.parts}
    missed = [part for part, code in codes.items() if code == EXIT_MISSED]
    broken = [part for part, code in codes.items() if code not in (0, EXIT_MISSED)]
    if missed:
        print(f"targets missed, or a tool without a figure: {', '.join(missed)}")
    if broken:
        print(f"broken: {', '.join(broken)}")
        return 1
    return EXIT_MISSED if missed and chosen.strict else 0


def script(part: str) -> Path:
    return HERE / f"{part}.py"


def ran(part: str, arguments: list[str]) -> int:
    sys.stdout.flush()
    command = [sys.executable, str(script(part)), *arguments]
    code = subprocess.run(command, env={**os.environ, MACHINE_SAID: "1"}, check=False).returncode
    print()
    return code


if __name__ == "__main__":
    sys.exit(main())
