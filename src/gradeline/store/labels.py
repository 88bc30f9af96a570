"""Labels of people, stored next to the grades of a run, which they never change; and the results drawn for labelling.

A label is current until the same rater changes or withdraws it. Nothing is overwritten: each change is a new row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from gradeline.errors import Outcome
from gradeline.model.fingerprint import case_digest
from gradeline.model.grade import PASS_SCORE, Grade
from gradeline.model.label import (
    ChangeRow,
    HumanVerdict,
    LabelKey,
    LabelRow,
    RaterRole,
    ReferenceLabels,
    SamplingMethod,
    reference_label,
)
from gradeline.model.protocols import Storage
from gradeline.model.record import digest_of, from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import Run
from gradeline.model.sample import Sample
from gradeline.store.database import Database, Dialect, Row, SharedStorage, Transaction, migrate, parts_of
from gradeline.store.leases import Query
from gradeline.store.queries import insert_rows
from gradeline.store.sql_storage import response_chain

PART = "labels"
"""The part of the store that these tables are, for `migrate`."""
_WRITTEN = (
    "case_key, repeat, question, verdict, score, category, comment, rater, role, probability, sample, at,"
    " grade_outcome, grade_score, grader_fingerprint, case_digest, response_digest"
)
_SLOT = ("run", "case_key", "repeat", "question", "rater", "role")
"""Columns of which the latest row is the current label."""
_SAME = " AND ".join(f"later.{name} = labels.{name}" for name in _SLOT)
_LATEST = f"NOT EXISTS (SELECT 1 FROM labels later WHERE {_SAME} AND later.n > labels.n)"  # noqa: S608 - constants
_CURRENT = f"FROM labels WHERE run = ? AND withdrawn = 0 AND {_LATEST}"
_SELECT = f"SELECT {_WRITTEN}, n {_CURRENT}"
_INSERT = f"INSERT INTO labels (run, {_WRITTEN}, withdrawn) VALUES ({'?, ' * 18}0)"  # noqa: S608 - constants
_WITHDRAW = f"INSERT INTO labels ({', '.join(_SLOT)}, at, withdrawn) VALUES (?, ?, ?, ?, ?, ?, ?, 1)"  # noqa: S608 - constants
_DRAW = "sample, question, place, case_key, repeat, method, seed, probability, stratum, stratum_size, population, at"
_SELECT_DRAWS = f"SELECT {_DRAW} FROM label_draws WHERE run = ?"  # noqa: S608 - constants
_CASES_AT_ONCE = 500
LEAST_POPULATION = 0.95
"""A sample is one of the run if at least this share of the run's results could be drawn."""
_ROWS_AT_ONCE = 200
"""Rows of one statement."""
_DRAW_UPDATES = ("probability", "stratum", "stratum_size", "population")


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    """Each change of a label is a new row, also its withdrawal. ``label_draws`` has the results drawn for labelling."""
    transaction.run(
        f"CREATE TABLE labels (n {dialect.serial}, run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,"
        " case_key TEXT NOT NULL, repeat INTEGER NOT NULL, question TEXT NOT NULL, verdict TEXT,"
        " score DOUBLE PRECISION, category TEXT, comment TEXT, rater TEXT NOT NULL, role TEXT NOT NULL,"
        " probability DOUBLE PRECISION, sample TEXT, at TEXT NOT NULL, grade_outcome TEXT,"
        " grade_score DOUBLE PRECISION, grader_fingerprint TEXT, case_digest TEXT, response_digest TEXT,"
        " withdrawn INTEGER NOT NULL)"
    )
    transaction.run("CREATE INDEX labels_of_result ON labels (run, case_key, repeat, question, rater, role, n)")
    transaction.run("CREATE INDEX labels_of_run ON labels (run, n)")
    transaction.run(
        "CREATE TABLE label_draws (run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, sample TEXT NOT NULL,"
        " question TEXT NOT NULL, place INTEGER NOT NULL, case_key TEXT NOT NULL, repeat INTEGER NOT NULL,"
        " method TEXT NOT NULL, seed BIGINT NOT NULL, probability DOUBLE PRECISION, stratum TEXT NOT NULL,"
        " stratum_size INTEGER NOT NULL, population INTEGER NOT NULL, at TEXT NOT NULL,"
        " PRIMARY KEY (run, sample, case_key, repeat))"
    )


