"""The rules grader: conditions as data, their parsing and scoring."""

from gradeline.graders.rules.grader import CONDITIONS, RulesConfig, RulesGrader

__all__ = ["CONDITIONS", "RulesConfig", "RulesGrader"]
