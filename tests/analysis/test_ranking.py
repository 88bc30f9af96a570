"""Three or more stored runs: compared on the cases that all have, or refused with every reason."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gradeline.analysis.ranking import compare_many, find_group, find_runs, read_matrix
from gradeline.errors import ConfigError, Fault
from gradeline.model import (
    ErrorInfo,
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Storage,
    Usage,
)
from gradeline.report.table import matrix_writer, write_matrix_parquet
from gradeline.store import open_storage


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with open_storage("memory://" if request.param == "memory" else str(tmp_path / "store.db")) as opened:
        yield opened


def stored(
    storage: Storage,
    name: str,
    scores: Mapping[str, float | None],
    *,
    cost: float | None = None,
    question: str = "?",
    fingerprint: str = "f",
    **fields: Any,
) -> Run:
    """A run with one score for each case; None is a failed call."""
    defaults: dict[str, Any] = {"suite": "s", "status": "completed", "graders": {"exact": RunGrader("k", fingerprint)}}
    run = storage.get_run(storage.save_run(Run(**{**defaults, "name": name, **fields})))
    assert run is not None
    for case, score in scores.items():
        key = ResponseKey(run.id, case)
        if score is None:
            failed = Response(status="error", error=ErrorInfo("status", "503", Fault.AGENT))
            storage.put_response(key, failed, Sample(case, question))
            continue
        storage.put_response(key, Response(text="a", latency_ms=10.0, usage=Usage(cost=cost)), Sample(case, question))
        for grader in run.graders:
            grade = Grade("k", fingerprint, Outcome.PASS if score else Outcome.FAIL, score, bool(score))
            storage.put_grade(GradeKey(*key, grader), grade)
    return run


def passing(count: int, cases: int = 60) -> dict[str, float | None]:
    return {f"c{place}": float(place < count) for place in range(cases)}


def test_all_runs_are_ranked_and_priced(storage: Storage) -> None:
    small = stored(storage, "small", passing(20), cost=0.01)
    medium = stored(storage, "medium", passing(50), cost=0.02)
    large = stored(storage, "large", passing(52), cost=0.03)
    found = compare_many(storage, [small, medium, large])
    exact = found.graders["exact"]
    assert {run.run.name: exact.runs[run.run.id].rank for run in found.runs} == {
        "small": (3, 3),
        "medium": (1, 2),
        "large": (1, 2),
    }
    assert [one.run.name for one in found.ordered] == ["large", "medium", "small"]
    assert [one.run.name for one in found.best] == ["large", "medium"]
    assert found.sentence == "tied for the best by exact: 'large', 'medium'"
    assert [one.cost_per_case for one in found.runs] == pytest.approx([0.01, 0.02, 0.03])
    assert [one.on_front for one in found.runs] == [True, True, True]
    assert (exact.cases, exact.missing, found.cases, found.left_out, found.exit_code) == (60, 0, 60, 0, 0)
    mean = exact.runs[small.id]
    assert mean.mean == pytest.approx(1 / 3)
    assert mean.mean_ci == pytest.approx((0.2273, 0.4594), abs=1e-4)  # Wilson's of 20 of 60


def test_an_unknown_cost_is_not_free(storage: Storage) -> None:
    runs = [stored(storage, name, passing(30), cost=cost) for name, cost in (("a", 0.01), ("b", None), ("c", 0.02))]
    found = compare_many(storage, runs)
    assert [(one.cost_per_case, one.cost_unknown, one.on_front) for one in found.runs] == [
        (pytest.approx(0.01), 0, True),
        (None, 60, None),
        (pytest.approx(0.02), 0, False),
    ]


def test_the_cases_are_those_that_every_run_has_with_a_score(storage: Storage) -> None:
    runs = [
        stored(storage, "a", {**passing(30), "only in a": 1.0}),
        stored(storage, "b", {**passing(30), "c0": None}),
        stored(storage, "c", passing(30)),
    ]
    found = compare_many(storage, runs)
    exact = found.graders["exact"]
    assert (found.cases, found.left_out, exact.cases, exact.missing) == (60, 1, 59, 1)
    assert (exact.runs[runs[1].id].scored, exact.runs[runs[1].id].total) == (59, 60)
    assert "exact: 1 case left out that have no score in some run" in found.reasons
    assert any(reason.startswith("cases: 1 case left out that some runs do not have") for reason in found.reasons)


def test_a_run_with_few_answers_is_not_ranked_above_others(storage: Storage) -> None:
    thin: dict[str, float | None] = {case: 1.0 if number < 40 else None for number, case in enumerate(passing(0))}
    runs = [stored(storage, "a", passing(5)), stored(storage, "b", passing(6)), stored(storage, "thin", thin)]
    found = compare_many(storage, runs)
    assert found.graders["exact"].runs[runs[2].id].rank == (1, 3)
    assert (
        "exact: only 40 of 60 cases of 'thin' have a score, below the floor of 0.95: it is not ranked above another run"
    ) in found.reasons


def test_every_reason_against_a_comparison_is_listed_at_once(storage: Storage) -> None:
    runs = [
        stored(storage, "a", passing(5), suite="one"),
        stored(storage, "b", passing(5), suite="two", fingerprint="g"),
        stored(storage, "c", {"other": 1.0}, suite="two"),
    ]
    found = compare_many(storage, runs)
    assert (found.comparable, found.graders, found.exit_code, found.sentence) == (False, {}, 2, None)
    assert found.reasons[:2] == (
        "grader 'exact' is not the same in all runs: 'a', 'c': k f; 'b': k g; regrade the runs with the same graders"
        " (gradeline regrade RUN), leave some out, or force it",
        "no case is in all runs: they are of the suites 'one', 'two'; compare runs over the same dataset, or leave out"
        " the run that differs",
    )
    assert compare_many(storage, runs, force=True).graders == {}


def test_other_graders_are_compared_when_forced(storage: Storage) -> None:
    runs = [stored(storage, name, passing(30), fingerprint=name) for name in "abc"]
    found = compare_many(storage, runs, force=True)
    assert (found.comparable, list(found.graders), found.exit_code) == (False, ["exact"], 0)


def test_runs_without_a_common_grader(storage: Storage) -> None:
    runs = [stored(storage, name, passing(3, 5), graders={name: RunGrader("k", "f")}) for name in "abc"]
    found = compare_many(storage, runs)
    assert found.reasons[0].startswith("no grader is in all runs: 'a' has 'a'; 'b' has 'b'; 'c' has 'c'; grade them")


def test_edited_cases_are_left_out_and_named(storage: Storage) -> None:
    runs = [stored(storage, name, passing(3, 5)) for name in "ab"]
    third = stored(storage, "c", {case: score for case, score in passing(3, 5).items() if case != "c1"})
    storage.put_response(ResponseKey(third.id, "c1"), Response(text="a"), Sample("c1", "edited"))
    found = compare_many(storage, [*runs, third])
    assert (found.cases, found.edited) == (4, ("c1",))


def test_invalid_names_are_listed_together(storage: Storage) -> None:
    run = stored(storage, "a", passing(1, 2))
    with pytest.raises(ConfigError) as error:
        find_runs(storage, ["a", "nowhere", "latest", "a"])
    assert [problem.message for problem in error.value.problems][1:] == [
        f"'a' and 'latest' are one run ({run.id}); name each run once",
        f"'a' is named twice ({run.id}); name each run once",
    ]
    assert error.value.problems[0].message.startswith("no run 'nowhere'; the newest are")


def test_a_group_is_found_by_its_id_or_by_any_of_its_runs(storage: Storage) -> None:
    first, second = (stored(storage, name, passing(1, 2), group="g1") for name in "ab")
    stored(storage, "alone", passing(1, 2))
    stored(storage, "single", passing(1, 2), group="g2")
    for name in ("g1", "a", second.id):
        assert [run.id for run in find_group(storage, name)] == [first.id, second.id]
    with pytest.raises(ConfigError, match="run 'alone' is in no group: a group is what one command"):
        find_group(storage, "alone")
    with pytest.raises(ConfigError, match="group 'g2' has one run only, 'single'"):
        find_group(storage, "g2")


def test_fewer_than_three_runs_and_a_wrong_margin_are_refused(storage: Storage) -> None:
    runs = [stored(storage, name, passing(1, 2)) for name in "abc"]
    with pytest.raises(ConfigError, match="expected 3 or more different runs, got 2"):
        compare_many(storage, runs[:2])
    with pytest.raises(ConfigError, match="margin: expected a number from 0 to 1, got 2"):
        compare_many(storage, runs, margin=2)


class TestMatrix:
    def matrix(self, storage: Storage, name: str) -> str:
        runs = [
            stored(storage, "=1+1", {"a": 1.0, "=cmd": 0.0}),
            stored(storage, "b", {"a": 0.5, "=cmd": None, "only b": 1.0}),
        ]
        file = io.StringIO()
        matrix_writer(Path(name))(file, read_matrix(storage, runs))
        return file.getvalue().replace(runs[0].id, "ID1").replace(runs[1].id, "ID2")

    def test_csv_holds_no_formula_and_missing_scores_are_empty(self, storage: Storage) -> None:
        assert self.matrix(storage, "m.csv").split("\r\n") == [
            "case,grader,compared,'=1+1 (ID1),b (ID2)",
            "a,exact,true,1.0,0.5",
            "'=cmd,exact,false,0.0,",
            "only b,exact,false,,1.0",
            "",
        ]

    def test_json_lines(self, storage: Storage) -> None:
        rows = [json.loads(line) for line in self.matrix(storage, "m.JSONL").splitlines()]
        assert rows[1] == {"case": "=cmd", "grader": "exact", "compared": False, "scores": {"ID1": 0.0, "ID2": None}}

    def test_json(self, storage: Storage) -> None:
        data = json.loads(self.matrix(storage, "m.json"))
        assert data["runs"] == {"ID1": "=1+1", "ID2": "b"}
        assert [row["case"] for row in data["rows"]] == ["a", "=cmd", "only b"]

    def test_another_file_extension_is_refused(self) -> None:
        ending = r"invalid file name 'm\.xlsx': end it with \.csv, \.json, \.jsonl or \.parquet"
        with pytest.raises(ConfigError, match=ending):
            matrix_writer(Path("m.xlsx"))

    def test_parquet_has_typed_columns_and_nothing_in_a_name_is_read_as_sql(
        self, storage: Storage, tmp_path: Path
    ) -> None:
        duckdb = pytest.importorskip("duckdb")
        names = ["=1+1", """'}); DROP TABLE "x"; -- {é\n""", "$.a[0]\\", "grader"]
        runs = [stored(storage, name, {"a": 1 / 3, "'); --": None, '=cmd\n"': 0.0}) for name in names]
        path = tmp_path / "it's.parquet"
        write_matrix_parquet(path, read_matrix(storage, runs))
        found = duckdb.sql(f"SELECT * FROM '{tmp_path}/it''s.parquet'")
        assert found.columns == ["case", "grader", "compared", *(f"{run.name} ({run.id})" for run in runs)]
        assert [str(kind) for kind in found.types] == ["VARCHAR", "VARCHAR", "BOOLEAN", *["DOUBLE"] * len(runs)]
        assert found.fetchall() == [
            ("a", "exact", True, *[1 / 3] * 4),
            ("'); --", "exact", False, *[None] * 4),
            ('=cmd\n"', "exact", True, *[0.0] * 4),
        ]
        assert [file.name for file in tmp_path.glob("*.parquet")] == ["it's.parquet"]