LABEL_STEPS = (_tables,)


class LabelDraw(NamedTuple):
    """A result that was drawn for labelling."""

    sample: str
    question: str
    place: int
    """Its place in the order in which the sample is labelled, from 0."""
    case: str
    repeat: int
    method: SamplingMethod
    seed: int
    probability: float | None
    """The probability with which it was drawn; None if that is not known."""
    stratum: str
    """The judge's verdict at that time: pass, fail, or none; empty if the question has no grader."""
    stratum_size: int
    """Results of the run with that verdict."""
    population: int
    """Results of the run that can be labelled."""
    at: str


def create_label_tables(database: Database) -> None:
    """Migrate the tables of labels to the latest version."""
    migrate(database, PART, LABEL_STEPS)


def has_label_tables(read: Query) -> bool:
    """Whether the store has tables for labels; one that never had a label may lack them."""
    return PART in parts_of(read)


def label_row(
    key: LabelKey, sample: Sample, response: Response, grade: Grade | None, label: HumanVerdict, rater: str, at: str
) -> LabelRow:
    """The label as it is stored; ``grade`` is None if no grader answers the question."""
    return LabelRow(
        case=key.case,
        repeat=key.repeat,
        question=key.question,
        verdict=label.verdict,
        score=label.score,
        category=label.category,
        comment=label.comment,
        rater=rater,
        role=label.role,
        probability=label.probability,
        sample=label.sample,
        at=at,
        grade_outcome=None if grade is None else Outcome(grade.outcome).value,
        grade_score=None if grade is None else grade.score,
        grader_fingerprint="" if grade is None else grade.fingerprint,
        case_digest=case_digest(sample),
        response_digest=digest_of(to_json(response)),
    )


def insert_label(transaction: Transaction, run: str, label: LabelRow) -> LabelRow:
    """Store a label, which replaces the rater's current one of the same question; returns it with its number."""
    ((number,),) = transaction.run(f"{_INSERT} RETURNING n", run, *label[:-1])
    return label._replace(n=number)


def withdraw_label(transaction: Transaction, key: LabelKey, rater: str, at: str, role: RaterRole = "rater") -> bool:
    """Withdraw a rater's current label; False if there is none. The history keeps both."""
    slot = (*key, rater, role)
    condition = "case_key = ? AND repeat = ? AND question = ? AND rater = ? AND role = ?"
    if not transaction.run(f"{_SELECT} AND {condition}", *slot):
        return False
    transaction.run(_WITHDRAW, *slot, at)
    return True


def labels_of_result(read: Query, run: str, case: str, repeat: int) -> list[LabelRow]:
    """The current labels of a result by all raters, oldest first."""
    return _labels(read(f"{_SELECT} AND case_key = ? AND repeat = ? ORDER BY n", run, case, repeat))


def labels_of_run(read: Query, run: str, question: str | None = None) -> list[LabelRow]:
    """The current labels of a run by all raters, latest change last; of one question if it is given."""
    if question is None:
        return _labels(read(f"{_SELECT} ORDER BY n", run))
    return _labels(read(f"{_SELECT} AND question = ? ORDER BY n", run, question))


def label_page(read: Query, run: str, after: int, limit: int, skip: int) -> list[LabelRow]:
    """Current labels of a run whose number is above ``after``."""
    return _labels(read(f"{_SELECT} AND n > ? ORDER BY n LIMIT ? OFFSET ?", run, after, limit, skip))


def count_labels(read: Query, run: str) -> int:
    """The number of current labels of a run."""
    return int(read(f"SELECT count(*) {_CURRENT}", run)[0][0])


