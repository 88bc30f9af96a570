"""Suites from Python: run them, look at what came of it, compare.

The short names are in `gradeline` itself; here are the classes of what they take and give back.
"""

from gradeline.api.comparing import compare
from gradeline.api.options import CaseProgress, RunSuiteOptions
from gradeline.api.planning import plan, trend
from gradeline.api.results import RunGroup, RunResult
from gradeline.api.suites import Suite, arun_suite, run_suite
from gradeline.engine.comparison import Comparison
from gradeline.engine.ranking import ManyComparison
from gradeline.engine.sizing import Plan
from gradeline.engine.trend import Trend
from gradeline.store import default_store

__all__ = [
    "CaseProgress",
    "Comparison",
    "ManyComparison",
    "Plan",
    "RunGroup",
    "RunResult",
    "RunSuiteOptions",
    "Suite",
    "Trend",
    "arun_suite",
    "compare",
    "default_store",
    "plan",
    "run_suite",
    "trend",
]
