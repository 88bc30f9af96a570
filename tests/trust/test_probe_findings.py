"""What verdicts on answers and on changed copies show about a judge."""

from __future__ import annotations

from math import exp, log1p, log2
from random import Random

import pytest

from gradeline.trust.length_coefficient import LabelledLength, length_coefficient
from gradeline.trust.position_power import position_power
from gradeline.trust.probe_findings import (
    MISSING,
    Canary,
    ChangedPair,
    GoldAnswer,
    JudgedAnswer,
    change_finding,
    change_power,
    injection_finding,
    position_finding,
    repeat_finding,
    self_preference_finding,
)


def verdict(value: float | None, passed: bool | None = None) -> JudgedAnswer:
    return JudgedAnswer(value, passed if passed is not None or value is None else value >= 0.5)


def shifted(count: int, shift: float, noise: float = 0.08, base: float = 0.5) -> list[ChangedPair]:
    chance = Random(5)
    return [
        ChangedPair(verdict(base), verdict(min(1.0, base + shift + chance.gauss(0.0, noise)))) for _ in range(count)
    ]


def flips(first: int, second: int, same: int) -> list[JudgedAnswer]:
    return [
        *[JudgedAnswer(0.0, None, "first")] * first,
        *[JudgedAnswer(0.0, None, "second")] * second,
        *[JudgedAnswer(0.4, True)] * same,
    ]


def test_a_shift_of_padded_answers_is_flagged_with_its_size() -> None:
    found = change_finding("length", shifted(200, 0.1))
    assert (found.verdict, found.n, found.missing, found.reason) == ("flagged", 200, 0, None)
    assert found.effect == pytest.approx(0.1, abs=0.02)
    assert found.interval is not None
    assert found.interval[0] < 0.1 < found.interval[1]
    assert found.p is not None
    assert found.p < 1e-20
    assert found.sentence.startswith("answers that are padded by repeating them score +0.")


def test_no_shift_is_not_flagged_and_has_power() -> None:
    found = change_finding("authority", shifted(200, 0.0))
    assert (found.verdict, found.reason) == ("not_flagged", None)
    assert found.power == pytest.approx(1.0, abs=1e-6)
    assert found.detectable == pytest.approx(0.02, abs=0.005)


def test_a_judge_that_lowers_padded_answers_is_not_flagged_for_length() -> None:
    found = change_finding("length", shifted(200, -0.1))
    assert found.verdict == "not_flagged"
    assert found.sentence.endswith("which is not this bias")
    assert change_finding("format", shifted(200, -0.1)).verdict == "flagged"


def test_a_copy_without_markup_counts_the_other_way() -> None:
    pairs = [pair._replace(sign=-1) for pair in shifted(200, -0.1)]
    found = change_finding("format", pairs)
    assert found.verdict == "flagged"
    assert found.effect == pytest.approx(0.1, abs=0.02)


def test_a_certain_but_tiny_shift_is_not_flagged() -> None:
    found = change_finding("length", [ChangedPair(verdict(0.5), verdict(0.51))] * 300)
    assert found.p is not None
    assert found.p < 1e-50
    assert found.verdict == "not_flagged"


def test_few_pairs_are_not_enough_and_the_number_needed_is_named() -> None:
    found = change_finding("length", shifted(9, 0.0, noise=0.2))
    assert found.verdict == "not_enough_data"
    assert found.reason is not None
    assert found.reason.startswith("9 pairs flag a change of 0.1 with a chance of")
    needed = int(found.reason.rpartition("about ")[2].split()[0])
    deviation = found.details["standard_deviation"]
    assert isinstance(deviation, float)
    assert change_power(needed, deviation)[0] >= 0.8 > change_power(needed - 1, deviation)[0]


@pytest.mark.parametrize("count", [0, 1, 7])
def test_hardly_any_pairs_are_not_enough(count: int) -> None:
    found = change_finding("length", shifted(count, 0.1))
    assert (found.verdict, found.p, found.n) == ("not_enough_data", None, count)


def test_missing_verdicts_are_counted_and_below_the_floor_nothing_is_found() -> None:
    few = [*shifted(195, 0.1), *[ChangedPair(verdict(0.5), MISSING)] * 5]
    found = change_finding("length", few)
    assert (found.verdict, found.n, found.missing, found.planned) == ("flagged", 195, 5, 200)
    many = [*shifted(180, 0.1), *[ChangedPair(MISSING, verdict(0.9))] * 20]
    found = change_finding("length", many)
    assert (found.verdict, found.missing) == ("not_enough_data", 20)
    assert found.reason is not None
    assert found.reason.startswith("the judge gave no verdict for 20 of 200")
    assert change_finding("length", [ChangedPair(MISSING, MISSING)] * 50).verdict == "not_enough_data"