def label_history(read: Query, run: str, case: str, repeat: int) -> list[ChangeRow]:
    """All changes to the labels of a result, oldest first."""
    rows = read(
        "SELECT question, verdict, score, category, comment, rater, role, withdrawn, at FROM labels"
        " WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY n",
        run,
        case,
        repeat,
    )
    return [ChangeRow(*row)._replace(withdrawn=bool(row[7])) for row in rows]


def history_of_run(read: Query, run: str) -> list[tuple[LabelRow, bool]]:
    """All changes to the labels of a run, oldest first, and whether each is a withdrawal."""
    rows = read(f"SELECT {_WRITTEN}, n, withdrawn FROM labels WHERE run = ? ORDER BY n", run)  # noqa: S608 - constants
    return [(LabelRow(*row[:-1])._replace(comment=row[6] or ""), bool(row[-1])) for row in rows]


def questions_of_run(read: Query, run: str) -> list[str]:
    """The questions about a run that have labels or a sample."""
    rows = read(
        "SELECT question FROM labels WHERE run = ? UNION SELECT question FROM label_draws WHERE run = ?", run, run
    )
    return sorted(question for (question,) in rows)


def has_labels(read: Query, run: str) -> bool:
    """Whether anyone has ever labelled a result of the run."""
    return bool(read("SELECT 1 FROM labels WHERE run = ? LIMIT 1", run))


def last_label_number(read: Query, runs: Sequence[str]) -> int:
    """The number of the last change of a label of these runs; 0 if there is none."""
    places = ", ".join("?" * len(runs))
    ((number,),) = read(f"SELECT coalesce(max(n), 0) FROM labels WHERE run IN ({places})", *runs)  # noqa: S608 - placeholders
    return int(number)


def insert_labels(transaction: Transaction, run: str, labels: Iterable[LabelRow]) -> None:
    """Store many labels in their order; see `insert_label`."""
    insert_rows(transaction, "labels", f"run, {_WRITTEN}, withdrawn", ((run, *label[:-1], 0) for label in labels))


def put_draws(transaction: Transaction, run: str, draws: Sequence[LabelDraw]) -> None:
    """Store the results of a sample. Results that it already has keep their place and get the new probability."""
    row = f"({', '.join('?' * 13)})"
    changes = ", ".join(f"{name} = excluded.{name}" for name in _DRAW_UPDATES)
    for start in range(0, len(draws), _ROWS_AT_ONCE):
        batch = draws[start : start + _ROWS_AT_ONCE]
        transaction.run(
            f"INSERT INTO label_draws (run, {_DRAW}) VALUES {', '.join([row] * len(batch))}"  # noqa: S608 - constants
            f" ON CONFLICT (run, sample, case_key, repeat) DO UPDATE SET {changes}",
            *(value for draw in batch for value in (run, *draw)),
        )


def draws_of_run(read: Query, run: str, question: str) -> list[LabelDraw]:
    """The results drawn for labelling of one question, by sample in the order of drawing, then by place."""
    rows = read(f"{_SELECT_DRAWS} AND question = ? ORDER BY at, sample, place", run, question)
    return [LabelDraw(*row) for row in rows]


def labels_of_cases(read: Query, run: str, cases: Sequence[str]) -> dict[tuple[str, int], list[LabelRow]]:
    """The current labels of some cases by case and repeat, oldest first."""
    found: dict[tuple[str, int], list[LabelRow]] = {}
    for row in _labels(read(f"{_SELECT} AND case_key IN ({', '.join('?' * len(cases))}) ORDER BY n", run, *cases)):
        found.setdefault((row.case, row.repeat), []).append(row)
    return found


