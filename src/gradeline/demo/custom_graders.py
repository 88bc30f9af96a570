"""Custom graders of the demo: two that work, and two faulty ones that do not harm the run."""

import os

from gradeline import GradeResult, Sample, grader


@grader
def keyword_coverage(sample: Sample, submission: str) -> GradeResult:
    """The share of the expected keywords in the answer."""
    keywords = str(sample.ground_truth).split(",")
    found = [keyword for keyword in keywords if keyword.lower() in submission.lower()]
    return GradeResult(
        score=len(found) / len(keywords),
        rationale=f"Found {len(found)}/{len(keywords)} keywords: {', '.join(found)}",
        metadata={"missing": [keyword for keyword in keywords if keyword not in found]},
    )


@grader
async def short_enough(sample: Sample, submission: str) -> GradeResult:
    """Pass answers within the maximum length of their case."""
    maximum, length = sample.metadata.get("max_chars", 200), len(submission)
    return GradeResult(score=1.0 if length <= maximum else 0.0, rationale=f"{length} of {maximum} characters")


@grader
def never_ends(sample: Sample, submission: str) -> GradeResult:
    """Hang on one case: the worker is killed at the time limit, that grade is an error, and the run continues."""
    while sample.id == "photosynthesis":
        pass
    return GradeResult(score=1.0, rationale="finished")


@grader
def ends_its_process(sample: Sample, submission: str) -> GradeResult:
    """End the whole worker process on one case: the other grades are not affected."""
    if sample.id == "tides":
        os._exit(3)
    return GradeResult(score=1.0, rationale="finished")
