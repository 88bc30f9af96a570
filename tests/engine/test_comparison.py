"""Two stored runs compared: paired by case, like with like, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradeline.engine.comparison import Comparison, compare, paired
from gradeline.engine.definition import run_data
from gradeline.errors import ConfigError, Fault
from gradeline.model import ErrorInfo, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Storage
from gradeline.store import open_storage
from gradeline.verdict.evidence import PairedScores

GraderResult = float | str | None
"""The result of a grader: a score, ``"error"``, ``"skipped"``, or nothing yet."""


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = "memory://" if request.param == "memory" else str(tmp_path / "store.db")
    with open_storage(url) as opened:
        yield opened


def grade_of(result: GraderResult) -> Grade:
    if result == "error":
        return Grade("k", "f", Outcome.ERROR, error=ErrorInfo("ungradable", "no number", Fault.GRADER))
    if result == "skipped":
        return Grade("k", "f", Outcome.SKIPPED)
    assert isinstance(result, float)
    return Grade("k", "f", Outcome.PASS if result >= 0.5 else Outcome.FAIL, result, result >= 0.5)


def stored(
    storage: Storage,
    scores: Mapping[str, Sequence[Mapping[str, GraderResult]]],
    *,
    inputs: Mapping[str, str] | None = None,
    prints: Mapping[str, str] | None = None,
    **fields: Any,
) -> Run:
    """A run with the scores of each case: for every repeat the score of each grader."""
    keys = {key: None for tries in scores.values() for result in tries for key in result}
    graders = {key: RunGrader("k", (prints or {}).get(key, "f")) for key in keys}
    defaults = {"name": "run", "suite": "s", "status": "completed", "graders": graders}
    run = storage.get_run(storage.save_run(Run(**{**defaults, **fields})))
    assert run is not None
    asyncio.run(fill(storage, run.id, scores, inputs or {}))
    return run


async def fill(
    storage: Storage, run: str, scores: Mapping[str, Sequence[Mapping[str, GraderResult]]], inputs: Mapping[str, str]
) -> None:
    responses, grades = [], []
    async with storage.writer() as writer:
        for case, tries in scores.items():
            sample = Sample(case, inputs.get(case, f"question {case}"))
            for repeat, result in enumerate(tries):
                responses.append(writer.put_response(ResponseKey(run, case, repeat), response_to(result), sample))
                grades += [
                    writer.put_grade(GradeKey(run, case, repeat, key), grade_of(one))
                    for key, one in result.items()
                    if one is not None
                ]
        await asyncio.gather(*responses)
        await asyncio.gather(*grades)


def response_to(result: Mapping[str, GraderResult]) -> Response:
    if "skipped" in result.values():
        return Response(status="error", error=ErrorInfo("status", "503", Fault.AGENT))
    return Response(text="an answer")


def once(scores: Mapping[str, GraderResult], key: str = "exact") -> dict[str, list[dict[str, GraderResult]]]:
    return {case: [{key: score}] for case, score in scores.items()}


def many(passing: int, cases: int = 400) -> dict[str, list[dict[str, GraderResult]]]:
    return once({f"c{n}": float(n < passing) for n in range(cases)})


class TestPairing:
    def test_cases_are_matched_by_key_in_any_order(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 0.0, "b": 1.0, "c": 1.0, "d": 0.0}))
        cand = stored(storage, once({"d": 0.0, "c": 1.0, "b": 0.0, "a": 1.0}))
        found = compare(storage, base, cand).graders["exact"]
        assert (found.baseline, found.candidate, found.difference) == (0.5, 0.5, 0.0)
        assert (found.improved, found.worse, found.same, found.missing) == (1, 1, 2, 0)
        assert set(found.changed) == {"a", "b"}

    def test_repeats_of_a_case_count_as_their_mean(self, storage: Storage) -> None:
        base = stored(storage, {"a": [{"exact": 0.0}], "b": [{"exact": 1.0}]})
        cand = stored(
            storage,
            {"a": [{"exact": 1.0}, {"exact": 0.0}, {"exact": "skipped"}], "b": [{"exact": 1.0}] * 3},
            repeats=3,
        )
        comparison = compare(storage, base, cand)
        found = comparison.graders["exact"]
        assert (found.baseline, found.candidate, found.improved, found.same) == (0.5, 0.75, 1, 1)
        assert "repeats: 1 against 3" in comparison.reasons

    def test_a_missing_score_is_not_zero(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, "only before": 1.0}))
        cand = stored(storage, once({"a": 1.0, "b": "error", "c": "skipped", "d": None, "only after": 1.0}))
        found = compare(storage, base, cand).graders["exact"]
        assert (found.baseline, found.candidate, found.same, found.missing) == (1.0, 1.0, 1, 5)
        assert set(found.missing_cases) == {"b", "c", "d", "only before", "only after"}
        assert found.changed == ()

    def test_edited_cases_are_left_out_and_named(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 0.0, "b": 0.0}))
        cand = stored(storage, once({"a": 1.0, "b": 1.0}), inputs={"b": "another question"})
        comparison = compare(storage, base, cand)
        found = comparison.graders["exact"]
        assert (comparison.edited, found.edited) == (("b",), ("b",))
        assert (found.improved, found.missing, found.pairs) == (1, 0, 1)
        assert "cases: 1 case edited between the runs, left out" in comparison.reasons

    def test_a_regraded_run_is_compared_with_its_parent(self, storage: Storage) -> None:
        parent = stored(storage, once({"a": 0.0, "b": 1.0}))
        child = storage.get_run(
            storage.save_run(Run(name="again", suite="s", status="completed", graders=parent.graders, parent=parent.id))
        )
        assert child is not None
        for case in ("a", "b"):
            storage.put_grade(GradeKey(child.id, case, 0, "exact"), grade_of(1.0))
        comparison = compare(storage, parent, child)
        assert (comparison.comparable, comparison.edited, comparison.reasons) == (True, (), ())
        assert comparison.graders["exact"].changed == ("a",)


class TestDecisions:
    @pytest.mark.parametrize(
        ("before", "after", "decision", "code"),
        [(200, 240, "better", 0), (240, 200, "worse", 1), (200, 200, "not_worse", 0), (200, 195, "undecided", 3)],
    )
    def test_each_decision_has_its_exit_code(
        self, storage: Storage, before: int, after: int, decision: str, code: int
    ) -> None:
        comparison = compare(storage, stored(storage, many(before)), stored(storage, many(after)))
        assert (comparison.decision, comparison.exit_code) == (decision, code)
        assert (comparison.graders["exact"].cases_to_decide is not None) == (decision == "undecided")

    def test_the_worst_grader_decides(self, storage: Storage) -> None:
        def two(first: int, second: int) -> dict[str, list[dict[str, GraderResult]]]:
            return {f"c{n}": [{"up": float(n < first), "down": float(n < second)}] for n in range(100)}

        comparison = compare(storage, stored(storage, two(20, 60)), stored(storage, two(60, 20)))
        assert {key: grader.decision for key, grader in comparison.graders.items()} == {"up": "better", "down": "worse"}
        assert (comparison.decision, comparison.exit_code) == ("worse", 1)
        p = comparison.graders["up"].p_value
        assert p is not None
        assert comparison.graders["up"].p_adjusted == pytest.approx(2 * p)

    def test_the_margin_is_used(self, storage: Storage) -> None:
        base, cand = stored(storage, many(200)), stored(storage, many(195))
        assert compare(storage, base, cand, margin=0.1).decision == "not_worse"
        for margin in (-0.1, 1.5, float("nan")):
            with pytest.raises(ConfigError, match="margin: expected a number from 0 to 1, got"):
                compare(storage, base, cand, margin=margin)

    def test_a_run_is_not_better_than_itself(self, storage: Storage) -> None:
        run = stored(storage, many(200))
        comparison = compare(storage, run, run)
        assert comparison.decision == "not_worse"
        assert comparison.reasons == (f"both are the same run, {run.id}",)


class TestComparable:
    def test_another_grader_is_refused_unless_forced(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 0.0, "b": 1.0}), prints={"exact": "111"})
        cand = stored(storage, once({"a": 1.0, "b": 1.0}), prints={"exact": "222"})
        refused = compare(storage, base, cand)
        assert (refused.comparable, refused.graders, refused.decision, refused.exit_code) == (False, {}, None, 2)
        assert refused.reasons == (
            "grader 'exact' is not the same in both runs: k 111 against k 222; "
            "regrade one run with the graders of the other, or force it",
        )
        forced = compare(storage, base, cand, force=True)
        assert (forced.comparable, forced.reasons, forced.exit_code) == (False, refused.reasons, 3)
        assert forced.graders["exact"].changed == ("a",)

    @pytest.mark.parametrize("edited", [True, False])
    def test_no_common_case_is_refused(self, storage: Storage, edited: bool) -> None:
        base = stored(storage, once({"a": 0.0}))
        cand = stored(storage, once({"a" if edited else "b": 0.0}), inputs={"a": "new"})
        refused = compare(storage, base, cand)
        assert (refused.comparable, refused.exit_code) == (False, 2)
        why = ": 1 case of the same name, all edited" if edited else ""
        assert refused.reasons[0] == f"the runs have no case in common{why}"
        assert compare(storage, base, cand, force=True).exit_code == 3

    def test_runs_without_a_common_grader_are_refused_even_with_force(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 0.0}, "exact"))
        cand = stored(storage, once({"a": 0.0}, "judge"))
        for force in (False, True):
            refused = compare(storage, base, cand, force=force)
            assert (refused.comparable, refused.exit_code) == (False, 2)
            assert refused.reasons == (
                "the runs have no grader in common: 'exact' and 'judge'",
                "grader 'exact' is in the baseline alone",
                "grader 'judge' is in the candidate alone",
            )

    def test_other_differences_are_listed(self, storage: Storage) -> None:
        base = stored(
            storage,
            {"a": [{"exact": 1.0, "old": 1.0}], "b": [{"exact": 1.0, "old": 1.0}]},
            suite_digest="1",
            target={"kind": "openai", "model": "small", "fingerprint": "x", "system": "Be kind."},
            status="cancelled",
        )
        cand = stored(
            storage,
            {"a": [{"exact": 1.0, "new": 1.0}], "c": [{"exact": 1.0, "new": 1.0}], "d": [{"exact": 1.0, "new": 0.0}]},
            suite_digest="2",
            target={"kind": "openai", "model": "large", "fingerprint": "y"},
        )
        comparison = compare(storage, base, cand)
        assert comparison.comparable
        assert comparison.reasons == (
            "the baseline 'run' is not complete (cancelled): its other cases count as missing",
            "suite: 's' was edited between the runs",
            "target: model 'small' against 'large'",
            "target: system 'Be kind.' against nothing",
            "grader 'old' is in the baseline alone",
            "grader 'new' is in the candidate alone",
            "cases: 1 case in the baseline alone",
            "cases: 2 cases in the candidate alone",
        )
        assert list(comparison.graders) == ["exact"]

    def test_another_suite_and_a_changed_target_are_named(self, storage: Storage) -> None:
        base = stored(storage, once({"a": 1.0}), suite="one", target={"kind": "python", "fingerprint": "1"})
        cand = stored(storage, once({"a": 1.0}), suite="two", target={"kind": "python", "fingerprint": "2"})
        assert compare(storage, base, cand).reasons == (
            "suite: 'one' against 'two'",
            "target: its code or settings differ",
        )


class TestNoise:
    BEFORE = once({"a": 0.5, "b": 0.5, "c": 0.5})
    AFTER = once({"a": 0.505, "b": 0.52, "c": 0.5})

    def compared(self, storage: Storage, before: float, after: float) -> Comparison:
        runs = (
            stored(storage, scores, graders={"exact": RunGrader("k", "f", noise=noise)})
            for scores, noise in ((self.BEFORE, before), (self.AFTER, after))
        )
        return compare(storage, *runs)

    def test_smaller_changes_count_as_same(self, storage: Storage) -> None:
        comparison = self.compared(storage, 0.01, 0.01)
        found = comparison.graders["exact"]
        assert (found.changed, found.same, found.noise, found.within_noise) == (("b",), 2, 0.01, 1)
        assert comparison.reasons == ()

    def test_the_noise_of_the_candidate_is_used_where_the_runs_differ(self, storage: Storage) -> None:
        comparison = self.compared(storage, 0.05, 0.01)
        assert comparison.graders["exact"].changed == ("b",)
        assert comparison.comparable
        assert comparison.reasons == ("grader 'exact': noise 0.05 against 0.01; that of the candidate is used",)
        assert self.compared(storage, 0.05, 0.0).graders["exact"].changed == ("a", "b")
        assert self.compared(storage, 0.0, 0.05).graders["exact"].changed == ()

    def test_the_pairs_of_a_gate_have_the_noise(self, storage: Storage) -> None:
        base = stored(storage, self.BEFORE)
        cand = stored(storage, self.AFTER, graders={"exact": RunGrader("k", "f", noise=0.01)})
        assert paired(storage, base, cand, ["exact"])["exact"].noise == 0.01


def test_the_shape_of_its_json(storage: Storage) -> None:
    base = stored(storage, once({"a": 0.0, "b": 1.0}))
    cand = stored(storage, once({"a": 1.0, "b": 1.0, "c": 1.0}))
    comparison = compare(storage, base, cand)
    assert isinstance(comparison, Comparison)
    found = comparison.graders["exact"]
    assert comparison.to_data() == {
        "baseline": run_data(base),
        "candidate": run_data(cand),
        "comparable": True,
        "reasons": ["cases: 1 case in the candidate alone"],
        "warnings": [],
        "edited": [],
        "graders": {
            "exact": {
                "baseline": 0.5,
                "candidate": 1.0,
                "difference": 0.5,
                "difference_ci": found.difference_ci,
                "difference_bounds": (0.5, 0.5),
                "coverage": 1.0,
                "test": "mcnemar_mid_p",
                "p_value": 0.5,
                "p_adjusted": 0.5,
                "noise_threshold": found.noise_threshold,
                "skewed": False,
                "largest_drops": (),
                "noise": 0.0,
                "within_noise": 0,
                "improved": 1,
                "worse": 0,
                "same": 1,
                "missing": 1,
                "not_applicable": 0,
                "corrected": None,
                "decision": "undecided",
                "reasons": found.reasons,
                "cases_to_decide": found.cases_to_decide,
                "changed": ("a",),
                "edited": (),
                "clusters": None,
            }
        },
        "primary": ["exact"],
        "decision": "undecided",
        "sentence": "undecided (exact)",
        "exit_code": 3,
    }


def without_labels(pairs: Mapping[str, PairedScores]) -> dict[str, PairedScores]:
    """The pairs without the commands that label them."""
    assert all(pair.labels is not None and not pair.labels.any for pair in pairs.values())
    return {key: pair._replace(labels=None) for key, pair in pairs.items()}


class TestForGates:
    def test_each_case_has_the_tries_of_both_runs(self, storage: Storage) -> None:
        base = stored(storage, {"a": [{"exact": 1.0}], "b": [{"exact": 0.0}], "c": [{"exact": 1.0}]})
        cand = stored(
            storage,
            {
                "a": [{"exact": 0.0}, {"exact": 1.0}],
                "b": [{"exact": "skipped"}, {"exact": 1.0}],
                "c": [{"exact": "error"}],
            },
        )
        assert without_labels(paired(storage, base, cand, ["exact"])) == {
            "exact": PairedScores(["a", "b", "c"], [(1.0,), (0.0,), (1.0,)], [(0.0, 1.0), (None, 1.0), ()], [], [])
        }

    def test_edited_cases_and_other_graders_are_left_out(self, storage: Storage) -> None:
        base = stored(storage, {"a": [{"exact": 1.0, "judge": 1.0}], "b": [{"exact": 1.0, "judge": 1.0}]})
        cand = stored(
            storage,
            {"a": [{"exact": 1.0, "judge": 1.0}], "b": [{"exact": 1.0, "judge": 1.0}]},
            inputs={"a": "edited"},
            prints={"judge": "another"},
        )
        assert without_labels(paired(storage, base, cand, ["exact", "judge", "absent"])) == {
            "exact": PairedScores(["b"], [(1.0,)], [(1.0,)], [], ["a"])
        }
