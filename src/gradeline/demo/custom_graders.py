"""Custom graders of the demo: two that work, and two that show what cannot hurt a run."""

import os

from gradeline import GradeResult, Sample, grader


@grader
def keyword_coverage(sample: Sample, submission: str) -> GradeResult:
    """Which share of the expected keywords is there?"""
    keywords = str(sample.ground_truth).split(",")
    found = [keyword for keyword in keywords if keyword.lower() in submission.lower()]
    return GradeResult(
        score=len(found) / len(keywords),
        rationale=f"Found {len(found)}/{len(keywords)} keywords: {', '.join(found)}",
        metadata={"missing": [keyword for keyword in keywords if keyword not in found]},
    )


@grader
async def short_enough(sample: Sample, submission: str) -> GradeResult:
    """Does the answer keep to the length its case allows?"""
    most, length = sample.metadata.get("max_chars", 200), len(submission)
    return GradeResult(score=1.0 if length <= most else 0.0, rationale=f"{length} of {most} characters")


@grader
def never_ends(sample: Sample, submission: str) -> GradeResult:
    """Hangs on one case: it is ended at its deadline, that grade is an error, and the rest goes on."""
    while sample.id == "photosynthesis":
        pass
    return GradeResult(score=1.0, rationale="came back")


@grader
def ends_its_process(sample: Sample, submission: str) -> GradeResult:
    """Takes its whole process down on one case: the other grades are unharmed."""
    if sample.id == "tides":
        os._exit(3)
    return GradeResult(score=1.0, rationale="came back")
