"""How far a judge can be trusted: labels, calibration, probes, anchors, and routing on judged quality.

Each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from gradeline.model.route import RouteChoice
    from gradeline.trust.off_policy import LoggedReward, PolicyValue, evaluate_policy
    from gradeline.trust.policy import ArmEvidence, PolicyRules
    from gradeline.trust.router import JudgeRates, RouteJudge, Router

__all__ = [
    "ArmEvidence",
    "JudgeRates",
    "LoggedReward",
    "PolicyRules",
    "PolicyValue",
    "RouteChoice",
    "RouteJudge",
    "Router",
    "evaluate_policy",
]

_HOMES = {
    "ArmEvidence": "gradeline.trust.policy",
    "JudgeRates": "gradeline.trust.router",
    "LoggedReward": "gradeline.trust.off_policy",
    "PolicyRules": "gradeline.trust.policy",
    "PolicyValue": "gradeline.trust.off_policy",
    "RouteChoice": "gradeline.model.route",
    "RouteJudge": "gradeline.trust.router",
    "Router": "gradeline.trust.router",
    "evaluate_policy": "gradeline.trust.off_policy",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
