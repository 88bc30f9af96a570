"""The contract of every store. A new one is added to `STORES` and must pass all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from threading import Event, Thread, get_ident
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_sums import expected_sums

from gradeline.errors import ConfigError, DataError
from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    GradeMeasure,
    Measure,
    Message,
    Outcome,
    Record,
    Response,
    ResponseKey,
    Sample,
    Storage,
    TestCase,
    Trajectory,
    Usage,
    digest_of,
    to_json,
)
from gradeline.model.observation import Observation, ObservationFilter, ObservationSums, new_observation
from gradeline.store import (
    Counts,
    GraderCounts,
    InMemoryStorage,
    PostgresStorage,
    Run,
    RunGrader,
    SqliteStorage,
    StoreError,
    Writer,
)
from gradeline.store.rows import RecordRow, Tally, counts_of, score_units

STORES: dict[str, Callable[[pytest.FixtureRequest], Storage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Storage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def sample(case: int | str) -> Sample:
    return Sample(case, f"question {case}", f"answer {case}", metadata={"level": [1, 2.5, None]}, tags=("a", "b"))


def response(text: str = "Paris") -> Response:
    return Response(text=text, usage=Usage(3, 4, cost=0.01), latency_ms=12.5)


def failed(status: Any = "error") -> Response:
    return Response(status, error=ErrorInfo("connect", "no route", Fault.INFRASTRUCTURE))


def scored(score: float, fingerprint: str = "f1") -> Grade:
    passed = score >= 0.5
    return Grade("exact", fingerprint, Outcome.PASS if passed else Outcome.FAIL, score, passed, metadata={"n": 1})


def broken(fingerprint: str = "f1") -> Grade:
    return Grade("exact", fingerprint, Outcome.ERROR, error=ErrorInfo("timeout", "too slow", Fault.GRADER))


def flipped(favoured: str) -> Grade:
    error = ErrorInfo("order_decided", "the orders disagree", Fault.GRADER)
    return Grade("pairwise", "f1", Outcome.ERROR, metadata={"favoured": favoured}, error=error)


def skipped() -> Grade:
    return Grade("exact", "f1", Outcome.SKIPPED)


def new_run(store: Storage, **fields: Any) -> str:
    return store.save_run(Run(**{"name": "nightly", "suite": "capitals", **fields}))


def put(store: Storage, run: str, case: int | str, repeat: int = 0, **more: Any) -> None:
    store.put_response(ResponseKey(run, str(case), repeat), response(f"{case}/{repeat}"), sample(case), **more)


def places(records: Iterator[Record]) -> list[tuple[str, int]]:
    return [(record.case, record.repeat) for record in records]


def recomputed(store: Storage, run: str) -> Counts:
    """The counts of a run computed only from its records."""
    records = list(store.records(run))
    return counts_of(
        [(record.response.status, 1) for record in records],
        [
            Tally(grader, grade.outcome.value, 1, *score_units(grade.score))
            for record in records
            for grader, grade in record.grades.items()
        ],
    )


def test_it_is_a_storage(store: Storage) -> None:
    assert isinstance(store, Storage)


class TestTestCases:
    CASE = TestCase(id="c1", input="2 + 2?", expected_output="4", tags=("maths",), created_at="2026-01-15T00:00:00Z")

    def test_a_case_round_trips(self, store: Storage) -> None:
        assert store.save_test_case(self.CASE) == "c1"
        assert store.get_test_case("c1") == self.CASE

    def test_a_case_without_an_id_gets_one(self, store: Storage) -> None:
        first, second = (store.save_test_case(TestCase(id="", input=text, expected_output="")) for text in "ab")
        assert first != second
        assert [(case.id, case.input) for case in store.list_test_cases()] == [(first, "a"), (second, "b")]

    def test_saving_again_replaces_in_place(self, store: Storage) -> None:
        for id_ in ("c1", "c2", "c1"):
            store.save_test_case(TestCase(id=id_, input=f"new {id_}", expected_output=""))
        assert [case.id for case in store.list_test_cases()] == ["c1", "c2"]

    def test_a_deleted_case_is_absent_until_saved_again(self, store: Storage) -> None:
        store.save_test_case(self.CASE)
        assert (store.delete_test_case("c1"), store.delete_test_case("c1")) == (True, False)
        assert (store.get_test_case("c1"), store.list_test_cases()) == (None, [])
        store.save_test_case(self.CASE)
        assert store.list_test_cases() == [self.CASE]

    def test_an_unknown_case_is_none(self, store: Storage) -> None:
        assert (store.get_test_case("nope"), store.delete_test_case("nope")) == (None, False)


class TestRuns:
    def test_a_run_round_trips(self, store: Storage) -> None:
        parent = new_run(store)
        run = Run(
            id="r1",
            name="n",
            suite="s",
            suite_digest="d",
            status="running",
            target={"kind": "http", "url": "http://x"},
            graders={"exact": RunGrader("string-match", "f1")},
            group="g",
            parent=parent,
            seed=7,
            repeats=3,
            total=30,
            started_at="2026-01-15T10:00:00Z",
            definition='{"name": "s"}',
            owner="host:12:345",
        )
        assert store.save_run(run) == "r1"
        assert store.get_run("r1") == run

    def test_an_update_changes_only_what_it_names(self, store: Storage) -> None:
        id_ = new_run(store, seed=3)
        updated = store.update_run(id_, status="failed", error_message="disk full")
        assert updated == store.get_run(id_)
        assert updated == Run(
            id=id_, name="nightly", suite="capitals", seed=3, status="failed", error_message="disk full"
        )

    def test_an_update_keeps_the_rows(self, store: Storage) -> None:
        id_ = new_run(store)
        put(store, id_, 1)
        store.update_run(id_, status="completed")
        assert places(store.records(id_)) == [("1", 0)]

    def test_an_unknown_field_is_refused(self, store: Storage) -> None:
        with pytest.raises(ConfigError, match="a run has no field to change named 'state'"):
            store.update_run(new_run(store), state="done")

    def test_an_invalid_status_is_refused(self, store: Storage) -> None:
        with pytest.raises(DataError, match="status"):
            store.update_run(new_run(store), status="done")

    def test_unknown_runs(self, store: Storage) -> None:
        assert (store.get_run("nope"), store.delete_run("nope")) == (None, False)
        for act in (store.update_run, store.records, store.keys_of, store.counts):
            with pytest.raises(ConfigError, match="no run 'nope'; the store has no runs yet"):
                act("nope")

    def test_pages_hold_every_run_once_and_the_newest_first(self, store: Storage) -> None:
        ids = [new_run(store, name=f"run {number}") for number in range(7)]
        page = store.list_runs(limit=3)
        found_ids = [run.id for run in page]
        new_run(store, name="saved while paging")
        while page:
            page = store.list_runs(limit=3, before=page[-1].id)
            found_ids += [run.id for run in page]
        assert found_ids == ids[::-1]

    def test_saving_again_does_not_make_a_run_newer(self, store: Storage) -> None:
        old, new = new_run(store), new_run(store)
        store.update_run(old, status="completed")
        assert [run.id for run in store.list_runs()] == [new, old]

    def test_a_deleted_run_deletes_its_rows(self, store: Storage) -> None:
        id_ = new_run(store)
        put(store, id_, 1)
        store.put_grade(GradeKey(id_, "1", 0, "exact"), scored(1.0))
        assert store.delete_run(id_)
        assert store.get_response(ResponseKey(id_, "1")) is None
        new_run(store, id=id_)
        assert (list(store.records(id_)), store.counts(id_)) == (
            [],
            Counts({"success": 0, "error": 0, "timeout": 0}, {}),
        )


class TestFindRun:
    @pytest.fixture
    def ids(self, store: Storage) -> list[str]:
        names = {"aa11": "first", "aa22": "twice", "bb33": "twice", "cc44": "aa22", "dd55": "aa"}
        return [new_run(store, id=id_, name=name) for id_, name in names.items()]

    @pytest.mark.parametrize(
        ("requested", "found"),
        [
            ("first", "aa11"),
            ("aa11", "aa11"),
            ("aa22", "aa22"),  # an id goes before a name
            ("aa", "dd55"),  # a name goes before the start of an id
            ("bb", "bb33"),
            ("aa1", "aa11"),
            ("latest", "dd55"),
            ("latest~1", "cc44"),
            ("latest~4", "aa11"),
        ],
    )
    def test_by_id_name_prefix_or_place(self, store: Storage, ids: list[str], requested: str, found: str) -> None:
        assert store.find_run(requested).id == found

    def test_a_probe_is_never_the_latest(self, store: Storage, ids: list[str]) -> None:
        new_run(store, id="probe-ee66", name="probe of quality")
        assert store.find_run("latest").id == "dd55"
        assert store.find_run("latest~1").id == "cc44"
        assert store.find_run("probe-ee").id == "probe-ee66"
        assert store.list_runs(1)[0].id == "probe-ee66"

    def test_several_are_listed(self, store: Storage, ids: list[str]) -> None:
        with pytest.raises(ConfigError, match=r"'twice' is the name of several .* bb33 \(twice\), aa22 \(twice\)"):
            store.find_run("twice")
        with pytest.raises(
            ConfigError, match=r"'a' is a prefix of the IDs of several runs; use the ID of one: aa22 .*, aa11 "
        ):
            store.find_run("a")

    @pytest.mark.parametrize("requested", ["zz", "", "latest~5", "latest~", "%", "a_11"])
    def test_none_lists_the_newest(self, store: Storage, ids: list[str], requested: str) -> None:
        with pytest.raises(ConfigError, match=r"no run .*; the newest are dd55 \(aa\), cc44"):
            store.find_run(requested)


class TestRecords:
    def test_a_record_joins_sample_response_and_grades(self, store: Storage) -> None:
        run = new_run(store)
        answer = Response(text="Paris", trajectory=Trajectory.of_text("Paris"), usage=Usage(1, 2), latency_ms=0.1)
        key = ResponseKey(run, "1", 0)
        store.put_response(key, answer, sample(1))
        store.put_grade(GradeKey(*key, "truth"), broken())
        store.put_grade(GradeKey(*key, "exact"), scored(0.7), "Paris")
        assert list(store.records(run)) == [
            Record(run, "1", 0, sample(1), answer, {"exact": "Paris"}, {"exact": scored(0.7), "truth": broken()})
        ]
        assert (store.get_response(key), store.get_sample(run, "1")) == (answer, sample(1))

    def test_unusual_texts_round_trip(self, store: Storage) -> None:
        run = new_run(store)
        odd = "a\u2400b \U0001f600 'quoted' \r\n \u2028 %_\\"
        answer = Response(text=odd, trajectory=Trajectory(((Message("assistant", odd),),)))
        store.put_response(ResponseKey(run, odd), answer, Sample(odd, odd))
        (record,) = store.records(run)
        assert (record.case, record.sample, record.response) == (odd, Sample(odd, odd), answer)

    def test_records_are_in_the_order_of_the_suite(self, store: Storage) -> None:
        run = new_run(store)
        store.put_samples(run, [sample(case) for case in ("z", "a", "m")])
        for case, repeat in (("m", 1), ("a", 0), ("m", 0), ("z", 0), ("a", 10), ("a", 9)):
            put(store, run, case, repeat)
        assert places(store.records(run)) == [("z", 0), ("a", 0), ("a", 9), ("a", 10), ("m", 0), ("m", 1)]

    def test_a_position_given_with_the_response_counts(self, store: Storage) -> None:
        run = new_run(store)
        for case, position in (("c", 2), ("a", 0), ("b", 1)):
            put(store, run, case, position=position)
        put(store, run, "d")
        put(store, run, "c", 1)
        assert places(store.records(run)) == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("d", 0)]

    def test_positions_may_start_anywhere(self, store: Storage) -> None:
        run = new_run(store)
        store.put_samples(run, [sample("later")], start=5)
        store.put_samples(run, (sample(f"s{number}") for number in range(3)), start=2)
        for case in ("later", "s2", "s0", "s1"):
            put(store, run, case)
        assert [case for case, _ in places(store.records(run))] == ["s0", "s1", "s2", "later"]

    def test_a_sample_without_a_response_is_not_a_record(self, store: Storage) -> None:
        run = new_run(store)
        store.put_samples(run, [sample(1)])
        assert (list(store.records(run)), list(store.keys_of(run))) == ([], [])
        assert store.get_sample(run, "1") == sample(1)
        assert (store.get_sample(run, "2"), store.get_response(ResponseKey(run, "1"))) == (None, None)

    def test_reading_continues_after_a_record(self, store: Storage) -> None:
        run = new_run(store)
        for case in range(700):  # more than a page
            put(store, run, case, repeat=case % 2)
        everything = list(store.records(run))
        assert len(everything) == 700
        for place in (0, 1, 350, 699):
            key = ResponseKey(run, everything[place].case, everything[place].repeat)
            assert list(store.records(run, after=key)) == everything[place + 1 :]
        with pytest.raises(ConfigError, match="has no case 'nope' to continue after"):
            store.records(run, after=ResponseKey(run, "nope"))

    def test_an_iterator_may_move_between_threads(self, store: Storage) -> None:
        run = new_run(store)
        for case in range(450):
            put(store, run, case)
        records = store.records(run)
        found_ids: list[str] = []
        for _ in range(3):
            thread = Thread(target=lambda: found_ids.extend(next(records).case for _ in range(150)))
            thread.start()
            thread.join()
        assert found_ids == [str(case) for case in range(450)]

    def test_putting_again_replaces(self, store: Storage) -> None:
        run = new_run(store)
        key = ResponseKey(run, "1")
        for _ in range(2):
            store.put_response(key, failed(), sample(1))
            store.put_grade(GradeKey(*key, "exact"), skipped())
        edited = Sample(1, "edited")
        store.put_response(key, response(), edited)
        store.put_grade(GradeKey(*key, "exact"), scored(1.0), "Paris")
        assert list(store.records(run)) == [
            Record(run, "1", 0, edited, response(), {"exact": "Paris"}, {"exact": scored(1.0)})
        ]

    def test_keys_of_a_run_with_responses_and_grades(self, store: Storage) -> None:
        run = new_run(store)
        store.put_response(ResponseKey(run, "1", 1), failed("timeout"), sample(1))
        put(store, run, 1)
        store.put_grade(GradeKey(run, "1", 0, "b"), scored(1.0, "f2"))
        store.put_grade(GradeKey(run, "1", 0, "a"), scored(0.0, "f1"))
        store.put_grade(GradeKey(run, "1", 0, "c"), broken("f3"))
        sample_digest = digest_of(to_json(sample(1)))
        assert list(store.keys_of(run)) == [
            (ResponseKey(run, "1", 0), "success", {"a": "f1", "b": "f2", "c": "f3"}, sample_digest, {"c"}),
            (ResponseKey(run, "1", 1), "timeout", {}, sample_digest, set()),
        ]

    def test_order_counts_count_grades_decided_by_the_order(self, store: Storage) -> None:
        run = new_run(store)
        for case, favoured in enumerate(["first", "first", "second"]):
            put(store, run, case)
            store.put_grade(GradeKey(run, str(case), 0, "pair"), flipped(favoured))
            store.put_grade(GradeKey(run, str(case), 0, "exact"), broken())
        put(store, run, 3)
        store.put_grade(GradeKey(run, "3", 0, "pair"), broken())
        store.put_grade(GradeKey(run, "3", 0, "exact"), scored(1.0))
        assert store.order_counts(run) == {"pair": (2, 1)}
        assert [set(one.errors) for one in store.keys_of(run)] == [{"exact"}, {"exact"}, {"exact"}, {"pair"}]
        assert store.order_counts(new_run(store)) == {}
        with pytest.raises(ConfigError, match="no run 'nope'"):
            store.order_counts("nope")

    def test_selective_counts_count_what_a_judge_was_not_sure_of(self, store: Storage) -> None:
        run = new_run(store)
        for case in range(6):
            put(store, run, case)
        unsure = msgspec.structs.replace(broken(), error=ErrorInfo("unsure", "why", Fault.GRADER))
        second = msgspec.structs.replace(scored(1.0), metadata={"selective": {"decided": "second"}})
        own = msgspec.structs.replace(scored(0.0), metadata={"selective": {"decided": "first"}})
        for case, grade in enumerate([unsure, unsure, second, own, broken(), scored(1.0)]):
            store.put_grade(GradeKey(run, str(case), 0, "judge"), grade)
            store.put_grade(GradeKey(run, str(case), 0, "exact"), scored(1.0))
        assert store.selective_counts(run) == {"judge": (1, 2)}
        # a resume does not repeat what was not sure
        assert [set(one.errors) for one in store.keys_of(run)] == [set()] * 4 + [{"judge"}, set()]
        assert store.selective_counts(new_run(store)) == {}
        with pytest.raises(ConfigError, match="no run 'nope'"):
            store.selective_counts("nope")

    def test_keys_of_some_cases(self, store: Storage) -> None:
        run = new_run(store)
        for case in ("z", "1", "a", "ä"):  # in an order that is not that of their names
            put(store, run, case)
        put(store, run, "a", repeat=1)
        store.put_grade(GradeKey(run, "a", 1, "exact"), scored(1.0))
        store.put_grade(GradeKey(run, "z", 0, "exact"), broken())
        everything = list(store.keys_of(run))
        assert [(one.key.case, one.key.repeat) for one in everything] == [
            ("z", 0),
            ("1", 0),
            ("a", 0),
            ("a", 1),
            ("ä", 0),
        ]
        for requested in (["a", "z"], ("ä",), ["1", "1", "never asked", "\0", "%"], [], ["a", "z", "1", "ä"]):
            assert list(store.keys_of(run, requested)) == [one for one in everything if one.key.case in requested]
        with pytest.raises(ConfigError, match="no run 'nope'"):
            store.keys_of("nope", ["a"])

    def test_keys_of_more_cases_than_one_statement_takes(self, store: Storage) -> None:
        run = new_run(store)
        store.put_samples(run, [sample(case) for case in reversed(range(1200))])
        for case in range(0, 1200, 100):
            put(store, run, case)
        keys = list(store.keys_of(run, [str(case) for case in range(1200)]))
        assert keys == list(store.keys_of(run))
        assert [one.key.case for one in keys] == [str(case) for case in range(1100, -1, -100)]

    def test_keys_of_a_regraded_run_have_its_own_grades(self, store: Storage) -> None:
        first = new_run(store)
        for case in ("a", "b"):
            put(store, first, case)
            store.put_grade(GradeKey(first, case, 0, "exact"), scored(0.0))
        child = new_run(store, parent=first)
        store.put_grade(GradeKey(child, "b", 0, "exact"), scored(1.0, "f2"))
        assert list(store.keys_of(child, ["b"])) == [
            (ResponseKey(child, "b"), "success", {"exact": "f2"}, digest_of(to_json(sample("b"))), set())
        ]

    def test_rows_of_an_unknown_run_are_refused(self, store: Storage) -> None:
        acts: list[Callable[[], None]] = [
            lambda: put(store, "nope", 1),
            lambda: store.put_grade(GradeKey("nope", "1", 0, "g"), scored(1.0)),
            lambda: store.put_samples("nope", [sample(1)]),
        ]
        for act in acts:
            with pytest.raises(StoreError, match="no run 'nope' in the store: call save_run"):
                act()
        assert (store.get_sample("nope", "1"), store.get_response(ResponseKey("nope", "1"))) == (None, None)

    def test_changing_a_read_record_does_not_change_the_store(self, store: Storage) -> None:
        run = new_run(store)
        put(store, run, 1)
        next(store.records(run)).sample.metadata["level"] = "changed"
        assert next(store.records(run)).sample == sample(1)


class TestRegradedRuns:
    def test_a_run_without_responses_reads_those_of_its_parent(self, store: Storage) -> None:
        first = new_run(store)
        put(store, first, 1)
        store.put_grade(GradeKey(first, "1", 0, "exact"), scored(0.0), "old")
        child = new_run(store, parent=first)
        grandchild = new_run(store, parent=child)
        store.put_grade(GradeKey(grandchild, "1", 0, "exact"), scored(1.0, "f2"), "new")
        assert list(store.records(grandchild)) == [
            Record(grandchild, "1", 0, sample(1), response("1/0"), {"exact": "new"}, {"exact": scored(1.0, "f2")})
        ]
        sample_digest = digest_of(to_json(sample(1)))
        assert list(store.keys_of(grandchild)) == [
            (ResponseKey(grandchild, "1"), "success", {"exact": "f2"}, sample_digest, set())
        ]
        assert list(store.keys_of(child)) == [(ResponseKey(child, "1"), "success", {}, sample_digest, set())]
        assert store.get_response(ResponseKey(child, "1")) == response("1/0")
        assert store.get_sample(child, "1") == sample(1)
        assert store.counts(grandchild) == recomputed(store, grandchild)
        assert next(store.records(first)).grades == {"exact": scored(0.0)}

    def test_a_run_with_responses_of_its_own_reads_only_those(self, store: Storage) -> None:
        first = new_run(store)
        put(store, first, 1)
        second = new_run(store, parent=first)
        put(store, second, 2)
        assert places(store.records(second)) == [("2", 0)]

    def test_a_parent_must_exist(self, store: Storage) -> None:
        with pytest.raises(ConfigError, match="parent: no run 'nope' in the store"):
            new_run(store, parent="nope")

    def test_a_parent_is_not_deleted_under_its_child(self, store: Storage) -> None:
        first = new_run(store)
        child = new_run(store, parent=first)
        with pytest.raises(ConfigError, match=f"holds the responses of {child}, which regrade it; delete those first"):
            store.delete_run(first)
        assert (store.delete_run(child), store.delete_run(first)) == (True, True)

    def test_runs_that_name_each_other_do_not_hang(self, store: Storage) -> None:
        first = new_run(store)
        second = new_run(store, parent=first)
        store.update_run(first, parent=second)
        assert list(store.records(first)) == []


class TestCounts:
    def test_counts_of_a_run(self, store: Storage) -> None:
        run = new_run(store)
        other = new_run(store)
        put(store, other, 1)
        put(store, run, 1)
        put(store, run, 2)
        store.put_response(ResponseKey(run, "3"), failed("timeout"), sample(3))
        for case, grade in (("1", scored(0.7)), ("2", scored(0.1)), ("3", skipped())):
            store.put_grade(GradeKey(run, case, 0, "exact"), grade)
        store.put_grade(GradeKey(run, "1", 0, "truth"), broken())
        assert store.counts(run) == Counts(
            {"success": 2, "error": 0, "timeout": 1},
            {
                "exact": GraderCounts({"pass": 1, "fail": 1, "error": 0, "skipped": 1, "not_applicable": 0}, 0.8, 0.5),
                "truth": GraderCounts({"pass": 0, "fail": 0, "error": 1, "skipped": 0, "not_applicable": 0}, 0.0, 0.0),
            },
        )

    grades = st.one_of(st.floats(0, 1).map(scored), st.builds(broken), st.builds(skipped))
    writes = st.tuples(
        st.integers(0, 2),
        st.integers(0, 1),
        st.sampled_from(["success", "error", "timeout"]),
        st.sampled_from("ab"),
        grades,
    )

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(writes, max_size=25))
    def test_counts_equal_their_recomputation(self, store: Storage, history: list[Any]) -> None:
        run = new_run(store)
        for case, repeat, status, grader, grade in history:
            key = ResponseKey(run, str(case), repeat)
            store.put_response(key, response() if status == "success" else failed(status), sample(case))
            store.put_grade(GradeKey(*key, grader), grade)
        assert store.counts(run) == recomputed(store, run)


class TestThreads:
    def test_concurrent_writers_and_readers(self, store: Storage) -> None:
        run = new_run(store)
        faults: list[BaseException] = []

        def work(worker: int) -> None:
            try:
                for number in range(20):
                    put(store, run, f"{worker}-{number}")
                    store.put_grade(GradeKey(run, f"{worker}-{number}", 0, "exact"), scored(1.0))
                    store.counts(run)
                    sum(1 for _ in store.keys_of(run))
            except BaseException as error:
                faults.append(error)

        threads = [Thread(target=work, args=(worker,)) for worker in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        assert len(list(store.records(run))) == 120
        assert store.counts(run) == recomputed(store, run)


class TestWriter:
    def test_awaited_rows_are_stored(self, store: Storage) -> None:
        run = new_run(store)

        async def write() -> None:
            writer = store.writer()

            async def one(case: int) -> None:
                key = ResponseKey(run, str(case))
                await writer.put_response(key, response(str(case)), sample(case), case)
                assert store.get_response(key) == response(str(case))
                await writer.put_grade(GradeKey(*key, "exact"), scored(0.5), str(case))

            await asyncio.gather(*(one(case) for case in range(300)))
            await writer.close()

        asyncio.run(write())
        assert [record.submissions for record in store.records(run)] == [{"exact": str(case)} for case in range(300)]
        assert store.counts(run) == recomputed(store, run)

    def test_an_invalid_row_fails_only_itself(self, store: Storage) -> None:
        run = new_run(store)

        async def write() -> list[BaseException | None]:
            writer = store.writer()
            keys = [ResponseKey(run, "1"), ResponseKey("nope", "2"), ResponseKey(run, "3")]
            message = await asyncio.gather(
                *(writer.put_response(key, response(), sample(key.case)) for key in keys), return_exceptions=True
            )
            await writer.close()
            return message

        first, second, third = asyncio.run(write())
        assert (first, third) == (None, None)
        assert isinstance(second, StoreError)
        assert places(store.records(run)) == [("1", 0), ("3", 0)]

    def test_close_stores_what_was_queued_then_refuses(self, store: Storage) -> None:
        run = new_run(store)

        async def write() -> None:
            writer = store.writer()
            tasks = [
                asyncio.ensure_future(writer.put_response(ResponseKey(run, str(case)), response(), sample(case)))
                for case in range(20)
            ]
            await asyncio.sleep(0)
            await writer.close()
            await asyncio.gather(*tasks)
            await writer.close()
            with pytest.raises(StoreError, match="the writer is closed"):
                await writer.put_response(ResponseKey(run, "x"), response(), sample("x"))
            with pytest.raises(StoreError, match="the writer is closed"):
                await writer.flush()

        asyncio.run(write())
        assert len(list(store.records(run))) == 20

    def test_a_writer_that_wrote_nothing_closes(self, store: Storage) -> None:
        async def write() -> None:
            async with store.writer() as writer:
                await writer.flush()

        asyncio.run(write())

    def test_a_cancelled_waiter_loses_nothing(self, store: Storage) -> None:
        run = new_run(store)

        async def write() -> None:
            writer = store.writer()
            task = asyncio.ensure_future(writer.put_response(ResponseKey(run, "1"), response(), sample(1)))
            await asyncio.sleep(0)
            task.cancel()
            await writer.flush()
            await writer.close()

        asyncio.run(write())
        assert places(store.records(run)) == [("1", 0)]


class Gate:
    """A commit that waits for a release, and can be made to fail."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.open = Event()
        self.batches: list[int] = []
        self.threads: set[int] = set()
        self.failure = failure

    def __call__(self, rows: Sequence[RecordRow]) -> list[StoreError | None]:
        self.open.wait(10)
        self.threads.add(get_ident())
        self.batches.append(len(rows))
        if self.failure:
            raise self.failure
        return [None] * len(rows)


