"""The JSON rules grader: conditions, how they are read, how they are scored."""

from gradeline.graders.rules.grader import RulesConfig, RulesGrader
from gradeline.graders.rules.reading import CONDITIONS

__all__ = ["CONDITIONS", "RulesConfig", "RulesGrader"]
