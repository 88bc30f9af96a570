"""Grade any agent, and know whether the difference is real.

The names below are the public surface; each is imported when first used, so that
``import gradeline`` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gradeline.api import Suite, arun_suite, compare, plan, run_suite, trend
    from gradeline.client import Client
    from gradeline.graders import Grader, StringMatchGrader, TrueFalseGrader
    from gradeline.model import (
        GradeContext,
        GradeResult,
        Message,
        Outcome,
        Response,
        Sample,
        ToolCall,
        Trajectory,
        Usage,
    )
    from gradeline.usercode.decorators import agent_factory, extractor, grader, reward_composer, suite_setup

__all__ = [
    "Client",
    "GradeContext",
    "GradeResult",
    "Grader",
    "Message",
    "Outcome",
    "Response",
    "Sample",
    "StringMatchGrader",
    "Suite",
    "ToolCall",
    "Trajectory",
    "TrueFalseGrader",
    "Usage",
    "__version__",
    "agent_factory",
    "arun_suite",
    "compare",
    "extractor",
    "grader",
    "plan",
    "reward_composer",
    "run_suite",
    "suite_setup",
    "trend",
]

_HOMES = {
    "Client": "gradeline.client",
    "GradeContext": "gradeline.model",
    "GradeResult": "gradeline.model",
    "Grader": "gradeline.graders",
    "Message": "gradeline.model",
    "Outcome": "gradeline.model",
    "Response": "gradeline.model",
    "Sample": "gradeline.model",
    "StringMatchGrader": "gradeline.graders",
    "Suite": "gradeline.api",
    "ToolCall": "gradeline.model",
    "Trajectory": "gradeline.model",
    "TrueFalseGrader": "gradeline.graders",
    "Usage": "gradeline.model",
    "agent_factory": "gradeline.usercode.decorators",
    "arun_suite": "gradeline.api",
    "compare": "gradeline.api",
    "extractor": "gradeline.usercode.decorators",
    "grader": "gradeline.usercode.decorators",
    "plan": "gradeline.api",
    "reward_composer": "gradeline.usercode.decorators",
    "run_suite": "gradeline.api",
    "suite_setup": "gradeline.usercode.decorators",
    "trend": "gradeline.api",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
