"""Gives the judges of a run what they learned from labels: the weights of panels, and thresholds of confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, Protocol, cast

from gradeline.engine.grade import GraderUse
from gradeline.engine.judge_trust import newest_calibration, read_calibration
from gradeline.errors import ConfigError
from gradeline.model import Storage
from gradeline.model.calibration import CALIBRATION, Calibration
from gradeline.model.learned_judging import PanelWeighting, SelectiveThreshold
from gradeline.model.resources import Resources
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import latest_record, records


class LearningJudge(Protocol):
    """A judge that may use what it learned from labels (`gradeline.judges.base.JudgeGrader`)."""

    pass_threshold: float | None

    @property
    def judge_fingerprint(self) -> str: ...

    @property
    def learns(self) -> bool: ...

    @property
    def second(self) -> LearningJudge | None: ...

    @property
    def selective(self) -> SelectiveThreshold | None: ...

    @property
    def weighting(self) -> PanelWeighting | None: ...

    def bind(self, resources: Resources) -> Any: ...


class CalibrationLookup:
    """Finds the calibrations of a suite's judges, and remembers which were found.

    A run that is continued must use those that it began with: ``pinned`` has their numbers in the store by the judges'
    fingerprints; 0 is a judge that had none.
    """

    def __init__(self, storage: Storage | None, suite: str, pinned: Mapping[str, int] | None = None) -> None:
        self._storage = storage if isinstance(storage, SharedStorage) else None
        self._suite = suite
        self._pinned = pinned or {}
        self.used: dict[str, int] = {}
        """The numbers of those that were found, as ``pinned``."""

    def of_grader(self, key: str, fingerprint: str) -> Calibration | None:
        """The calibration of one grader of the suite, whose judge has this fingerprint."""
        found = self._find_pinned(fingerprint)
        if found is None and fingerprint not in self._pinned and self._storage is not None:
            found = newest_calibration(self._storage, self._suite, key, fingerprint)
        return self._remember(fingerprint, found)

    def of_judge(self, fingerprint: str) -> Calibration | None:
        """The calibration of any grader of the suite with this judge."""
        found = self._find_pinned(fingerprint)
        if found is None and fingerprint not in self._pinned and self._storage is not None:
            row = latest_record(self._storage, CALIBRATION, suite=self._suite, judge=fingerprint)
            record = None if row is None else read_calibration(row)
            found = None if row is None or record is None else (row.n, record)
        return self._remember(fingerprint, found)

    def _find_pinned(self, fingerprint: str) -> tuple[int, Calibration] | None:
        number = self._pinned.get(fingerprint, 0)
        if not number or self._storage is None:
            return None
        rows = records(self._storage, CALIBRATION, suite=self._suite, judge=fingerprint, after=number - 1, limit=1)
        record = read_calibration(rows[0]) if rows and rows[0].n == number else None
        return None if record is None else (number, record)

    def _remember(self, fingerprint: str, found: tuple[int, Calibration] | None) -> Calibration | None:
        self.used[fingerprint] = 0 if found is None else found[0]
        return None if found is None else found[1]


def learning_judge(use: GraderUse) -> LearningJudge | None:
    """The grader, if its options use what it learned from labels."""
    return cast(LearningJudge, use.grader) if getattr(use.grader, "learns", False) else None


def with_calibration(use: GraderUse, lookup: CalibrationLookup, resources: Resources) -> GraderUse:
    """The grader with what its judge learned, if its options use that."""
    judge = learning_judge(use)
    if judge is None:
        return use
    judge = copy(judge)
    judge.pass_threshold = use.pass_threshold
    own = lookup.of_grader(use.key, use.judge_fingerprint)
    found = {} if own is None else {judge.judge_fingerprint: own}
    if judge.second is not None and judge.second.judge_fingerprint not in found:
        other = lookup.of_judge(judge.second.judge_fingerprint)
        found |= {} if other is None else {judge.second.judge_fingerprint: other}
    try:
        bound = judge.bind(resources._replace(calibrations=found))
    except ConfigError as error:
        raise ConfigError([problem.within(f"graders.{use.key}") for problem in error.problems]) from None
    return use._replace(grader=bound)


def learning_notes(uses: Iterable[GraderUse]) -> Iterator[str]:
    """What a person should know of judges whose options use what they learned, before a run begins."""
    for use in uses:
        judge = learning_judge(use)
        if judge is None:
            continue
        if judge.weighting == "unlearned":
            yield (
                f"{use.key}: weights: calibrated has no effect yet, all judges count equally: there are no weights from"
                f" labels; {_REMEDY}"
            )
        threshold = judge.selective
        if threshold is None:
            continue
        if not threshold.measured:
            yield (
                f"{use.key}: agreement: {threshold.agreement:g} has no effect yet, every verdict counts and no gate"
                f" passes by it: the judge is not calibrated; {_REMEDY}"
            )
        elif not threshold.promised:
            outcome = "every verdict is unsure" if judge.second is None else "a second judge gives every verdict"
            yield f"{use.key}: {outcome}: {threshold.reason}"


_REMEDY = "after a run: gradeline label latest --sample 100, then gradeline calibrate latest"
