"""Scores of an Inspect log as graders and grades, and its scorers as graders that can grade again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import isfinite
from typing import Any, NamedTuple

from gradeline.errors import Outcome
from gradeline.graders.grading import skipped_grade
from gradeline.importers.grades import imported_grade, imported_grader
from gradeline.importers.inspect_format import LoggedLimit, LoggedScore, LoggedScorer, LoggedScores, LoggedSpec
from gradeline.importers.inspect_sample import limit_words
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import Grade, RunGrader, clean_data, clean_text, quote
from gradeline.report.inspect_log import EXTRAS, NOT_APPLICABLE

MAX_COLUMNS = 200
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_GRADER_ROLE = "grader"


class ScorerColumn(NamedTuple):
    """Where a grade comes from: a scorer, and the key of its scores if they are mappings."""

    scorer: str
    key: str | None = None

    @property
    def name(self) -> str:
        return clean_text(self.scorer if self.key is None else f"{self.scorer}.{self.key}").text


class ScoreColumns:
    """The graders of a log: one for each scorer, or one for each key of a scorer whose scores are mappings."""

    def __init__(self, spec: LoggedSpec, samples: Iterable[LoggedScores]) -> None:
        keys: dict[str, dict[str | None, None]] = {one.name: {} for one in spec.scorers or ()}
        self.epochs = spec.config.epochs or 1
        """The number of epochs, which is at least the highest of a sample."""
        for sample in samples:
            self.epochs = max(self.epochs, sample.epoch)
            if len(keys) + sum(map(len, keys.values())) <= 2 * MAX_COLUMNS:
                _add_keys(keys, sample.scores or {})
        # an unscored sample has no keys, so it does not add a column to a scorer of mappings
        self._columns = [ScorerColumn(scorer, key) for scorer, found in keys.items() for key in (found or (None,))]
        self.left_out = self._columns[MAX_COLUMNS:]
        del self._columns[MAX_COLUMNS:]
        scorers = {one.name: one for one in spec.scorers or ()}
        self.graders = {column.name: _grader(column, scorers.get(column.scorer), spec) for column in self._columns}

    def grades(self, scores: Mapping[str, LoggedScore], limit: LoggedLimit | None) -> dict[str, Grade]:
        """The grade of each grader; `DataError` if a score has metadata that cannot be stored."""
        return {
            column.name: _grade(self.graders[column.name], scores.get(column.scorer), column, limit)
            for column in self._columns
        }

    def skipped(self) -> dict[str, Grade]:
        """The grades of a failed call."""
        return {name: skipped_grade(grader.kind, grader.fingerprint) for name, grader in self.graders.items()}

    def report(self, place: str, scores: Mapping[str, LoggedScore], report: ImportReport) -> None:
        """Report what each score became."""
        for column in self._columns:
            if (score := scores.get(column.scorer)) is None:
                continue
            what, reason = item_name("score", column.name), _read(score, column.key).missing
            if reason is None or score.value is None:
                report.mapped(place, what, f"grades of {column.name}")
            else:
                became = "a grade of outcome error"
                report.approximated(place, what, became, "a grade is a number from 0 to 1; its metadata has the value")


def _add_keys(keys: dict[str, dict[str | None, None]], scores: Mapping[str, LoggedScore]) -> None:
    """Add the scorers of a sample, and what each of their scores has a grade for: None, or the keys of a mapping."""
    for scorer, score in islice(scores.items(), 2 * MAX_COLUMNS):
        found = keys.setdefault(scorer, {})
        if isinstance(score.value, Mapping):
            found.update(dict.fromkeys(islice(score.value, 2 * MAX_COLUMNS)))
        elif score.value is not None:
            found[None] = None


def _grader(column: ScorerColumn, scorer: LoggedScorer | None, spec: LoggedSpec) -> RunGrader:
    options = clean_data((None if scorer is None else scorer.options) or {}, "eval.scorers")
    return imported_grader("inspect", column.name, options, judges=_judges(options, spec))


def _judges(options: Mapping[str, Any], spec: LoggedSpec) -> tuple[str, ...]:
    """The models that a scorer names, else that of the grader's role if the scorer is one of Inspect's with a judge."""
    named = options.get("model")
    models = named if isinstance(named, list) else [named]
    found = [model.get("model") if isinstance(model, Mapping) else model for model in models]
    role = (spec.model_roles or {}).get(_GRADER_ROLE)
    if found == [None] and "model_role" in options and isinstance(role, Mapping):
        found = [role.get("model")]
    return tuple(clean_text(model).text for model in found if isinstance(model, str))


class _Value(NamedTuple):
    """A score as a number; None with the reason if it has none from 0 to 1."""

    score: float | None
    missing: str | None


def _read(score: LoggedScore, key: str | None) -> _Value:
    value = score.value
    if key is not None:
        if value is not None and not (isinstance(value, Mapping) and key in value):
            return _Value(None, f"the score {quote(value, 60)} has no key {quote(key, 60)}")
        value = None if value is None else value[key]
    if value is None:
        return _Value(None, f"Inspect has no score: {score.reason or 'unscored'}")
    number = _number(value)
    if number is None:
        return _Value(None, f"the score {quote(value, 60)} is not a number")
    if not 0.0 <= number <= 1.0:
        return _Value(None, f"the score {quote(value, 60)} is not from 0 to 1")
    return _Value(number, None)


def _number(value: object) -> float | None:
    """As Inspect reads values for its metrics."""
    if isinstance(value, bool | int | float):
        return _float(value)
    if not isinstance(value, str):
        return None
    if value in _LETTERS:
        return _LETTERS[value]
    return _WORDS.get(value.lower(), _float(value))


def _float(value: float | str) -> float | None:
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def _grade(grader: RunGrader, score: LoggedScore | None, column: ScorerColumn, limit: LoggedLimit | None) -> Grade:
    if score is None:
        return imported_grade(grader, None, missing=f"the sample has no score of {quote(column.scorer, 60)}")
    if score.reason == NOT_APPLICABLE and score.value is None:
        rationale = None if score.explanation is None else clean_text(score.explanation).text
        return Grade(grader.kind, grader.fingerprint, Outcome.NOT_APPLICABLE, None, None, rationale)
    number, missing = _read(score, column.key)
    metadata = _metadata(score, limit) | ({"value": score.value} if missing and score.value is not None else {})
    return imported_grade(
        grader,
        number,
        passed=_stated_pass(score, number),
        rationale=score.explanation,
        metadata=clean_data(metadata, "scores"),
        missing=missing or "",
    )


def _stated_pass(score: LoggedScore, number: float | None) -> bool | None:
    """Whether an exported log says that a score passes, where the usual threshold does not say it."""
    extras = (score.metadata or {}).get(EXTRAS)
    stated = extras.get("passed") if isinstance(extras, Mapping) else None
    return stated if isinstance(stated, bool) and number is not None else None


def _metadata(score: LoggedScore, limit: LoggedLimit | None) -> dict[str, Any]:
    """The metadata of a grade. The scorer's own is nested, because some keys of a grade's metadata have a meaning."""
    found = {
        "answer": score.answer,
        "reason": score.reason,
        "metadata": score.metadata or None,
        "history": score.history or None,
        "limit": None if limit is None else limit_words(limit),
    }
    return {key: value for key, value in found.items() if value is not None}


class ScorerGrader(NamedTuple):
    """A grader that corresponds to a scorer, and how it differs."""

    config: dict[str, Any]
    differs: str


def suite_grader(scorer: LoggedScorer) -> ScorerGrader | None:
    """The grader for one of Inspect's scorers; None if it has no counterpart without a model or code."""
    make = _SCORERS.get(scorer.name.removeprefix("inspect_ai/"))
    return None if make is None else make(scorer.options or {})


