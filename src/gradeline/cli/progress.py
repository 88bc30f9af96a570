"""Progress of a run on stderr: a live line in a terminal, a plain line every few seconds in a log."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import click

from gradeline.cli.options import CliSettings
from gradeline.cli.terminal import console
from gradeline.engine.plan import CompletedCase, LookReport, ProgressCallback, ProgressCount

if TYPE_CHECKING:
    from rich.text import Text

LOG_INTERVAL_S = 10.0
_RATE_WINDOW_S = 10.0


class ProgressLine:
    """Counts completed cases; cheap enough to be called for each."""

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
        """Add to the number of expected cases; None is unknown."""
        self._total = None if self._total is None or more is None else self._total + more

    def __call__(self, done: CompletedCase | ProgressCount | LookReport) -> None:
        if isinstance(done, LookReport):
            self._look = done.text
            return
        tally = done if isinstance(done, ProgressCount) else ProgressCount.of(done)
        self.done += tally.done
        self.reused += tally.reused
        self.failed += tally.failed
        self.errors += tally.errors
        if tally.cost is not None:
            self.cost = (self.cost or 0.0) + tally.cost

    def line(self) -> str:
        """The progress in one line."""
        rate = self._rate_now()
        of = "" if self._total is None else f" of {self._total:,}"
        parts = [f"{self.done:,}{of} done", f"{self.failed:,} failed", f"{self.errors:,} errors", f"{rate:,.1f}/s"]
        if self.reused:
            parts.insert(1, f"{self.reused:,} reused")
        if self._total is not None and rate > 0:
            parts.append(f"{_duration((self._total - self.done) / rate)} left")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4g}")
        line = ", ".join(parts)
        return line if self._look is None else f"{line}; {self._look}"

    def _rate_now(self) -> float:
        """Cases per second over the last window, without reused ones: they do not predict the remaining time."""
        now, worked = self._clock(), self.done - self.reused
        since, before = self._mark
        if now - since >= _RATE_WINDOW_S:
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
    """One display for concurrent runs."""

    def __init__(self, settings: CliSettings) -> None:
        self._settings = settings
        self._display = ExitStack()
        self._progress = ProgressLine(0)
        self._advance: ProgressCallback = lambda _: None
        self._running = 0

    @contextmanager
    def __call__(self, total: Callable[[], int | None]) -> Iterator[ProgressCallback]:
        """Add a run to the display."""
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
def show_progress(settings: CliSettings, total: Callable[[], int | None]) -> Iterator[ProgressCallback]:
    """Show the progress of a run; ``total`` is computed only for a live display."""
    live = not settings.quiet and sys.stderr.isatty()
    with _display(settings, ProgressLine(total() if live else None)) as advance:
        yield advance


@contextmanager
def _display(settings: CliSettings, progress: ProgressLine) -> Iterator[ProgressCallback]:
    if settings.quiet:
        yield lambda _: None
    elif not sys.stderr.isatty():
        yield _lines(progress)
    else:
        from rich.live import Live  # only in a terminal

        with Live(progress, console=console(settings, stderr=True), refresh_per_second=8, transient=True):
            yield progress


def _lines(progress: ProgressLine) -> ProgressCallback:
    printed_at = monotonic()

    def advance(done: CompletedCase | ProgressCount | LookReport) -> None:
        nonlocal printed_at
        progress(done)
        now = monotonic()
        if now - printed_at >= LOG_INTERVAL_S:
            printed_at = now
            click.echo(progress.line(), err=True)

    return advance


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