def puts(writer: Writer, count: int) -> list[asyncio.Future[None]]:
    return [
        asyncio.ensure_future(writer.put_response(ResponseKey("r", str(case)), response(), sample(case)))
        for case in range(count)
    ]


class TestGroupCommit:
    def test_waiting_rows_are_committed_together_by_one_thread(self) -> None:
        gate = Gate()

        async def write() -> None:
            async with Writer(gate, batch_rows=50) as writer:
                tasks = puts(writer, 120)
                await asyncio.sleep(0.05)
                assert not any(task.done() for task in tasks)
                gate.open.set()
                await asyncio.gather(*tasks)

        asyncio.run(write())
        assert sum(gate.batches) == 120
        assert max(gate.batches) == 50
        assert len(gate.batches) <= 5
        assert len(gate.threads) == 1

    def test_a_full_queue_makes_callers_wait(self) -> None:
        gate = Gate()

        async def write() -> None:
            async with Writer(gate, queue_rows=10, batch_rows=4) as writer:
                tasks = puts(writer, 100)
                await asyncio.sleep(0.05)
                assert len(writer._queue.rows) <= 10
                gate.open.set()
                await asyncio.gather(*tasks)

        asyncio.run(write())
        assert sum(gate.batches) == 100

    @pytest.mark.parametrize("failure", [StoreError("the disk is full"), MemoryError("no memory")])
    def test_a_failed_commit_fails_every_waiter_and_ends_the_writer(self, failure: Exception) -> None:
        gate = Gate(failure)

        async def write() -> None:
            writer = Writer(gate, queue_rows=20, batch_rows=5)
            tasks = puts(writer, 50)
            await asyncio.sleep(0.05)
            gate.open.set()
            message = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(error) for error in message} == {StoreError}
            assert all(str(failure) in str(error) for error in message)
            for refused in (writer.flush, lambda: puts(writer, 1)[0]):
                with pytest.raises(StoreError, match=f"stopped after a failed commit: .*{failure}"):
                    await refused()
            await writer.close()

        asyncio.run(write())
        assert len(gate.batches) == 1

    def test_a_lock_of_another_process_fails_the_batch_but_not_the_writer(self) -> None:
        gate = Gate(StoreError("locked", retryable=True))
        gate.open.set()

        async def write() -> None:
            async with Writer(gate) as writer:
                with pytest.raises(StoreError, match="locked") as caught:
                    await puts(writer, 1)[0]
                assert caught.value.retryable
                gate.failure = None
                await puts(writer, 1)[0]

        asyncio.run(write())

    def test_a_writer_serves_one_event_loop(self) -> None:
        gate = Gate()
        gate.open.set()
        writer = Writer(gate)
        asyncio.run(writer.flush())
        with pytest.raises(RuntimeError, match="belongs to the event loop of its first call"):
            asyncio.run(writer.flush())