def _includes(options: Mapping[str, Any]) -> ScorerGrader:
    return ScorerGrader({"kind": "string-match", "mode": "contains", **_case(options)}, "compares after Unicode NFC")


def _match(options: Mapping[str, Any]) -> ScorerGrader:
    if options.get("numeric") is True:
        return ScorerGrader({"kind": "numeric"}, "reads the last number of the response; 10% is 10")
    modes = {"begin": "starts_with", "any": "contains", "exact": "exact"}
    mode = modes.get(str(options.get("location")), "ends_with")
    config = {"kind": "string-match", "mode": mode, "normalize_whitespace": True, **_case(options)}
    return ScorerGrader(config, "punctuation counts: 'Paris.' does not end with 'Paris'")


def _exact(_: Mapping[str, Any]) -> ScorerGrader:
    return ScorerGrader({"kind": "string-match", "mode": "normalized"}, "normalizes as SQuAD's script does")


def _f1(_: Mapping[str, Any]) -> ScorerGrader:
    return ScorerGrader({"kind": "token_f1"}, "splits words as SQuAD's script does")


def _choice(_: Mapping[str, Any]) -> ScorerGrader:
    pattern = {"extractor": "pattern", "extractor_config": {"pattern": r"(?i)ANSWER\s*:\s*([A-Z])", "group": 1}}
    return ScorerGrader({"kind": "string-match", **pattern}, "reads one letter after 'ANSWER:'")


def _answer(options: Mapping[str, Any]) -> ScorerGrader:
    if options.get("pattern") == "letter":
        return _choice(options)
    marker = {"extractor": "after_marker", "extractor_config": {"marker": "ANSWER:"}}
    return ScorerGrader({"kind": "string-match", **marker, "normalize_whitespace": True}, "reads all after 'ANSWER:'")


def _case(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"case_sensitive": True} if options.get("ignore_case") is False else {}


_SCORERS: Mapping[str, Callable[[Mapping[str, Any]], ScorerGrader]] = {
    "includes": _includes,
    "match": _match,
    "exact": _exact,
    "f1": _f1,
    "choice": _choice,
    "answer": _answer,
}
