"""The formula grader: a score computed from the grades of other graders."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from math import ceil, exp, floor, isfinite, log, sqrt
from math import pow as power
from typing import Annotated, Any

from gradeline.errors import CaseLeftOut, MissingDataError, Outcome, Problem, UngradableError
from gradeline.graders.base import DeclaredGrader
from gradeline.model import Config, Grade, GradeContext, GradeResult, described, quote

MAX_CHARS = 1_000
_MAX_DEPTH = 30

Scores = Mapping[str, float]
Term = Callable[[Scores], float]

_ARITHMETIC: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: power,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_FUNCTIONS: Mapping[str, Callable[..., float]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": floor,
    "ceil": ceil,
    "sqrt": sqrt,
    "exp": exp,
    "log": log,
}
_OF_SEVERAL = frozenset({"min", "max"})
"""Functions of two values or more; the others take one."""
_ALLOWED = "numbers, names of graders, + - * / **, comparisons, min, max, abs, floor, ceil, sqrt, exp and log"


class FormulaError(ValueError):
    """An invalid formula; the message says what is wrong with it."""


class Formula:
    """A parsed formula: terms are built once, and nothing of the text is executed."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise FormulaError(f"has {len(text):,} characters; at most {MAX_CHARS:,} are allowed")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
            raise FormulaError(f"{quote(text)} is not a formula: {reason}; use {_ALLOWED}") from None
        self._text = text
        self._names: dict[str, None] = {}
        self._term = self._build(tree.body, 0)

    @property
    def names(self) -> tuple[str, ...]:
        """The graders that it reads, in order."""
        return tuple(self._names)

    def value(self, scores: Scores) -> float:
        """The result. Raises `UngradableError` if there is none, as for a division by zero, or if it is too large."""
        try:
            value = float(self._term(scores))
        except ZeroDivisionError:
            raise UngradableError(f"{self._text} divides by zero {self._with(scores)}") from None
        except OverflowError:
            value = float("inf")
        except ValueError:
            raise UngradableError(f"{self._text} has no value {self._with(scores)}: see sqrt, log and **") from None
        if not isfinite(value):
            raise UngradableError(f"{self._text} is too large {self._with(scores)}")
        return value

    def _with(self, scores: Scores) -> str:
        return "with " + ", ".join(f"{name} {scores[name]:g}" for name in self._names)

    def _build(self, node: ast.AST, depth: int) -> Term:
        if depth > _MAX_DEPTH:
            raise FormulaError(f"{quote(self._text)} is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._column(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            apply = _ARITHMETIC[type(node.op)]
            left, right = self._build(node.left, depth + 1), self._build(node.right, depth + 1)
            return lambda scores: apply(left(scores), right(scores))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
            term = self._build(node.operand, depth + 1)
            return (lambda scores: -term(scores)) if isinstance(node.op, ast.USub) else term
        if isinstance(node, ast.Compare):
            return self._comparison(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        raise FormulaError(f"{quote(ast.unparse(node))} is not allowed in a formula; use {_ALLOWED}")

    def _constant(self, node: ast.Constant) -> Term:
        if isinstance(node.value, str):
            return self._column(node.value)
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise FormulaError(f"{quote(ast.unparse(node))} is not allowed in a formula; use {_ALLOWED}")
        try:
            number = float(node.value)
        except OverflowError:
            number = float("inf")
        if not isfinite(number):
            raise FormulaError("a number in the formula is too large")
        return lambda _: number

    def _column(self, name: str) -> Term:
        self._names[name] = None
        return lambda scores: scores[name]

    def _comparison(self, node: ast.Compare, depth: int) -> Term:
        terms = [self._build(one, depth + 1) for one in (node.left, *node.comparators)]
        unknown = next((one for one in node.ops if type(one) not in _COMPARISONS), None)
        if unknown is not None:
            raise FormulaError(f"{quote(ast.unparse(node))} is not allowed in a formula; use {_ALLOWED}")
        tests = [_COMPARISONS[type(one)] for one in node.ops]

        def holds(scores: Scores) -> float:
            values = [term(scores) for term in terms]
            pairs = zip(tests, values, values[1:], strict=False)
            return float(all(test(left, right) for test, left, right in pairs))

        return holds

    def _call(self, node: ast.Call, depth: int) -> Term:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in _FUNCTIONS or node.keywords or any(isinstance(one, ast.Starred) for one in node.args):
            raise FormulaError(f"{quote(ast.unparse(node))} is not allowed in a formula; use {_ALLOWED}")
        several = name in _OF_SEVERAL
        if len(node.args) < 2 if several else len(node.args) != 1:
            wanted = "at least two values" if several else "one value"
            raise FormulaError(f"{name} takes {wanted}, got {quote(ast.unparse(node))}")
        function, terms = _FUNCTIONS[name], [self._build(one, depth + 1) for one in node.args]
        return lambda scores: function(*(term(scores) for term in terms))


class FormulaConfig(Config, frozen=True):
    """Options of `FormulaGrader`."""

    formula: Annotated[
        str,
        described(
            "The score, such as 0.7 * facts + 0.3 * tone: numbers, names of graders (in quotes if they are not plain"
            " words), + - * / **, comparisons (1 if they hold, else 0), min, max, abs, floor, ceil, sqrt, exp and log.",
            expected="a formula such as 0.7 * facts + 0.3 * tone",
        ),
    ]

    def faults(self) -> Iterator[Problem]:
        try:
            names = Formula(self.formula).names
        except FormulaError as error:
            yield Problem("formula", str(error))
            return
        if not names:
            yield Problem("formula", f"{quote(self.formula)} names no grader")


class FormulaGrader(DeclaredGrader[FormulaConfig]):
    """Computes a score from the scores of other graders of the same case."""

    kind = "formula"
    name = "Formula"
    scoring_guide = "The value of the formula, from 0 to 1; without a score of one of its graders there is none."
    needs = frozenset({"grades"})
    reads_submission = False

    @cached_property
    def _formula(self) -> Formula:
        return Formula(self.options.formula)

    @property
    def inputs(self) -> tuple[str, ...]:
        return self._formula.names

    def result(self, ctx: GradeContext) -> GradeResult:
        scores = {name: input_score(name, ctx.grades) for name in self.inputs}
        value = self._formula.value(scores)
        shown = ", ".join(f"{name} {score:g}" for name, score in scores.items())
        if not 0 <= value <= 1:
            raise UngradableError(
                f"{self.options.formula} is {value:g} with {shown}; a score is a number from 0 to 1: divide, or limit"
                " it with min(1, …) and max(0, …)"
            )
        metadata: dict[str, Any] = {"inputs": scores}
        return GradeResult(value, f"{self.options.formula} = {value:g} with {shown}", metadata)


def input_score(name: str, grades: Mapping[str, Grade]) -> float:
    """The score of another grader; the case is left out, or the score is missing, as that grader left it."""
    grade = grades.get(name)
    if grade is None:
        raise MissingDataError(f"there is no grade by {name}")
    if grade.outcome in (Outcome.NOT_APPLICABLE, Outcome.SKIPPED):
        raise CaseLeftOut(grade.outcome, f"{name}: {grade.rationale or grade.outcome.value}")
    if grade.score is None:
        why = "" if grade.error is None else f" ({grade.error.type}: {grade.error.message})"
        raise MissingDataError(f"{name} has no score{why}")
    return grade.score