def test_stores_are_context_managers(store: Storage) -> None:
    with store as storage:
        assert storage.list_runs() == []


class TestMeasures:
    def test_they_are_the_numbers_of_the_records_in_order(self, store: Storage) -> None:
        run = new_run(store)
        put(store, run, "b", 1, position=1)
        put(store, run, "b", 0, position=1)
        store.put_response(ResponseKey(run, "a"), failed(), sample("a"), 0)
        store.put_grade(GradeKey(run, "b", 0, "exact"), scored(1 / 3), "x")
        odd = Grade("exact", "f1", Outcome.FAIL, 0.0, False, metadata={"error": "was cut"})
        store.put_grade(GradeKey(run, "b", 0, "other"), odd, "x")
        store.put_grade(GradeKey(run, "b", 1, "exact"), broken(), None)
        store.put_grade(GradeKey(run, "a", 0, "exact"), skipped(), None)
        assert list(store.measures(run)) == [
            Measure("a", 0, "error", None, None, {"exact": GradeMeasure(Outcome.SKIPPED, None, False)}, ""),
            Measure(
                "b",
                0,
                "success",
                12.5,
                0.01,
                {
                    "exact": GradeMeasure(Outcome.FAIL, 1 / 3, False),
                    "other": GradeMeasure(Outcome.FAIL, 0.0, True),
                },
                "",
            ),
            Measure("b", 1, "success", 12.5, 0.01, {"exact": GradeMeasure(Outcome.ERROR, None, False)}, ""),
        ]

    def test_columns_are_the_same_numbers_ordered_by_case_id(self, store: Storage) -> None:
        run = new_run(store)
        put(store, run, "b", 1, position=0)
        put(store, run, "b", 0, position=0)
        store.put_response(ResponseKey(run, "a"), failed(), sample("a"), 1)
        store.put_grade(GradeKey(run, "b", 0, "other"), scored(1.0), "x")
        store.put_grade(GradeKey(run, "b", 0, "exact"), scored(1 / 3), "x")
        store.put_grade(GradeKey(run, "b", 1, "exact"), broken(), None)
        store.put_grade(GradeKey(run, "a", 0, "exact"), skipped(), None)
        ((responses, grades),) = store.columns(run)
        assert [list(column) for column in responses] == [
            ["a", "b", "b"],
            ["error", "success", "success"],
            [None, 12.5, 12.5],
            [None, 0.01, 0.01],
            [],
            [],
        ]
        assert [list(column) for column in grades] == [
            ["a", "b", "b", "b"],
            ["exact", "exact", "other", "exact"],
            ["skipped", "fail", "pass", "error"],
            [None, 1 / 3, 1.0, None],
            [0, 0, 0, 0],
            [None, None, None, None],
        ]
        ((unnamed, scores),) = store.columns(run, named=False)
        assert [list(column) for column in unnamed] == [[], *map(list, responses[1:])]
        assert [list(column) for column in scores] == [[], list(grades.graders), [], *map(list, grades[3:])]

    def test_columns_with_digests_locate_each_case(self, store: Storage) -> None:
        run = store.save_run(Run(name="r", suite="s"))
        for position, case in enumerate(("b", "a")):
            for repeat in range(2):
                store.put_response(ResponseKey(run, case, repeat), Response(text="x"), Sample(case, case), position)
        ((responses, grades),) = store.columns(run, digests=True)
        digests = {measure.case: measure.digest for measure in store.measures(run, digests=True)}
        assert (list(responses.cases), list(responses.positions)) == (["a", "a", "b", "b"], [1, 1, 0, 0])
        assert list(responses.digests) == [digests[case] for case in responses.cases]
        assert list(grades.cases) == []
        ((plain, _),) = store.columns(run)
        assert (list(plain.digests), list(plain.positions)) == ([], [])

    def test_columns_of_an_empty_run(self, store: Storage) -> None:
        run = new_run(store)
        assert list(store.columns(run)) == []
        put(store, run, 1)
        ((responses, grades),) = store.columns(run)
        assert (list(responses.cases), list(grades.cases)) == (["1"], [])
        ((responses, grades),) = store.columns(run, named=False)
        assert (list(responses.statuses), [list(column) for column in grades]) == (["success"], [[]] * 6)

    def test_columns_of_a_regrade_are_its_parents_responses_with_its_own_grades(self, store: Storage) -> None:
        parent = new_run(store)
        put(store, parent, 1)
        store.put_grade(GradeKey(parent, "1", 0, "exact"), scored(0.0), "x")
        child = new_run(store, parent=parent)
        store.put_grade(GradeKey(child, "1", 0, "exact"), scored(1.0), "x")
        ((responses, grades),) = store.columns(child)
        assert (list(responses.cases), list(grades.scores)) == (["1"], [1.0])

    def test_columns_of_more_than_a_page_are_complete(self, store: Storage) -> None:
        """Cases with repeats, some of which a page cuts in two."""
        run = new_run(store)

        async def write() -> None:
            async with store.writer() as writer:
                for case in range(4003):
                    for repeat in range(3):
                        key = ResponseKey(run, f"c{case:04}", repeat)
                        stored = writer.put_response(key, response(), sample(f"c{case:04}"), case)
                        await writer.post_grades(key, {"exact": ("x", scored(case / 4003))})
                        if case % 50 == 0:
                            await stored
                await writer.flush()

        asyncio.run(write())
        pages = list(store.columns(run))
        requested = [f"c{case:04}" for case in range(4003) for _ in range(3)]
        assert [case for page in pages for case in page.responses.cases] == requested
        assert [case for page in pages for case in page.grades.cases] == requested
        assert all(page.responses.cases == page.grades.cases for page in pages)
        unnamed = list(store.columns(run, named=False))
        assert [list(page.grades.scores) for page in unnamed] == [list(page.grades.scores) for page in pages]

    def test_a_response_without_grades_is_included(self, store: Storage) -> None:
        run = new_run(store)
        put(store, run, 1)
        assert [measure.grades for measure in store.measures(run)] == [{}]

    def test_more_than_a_page_is_complete(self, store: Storage) -> None:
        run = new_run(store)
        for case in range(1003):
            put(store, run, case, position=case)
            for grader in ("one", "two"):
                store.put_grade(GradeKey(run, str(case), 0, grader), scored(case / 1003), "x")
        found = list(store.measures(run))
        assert [measure.case for measure in found] == [str(case) for case in range(1003)]
        assert all(set(measure.grades) == {"one", "two"} for measure in found)

    def test_a_digest_shows_an_edited_case(self, store: Storage) -> None:
        runs = [new_run(store) for _ in range(3)]
        for run, text in zip(runs, ("same", "same", "edited"), strict=True):
            store.put_response(ResponseKey(run, "c"), response(), Sample("c", text))
        digests = [next(store.measures(run, digests=True)).digest for run in runs]
        assert digests[0] == digests[1] != digests[2]

    def test_a_regrade_measures_its_parents_responses_with_its_own_grades(self, store: Storage) -> None:
        parent = new_run(store)
        put(store, parent, 1)
        store.put_grade(GradeKey(parent, "1", 0, "exact"), scored(0.0), "x")
        child = new_run(store, parent=parent)
        store.put_grade(GradeKey(child, "1", 0, "exact"), scored(1.0), "x")
        assert [measure.grades["exact"].score for measure in store.measures(child)] == [1.0]


