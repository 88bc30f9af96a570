"""Statistics: intervals, paired tests, pass@k, power, agreement and corrected rates, without numpy or scipy.

What concerns labels is imported on first use: runs without labels do not need it.
"""

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports
from gradeline.stats.intervals import (
    Interval,
    bootstrap,
    clopper_pearson,
    flakiness,
    mean_interval,
    pass_at_k,
    pass_hat_k,
    percentile,
    score_interval,
    score_sums_interval,
    wilson,
)
from gradeline.stats.paired import McNemar, benjamini_hochberg, holm, mcnemar, paired_difference, sign_flip_test
from gradeline.stats.power import cases_needed, cases_to_decide, minimum_detectable_effect, noise_threshold

if TYPE_CHECKING:
    from gradeline.stats.agreement import Confusion, cohen_kappa, confusion, kappa_lower_bound, krippendorff_alpha
    from gradeline.stats.logistic import LogisticModel, fit_logistic
    from gradeline.stats.prediction_powered import Corrected, corrected_difference, corrected_mean, rogan_gladen
    from gradeline.stats.score_calibration import (
        CalibrationBin,
        IsotonicFit,
        brier,
        calibration_curve,
        expected_calibration_error,
        isotonic,
    )

__all__ = [
    "CalibrationBin",
    "Confusion",
    "Corrected",
    "Interval",
    "IsotonicFit",
    "LogisticModel",
    "McNemar",
    "benjamini_hochberg",
    "bootstrap",
    "brier",
    "calibration_curve",
    "cases_needed",
    "cases_to_decide",
    "clopper_pearson",
    "cohen_kappa",
    "confusion",
    "corrected_difference",
    "corrected_mean",
    "expected_calibration_error",
    "fit_logistic",
    "flakiness",
    "holm",
    "isotonic",
    "kappa_lower_bound",
    "krippendorff_alpha",
    "mcnemar",
    "mean_interval",
    "minimum_detectable_effect",
    "noise_threshold",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "percentile",
    "rogan_gladen",
    "score_interval",
    "score_sums_interval",
    "sign_flip_test",
    "wilson",
]

_HOMES = {
    "Confusion": "gradeline.stats.agreement",
    "Corrected": "gradeline.stats.prediction_powered",
    "CalibrationBin": "gradeline.stats.score_calibration",
    "IsotonicFit": "gradeline.stats.score_calibration",
    "LogisticModel": "gradeline.stats.logistic",
    "brier": "gradeline.stats.score_calibration",
    "calibration_curve": "gradeline.stats.score_calibration",
    "cohen_kappa": "gradeline.stats.agreement",
    "confusion": "gradeline.stats.agreement",
    "corrected_difference": "gradeline.stats.prediction_powered",
    "corrected_mean": "gradeline.stats.prediction_powered",
    "expected_calibration_error": "gradeline.stats.score_calibration",
    "fit_logistic": "gradeline.stats.logistic",
    "isotonic": "gradeline.stats.score_calibration",
    "kappa_lower_bound": "gradeline.stats.agreement",
    "krippendorff_alpha": "gradeline.stats.agreement",
    "rogan_gladen": "gradeline.stats.prediction_powered",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
