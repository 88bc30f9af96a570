"""A custom grader as gradeline's users write one."""

from gradeline import GradeResult, Sample, grader


@grader
def same(sample: Sample, submission: str) -> GradeResult:
    return GradeResult(score=1.0 if submission == sample.ground_truth else 0.0)
