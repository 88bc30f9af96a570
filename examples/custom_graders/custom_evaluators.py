from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample

@grader
def my_grader(sample: Sample, submission: str) -> GradeResult:
    """Is the expected answer in the response?"""
    if sample.ground_truth and sample.ground_truth.lower() in submission.lower():
        return GradeResult(score=1.0, rationale=f"Found {sample.ground_truth!r}")
    return GradeResult(score=0.0, rationale=f"{sample.ground_truth!r} is not there")
