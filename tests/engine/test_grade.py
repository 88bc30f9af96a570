"""What is graded at once, and what waits."""

from __future__ import annotations

from gradeline.engine.grade import GraderUse, Grading, UserGrader
from gradeline.extractors import create as create_extractor
from gradeline.graders import create as create_grader
from gradeline.model import Response, Sample


def test_what_waits_for_a_worker_is_not_begun_before() -> None:
    """Else the graders beside it would do their work twice."""
    whole = create_extractor("last_assistant")
    own = GraderUse("exact", create_grader("exact_match"), whole)
    custom = GraderUse("custom", UserGrader("graders.py:same", "f"), whole)
    sample, response = Sample(1, "q", "a"), Response(text="a")
    graded = Grading([own], None).grade_now(sample, response, ("exact",))
    assert graded is not None
    assert graded["exact"].grade.passed
    assert Grading([own, custom], None).grade_now(sample, response, ("exact", "custom")) is None
    assert Grading([own, custom], None).grade_now(sample, response, ("exact",)) is None