class TestClaims:
    def test_the_first_claim_gets_the_run(self, store: Storage) -> None:
        run = new_run(store, owner="dead", status="failed", error_message="gone")
        claimed = store.claim_run(run, "first", "dead")
        assert claimed is not None
        assert (claimed.owner, claimed.status, claimed.error_message) == ("first", "running", None)
        assert store.claim_run(run, "second", "dead") is None
        assert store.get_run(run) == claimed

    def test_a_run_without_an_owner_can_be_claimed(self, store: Storage) -> None:
        run = new_run(store)
        assert store.claim_run(run, "first", None) is not None
        assert store.claim_run(run, "second", None) is None

    def test_an_unknown_run_is_refused(self, store: Storage) -> None:
        with pytest.raises(ConfigError, match="no run 'nope'"):
            store.claim_run("nope", "me", None)


class TestCachedResponses:
    def test_a_stored_answer_is_found_by_its_key_in_any_run(self, store: Storage) -> None:
        run = new_run(store)
        store.put_response(ResponseKey(run, "a"), response("kept"), sample("a"), None, "key")
        assert store.cached_response("key") == response("kept")
        assert store.cached_response("other") is None

    def test_a_failed_call_is_never_reused(self, store: Storage) -> None:
        run = new_run(store)
        store.put_response(ResponseKey(run, "a"), failed(), sample("a"), None, "key")
        assert store.cached_response("key") is None

    async def _written(self, store: Storage, run: str) -> None:
        async with store.writer() as writer:
            await writer.put_response(ResponseKey(run, "a"), response("kept"), sample("a"), 0, "key")

    def test_the_writer_stores_the_cache_key(self, store: Storage) -> None:
        run = new_run(store)
        asyncio.run(self._written(store, run))
        assert store.cached_response("key") == response("kept")


