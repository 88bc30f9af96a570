"""The quality ledger as its users call it, over every store."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError, StoreError
from gradeline.ledger import Observation, QualityLedger, QualityRow, observation_of, prompt_key, response_digest
from gradeline.model import GradingResult, LLMResponse, Storage, ToolCall, Usage
from gradeline.stats import score_interval, wilson
from gradeline.store import InMemoryStorage, SqliteStorage
from gradeline.testing import ScriptedAdapter

STORES: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda folder: InMemoryStorage(),
    "sqlite": lambda folder: SqliteStorage(folder / "store.db"),
}
TIME = "2026-01-15T10:00:00Z"


@pytest.fixture(params=STORES)
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[QualityLedger]:
    with STORES[request.param](tmp_path) as store:
        yield QualityLedger(store)


def given(**fields: Any) -> dict[str, Any]:
    return {
        "task_family": "support",
        "baseline_adapter": "large",
        "candidate_adapter": "small",
        "grader_id": "judge",
        "grader_fingerprint": "f1",
        "score": 0.5,
        "baseline_digest": "d1",
        "candidate_digest": "d2",
        **fields,
    }


def scored(ledger: QualityLedger, *scores: float | None, **fields: Any) -> None:
    ledger.append_many(given(score=score, **fields) for score in scores)


def known(ledger: QualityLedger, *arguments: str, **filters: str) -> list[tuple[Any, ...]]:
    """Family, adapter, n, mean, interval and coverage of each row."""
    return [row[:6] for row in ledger.query(*arguments, **filters)]


class TestAppending:
    def test_an_observation_round_trips(self, ledger: QualityLedger) -> None:
        more = {"cost": 0.01, "latency_ms": 7.5, "calibration_state": "calibrated", "idempotency_key": "k"}
        id_ = ledger.append(**given(**more, observed_at=TIME))
        assert ledger.observations() == [
            Observation(**given(**more, id=id_, observed_at="2026-01-15T10:00:00.000000Z"))
        ]

    def test_a_reused_key_returns_the_id_of_the_first_observation(self, ledger: QualityLedger) -> None:
        first = ledger.append(**given(score=0.25, idempotency_key="k"))
        assert ledger.append(**given(score=1.0, idempotency_key="k")) == first
        assert [one.score for one in ledger.observations()] == [0.25]

    def test_without_a_key_the_same_observation_of_the_same_time_is_added_once(self, ledger: QualityLedger) -> None:
        ids = {ledger.append(**given(observed_at=TIME)) for _ in range(2)}
        ids.add(ledger.append(**given(observed_at=TIME, score=0.25)))
        assert len(ids) == 2

    def test_without_a_key_and_a_time_equal_answers_are_separate_observations(self, ledger: QualityLedger) -> None:
        # "yes" is the same answer to two different questions
        assert len({ledger.append(**given(score=1.0)) for _ in range(3)}) == 3

    def test_without_an_idempotency_key_another_case_is_another_observation(self, ledger: QualityLedger) -> None:
        cases = (None, "a", "b", "a")
        ids = [ledger.append(**given(observed_at=TIME, case_key=case)) for case in cases]
        assert ids == [1, 2, 3, 2]

    def test_invalid_observations_are_refused_and_not_stored(self, ledger: QualityLedger) -> None:
        with pytest.raises(ConfigError) as caught:
            ledger.append(**given(score=True, task_family="", case_key=" "))
        assert [problem.path for problem in caught.value.problems] == ["task_family", "score", "case_key"]
        assert ledger.observations() == []

    def test_a_batch_gets_its_ids_in_order(self, ledger: QualityLedger) -> None:
        ids = ledger.append_many(given(idempotency_key=str(number % 1500)) for number in range(2000))
        assert ids[:500] == ids[1500:]
        assert [one.id for one in ledger.each()] == ids[:1500]

    def test_every_fault_of_a_batch_is_reported_with_its_position(self, ledger: QualityLedger) -> None:
        rows: list[Any] = [given(), given(scor=1.0), {"task_family": "x"}, given(score=2), 7]
        with pytest.raises(ConfigError) as caught:
            ledger.append_many(rows)
        problems = [str(problem) for problem in caught.value.problems]
        assert problems[0] == "[1].scor: an observation has no such field; did you mean 'score'?"
        assert problems[1] == "[2].baseline_adapter: is missing"
        assert problems[-2].startswith("[3].score: score must be a finite number")
        assert problems[-1] == "[4]: expected an Observation or a mapping, got 7"
        assert ledger.observations() == []

    def test_one_ledger_is_added_to_another_once(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.25, None, 1.0)
        with QualityLedger("memory://") as other:
            for rows in (ledger.each(), ledger.export(), (json.loads(json.dumps(row)) for row in ledger.export())):
                other.append_many(rows)
            assert list(other.export()) == list(ledger.export())


class TestQuerying:
    def test_a_ledger_without_observations_has_no_rows(self, ledger: QualityLedger) -> None:
        assert ledger.query() == []

    def test_a_row_for_each_adapter_in_each_family(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.2, 0.4, 0.9, None)
        scored(ledger, None, candidate_adapter="tiny")
        scored(ledger, 0.5, task_family="code")
        rows = known(ledger)
        assert rows == [
            ("code", "small", 1, 0.5, None, 1.0),
            ("support", "small", 3, 0.5, pytest.approx((0.0634202, 0.9365798)), 0.75),
            ("support", "tiny", 0, None, None, 0.0),
        ]
        assert known(ledger, "support") == rows[1:]
        assert known(ledger, adapter="small") == rows[:2]
        assert known(ledger, "code", "tiny") == []

    def test_scores_of_0_and_1_are_a_proportion(self, ledger: QualityLedger) -> None:
        scored(ledger, 1.0, 1.0, 1.0, 0.0)
        assert known(ledger) == [("support", "small", 4, 0.75, wilson(3, 4), 1.0)]

    def test_a_few_scores_that_agree_are_not_certain(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.6, 0.6, 0.6)
        ((_, _, n, mean, interval, _),) = known(ledger)
        assert (n, mean) == (3, 0.6)
        assert interval[0] < 0.6 < interval[1]

    def test_the_mean_and_its_interval_are_those_of_the_scores(self, ledger: QualityLedger) -> None:
        scores = [number % 97 / 97 for number in range(1000)]
        scored(ledger, *scores)
        (row,) = ledger.query()
        expected = score_interval(scores)
        assert expected is not None
        assert (row.mean, *(row.interval or ())) == pytest.approx((expected.estimate, *expected), abs=1e-11)

    def test_judges_and_baselines_have_rows_of_their_own(self, ledger: QualityLedger) -> None:
        scored(ledger, *[0.25] * 3, grader_id="exact-match")
        scored(ledger, *[0.75] * 2, grader_id="llm")
        scored(ledger, 1.0, grader_id="llm", baseline_adapter="huge")
        rows = [(row.baseline_adapter, row.grader_id, row.n, row.mean) for row in ledger.query()]
        assert rows == [("huge", "llm", 1, 1.0), ("large", "exact-match", 3, 0.25), ("large", "llm", 2, 0.75)]
        assert [row.n for row in ledger.query(grader_id="llm")] == [1, 2]
        assert [row.n for row in ledger.query(baseline_adapter="large", grader_id="llm")] == [2]

    def test_states_and_versions_of_a_judge_can_be_separated(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.0, 0.5)
        scored(ledger, 1.0, calibration_state="calibrated", grader_fingerprint="f2")
        means = {
            0.25: {"calibration_state": "uncalibrated"},
            1.0: {"grader_fingerprint": "f2"},
            0.5: {"grader_id": "judge"},
        }
        assert [ledger.query(**filters)[0].mean for filters in means.values()] == list(means)
        assert ledger.query(calibration_state="expired") == []

    def test_a_case_counts_once_with_the_mean_of_its_scores(self, ledger: QualityLedger) -> None:
        scores = [number % 5 / 4 for number in range(20)]
        for _ in range(10):
            ledger.append_many(given(score=score, case_key=str(case)) for case, score in enumerate(scores))
        (row,) = ledger.query()
        assert (row.n, row.mean, row.interval, row.observations) == (20, 0.5, score_interval(scores), 200)

        scored(ledger, 0.0, 1.0, None, case_key="another")  # 0.5, twice scored of three
        (row,) = ledger.query()
        assert (row.n, row.mean, row.observations) == (21, 0.5, 203)
        assert row.coverage == 202 / 203

    def test_a_case_is_the_same_whatever_the_state_and_the_version_of_its_judge(self, ledger: QualityLedger) -> None:
        for score, state in ((0.0, "uncalibrated"), (1.0, "calibrated")):
            scored(ledger, score, case_key="a", calibration_state=state, grader_fingerprint=state)
        assert known(ledger) == [("support", "small", 1, 0.5, None, 1.0)]
        assert known(ledger, calibration_state="calibrated") == [("support", "small", 1, 1.0, None, 1.0)]

    def test_without_a_case_key_each_observation_is_a_case(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.0, 1.0)
        ledger.append(**given(score=0.5, idempotency_key="k"))
        ledger.append(**given(score=0.5, case_key="k"))
        assert [(row.n, row.mean) for row in ledger.query()] == [(4, 0.5)]

    def test_an_invalid_state_is_refused(self, ledger: QualityLedger) -> None:
        with pytest.raises(ConfigError, match="unknown state 'calibratd'; did you mean 'calibrated'"):
            ledger.query(calibration_state="calibratd")

    def test_the_age_is_that_of_the_latest_with_a_score_or_without(self, ledger: QualityLedger) -> None:
        now = datetime.now(UTC)
        for hours, score in ((5, 0.5), (1, None), (3, 0.5)):
            ledger.append(**given(score=score, observed_at=now - timedelta(hours=hours)))
        (row,) = ledger.query()
        assert 3600 <= row.age <= 3600 + (datetime.now(UTC) - now).total_seconds()

    def test_the_age_is_never_negative(self, ledger: QualityLedger) -> None:
        ledger.append(**given(observed_at=datetime.now(UTC) + timedelta(days=1)))
        assert [row.age for row in ledger.query()] == [0.0]

    def test_a_row_begins_with_its_original_columns(self, ledger: QualityLedger) -> None:
        scored(ledger, 0.5)
        (row,) = ledger.query()
        assert row._fields[:7] == ("task_family", "adapter", "n", "mean", "interval", "coverage", "age")
        assert row._fields[7:] == ("baseline_adapter", "grader_id", "observations")
        assert isinstance(row, QualityRow)

    def test_names_with_any_characters_are_found(self, ledger: QualityLedger) -> None:
        ledger.append(**given(task_family="'; --\0\ud800"))
        assert len(ledger.query("'; --\0\ud800")) == 1

    def test_pages(self, ledger: QualityLedger) -> None:
        scored(ledger, *[0.5] * 5)
        scored(ledger, 0.5, task_family="code")
        first = ledger.observations("support", limit=3)
        second = ledger.observations("support", "small", after=first[-1].id, limit=3)
        assert [one.id for one in (*first, *second)] == [1, 2, 3, 4, 5]
        with pytest.raises(ConfigError, match="limit: expected at least 1, got 0"):
            ledger.observations(limit=0)


class TestExporting:
    def test_every_observation_as_a_mapping(self, ledger: QualityLedger) -> None:
        scored(ledger, None, observed_at=TIME, idempotency_key="k")
        assert list(ledger.export()) == [
            {
                "schema": 1,
                "id": 1,
                **given(score=None, cost=None, latency_ms=None, calibration_state="uncalibrated"),
                "observed_at": "2026-01-15T10:00:00.000000Z",
                "idempotency_key": "k",
                "case_key": None,
            }
        ]

    def test_more_than_a_page_of_one_adapter(self, ledger: QualityLedger) -> None:
        ledger.append_many(given(candidate_adapter="ab"[number % 2]) for number in range(3000))
        assert len(list(ledger.export(adapter="a"))) == 1500

    def test_lines_equal_the_items_of_the_iterator(self, ledger: QualityLedger, tmp_path: Path) -> None:
        scored(ledger, 0.5, None, task_family="ünï")
        assert ledger.export(tmp_path / "out.jsonl") == 2
        lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == list(ledger.export())

    def test_csv_by_its_suffix_without_formulas(self, ledger: QualityLedger, tmp_path: Path) -> None:
        scored(ledger, 0.5, None, task_family='=SUM(1;"2")')
        assert ledger.export(str(tmp_path / "out.CSV")) == 2
        with (tmp_path / "out.CSV").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["task_family"], row["score"], row["cost"]) for row in rows] == [
            ('\'=SUM(1;"2")', "0.5", ""),
            ('\'=SUM(1;"2")', "", ""),
        ]

    def test_a_file_is_written_atomically(self, tmp_path: Path) -> None:
        class Breaking(InMemoryStorage):
            def observations(self, *arguments: Any) -> list[Observation]:
                if arguments[1]:
                    raise StoreError("the disk is gone")
                return super().observations(*arguments)

        ledger = QualityLedger(Breaking())
        scored(ledger, 0.5)
        (tmp_path / "out.jsonl").write_text("as it was")
        with pytest.raises(StoreError, match="the disk is gone"):
            ledger.export(tmp_path / "out.jsonl")
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.jsonl", "as it was")]

    def test_an_unwritable_path_is_named(self, tmp_path: Path) -> None:
        ledger = QualityLedger(InMemoryStorage())
        with pytest.raises(ConfigError, match=f"{tmp_path}: is a folder; name a file"):
            ledger.export(tmp_path)
        with pytest.raises(ConfigError, match=r"nowhere/x: cannot write: No such file or directory; choose"):
            ledger.export(tmp_path / "nowhere" / "x")


class TestRecording:
    RESULT = GradingResult(
        0.75,
        "close",
        "judge@1f",
        LLMResponse("Paris."),
        LLMResponse("Paris", usage=Usage(cost=0.002), latency_ms=40.0),
    )

    def test_a_result_is_an_observation_of_its_candidate(self, ledger: QualityLedger) -> None:
        id_ = ledger.record(
            self.RESULT,
            task_family="capitals",
            baseline_adapter=ScriptedAdapter(["x"], adapter_id="large"),
            candidate_adapter="small",
            observed_at=TIME,
            idempotency_key="france",
        )
        assert ledger.observations() == [
            Observation(
                id=id_,
                task_family="capitals",
                baseline_adapter="large",
                candidate_adapter="small",
                grader_id="judge@1f",
                grader_fingerprint="judge@1f",
                score=0.75,
                baseline_digest=response_digest(LLMResponse("Paris.")),
                candidate_digest=response_digest(LLMResponse("Paris")),
                cost=0.002,
                latency_ms=40.0,
                observed_at="2026-01-15T10:00:00.000000Z",
                idempotency_key="france",
            )
        ]

    def test_a_result_names_its_case_by_a_key_or_by_the_prompt(self, ledger: QualityLedger) -> None:
        names = {"task_family": "capitals", "baseline_adapter": "large", "candidate_adapter": "small"}
        for _ in range(2):
            ledger.record(self.RESULT, **names, prompt="The capital of France?")
            ledger.record(self.RESULT, **names, prompt="The capital of Peru?", case_key="peru")
        ledger.record(self.RESULT, **names)
        france = prompt_key("The capital of France?")
        assert [one.case_key for one in ledger.observations()] == [france, "peru", france, "peru", None]
        assert [row.n for row in ledger.query()] == [3]

    def test_a_prompt_of_several_turns_is_another_case_than_one_of_them(self) -> None:
        assert len({prompt_key("a"), prompt_key(["a", "b"]), prompt_key("ab")}) == 3
        assert prompt_key(["a"]) == prompt_key("a")

    def test_many_results_are_added_in_one_batch(self, ledger: QualityLedger) -> None:
        names = {"task_family": "capitals", "baseline_adapter": "large", "candidate_adapter": "small"}
        made = [
            observation_of(self.RESULT, **names, grader_fingerprint="f", idempotency_key=key) for key in ("a", "b", "a")
        ]
        assert ledger.append_many(made) == [1, 2, 1]

    def test_a_digest_covers_text_and_tool_calls(self) -> None:
        answers = [
            LLMResponse("a"),
            LLMResponse("b"),
            LLMResponse("a", tool_calls=(ToolCall("look", '{"at": 1}'),)),
            LLMResponse("a", tool_calls=(ToolCall("look", '{"at": 2'),)),
            LLMResponse("a\ud800"),
        ]
        assert len({response_digest(one) for one in answers}) == len(answers)
        assert response_digest(LLMResponse("a", latency_ms=1.0, model="m")) == response_digest(LLMResponse("a"))


class TestStore:
    def test_a_passed_store_stays_open(self, tmp_path: Path) -> None:
        with SqliteStorage(tmp_path / "store.db") as store:
            with QualityLedger(store) as ledger:
                ledger.append(**given())
            assert len(store.observations()) == 1

    @pytest.mark.parametrize("scheme", ["", "sqlite:///"])
    def test_a_named_store_is_opened_and_closed(self, tmp_path: Path, scheme: str) -> None:
        with QualityLedger(f"{scheme}{tmp_path}/store.db") as ledger:
            ledger.append(**given(idempotency_key="k"))
        with pytest.raises(StoreError, match="is closed"):
            ledger.query()
        with QualityLedger(tmp_path / "store.db") as ledger:
            assert [one.idempotency_key for one in ledger.observations()] == ["k"]

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"store: expected a path, a URL .* or a store, got 7"):
            QualityLedger(7)  # type: ignore[arg-type]
