"""What ``gradeline import`` holds in memory of an Inspect log, by its number of samples: it must not grow with them.

The logs are written by Inspect: one sample of a scripted model with a tool call and its events, copied with other ids
and texts. ``--large`` adds 100,000 samples, which takes minutes. ``.eval`` is read one sample at a time; a JSON log is
one document, which is in memory as it was written. The figure is the most that the importing process ever held.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from gradeline.importers.report import EXIT_APPROXIMATED, EXIT_MAPPED
from measure import (
    COMMAND,
    FAILED,
    ROOT,
    RunFailedError,
    exit_code,
    finished,
    flags,
    judged,
    print_machine,
    print_table,
    scratch,
    show_progress,
    started,
)

SIZES = (1_000, 10_000)
LARGE = 100_000
SUFFIXES = (".eval", ".json")
GROWTH_MB = 30.0
"""How much more memory more samples than 1,000 may take: their ids and places in the archive."""
TEXT = "Paris is the capital of France, and has been for a long time. " * 30


def write_log(path: Path, samples: int) -> int:
    """In a process of its own, which holds the whole log."""
    sys.path.insert(0, str(ROOT / "tests"))
    from inspect_ai import eval as run_eval
    from inspect_ai.log import write_eval_log

    import inspect_program

    folder = str(path.parent / "logs")
    (log,) = run_eval(
        inspect_program.tools(), model=inspect_program.calls_then_answers(), log_dir=folder, display="none"
    )
    assert log.samples
    sample = log.samples[0]
    names = [f"case-{number}" for number in range(samples)]
    log.samples = [
        sample.model_copy(update={"id": name, "uuid": None, "metadata": {"document": f"{name}: {TEXT}"}})
        for name in names
    ]
    log.eval.dataset.samples = samples
    log.eval.dataset.sample_ids = list(names)
    write_eval_log(log, str(path))
    return 0


def imported(log: Path, samples: int, least_mb: float | None) -> tuple[float, tuple[str, ...]]:
    show_progress(f"{log.suffix}, {samples:,} samples …")
    place = (log.suffix, f"{samples:,}", f"{log.stat().st_size / 1e6:,.1f}")
    try:
        with scratch() as folder:
            command = [COMMAND, "--store", "store.db", "import", str(log), "--output", "imported", "--json"]
            with started(command, folder) as process:
                done = process.wait((EXIT_MAPPED, EXIT_APPROXIMATED))
            found = sum(1 for _ in (folder / "imported" / "answers.jsonl").open())
        if found != samples:
            raise RunFailedError(f"it has {found:,} responses")
    except RunFailedError as error:
        return 0.0, (*place, "", "", "", f"{FAILED}{error}")
    memory = done.peak_kib / 1024
    most = None if least_mb is None or log.suffix == ".json" else least_mb + GROWTH_MB
    target = judged(memory, most, at_least=False)
    return memory, (*place, f"{done.seconds:.1f}", f"{memory:.0f}", target, "")


def rows(sizes: tuple[int, ...]) -> Iterator[tuple[str, ...]]:
    least: dict[str, float] = {}
    for samples in sizes:
        for suffix in SUFFIXES:
            with scratch() as folder:
                show_progress(f"{suffix}, writing {samples:,} samples …")
                log = folder / f"log{suffix}"
                finished([sys.executable, __file__, "--write", str(log), str(samples)], folder)
                memory, row = imported(log, samples, least.get(suffix))
                least.setdefault(suffix, memory)
                yield row


def main() -> int:
    if sys.argv[1:2] == ["--write"]:
        return write_log(Path(sys.argv[2]), int(sys.argv[3]))
    asked = flags(__doc__, large="also 100,000 samples, which takes minutes")
    print_machine()
    table = list(rows((*SIZES, LARGE) if "large" in asked else SIZES))
    show_progress("")
    print_table(
        "memory of an import from Inspect, MB",
        ("log", "samples", "file MB", "seconds", "memory MB", "target", ""),
        table,
    )
    return exit_code(table)


if __name__ == "__main__":
    sys.exit(main())