def test_a_single_record_equals_the_one_in_the_list(store: Storage) -> None:
    run = new_run(store)
    for case in ("a", "b"):
        put(store, run, case)
        store.put_grade(GradeKey(run, case, 0, "exact"), scored(0.5), "x")
    child = new_run(store, parent=run)
    store.put_grade(GradeKey(child, "b", 0, "exact"), scored(1.0), "y")
    for owner in (run, child):
        assert [store.get_record(ResponseKey(owner, case)) for case in ("a", "b")] == list(store.records(owner))
    assert store.get_record(ResponseKey(run, "c")) is None
    assert store.get_record(ResponseKey("nope", "a")) is None


def test_a_response_keeps_its_sample_when_another_repeat_has_an_edited_one(store: Storage) -> None:
    run = new_run(store)
    before, after = Sample("c", "as it was"), Sample("c", "as it is")
    for repeat in (0, 1):
        store.put_response(ResponseKey(run, "c", repeat), response(), before, 0)
    store.put_response(ResponseKey(run, "c", 0), response(), after, 0)
    sample_digest = [digest_of(to_json(sample)) for sample in (after, before)]
    assert [key.digest for key in store.keys_of(run)] == sample_digest
    assert [one.digest for one in store.measures(run, digests=True)] == sample_digest


