"""One assertion of promptfoo, as read from a configuration, and what it can become in gradeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nextafter
from typing import NamedTuple

from msgspec import Struct

from gradeline.importers.promptfoo_files import SourceFolder
from gradeline.importers.promptfoo_tags import parse_page, render_page
from gradeline.importers.promptfoo_templates import TemplateError
from gradeline.model import clean_text, quote
from gradeline.model.grade import PASS_SCORE

TYPES = frozenset(
    """
    agent-rubric answer-relevance bleu classifier contains contains-all contains-any contains-html contains-json
    contains-sql contains-xml context-faithfulness context-recall context-relevance conversation-relevance cost equals
    factuality finish-reason g-eval gleu guardrails icontains icontains-all icontains-any is-html is-json is-refusal
    is-sql is-valid-function-call is-valid-openai-function-call is-valid-openai-tools-call is-xml javascript latency
    levenshtein llm-rubric meteor model-graded-closedqa model-graded-factuality moderation perplexity perplexity-score
    pi python regex rouge-n ruby search-rubric similar similar:cosine similar:dot similar:euclidean skill-used
    starts-with tool-call-f1 trace-error-spans trace-span-count trace-span-duration trajectory:goal-success
    trajectory:step-count trajectory:tool-args-match trajectory:tool-sequence trajectory:tool-used webhook word-count
    """.split()  # noqa: SIM905 - sixty words read better than sixty lines
)
"""The types of assertions; each may have ``not-`` before it."""
SPECIAL_TYPES = frozenset(("assert-set", "human", "max-score", "select-best"))
MAX_DEPTH = 32
"""Levels of nesting of a value."""
MAX_ITEMS = 100_000
"""Maximum values in the assertions of a test, with those inside of others."""
MAX_CHARS = 10_000_000
"""Maximum characters in the assertions of a test, with their variables."""


ABOVE_ZERO = 1e-9
"""The least score of what passes with any score but 0."""
_MAX_NUMBER = 1e300


class NoCounterpartError(ValueError):
    """An assertion that has no counterpart; the message gives the reason and the remedy."""


class Assertion(Struct, frozen=True, kw_only=True):
    """An assertion with its templates rendered."""

    type: str
    """Without ``not-``."""
    negated: bool = False
    value: object = None
    threshold: float | None = None
    weight: float = 1.0
    metric: str | None = None
    config: Mapping[str, object] = {}
    provider: object = None
    """The model that judges, as written."""
    rubric_prompt: object = None
    transforms: tuple[str, ...] = ()
    """Code that changes the output before the check, in this order."""
    context_transform: str | None = None

    @property
    def name(self) -> str:
        """The type as written."""
        return f"not-{self.type}" if self.negated else self.type

    def text(self) -> str:
        """The value as text; `NoCounterpartError` if it has none."""
        if isinstance(self.value, str):
            return self.value
        if isinstance(self.value, int | float) and not isinstance(self.value, bool):
            return number_text(self.value)
        raise NoCounterpartError(f"needs a string as its value, got {quote(self.value, 60)}")


class Scope(NamedTuple):
    """What an assertion sees of its test."""

    variables: Mapping[str, object]
    options: Mapping[str, object]
    folder: SourceFolder


class RuleCheck(NamedTuple):
    """A rule of a case's checks; ``unless`` is a rule that says when there is nothing to test, for its negation."""

    rule: dict[str, object]
    unless: dict[str, object] | None = None
    differs: str = ""


class JudgedCriterion(NamedTuple):
    """A criterion in words of a case's checks."""

    text: str
    differs: str = ""


FILE = "{file}"
"""In the options of a grader, the place of its generated file."""


EXPECTED = "{expected}"
"""In the options of a grader, the value of the case that it grades against."""


class CodeFile(NamedTuple):
    """A generated file with the code of an assertion, and the files that it needs, by their names in the folder."""

    suffix: str
    text: str
    others: Mapping[str, str] = {}


class SuiteGrader(NamedTuple):
    """A grader of the suite that applies to the case.

    ``expected`` is the value of the case that it grades against. ``inverted`` says that it handles ``not-`` itself.
    ``sees_variables`` says that it reads the variables of the test in the case's metadata.
    """

    config: dict[str, object]
    became: str
    expected: object = None
    differs: str = ""
    inverted: bool = False
    code: CodeFile | None = None
    sees_variables: bool = False


class Several(NamedTuple):
    """Several graders of the suite with the same options, of which the best score counts, or the mean."""

    graders: Sequence[SuiteGrader]
    mean: bool = False


Outcome = RuleCheck | JudgedCriterion | SuiteGrader | Several


def grader_options(kind: str, **options: object) -> dict[str, object]:
    """A grader of the suite, without the options that are None."""
    return {"kind": kind, **{name: value for name, value in options.items() if value is not None}}


def least_score(config: Mapping[str, object]) -> float:
    """The score from which a grader with these options passes."""
    least = config.get("pass_threshold", config.get("threshold", PASS_SCORE))
    return float(least) if isinstance(least, int | float) else PASS_SCORE


def negated_least(least: float) -> float:
    """The least score of a negated assertion: its score is 1 minus the other, which has to be below ``least``."""
    return min(1.0, nextafter(1 - least, 2)) if least < 1 else ABOVE_ZERO


def number_text(value: float) -> str:
    """A number as JavaScript writes it."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < 1e21 else str(value)


def number_of(value: object, what: str) -> float:
    """A finite number; `NoCounterpartError` for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _MAX_NUMBER:
        return float(value)
    raise NoCounterpartError(f"needs a number as its {what}, got {quote(value, 60)}")


class Rendering:
    """Renders the templates in the values of one test, within a bound for all of them."""

    def __init__(self, variables: Mapping[str, object]) -> None:
        self._variables = variables
        self._items = 0
        self._chars = 0

    def value(self, written: object) -> object:
        """A text, or the texts of a list, with their templates rendered; other data as it is, as in promptfoo.

        Characters that cannot be stored are replaced. `NoCounterpartError` for templates that are not supported, and
        beyond the bounds.
        """
        if isinstance(written, str):
            return self._text(written, is_template=True)
        if isinstance(written, list):
            return [self._text(one, is_template=True) if isinstance(one, str) else self.data(one) for one in written]
        return self.data(written)

    def data(self, written: object, depth: int = 0) -> object:
        """A value without templates, within the same bounds."""
        if depth > MAX_DEPTH:
            raise NoCounterpartError(
                f"has a value that is nested more than {MAX_DEPTH} levels deep; write a flatter one"
            )
        self._items += 1
        if self._items > MAX_ITEMS:
            raise NoCounterpartError(f"is in a test whose values have more than {MAX_ITEMS:,} items; split the test")
        if isinstance(written, str):
            return self._text(written, is_template=False)
        if isinstance(written, Mapping):
            return {clean_text(str(key)).text: self.data(item, depth + 1) for key, item in written.items()}
        if isinstance(written, list | tuple):
            return [self.data(item, depth + 1) for item in written]
        return written

    def _text(self, written: str, *, is_template: bool) -> str:
        try:
            text = written if not is_template else render_page(parse_page(written), self._variables)
        except TemplateError as error:
            raise NoCounterpartError(f"has a template that {error}; write the value out") from None
        self._chars += len(text)
        if self._chars > MAX_CHARS:
            raise NoCounterpartError(
                f"is in a test whose values have more than {MAX_CHARS:,} characters; split the test"
            )
        return clean_text(text).text
