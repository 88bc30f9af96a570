"""Grade any agent, and know whether the difference is real.

The names below are the public surface; each is imported when first used, so that
``import gradeline`` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gradeline.api import Suite, arun_suite, compare, run_suite
    from gradeline.client import Client
    from gradeline.graders import Grader, StringMatchGrader, TrueFalseGrader
    from gradeline.model import GradeContext, GradeResult, Outcome, Response, Sample
    from gradeline.usercode.marks import agent_factory, extractor, grader, reward_composer, suite_setup

__all__ = [
    "Client",
    "GradeContext",
    "GradeResult",
    "Grader",
    "Outcome",
    "Response",
    "Sample",
    "StringMatchGrader",
    "Suite",
    "TrueFalseGrader",
    "__version__",
    "agent_factory",
    "arun_suite",
    "compare",
    "extractor",
    "grader",
    "reward_composer",
    "run_suite",
    "suite_setup",
]

_HOMES = {
    "Client": "gradeline.client",
    "GradeContext": "gradeline.model",
    "GradeResult": "gradeline.model",
    "Grader": "gradeline.graders",
    "Outcome": "gradeline.model",
    "Response": "gradeline.model",
    "Sample": "gradeline.model",
    "StringMatchGrader": "gradeline.graders",
    "Suite": "gradeline.api",
    "TrueFalseGrader": "gradeline.graders",
    "agent_factory": "gradeline.usercode.marks",
    "arun_suite": "gradeline.api",
    "compare": "gradeline.api",
    "extractor": "gradeline.usercode.marks",
    "grader": "gradeline.usercode.marks",
    "reward_composer": "gradeline.usercode.marks",
    "run_suite": "gradeline.api",
    "suite_setup": "gradeline.usercode.marks",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'gradeline' has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
