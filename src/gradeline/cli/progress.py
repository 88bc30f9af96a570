"""How far a run is, on stderr: a live line for people, a plain line now and then for logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import click

from gradeline.cli.settings import Settings
from gradeline.cli.terminal import console
from gradeline.engine.tally import Advance, CaseDone, LookTaken, Tally

if TYPE_CHECKING:
    from rich.text import Text

LINE_EVERY = 10.0
_MOVING = 10.0
"""Seconds over which the rate is taken."""


class Progress:
    """Counts what is done; cheap enough to be called for every case."""

    def __init__(self, total: int | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._total = total
        self.done = self.failed = self.errors = self.reused = 0
        self.cost: float | None = None
        self._mark = (self._began, 0)
        self._rate: float | None = None
        self._look: str | None = None

    def expect(self, more: int | None) -> None:
        """So many more cases will come; None is not known."""
        self._total = None if self._total is None or more is None else self._total + more

    def __call__(self, done: CaseDone | Tally | LookTaken) -> None:
        if isinstance(done, LookTaken):
            self._look = done.text
            return
        tally = done if isinstance(done, Tally) else Tally.of(done)
        self.done += tally.done
        self.reused += tally.reused
        self.failed += tally.failed
        self.errors += tally.errors
        if tally.cost is not None:
            self.cost = (self.cost or 0.0) + tally.cost

    def line(self) -> str:
        """All that is known, in one line."""
        rate = self._rate_now()
        of = "" if self._total is None else f" of {self._total:,}"
        parts = [f"{self.done:,}{of} done", f"{self.failed:,} failed", f"{self.errors:,} errors", f"{rate:,.1f}/s"]
        if self.reused:
            parts.insert(1, f"{self.reused:,} there already")
        if self._total is not None and rate > 0:
            parts.append(f"{_duration((self._total - self.done) / rate)} left")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4g}")
        line = ", ".join(parts)
        return line if self._look is None else f"{line}; {self._look}"

    def _rate_now(self) -> float:
        """Cases that were worked on, over the last seconds: what was there already says nothing of what is to come."""
        now, worked = self._clock(), self.done - self.reused
        since, before = self._mark
        if now - since >= _MOVING:
            self._rate, self._mark = (worked - before) / (now - since), (now, worked)
        if self._rate is not None:
            return self._rate
        return (worked - before) / max(now - since, 1e-9)

    def __rich__(self) -> Text:
        from rich.text import Text

        line = Text("  ")
        if self._total:
            filled = round(24 * min(1.0, self.done / self._total))
            line.append("━" * filled, "green").append("━" * (24 - filled), "dim").append(" ")
        return line.append(self.line())


class SharedProgress:
    """One display for several runs that go on at the same time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._display = ExitStack()
        self._progress = Progress(0)
        self._advance: Advance = lambda _: None
        self._running = 0

    @contextmanager
    def __call__(self, total: Callable[[], int | None]) -> Iterator[Advance]:
        """Shows one more run."""
        more = total() if sys.stderr.isatty() and not self._settings.quiet else None
        self._progress.expect(more)
        if not self._running:
            self._advance = self._display.enter_context(_display(self._settings, self._progress))
        self._running += 1
        try:
            yield self._advance
        finally:
            self._running -= 1
            if not self._running:
                self._display.close()


@contextmanager
def shown(settings: Settings, total: Callable[[], int | None]) -> Iterator[Advance]:
    """Shows the progress of what the block runs; ``total`` is asked only where somebody looks."""
    looked_at = not settings.quiet and sys.stderr.isatty()
    with _display(settings, Progress(total() if looked_at else None)) as advance:
        yield advance


@contextmanager
def _display(settings: Settings, progress: Progress) -> Iterator[Advance]:
    if settings.quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _lines(progress)
    else:
        from rich.live import Live  # only for people

        with Live(progress, console=console(settings, stderr=True), refresh_per_second=8, transient=True):
            yield progress


def _lines(progress: Progress) -> Advance:
    said = monotonic()

    def advance(done: CaseDone | Tally | LookTaken) -> None:
        nonlocal said
        progress(done)
        now = monotonic()
        if now - said >= LINE_EVERY:
            said = now
            click.echo(progress.line(), err=True)

    return advance


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