def test_a_replacing_response_does_not_inherit_grades(store: Storage) -> None:
    run = new_run(store)
    for case in ("a", "b"):
        put(store, run, case)
        store.put_grade(GradeKey(run, case, 0, "exact"), scored(1.0), "x")
    store.put_response(ResponseKey(run, "a"), response("another"), sample("a"), 0)
    assert [set(record.grades) for record in store.records(run)] == [set(), {"exact"}]
    assert store.counts(run) == recomputed(store, run)


def test_the_same_answer_again_keeps_its_grades(store: Storage) -> None:
    run = new_run(store)
    for _ in range(2):
        put(store, run, "a")
        if not any(record.grades for record in store.records(run)):
            store.put_grade(GradeKey(run, "a", 0, "exact"), scored(1.0), "x")
    assert [set(record.grades) for record in store.records(run)] == [{"exact"}]
    assert store.counts(run) == recomputed(store, run)


def observed(key: str, **fields: Any) -> Observation:
    observation_fields: dict[str, Any] = {
        "task_family": "support",
        "baseline_adapter": "large",
        "candidate_adapter": "small",
        "grader_id": "judge",
        "grader_fingerprint": "f1",
        "score": 0.5,
        "baseline_digest": "d1",
        "candidate_digest": "d2",
        "cost": 0.25,
        "observed_at": "2026-01-15T10:00:00Z",
    }
    return new_observation(**{**observation_fields, **fields}, idempotency_key=key)


