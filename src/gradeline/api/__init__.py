"""The Python API: run suites, read results, compare runs.

The functions are in `gradeline` itself; here are also the classes of their arguments and results.
"""

from gradeline.analysis.ranking import ManyComparison
from gradeline.analysis.sizing import Plan
from gradeline.analysis.trend import Trend
from gradeline.api.comparing import compare, plan, trend
from gradeline.api.options import CaseProgress, RunSuiteOptions
from gradeline.api.results import RunGroup, RunResult
from gradeline.api.suites import Suite, arun_suite, run_suite
from gradeline.engine.comparison import Comparison
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
