"""What is graded at once, and what waits."""

from __future__ import annotations

from gradeline.engine.grade import GraderUse, Grading, UserGrader, storable
from gradeline.engine.plan import Graded
from gradeline.errors import Outcome
from gradeline.extractors import create as create_extractor
from gradeline.graders import create as create_grader
from gradeline.model import Grade, Response, Sample


def test_grade_now_grades_nothing_if_a_grader_needs_a_worker() -> None:
    """Otherwise the other graders would do their work twice."""
    whole = create_extractor("last_assistant")
    own = GraderUse("exact", create_grader("exact_match"), whole)
    custom = GraderUse("custom", UserGrader("graders.py:same", "f"), whole)
    sample, response = Sample(1, "q", "a"), Response(text="a")
    graded = Grading([own], None).grade_now(sample, response, ("exact",))
    assert graded is not None
    assert graded["exact"].grade.passed
    assert Grading([own, custom], None).grade_now(sample, response, ("exact", "custom")) is None
    assert Grading([own, custom], None).grade_now(sample, response, ("exact",)) is None


def test_a_grade_that_cannot_be_stored_becomes_an_error_of_only_its_grader() -> None:
    good = Graded("a", Grade("exact_match", "f", Outcome.PASS, 1.0, True))
    odd = [
        Graded("a", Grade("plugin", "f", Outcome.PASS, 1.0, True, metadata={"o": object()})),
        Graded("a", Grade("plugin", "f", Outcome.PASS, 1.0, True, usage="free")),  # type: ignore[arg-type]
        Graded("\ud800", Grade("plugin", "f", Outcome.PASS, 1.0, True)),
    ]
    for one in odd:
        found = storable({"good": good, "odd": one})
        assert found["good"] == good
        assert (found["odd"].submission, found["odd"].grade.outcome) == (None, Outcome.ERROR)
        assert found["odd"].grade.error is not None
        assert found["odd"].grade.error.type == "bad_reply"
        assert found["odd"].grade.error.message.startswith("the grade cannot be stored: ")