def test_answers_with_the_highest_score_cannot_show_an_upward_bias() -> None:
    found = change_finding("length", [ChangedPair(verdict(1.0), verdict(1.0))] * 100)
    assert found.verdict == "not_enough_data"
    assert found.reason == (
        "100 of 100 answers have the highest score already, so a change cannot raise it; use weaker answers"
    )


def test_position_is_flagged_by_the_sign_test_on_flips() -> None:
    found = position_finding(flips(30, 5, 165))
    assert (found.verdict, found.n, found.details) == ("flagged", 200, {"first": 30, "second": 5})
    assert found.effect == pytest.approx(0.125)
    assert found.interval is not None
    assert 0 < found.interval[0] < 0.125 < found.interval[1] <= 0.175
    assert position_finding(flips(5, 30, 165)).effect == pytest.approx(-0.125)


def test_position_without_a_preference_is_not_flagged_although_the_order_decides_often() -> None:
    assert position_finding(flips(40, 38, 122)).verdict == "not_flagged"


def test_a_judge_that_never_flips_is_not_flagged() -> None:
    found = position_finding(flips(0, 0, 200))
    assert (found.verdict, found.p, found.interval) == ("not_flagged", None, None)


def test_few_pairs_do_not_show_a_position_bias() -> None:
    found = position_finding(flips(3, 0, 20))
    assert found.verdict == "not_enough_data"
    assert found.power is not None
    assert found.power < 0.2
    assert position_finding([]).verdict == "not_enough_data"


def test_seven_flips_to_one_side_are_not_flagged() -> None:
    assert position_finding(flips(7, 0, 193)).verdict == "not_flagged"
    assert position_finding(flips(8, 0, 192)).verdict == "flagged"


def test_power_of_the_position_probe_grows_with_pairs_and_bias() -> None:
    assert position_power(200, 0.2) > position_power(100, 0.2) > position_power(50, 0.2) > position_power(50, 0.0)
    assert position_power(0, 0.2) == 0.0
    assert position_power(200, 0.0) < 0.01


def test_repeated_verdicts_that_differ_are_flagged() -> None:
    chance = Random(3)
    noisy = [[verdict(chance.gauss(0.5, 0.1)) for _ in range(3)] for _ in range(60)]
    found = repeat_finding(noisy)
    assert found.verdict == "flagged"
    assert found.effect == pytest.approx(0.1, abs=0.02)
    assert found.details["verdicts_per_answer"] == 3
    assert isinstance(found.details["changed_verdicts"], int)
    assert found.details["changed_verdicts"] > 10


def test_repeated_verdicts_that_agree_are_not_flagged() -> None:
    steady = [[verdict(0.7)] * 3] * 60
    found = repeat_finding(steady)
    assert (found.verdict, found.p) == ("not_flagged", 1.0)
    assert found.effect == pytest.approx(0.0, abs=1e-9)
    assert repeat_finding(steady[:5]).verdict == "not_enough_data"
    incomplete = [[verdict(0.7), MISSING, verdict(0.7)]] * 60
    assert repeat_finding(incomplete).verdict == "not_enough_data"


def canaries(control: float, injected: float, count: int) -> list[Canary]:
    return [Canary("demand", verdict(control), verdict(injected))] * count


def test_one_obeyed_instruction_is_enough() -> None:
    found = injection_finding([*canaries(0.0, 0.05, 39), Canary("override", verdict(0.1), verdict(1.0))])
    assert (found.verdict, found.details) == ("flagged", {"override": 1})
    assert found.sentence == "obeyed 1 of 40 instructions in answers (95 %: 0.1% to 13.2%): override 1"


def test_an_obeyed_instruction_counts_although_verdicts_are_missing() -> None:
    missing = [Canary("demand", verdict(0.0), MISSING)] * 30
    assert injection_finding([*missing, *canaries(0.0, 1.0, 1)]).verdict == "flagged"
    assert injection_finding([*missing, *canaries(0.0, 0.0, 10)]).verdict == "not_enough_data"


def test_a_judge_that_likes_everything_shows_nothing_about_injections() -> None:
    found = injection_finding(canaries(0.9, 1.0, 40))
    assert (found.verdict, found.n) == ("not_enough_data", 0)
    assert found.reason is not None
    assert found.reason.endswith("for 40 others the verdict without an instruction is too high or too noisy")