class TestObservations:
    def test_observations_round_trip_in_order_of_arrival(self, store: Storage) -> None:
        written = [observed("b", score=None, cost=None), observed("a", latency_ms=3.5, task_family="ünï")]
        ids = store.put_observations(written)
        assert ids == sorted(set(ids))
        assert store.observations() == [
            msgspec.structs.replace(one, id=number) for one, number in zip(written, ids, strict=True)
        ]

    def test_a_used_key_keeps_the_first_observation_and_returns_its_id(self, store: Storage) -> None:
        first, second = store.put_observations([observed("a", score=0.25), observed("b")])
        again = store.put_observations([observed("c"), observed("a", score=1.0), observed("c", score=0.0)])
        assert again[1] == first
        assert again[0] == again[2] > second
        assert [(one.idempotency_key, one.score) for one in store.observations()] == [
            ("a", 0.25),
            ("b", 0.5),
            ("c", 0.5),
        ]

    def test_an_empty_batch_writes_nothing(self, store: Storage) -> None:
        assert (store.put_observations([]), store.observations(), store.observation_sums()) == ([], [], [])

    def test_pages_continue_after_an_id(self, store: Storage) -> None:
        ids = store.put_observations([observed(str(number)) for number in range(7)])
        pages = [[one.id for one in store.observations(after=after, limit=3)] for after in (0, ids[2], ids[5], ids[6])]
        assert pages == [ids[:3], ids[3:6], ids[6:], []]

    def test_a_filter_matches_all_its_criteria(self, store: Storage) -> None:
        store.put_observations(
            [
                observed("a"),
                observed("b", candidate_adapter="tiny"),
                observed("c", task_family="code", calibration_state="calibrated"),
                observed("d", grader_fingerprint="f2"),
                observed("e", baseline_adapter="huge"),
                observed("f", grader_id="other"),
            ]
        )
        filters = {
            "abdef": ObservationFilter("support"),
            "acdef": ObservationFilter(candidate_adapter="small"),
            "adef": ObservationFilter("support", "small"),
            "c": ObservationFilter(calibration_state="calibrated"),
            "d": ObservationFilter(grader_fingerprint="f2"),
            "e": ObservationFilter(baseline_adapter="huge"),
            "f": ObservationFilter(grader_id="other"),
            "": ObservationFilter("support", "small", calibration_state="failed"),
        }
        for keys, where in filters.items():
            assert "".join(one.idempotency_key for one in store.observations(where)) == keys
            assert sum(sums.total for sums in store.observation_sums(where)) == len(keys)

    def test_the_sums_of_each_adapter_in_each_family(self, store: Storage) -> None:
        store.put_observations(
            [
                observed("a", score=0.1, observed_at="2026-01-17T00:00:00Z"),
                observed("b", score=0.2, grader_fingerprint="f2", observed_at="2026-01-18T00:00:00Z"),
                observed("c", score=None, calibration_state="failed", observed_at="2026-01-16T00:00:00Z"),
                observed("d", task_family="code", score=None),
            ]
        )
        store.put_observations([observed("a", score=1.0)])
        assert store.observation_sums() == [
            ObservationSums("code", "small", "large", "judge", 1, 0, 0, 0.0, 0.0, "2026-01-15T10:00:00.000000Z"),
            ObservationSums("support", "small", "large", "judge", 3, 2, 2, 0.3, 0.05, "2026-01-18T00:00:00.000000Z"),
        ]

    def test_a_case_is_summed_up_once_for_each_judge_and_baseline(self, store: Storage) -> None:
        store.put_observations(
            [
                observed("a", score=1 / 3, case_key="c"),
                observed("b", score=1.0, case_key="c", grader_fingerprint="f2", calibration_state="drifted"),
                observed("c", score=None, case_key="c"),
                observed("d", score=0.5),
                observed("e", score=0.5, case_key="d"),
                observed("f", score=1.0, case_key="c", grader_id="other"),
                observed("g", score=1.0, case_key="c", baseline_adapter="huge"),
                observed("h", score=None, case_key="nobody", baseline_adapter="huge"),
            ]
        )
        time = "2026-01-15T10:00:00.000000Z"
        assert store.observation_sums() == [
            ObservationSums("support", "small", "huge", "judge", 2, 1, 1, 1.0, 1.0, time),
            ObservationSums(
                "support", "small", "large", "judge", 5, 4, 3, pytest.approx(5 / 3), pytest.approx(17 / 18), time
            ),
            ObservationSums("support", "small", "large", "other", 1, 1, 1, 1.0, 1.0, time),
        ]
        assert [sums.score_sum for sums in store.observation_sums(ObservationFilter(grader_fingerprint="f2"))] == [1.0]

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.sampled_from("xy"),
                st.sampled_from(["calibrated", "drifted"]),
                st.none() | st.floats(0.0, 1.0),
                st.sampled_from([None, "c", "d"]),
            ),
            max_size=20,
        )
    )
    def test_the_sums_are_those_of_the_rows_whatever_their_order(self, store: Storage, rows: list[Any]) -> None:
        family = f"family {len(store.observations(limit=100_000))}"
        observations = [
            observed(
                f"{family} {number}",
                task_family=f"{family} {one}",
                candidate_adapter=two,
                calibration_state=state,
                score=score,
                case_key=case,
            )
            for number, (one, two, state, score, case) in enumerate(rows)
        ]
        store.put_observations(observations)
        families = {one.task_family for one in observations}
        found = [sums for sums in store.observation_sums() if sums.task_family in families]
        assert found == expected_sums(reversed(observations))

    def test_threads_that_write_the_same_keys_get_the_same_ids(self, store: Storage) -> None:
        ids: list[list[int]] = []

        def write() -> None:
            ids.append([store.put_observations([observed(str(number))])[0] for number in range(50)])

        threads = [Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ids == [ids[0]] * 4
        assert [one.idempotency_key for one in store.observations()] == [str(number) for number in range(50)]
