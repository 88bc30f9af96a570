from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample

@grader
def my_grader(sample: Sample, submission: str) -> GradeResult:
    """Check that the response contains the expected answer."""
    if sample.ground_truth and sample.ground_truth.lower() in submission.lower():
        return GradeResult(score=1.0, rationale=f"Found {sample.ground_truth!r}")
    return GradeResult(score=0.0, rationale=f"{sample.ground_truth!r} not found")
