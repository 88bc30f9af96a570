"""What a suite did over time, and what it needs, from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradeline.api.options import in_python_terms
from gradeline.api.stores import OpenStore
from gradeline.api.suites import Suite, as_suite
from gradeline.engine import sizing
from gradeline.engine import trend as trends
from gradeline.engine.sizing import POWER, Plan
from gradeline.engine.trend import LAST, Trend
from gradeline.errors import ConfigError
from gradeline.model import Storage
from gradeline.verdict.paired_decision import MARGIN


def trend(
    suite: str | Suite, *, store: str | Path | Storage | None = None, grader: str | None = None, last: int = LAST
) -> Trend:
    """The newest runs of a suite over time, the oldest first: means with intervals, costs, and what changed.

    A suite is a `Suite` or the name of one. ``grader`` is the primary one of the newest run where none is named. A new
    ``segment`` begins where the grader changed: means compare only within one.
    """
    opened = OpenStore(store)
    try:
        name = suite.name if isinstance(suite, Suite) else suite
        return trends.trend(opened.storage, name, grader=grader, last=last)
    finally:
        opened.close()


def plan(
    suite: str | Path | Suite | Mapping[str, Any],
    *,
    store: str | Path | Storage | None = None,
    baseline: str | None = None,
    margin: float = MARGIN,
    power: float = POWER,
    prices: Sequence[str] = (),
) -> Plan:
    """The cases, calls, tokens, money and time that a suite takes to settle a margin; nothing is called.

    How much scores vary is read from the suite's runs in the store. Without a run it is a guess: ``spread`` says so.
    ``prices`` are as in ``--assume-price``: ``"0.15/0.60"`` or ``"MODEL=0.15/0.60"``.
    """
    opened = OpenStore(store)
    try:
        read = as_suite(suite)._spec
        return sizing.plan(opened.storage, read, baseline=baseline, margin=margin, power=power, prices=prices)
    except ConfigError as error:
        raise in_python_terms(error) from None
    finally:
        opened.close()
