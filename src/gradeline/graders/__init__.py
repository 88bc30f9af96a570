"""Graders: pure functions from a submission to a score, each declared once."""

from gradeline.graders.adapt import as_grader
from gradeline.graders.base import DeclaredGrader, Grader
from gradeline.graders.registry import create, default_extractor, from_definition, registry
from gradeline.graders.run import ask_grader, error_grade, grade, run_grader
from gradeline.graders.string_match import StringMatchGrader
from gradeline.graders.true_false import TrueFalseGrader

__all__ = [
    "DeclaredGrader",
    "Grader",
    "StringMatchGrader",
    "TrueFalseGrader",
    "as_grader",
    "ask_grader",
    "create",
    "default_extractor",
    "error_grade",
    "from_definition",
    "grade",
    "registry",
    "run_grader",
]
