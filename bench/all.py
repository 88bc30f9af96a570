"""All benchmarks in one go, each in a process of its own, so that none weighs on the next.

Goes on whatever a part comes to, and names at the end what missed its target; only what broke makes the
exit code 1. ``--strict`` makes it 3 where a target was missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from measure import EXIT_MISSED, MACHINE_SAID, flags, print_machine

PARTS = ("peers", "startup", "overhead", "concurrency", "memory", "graders", "judges", "pool", "store", "service")


def main() -> int:
    strict = flags(__doc__, strict="exit with 3 where a target was missed")
    print_machine()
    codes = {part: ran(part) for part in PARTS}
    missed = [part for part, code in codes.items() if code == EXIT_MISSED]
    broken = [part for part, code in codes.items() if code not in (0, EXIT_MISSED)]
    if missed:
        print(f"targets missed, or a tool without a figure: {', '.join(missed)}")
    if broken:
        print(f"broken: {', '.join(broken)}")
        return 1
    return EXIT_MISSED if missed and strict else 0


def ran(part: str) -> int:
    script = Path(__file__).with_name(f"{part}.py")
    sys.stdout.flush()
    code = subprocess.run([sys.executable, str(script)], env={**os.environ, MACHINE_SAID: "1"}, check=False).returncode
    print()
    return code


if __name__ == "__main__":
    sys.exit(main())