def draws_of_cases(read: Query, run: str, cases: Sequence[str]) -> dict[tuple[str, int], list[LabelDraw]]:
    """The samples that the results of some cases are in, by case and repeat."""
    found: dict[tuple[str, int], list[LabelDraw]] = {}
    places = ", ".join("?" * len(cases))
    rows = read(f"{_SELECT_DRAWS} AND case_key IN ({places}) ORDER BY sample, question, place", run, *cases)
    for draw in (LabelDraw(*row) for row in rows):
        found.setdefault((draw.case, draw.repeat), []).append(draw)
    return found


def current_labels(read: Query, runs: Sequence[str], question: str | None = None) -> list[LabelRow]:
    """The current labels of several runs with the same responses; of each rater's labels of a result the latest."""
    found = sorted((row for run in runs for row in labels_of_run(read, run, question)), key=lambda row: row.n)
    latest = {(row.case, row.repeat, row.question, row.rater, row.role): row.n for row in found}
    return [row for row in found if latest[row.case, row.repeat, row.question, row.rater, row.role] == row.n]


class LabelledCase(NamedTuple):
    """A case with labels."""

    position: int
    tags: tuple[str, ...]


class FreshLabels(NamedTuple):
    """The current labels of the responses that a run has now."""

    labels: list[LabelRow]
    """In the order in which they were stored."""
    replaced: list[LabelRow]
    """Labels of responses that were replaced since."""
    cases: dict[str, LabelledCase]

    @property
    def stale(self) -> set[tuple[str, int]]:
        """Case and repeat of results whose labels are all about a replaced response."""
        return {(row.case, row.repeat) for row in self.replaced} - self.by_result().keys()

    def by_result(self) -> dict[tuple[str, int], list[LabelRow]]:
        """The labels by case and repeat."""
        found: dict[tuple[str, int], list[LabelRow]] = {}
        for row in self.labels:
            found.setdefault((row.case, row.repeat), []).append(row)
        return found


def fresh_labels(storage: Storage, run: Run, question: str | None = None) -> FreshLabels:
    """The labels of a run and of the runs that it regrades, of one question or of all."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return FreshLabels([], [], {})
    read = storage.database.read
    runs = response_chain(read, run.id)
    rows = current_labels(read, runs, question)
    cases, digests = _labelled_results(read, runs[-1], {row.case for row in rows})
    fresh = [row for row in rows if row.response_digest == digests.get((row.case, row.repeat))]
    replaced = [row for row in rows if row.response_digest != digests.get((row.case, row.repeat))]
    return FreshLabels(fresh, replaced, cases)


def labels_of_run_and_parents(storage: Storage, run: Run) -> list[LabelRow]:
    """The current labels of a run and of the runs that it regrades, also of replaced responses."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return []
    return current_labels(storage.database.read, response_chain(storage.database.read, run.id))


