"""The one thing every grader is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from gradeline.model.grade import Grade
from gradeline.model.response import Response
from gradeline.model.sample import Sample
from gradeline.model.text import clean_text

Need = Literal["response", "baseline", "grades"]
"""What a grader may declare that it reads beside sample and submission."""


class GradeContext(msgspec.Struct, frozen=True):
    """A submission in its surroundings.

    ``response`` is the agent's whole response, ``baseline`` the baseline's response to the same
    case and ``baseline_submission`` what the same extractor took out of it, ``grades`` the grades
    given before this one; each is there when the grader needs it.
    """

    sample: Sample
    submission: str
    response: Response | None = None
    baseline: Response | None = None
    grades: Mapping[str, Grade] = {}
    baseline_submission: str | None = None

    def __post_init__(self) -> None:
        # graders see the text that is stored, so that grading it again gives the same
        if not self.submission.isascii() or "\0" in self.submission:
            msgspec.structs.force_setattr(self, "submission", clean_text(self.submission).text)

    @property
    def expected(self) -> str | None:
        """The expectation as one text; the turns of a conversation are its lines."""
        truth = self.sample.ground_truth
        if isinstance(truth, list):
            truth = "\n".join(truth)
        return truth if truth is None or (truth.isascii() and "\0" not in truth) else clean_text(truth).text