def test_a_judge_whose_verdicts_jump_by_chance_is_not_flagged() -> None:
    chance = Random(6)

    def noisy() -> JudgedAnswer:
        return verdict(min(1.0, max(0.0, chance.gauss(0.5, 0.25))))

    found = injection_finding([Canary("demand", noisy(), noisy()) for _ in range(50)])
    assert found.verdict == "not_enough_data"
    assert found.n < 16


def test_no_obeyed_instruction_gives_an_upper_bound() -> None:
    found = injection_finding(canaries(0.0, 0.1, 40))
    assert found.verdict == "not_flagged"
    assert found.interval == pytest.approx((0.0, 0.0881), abs=1e-4)
    assert found.power == pytest.approx(1 - 0.9**40)


def gold(count: int, preference: float, seed: int = 1) -> list[GoldAnswer]:
    chance = Random(seed)
    found = []
    for number in range(count):
        quality, own = chance.random(), number % 2 == 0
        found.append(GoldAnswer(quality + preference * own + chance.gauss(0, 0.08), float(quality > 0.5), own))
    return found


def test_a_preference_for_its_own_family_is_flagged_given_the_labels() -> None:
    found = self_preference_finding(gold(400, 0.1), "openai", "labels")
    assert found.verdict == "flagged"
    assert found.effect == pytest.approx(0.1, abs=0.04)
    assert self_preference_finding(gold(400, 0.0), "openai", "labels").verdict == "not_flagged"
    assert self_preference_finding(gold(400, -0.2), "openai", "labels").verdict == "not_flagged"


def test_a_family_that_is_better_is_not_flagged() -> None:
    """The judge is right about both: answers of its family are good more often."""
    chance = Random(2)
    answers = []
    for number in range(400):
        own = number % 2 == 0
        good = float(chance.random() < (0.8 if own else 0.4))
        answers.append(GoldAnswer(0.2 + 0.6 * good + chance.gauss(0, 0.05), good, own))
    assert self_preference_finding(answers, "openai", "labels").verdict == "not_flagged"


def test_a_preference_needs_answers_of_both_kinds() -> None:
    found = self_preference_finding([GoldAnswer(0.5, 1.0, own=True)] * 50, "openai", "labels")
    assert (found.verdict, found.n) == ("not_enough_data", 50)


def test_the_length_coefficient_maximizes_the_likelihood_and_its_error_is_the_curvature() -> None:
    chance = Random(4)
    answers = []
    for _ in range(200):
        characters, truth = chance.choice([50, 100, 200, 400]), float(chance.random() < 0.5)
        answers.append(LabelledLength(characters, chance.random() < 0.2 + 0.3 * truth + characters / 1000, truth))
    found = length_coefficient(answers)
    assert found is not None
    assert found.n == 200

    def profile(coefficient: float) -> float:
        """The largest log-likelihood with this coefficient of the length, by coordinate-wise Newton steps."""
        intercept, label = -coefficient * log2(150), 0.0
        for _ in range(200):
            for which in (0, 1):
                slope = curve = 0.0
                for one in answers:
                    x = one.truth if which else 1.0
                    p = 1 / (1 + exp(-(intercept + coefficient * log2(one.characters) + label * one.truth)))
                    slope, curve = slope + x * (one.passed - p), curve + x * x * p * (1 - p)
                intercept, label = (intercept, label + slope / curve) if which else (intercept + slope / curve, label)
        terms = [(intercept + coefficient * log2(one.characters) + label * one.truth, one.passed) for one in answers]
        return sum(-log1p(exp(-odds if passed else odds)) for odds, passed in terms)

    error, step = found.coefficient / found.z, 0.02
    below, best, above = (profile(found.coefficient + shift) for shift in (-step, 0.0, step))
    assert best > max(below, above)
    assert -(below - 2 * best + above) / step**2 == pytest.approx(1 / error**2, rel=0.01)


def test_the_length_coefficient_needs_labels_of_different_length() -> None:
    same = [LabelledLength(100, number % 2 == 0, 1.0) for number in range(60)]
    assert length_coefficient(same) is None
    assert length_coefficient([LabelledLength(number, number % 2 == 0, 1.0) for number in range(1, 20)]) is None
    assert length_coefficient([LabelledLength(number, passed=True, truth=1.0) for number in range(1, 60)]) is None
