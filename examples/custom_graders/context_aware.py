from letta_evals.decorators import grader
from letta_evals.models import GradeResult, Sample


def exact_math_check(sample: Sample, submission: str) -> GradeResult:
    correct = submission.strip() == sample.ground_truth
    return GradeResult(score=1.0 if correct else 0.0, rationale=f"Expected exactly {sample.ground_truth}")


def length_and_relevance_check(sample: Sample, submission: str) -> GradeResult:
    long_enough = len(submission.split()) >= 5
    relevant = sample.ground_truth.lower() in submission.lower()
    return GradeResult(
        score=(long_enough + relevant) / 2,
        rationale="Half for five words, half for the subject",
        metadata={"long_enough": long_enough, "relevant": relevant},
    )


def default_check(sample: Sample, submission: str) -> GradeResult:
    found = sample.ground_truth.lower() in submission.lower()
    return GradeResult(score=1.0 if found else 0.0, rationale=f"Looked for {sample.ground_truth}")


@grader
def context_aware_grader(sample: Sample, submission: str) -> GradeResult:
    category = sample.metadata.get("category", "general")

    if category == "math":
        # Strict for math
        return exact_math_check(sample, submission)
    elif category == "creative":
        # Lenient for creative
        return length_and_relevance_check(sample, submission)
    else:
        return default_check(sample, submission)
