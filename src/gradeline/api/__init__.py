"""Suites from Python: run them, look at what came of it, compare.

The short names are in `gradeline` itself; here are the classes of what they take and give back.
"""

from gradeline.api.comparing import compare
from gradeline.api.options import Progress, RunOptions
from gradeline.api.planning import plan, trend
from gradeline.api.results import RunGroup, RunResult
from gradeline.api.stores import default_store
from gradeline.api.suites import Suite, arun_suite, run_suite
from gradeline.engine.compare import Comparison
from gradeline.engine.many import ManyComparison
from gradeline.engine.sizing import Plan
from gradeline.engine.trend import Trend

__all__ = [
    "Comparison",
    "ManyComparison",
    "Plan",
    "Progress",
    "RunGroup",
    "RunOptions",
    "RunResult",
    "Suite",
    "Trend",
    "arun_suite",
    "compare",
    "default_store",
    "plan",
    "run_suite",
    "trend",
]
