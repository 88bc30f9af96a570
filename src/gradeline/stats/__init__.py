"""Statistics: intervals, paired tests, pass@k and power, without numpy or scipy."""

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

__all__ = [
    "Interval",
    "McNemar",
    "benjamini_hochberg",
    "bootstrap",
    "cases_needed",
    "cases_to_decide",
    "clopper_pearson",
    "flakiness",
    "holm",
    "mcnemar",
    "mean_interval",
    "minimum_detectable_effect",
    "noise_threshold",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "percentile",
    "score_interval",
    "score_sums_interval",
    "sign_flip_test",
    "wilson",
]
