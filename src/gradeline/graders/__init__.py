"""Graders: pure functions from a submission to a score, each declared once."""

from gradeline.graders.base import DeclaredGrader, Grader, as_grader
from gradeline.graders.grading import error_grade, grade, run_async_grader, run_grader
from gradeline.graders.registry import create, default_extractor, from_definition, registry
from gradeline.graders.text_match import StringMatchGrader, TrueFalseGrader

__all__ = [
    "DeclaredGrader",
    "Grader",
    "StringMatchGrader",
    "TrueFalseGrader",
    "as_grader",
    "create",
    "default_extractor",
    "error_grade",
    "from_definition",
    "grade",
    "registry",
    "run_async_grader",
    "run_grader",
]
