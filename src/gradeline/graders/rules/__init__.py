"""The JSON rules grader: conditions, how they are read, how they are scored."""

from gradeline.graders.rules.grader import CONDITIONS, RulesConfig, RulesGrader

__all__ = ["CONDITIONS", "RulesConfig", "RulesGrader"]
