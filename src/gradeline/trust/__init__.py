"""How far a judge can be trusted: labels, calibration, probes, anchors, and routing on judged quality.

Each name is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from gradeline.model.label import ReferenceLabel, ReferenceLabels
    from gradeline.model.route import RouteChoice
    from gradeline.store.labels import reference_labels
    from gradeline.trust.calibration import JudgeCandidate, best_judge
    from gradeline.trust.label_files import export_labels
    from gradeline.trust.label_import import LabelImport, import_labels
    from gradeline.trust.label_samples import LabelSample, draw_sample
    from gradeline.trust.labelling_status import LabelStatus, label_status
    from gradeline.trust.off_policy import LoggedReward, PolicyValue, evaluate_policy
    from gradeline.trust.policy import ArmEvidence, PolicyRules
    from gradeline.trust.router import JudgeRates, RouteJudge, Router
    from gradeline.trust.run_calibration import CalibratedRun, calibrate_run

__all__ = [
    "ArmEvidence",
    "CalibratedRun",
    "JudgeCandidate",
    "JudgeRates",
    "LabelImport",
    "LabelSample",
    "LabelStatus",
    "LoggedReward",
    "PolicyRules",
    "PolicyValue",
    "ReferenceLabel",
    "ReferenceLabels",
    "RouteChoice",
    "RouteJudge",
    "Router",
    "best_judge",
    "calibrate_run",
    "draw_sample",
    "evaluate_policy",
    "export_labels",
    "import_labels",
    "label_status",
    "reference_labels",
]

_HOMES = {
    "ArmEvidence": "gradeline.trust.policy",
    "CalibratedRun": "gradeline.trust.run_calibration",
    "JudgeCandidate": "gradeline.trust.calibration",
    "JudgeRates": "gradeline.trust.router",
    "LabelImport": "gradeline.trust.label_import",
    "LabelSample": "gradeline.trust.label_samples",
    "LabelStatus": "gradeline.trust.labelling_status",
    "LoggedReward": "gradeline.trust.off_policy",
    "PolicyRules": "gradeline.trust.policy",
    "PolicyValue": "gradeline.trust.off_policy",
    "ReferenceLabel": "gradeline.model.label",
    "ReferenceLabels": "gradeline.model.label",
    "RouteChoice": "gradeline.model.route",
    "RouteJudge": "gradeline.trust.router",
    "Router": "gradeline.trust.router",
    "best_judge": "gradeline.trust.calibration",
    "calibrate_run": "gradeline.trust.run_calibration",
    "draw_sample": "gradeline.trust.label_samples",
    "evaluate_policy": "gradeline.trust.off_policy",
    "export_labels": "gradeline.trust.label_files",
    "import_labels": "gradeline.trust.label_import",
    "label_status": "gradeline.trust.labelling_status",
    "reference_labels": "gradeline.store.labels",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