class TestNoise:
    """The last run's suite defines which changes of a case are noise, for every pair of runs."""

    def runs(self, storage: Storage, *noise: float) -> list[Run]:
        return [
            stored(
                storage,
                name,
                {f"c{place}": 0.5 + gain for place in range(60)},
                graders={"exact": RunGrader("k", "f", noise=one)},
            )
            for name, gain, one in zip("abc", (0.0, 0.004, 0.2), noise, strict=True)
        ]

    def test_runs_that_differ_by_noise_are_tied(self, storage: Storage) -> None:
        exact = compare_many(storage, self.runs(storage, 0.0, 0.0, 0.0)).graders["exact"]
        assert (exact.noise, [pair.winner is not None for pair in exact.pairs]) == (0.0, [True, True, True])
        runs = self.runs(storage, 0.01, 0.01, 0.01)
        exact = compare_many(storage, runs).graders["exact"]
        assert exact.noise == 0.01
        assert [pair.winner for pair in exact.pairs] == [None, runs[2].id, runs[2].id]
        assert [pair.difference for pair in exact.pairs] == pytest.approx([0.0, 0.2, 0.196])
        assert [exact.runs[run.id].mean for run in runs] == pytest.approx([0.5, 0.504, 0.7])
        assert [exact.runs[run.id].rank for run in runs] == [(2, 3), (2, 3), (1, 1)]

    def test_losses_that_add_up_to_more_than_the_margin_are_not_hidden(self, storage: Storage) -> None:
        grader = {"exact": RunGrader("k", "f", noise=0.05)}
        runs = [
            stored(storage, name, {f"c{place}": score for place in range(600)}, graders=grader)
            for name, score in (("a", 0.9), ("b", 0.86), ("c", 0.9))
        ]
        pairs = compare_many(storage, runs).graders["exact"].pairs
        assert [(pair.difference, pair.decision) for pair in pairs] == [
            (0.0, "undecided"),  # a loss of 0.04 in every case
            (0.0, "not_worse"),
            (0.0, "not_worse"),
        ]
        assert [pair.winner for pair in pairs] == [None, None, None]

    def test_a_difference_between_the_runs_is_reported(self, storage: Storage) -> None:
        found = compare_many(storage, self.runs(storage, 0.0, 0.0, 0.01))
        assert [pair.winner is not None for pair in found.graders["exact"].pairs] == [False, True, True]
        assert found.reasons == ("grader 'exact': noise 0, 0.01; that of the last run, 'c', is used",)
