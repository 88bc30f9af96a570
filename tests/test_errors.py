from __future__ import annotations

import re

import pytest

from gradeline import errors
from gradeline.errors import (
    GRADE_POLICY,
    RESPONSE_POLICY,
    ConfigError,
    Fault,
    GradelineError,
    GraderError,
    Outcome,
    Problem,
    UnknownNameError,
    grade_policy,
    response_policy,
)


def test_the_tree_in_the_module_docstring_is_current() -> None:
    drawn = re.findall(r"[├└]── (\w+)|^    (GradelineError)$", errors.__doc__ or "", re.MULTILINE)
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, GradelineError)
    }
    assert {one or other for one, other in drawn} == defined


def test_every_grader_error_has_a_policy() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, GraderError)]
    assert {kind.type for kind in kinds} <= set(GRADE_POLICY)


def test_a_failed_call_is_skipped_and_a_failed_grade_is_an_error() -> None:
    assert {policy.outcome for policy in RESPONSE_POLICY.values()} == {Outcome.SKIPPED}
    assert {policy.outcome for policy in GRADE_POLICY.values()} == {Outcome.ERROR}


def test_every_response_error_type_of_the_contract_is_listed() -> None:
    contract = [
        "timeout",
        "connect",
        "dns",
        "tls",
        "reset",
        "truncated",
        "too_large",
        "bad_response",
        "redirect",
        "rate_limited",
        "status",
    ]
    assert set(contract) <= set(RESPONSE_POLICY)


@pytest.mark.parametrize(("status", "retry"), [(None, False), (404, False), (500, True), (503, True)])
def test_only_server_errors_are_worth_repeating(status: int | None, retry: bool) -> None:
    policy = response_policy("status", status)
    assert (policy.fault, policy.retry) == (Fault.AGENT, retry)


def test_an_exception_is_attributed_to_the_grader() -> None:
    assert grade_policy("ZeroDivisionError") == (Fault.GRADER, False, Outcome.ERROR)
    assert response_policy("strange").fault is Fault.INFRASTRUCTURE


def test_a_config_error_lists_every_problem_and_is_a_value_error() -> None:
    error = ConfigError([Problem("a.b", "is wrong"), Problem("c", "is worse")], "grader")
    assert isinstance(error, ValueError)
    assert str(error) == "grader: \n  a.b: is wrong\n  c: is worse"
    assert str(ConfigError(Problem("a", "is wrong"))) == "a: is wrong"


def test_an_unknown_name_suggests_the_closest() -> None:
    assert str(UnknownNameError("grader", "numerc", ["numeric", "rouge"])) == (
        "no grader named 'numerc'; did you mean 'numeric'?"
    )
    assert str(UnknownNameError("grader", "zzz", ["b", "a"])) == "no grader named 'zzz'; use one of a, b"
