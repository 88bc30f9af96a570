"""Code and formulas of OpenAI's graders, as files and formulas of a suite. They are parsed and never executed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gradeline.graders.formula import MAX_CHARS, Formula, FormulaError
from gradeline.importers.openai_prompts import NotMappedError
from gradeline.model import clean_text, quote

MAX_CODE = 256 * 1024
"""Maximum characters of a Python grader."""


class ScoreRange(NamedTuple):
    """The scores that a grader gives."""

    low: float = 0.0
    high: float = 1.0

    def share(self, score: float) -> float:
        """The score on a scale from 0 to 1."""
        return score if self == ScoreRange() else (score - self.low) / (self.high - self.low)


CALL_GRADE, CHECK = "imported_grade", "imported_check"
"""The functions of the files, by which a suite names them."""

_PYTHON = """# Code of an imported grader, unchanged.
#
{source}


# What follows was added by the import: gradeline calls grade(sample, item) from here.
from gradeline import grader as _gradeline_grader  # noqa: E402
from gradeline.compat import openai_evals as _gradeline_openai  # noqa: E402


@_gradeline_grader
def imported_grade(sample, submission, response):
    return _gradeline_openai.call_grade(grade, sample, submission, response)
"""
_CHECK = '''"""A string check of an imported eval."""

from gradeline import GradeResult, Response, Sample, grader
from gradeline.compat.openai_evals import check_strings


@grader
def imported_check(sample: Sample, submission: str, response: Response) -> GradeResult:
    return check_strings({arguments}, sample, submission, response)
'''
_REGISTRY = '''"""A grader of the registry of openai/evals."""

from gradeline import GradeResult, Sample, grader
from gradeline.compat.openai_evals import {function}


@grader
def imported_grade(sample: Sample, submission: str) -> GradeResult:
    return {function}(sample, submission)
'''


def registry_file(function: str) -> str:
    """The file of a grader of the registry, which is a function of `gradeline.compat.openai_evals`."""
    return _REGISTRY.format(function=function)


def check_file(operation: str, left: str, right: str) -> str:
    """The file of a string check of two templates."""
    return _CHECK.format(arguments=", ".join(map(repr, (operation, left, right))))


def python_file(source: object) -> str:
    """The file of a Python grader: its source, and the function that gradeline calls.

    The comment above the source keeps a declaration of another encoding in it from having an effect.
    """
    if not isinstance(source, str) or len(source) > MAX_CODE:
        raise NotMappedError(f"has no source of at most {MAX_CODE:,} characters")
    return _PYTHON.format(source=clean_text(source.replace("\r\n", "\n")).text.rstrip("\n"))


def imported_packages(source: str) -> list[str]:
    """The packages outside of the standard library that a source imports. It is parsed and never executed."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise NotMappedError(f"its source is not Python 3: {reason}; correct it in the export") from None
    if not any(isinstance(one, ast.FunctionDef) and one.name == "grade" for one in tree.body):
        raise NotMappedError("its source does not define grade(sample, item); write a custom grader")
    names = {name.partition(".")[0] for node in ast.walk(tree) for name in _imported_names(node)}
    return sorted(names - sys.stdlib_module_names)


def _imported_names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module


class _Columns(ast.NodeTransformer):
    """Names of a multi grader's graders as columns of the suite, with scores on the scale that the formula reads."""

    def __init__(self, columns: Mapping[str, str], ranges: Mapping[str, ScoreRange]) -> None:
        self._columns = columns
        self._ranges = ranges

    def visit_Call(self, node: ast.Call) -> ast.AST:
        node.args = [self.visit(one) for one in node.args]
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id not in self._columns:
            raise NotMappedError(f"calculate_output names {quote(node.id, 40)}, which is none of its graders")
        column, scores = ast.Constant(self._columns[node.id]), self._ranges[node.id]
        if scores == ScoreRange():
            return column
        scaled = ast.BinOp(ast.Constant(scores.high - scores.low), ast.Mult(), column)
        return ast.BinOp(ast.Constant(scores.low), ast.Add(), scaled)


def multi_formula(text: object, columns: Mapping[str, str], ranges: Mapping[str, ScoreRange]) -> str:
    try:
        tree = ast.parse(str(text)[: MAX_CHARS + 1].strip().replace("^", "**"), mode="eval")
        formula = ast.unparse(_Columns(columns, ranges).visit(tree))
        Formula(formula)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        if isinstance(error, NotMappedError):
            raise
        reason = str(error) if isinstance(error, FormulaError) else "it cannot be parsed"
        raise NotMappedError(f"calculate_output {quote(text, 60)}: {reason}; write a formula") from None
    return formula
