from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample


def complex_calculation(submission: str) -> float:
    """The value of a fraction such as "3/4"."""
    reached, possible = submission.split("/")
    return int(reached) / int(possible)


@grader
def safe_grader(sample: Sample, submission: str) -> GradeResult:
    try:
        # Your logic here
        score = complex_calculation(submission)
        return GradeResult(score=score, rationale="Success")

    except Exception as e:
        # Return 0.0 with error message
        return GradeResult(
            score=0.0,
            rationale=f"Error during grading: {str(e)}",
            metadata={"error": str(e), "error_type": type(e).__name__}
        )
