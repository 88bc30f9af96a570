from gradeline import GradeResult, Sample, grader


@grader
def sure(sample: Sample, submission: str) -> GradeResult:
    knows = "do not know" not in submission
    return GradeResult(score=1.0 if knows else 0.0, rationale="sure" if knows else "does not know")
