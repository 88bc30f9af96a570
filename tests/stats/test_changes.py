"""A test and its interval never contradict each other, and both keep their promises."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import stats
from gradeline.stats.changes import FewChanges, ManyChanges, OneSize, Weighed, changes_of, weigh

tenths = st.integers(0, 10).map(lambda tenth: tenth / 10)
scores = st.one_of(tenths, st.floats(0, 1))


def agree(found: Weighed) -> bool:
    low, high = found.interval(found.cases)
    return (found.p <= 0.05) == (low > 0.0 or high < 0.0)


class TestAgreement:
    """The interval leaves out 0 just where p is at most 0.05."""

    @given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 2000))
    def test_of_pass_and_fail(self, up: int, down: int, same: int) -> None:
        assert agree(OneSize(max(1, up + down + same), up, down))

    @pytest.mark.parametrize("changed", range(41))
    def test_of_every_small_table(self, changed: int) -> None:
        for up, same in product(range(changed + 1), (0, 1, 10, 100)):
            if changed + same:
                assert agree(OneSize(changed + same, up, changed - up))

    @given(st.lists(st.tuples(scores, scores), min_size=1, max_size=14))
    def test_of_few_scores(self, pairs: list[tuple[float, float]]) -> None:
        assert agree(weigh(changes_of(*zip(*pairs, strict=True)), pass_or_fail=False))

    @given(st.lists(st.tuples(tenths, tenths), min_size=16, max_size=80), st.integers(0, 200))
    def test_of_many_scores(self, pairs: list[tuple[float, float]], same: int) -> None:
        before, after = zip(*pairs, *[(0.5, 0.5)] * same, strict=True)
        assert agree(weigh(changes_of(before, after), pass_or_fail=False))

    @given(st.integers(1, 60), st.integers(0, 60), st.sampled_from([0.1, 0.25, 1.0]))
    def test_of_changes_of_one_size(self, up: int, down: int, size: float) -> None:
        changes = [size] * up + [-size] * down + [0.0] * 5
        assert agree(weigh(changes, pass_or_fail=False))


class TestIntervals:
    @given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 200))
    def test_they_hold_the_estimate_and_mirror(self, up: int, down: int, same: int) -> None:
        cases = max(1, up + down + same)
        low, high = OneSize(cases, up, down).interval(cases)
        mirrored = OneSize(cases, down, up).interval(cases)
        assert -1.0 <= low <= (up - down) / cases <= high <= 1.0
        assert (-mirrored[1], -mirrored[0]) == pytest.approx((low, high), abs=1e-12)

    @given(st.lists(st.floats(-1, 1), max_size=12), st.integers(1, 50))
    def test_those_of_scores_do_too(self, changes: list[float], same: int) -> None:
        found = weigh(changes_of([0.0] * (len(changes) + same), [*changes, *[0.0] * same]), pass_or_fail=False)
        assert isinstance(found, FewChanges)
        low, high = found.interval(found.cases)
        assert -1.0 <= low <= sum(found.changes) / found.cases + 1e-9
        assert sum(found.changes) / found.cases - 1e-9 <= high <= 1.0

    def test_no_change_at_all_still_leaves_room_for_some(self) -> None:
        room = stats.clopper_pearson(0, 100).high
        assert OneSize(100, 0, 0).interval(100) == pytest.approx((-room, room))
        assert FewChanges(100, ()).interval(100) == pytest.approx((-room, room))

    def test_too_few_changes_tell_no_direction(self) -> None:
        low, high = FewChanges(5, (0.2, 0.2, 0.1, 0.3, 0.2)).interval(5)
        assert (low, high) == (-1.0, 1.0)

    def test_six_changes_one_way_lie_between_the_smallest_and_the_largest(self) -> None:
        found = FewChanges(6, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
        assert found.p == 2 / 64
        low, high = found.interval(6)
        assert low > 0.0
        assert low <= 0.1
        assert high >= 0.6 - 1e-12

    def test_more_cases_of_the_same_kind_narrow_them(self) -> None:
        for found in (OneSize(40, 8, 4), FewChanges(40, (0.1, 0.2, -0.1, 0.3, 0.2, 0.1)), ManyChanges(40, 0.1, 0.05)):
            widths = [high - low for low, high in map(found.interval, (40, 80, 400, 4000))]
            assert widths == sorted(widths, reverse=True)


class TestFamilies:
    def test_pass_and_fail_are_counted(self) -> None:
        found = weigh([1.0, 1.0, -1.0, 0.0], pass_or_fail=True)
        assert (found, found.test, found.p) == (OneSize(4, 2, 1), "mcnemar_exact", 1.0)
        assert OneSize(20, 8, 2).p == stats.mcnemar(8, 2).exact

    def test_few_changes_try_every_sign(self) -> None:
        maize = [change / 100 for change in (49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48)]
        found = weigh([*maize, 0.0, 0.0], pass_or_fail=False)
        assert (found.test, found.p) == ("sign_flip_exact", 1726 / 32768)

    def test_many_changes_are_students(self) -> None:
        random = Random(1)
        before, after = ([random.random() for _ in range(50)] for _ in range(2))
        found = weigh(changes_of(before, after), pass_or_fail=False)
        assert found.test == "paired_t"
        assert found.interval(50) == pytest.approx(stats.paired_difference(after, before), abs=1e-9)

    def test_changes_without_spread_are_not_certain(self) -> None:
        found = weigh([0.25] * 20 + [0.0] * 20, pass_or_fail=False)
        assert (found, found.test) == (OneSize(40, 20, 0, 0.25), "sign_flip_exact")
        assert found.p == 2 / 2**20
        low, high = found.interval(40)
        assert 0.0 < low < 0.125 < high < 0.25

    def test_rounding_is_no_change(self) -> None:
        assert changes_of([0.3, 0.1], [0.1 + 0.2, 0.2]) == [0.0, 0.1]

    def test_unpaired_scores_are_refused(self) -> None:
        with pytest.raises(ValueError, match="1 values against 2: pairs are needed"):
            changes_of([0.0, 1.0], [1.0])


@cache
def of_pass_and_fail(cases: int, up: int, down: int) -> tuple[float, float, float]:
    found = OneSize(cases, up, down)
    return (*found.interval(cases), found.p)


class TestCoverage:
    """Of intervals that say 95 %, at least 93 hold the truth (and the noise of the simulation)."""

    @pytest.mark.parametrize("cases", [20, 60, 200])
    @pytest.mark.parametrize(("better", "worse"), [(0.1, 0.1), (0.2, 0.05), (0.1, 0.0), (0.02, 0.02)])
    def test_of_pass_and_fail(self, cases: int, better: float, worse: float) -> None:
        random = Random(cases)
        rounds, held, alarms = 600, 0, 0
        for _ in range(rounds):
            drawn = [random.random() for _ in range(cases)]
            up = sum(one < better for one in drawn)
            down = sum(better <= one < better + worse for one in drawn)
            low, high, p = of_pass_and_fail(cases, up, down)
            held += low <= better - worse <= high
            alarms += p <= 0.05
        assert held / rounds >= 0.93
        if better == worse:
            assert alarms / rounds <= 0.06

    @pytest.mark.parametrize("cases", [9, 40])
    @pytest.mark.parametrize("changing", [0.2, 1.0])
    def test_of_scores(self, cases: int, changing: float) -> None:
        random = Random(cases)
        rounds, held = 300, 0

        def pair() -> tuple[float, float]:
            before = random.betavariate(2, 2)
            return before, random.betavariate(2, 1) if random.random() < changing else before

        truth = changing * (2 / 3 - 1 / 2)
        for _ in range(rounds):
            before, after = zip(*(pair() for _ in range(cases)), strict=True)
            found = weigh(changes_of(before, after), pass_or_fail=False)
            low, high = found.interval(cases)
            held += low <= truth <= high
        assert held / rounds >= 0.93


class TestSpeed:
    """The quick ways say what the slow ones say."""

    @pytest.mark.parametrize(("b", "c"), [(1100, 1000), (1500, 1500), (3000, 2900), (2001, 0), (0, 3000)])
    def test_mcnemar_of_many_changes(self, b: int, c: int, monkeypatch: pytest.MonkeyPatch) -> None:
        quick = stats.mcnemar(b, c)
        monkeypatch.setattr("gradeline.stats.paired._WHOLE_NUMBERS", 10_000)
        assert quick == pytest.approx(stats.mcnemar(b, c), rel=1e-9)

    @pytest.mark.parametrize("count", [16, 17, 24, 41])
    def test_sampled_signs(self, count: int) -> None:
        random = Random(count)
        differences = [random.choice([-2, -1, 1, 2, 3]) / 10 for _ in range(count)]
        assert stats.sign_flip_test(differences, seed=3, samples=500) == one_by_one(differences, 3, 500)


def one_by_one(differences: list[float], seed: int, samples: int) -> float:
    random = Random(seed)
    twice = [round(difference * 10) for difference in differences]
    flipped: Callable[[int], int] = lambda bits: sum(value for n, value in enumerate(twice) if bits >> n & 1)  # noqa: E731
    draws = [random.getrandbits(len(twice)) for _ in range(samples)]
    hits = sum(abs(sum(twice) - 2 * flipped(bits)) >= abs(sum(twice)) for bits in draws)
    return (hits + 1) / (samples + 1)