def draws_of_responses(storage: Storage, run: Run, question: str) -> list[LabelDraw]:
    """The results drawn for labelling in a run and in the runs that it regrades."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return []
    read = storage.database.read
    return [draw for one in response_chain(read, run.id) for draw in draws_of_run(read, one, question)]


def reference_labels(storage: Storage, run: Run, question: str, seed: int | None = None) -> ReferenceLabels:
    """What people say about the results of a run: one label per result, by the position of its case.

    Labels of the runs that this one regrades count too. The probabilities are those of all samples together; results
    that were drawn while the run had only some of its results were not drawn at random from it. With a ``seed``, only
    results of samples with this seed have a probability.
    """
    fresh = fresh_labels(storage, run, question)
    by_result, cases = fresh.by_result(), fresh.cases
    grader = run.graders.get(question)
    threshold = PASS_SCORE if grader is None or grader.pass_threshold is None else grader.pass_threshold
    combined = [reference_label(labels, threshold) for labels in by_result.values()]
    found = [one._replace(tags=cases[one.case].tags) for one in combined if one is not None]
    if found:
        draws = [draw for draw in draws_of_responses(storage, run, question) if seed in (None, draw.seed)]
        if seed is not None:
            found = [one._replace(probability=None) for one in found]
        least = LEAST_POPULATION * results_to_label(storage, run, question) if draws else 0.0
        partial = {(draw.case, draw.repeat): None for draw in draws if draw.population < least}
        whole = [draw for draw in draws if draw.population >= least]
        known = {**partial, **probabilities(whole, fresh.labels, {(one.case, one.repeat) for one in found})}
        found = [one._replace(probability=known.get((one.case, one.repeat), one.probability)) for one in found]
    found.sort(key=lambda one: (cases[one.case].position, one.case, one.repeat))
    return ReferenceLabels(found, unresolved=len(by_result) - len(found), stale=len(fresh.stale))


def results_to_label(storage: Storage, run: Run, question: str) -> int:
    """The number of results of a run that can be labelled: responses without an error to which the question applies."""
    counts = storage.counts(run.id)
    answered = counts.responses.get("success", 0)
    grades = counts.graders.get(question)
    inapplicable = 0 if grades is None else grades.outcomes.get(Outcome.NOT_APPLICABLE, 0)
    return answered - inapplicable if inapplicable < answered else answered


def probabilities(
    draws: Sequence[LabelDraw], labels: Sequence[LabelRow], resolved: Set[tuple[str, int]]
) -> dict[tuple[str, int], float]:
    """The probability with which each resolved result of a known design has a label: the labelled share of its stratum.

    A random sample has one stratum; with a stratified one, the strata are the judge's verdicts. A sample counts up to
    the last place that was labelled as part of it, or as far as every result has a label: results further on may have
    one for another reason.
    """
    reached = _reached(draws, labels)
    counted = [
        draw
        for draw in draws
        if draw.probability is not None and draw.place <= reached[draw.sample] and (draw.case, draw.repeat) in resolved
    ]
    by_result = {(draw.case, draw.repeat): draw for draw in counted}
    if any(draw.method == "stratified" for draw in counted):
        sizes = Counter(draw.stratum for draw in by_result.values())
        return {key: min(sizes[draw.stratum] / draw.stratum_size, 1.0) for key, draw in by_result.items()}
    return {key: min(len(by_result) / draw.population, 1.0) for key, draw in by_result.items()}


def _reached(draws: Sequence[LabelDraw], labels: Sequence[LabelRow]) -> dict[str, int]:
    """The last place of each sample that counts as labelled; -1 if none does."""
    samples_of_labels: dict[tuple[str, int], set[str | None]] = {}
    for label in labels:
        samples_of_labels.setdefault((label.case, label.repeat), set()).add(label.sample)
    reached = dict.fromkeys((draw.sample for draw in draws), -1)
    for draw in sorted(draws, key=lambda draw: draw.place):
        found = samples_of_labels.get((draw.case, draw.repeat), set())
        if draw.sample in found or (found and draw.place == reached[draw.sample] + 1):
            reached[draw.sample] = draw.place
    return reached


def _labelled_results(
    read: Query, run: str, labelled: Set[str]
) -> tuple[dict[str, LabelledCase], dict[tuple[str, int], str]]:
    """The labelled cases, and the digest of each of their responses by case and repeat."""
    cases: dict[str, LabelledCase] = {}
    digests: dict[tuple[str, int], str] = {}
    ordered = sorted(labelled)
    for start in range(0, len(ordered), _CASES_AT_ONCE):
        batch = ordered[start : start + _CASES_AT_ONCE]
        where = f"WHERE run = ? AND case_key IN ({', '.join('?' * len(batch))})"
        for case, position, sample in read(f"SELECT case_key, position, sample FROM samples {where}", run, *batch):  # noqa: S608 - placeholders
            cases[case] = LabelledCase(position, tuple(from_json(Sample, sample).tags))
        for case, repeat, response in read(f"SELECT case_key, repeat, response FROM responses {where}", run, *batch):  # noqa: S608 - placeholders
            digests[case, repeat] = digest_of(to_json(from_json(Response, response)))
    return cases, digests


def _labels(rows: Sequence[Row]) -> list[LabelRow]:
    return [LabelRow(*row) for row in rows]
