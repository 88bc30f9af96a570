from gradeline import GradeResult, Sample, grader


@grader
def polite(sample: Sample, submission: str) -> GradeResult:
    kind = "welcome" in submission
    return GradeResult(score=1.0 if kind else 0.0, rationale="kind" if kind else "curt")
