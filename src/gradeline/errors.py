"""Everything that can go wrong, in one tree, and what each failure means for a run.

    GradelineError
    ├── ConfigError (ValueError)         a config, rule or option is wrong; a person must fix it
    │   ├── UnknownNameError             no grader or extractor of that name; offers the closest one
    │   └── ProviderRefusedError         a model's provider refuses every call: a key, a model's name, an account
    ├── DataError (ValueError)           a value that no record can hold (NaN, a set, a cycle)
    ├── StoreError                       the store cannot be opened, read or written
    ├── AgentError                       the agent's call failed; carries a type of RESPONSE_POLICY
    ├── BudgetExceeded                   a call was not sent, because it would have passed a limit
    └── GraderError                      a grader could not give a score; carries a type of GRADE_POLICY
        ├── UngradableError (ValueError) this submission or expectation cannot be graded
        │   ├── TooLargeError            a text past the grader's size bound
        │   └── MissingDataError         what the grader reads is not in the record
        ├── NeedsIsolationError          only a killable worker process may run this
        └── BadReplyError                a grader gave back something that is no grade

`gradeline.judges` adds below `UngradableError` what a judge's reply can be instead of a verdict, and `SideFailed`.

An error that ends in a record is told by its type: two tables say whose fault each type
is, whether the call is worth repeating, and what becomes of the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Outcome(StrEnum):
    """What became of one (sample, grader)."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    ERROR = "error"
    """The instrument broke: there is no score."""
    SKIPPED = "skipped"
    """The agent's call failed: there is nothing to grade."""


class Fault(StrEnum):
    """Whose fault an error is."""

    AGENT = "agent"
    GRADER = "grader"
    INFRASTRUCTURE = "infrastructure"


class Policy(NamedTuple):
    """What one type of error means for a run."""

    fault: Fault
    retry: bool
    outcome: Outcome


def _response(fault: Fault, *, retry: bool) -> Policy:
    return Policy(fault, retry, Outcome.SKIPPED)


def _grade(fault: Fault, *, retry: bool = False) -> Policy:
    return Policy(fault, retry, Outcome.ERROR)


RESPONSE_POLICY: Mapping[str, Policy] = MappingProxyType(
    {
        "timeout": _response(Fault.AGENT, retry=False),
        "status": _response(Fault.AGENT, retry=False),
        "status_5xx": _response(Fault.AGENT, retry=True),
        "bad_response": _response(Fault.AGENT, retry=False),
        "agent_error": _response(Fault.AGENT, retry=False),
        "crashed": _response(Fault.AGENT, retry=False),
        "memory": _response(Fault.AGENT, retry=False),
        "truncated": _response(Fault.AGENT, retry=True),
        "too_large": _response(Fault.AGENT, retry=False),
        "redirect": _response(Fault.AGENT, retry=False),
        "rate_limited": _response(Fault.INFRASTRUCTURE, retry=True),
        "quota": _response(Fault.INFRASTRUCTURE, retry=False),
        "connect": _response(Fault.INFRASTRUCTURE, retry=True),
        "reset": _response(Fault.INFRASTRUCTURE, retry=True),
        "dns": _response(Fault.INFRASTRUCTURE, retry=True),
        "tls": _response(Fault.INFRASTRUCTURE, retry=False),
    }
)
"""Failed agent calls. A record says ``status`` for every bad HTTP status; the table tells
5xx apart because only those are worth repeating (see `response_policy`)."""

ORDER_DECIDED = "order_decided"
"""A judge's verdicts on two answers in both orders name different winners. It is not asked again: repeating until both
orders agree would leave the order to decide."""

GRADE_POLICY: Mapping[str, Policy] = MappingProxyType(
    {
        "timeout": _grade(Fault.GRADER),
        "crashed": _grade(Fault.GRADER),
        "memory": _grade(Fault.GRADER),
        "too_large": _grade(Fault.GRADER),
        "bad_reply": _grade(Fault.GRADER),
        "no_score": _grade(Fault.GRADER),
        "ungradable": _grade(Fault.GRADER),
        "needs_isolation": _grade(Fault.GRADER),
        "missing": _grade(Fault.INFRASTRUCTURE),
        "invalid_reply": _grade(Fault.GRADER),
        "refused": _grade(Fault.GRADER),
        "truncated": _grade(Fault.GRADER),
        "empty_reply": _grade(Fault.GRADER),
        "judge_failed": _grade(Fault.INFRASTRUCTURE),
        "budget": _grade(Fault.INFRASTRUCTURE),
        ORDER_DECIDED: _grade(Fault.GRADER),
    }
)
"""Failed grades. An exception's class name is a type too; those fall under `UNLISTED_GRADE`."""

_OLD_GRADE_TYPES = {"refused_reply": "refused", "truncated_reply": "truncated"}
"""What records of earlier releases hold."""

UNLISTED_RESPONSE = _response(Fault.INFRASTRUCTURE, retry=False)
UNLISTED_GRADE = _grade(Fault.GRADER)


def response_policy(error_type: str, http_status: int | None = None) -> Policy:
    """What a failed agent call of this type means; ``http_status`` settles ``status``."""
    if error_type == "status" and http_status is not None and http_status >= 500:
        error_type = "status_5xx"
    return RESPONSE_POLICY.get(error_type, UNLISTED_RESPONSE)


def grade_policy(error_type: str) -> Policy:
    """What a failed grade of this type means."""
    return GRADE_POLICY.get(_OLD_GRADE_TYPES.get(error_type, error_type), UNLISTED_GRADE)


class GradelineError(Exception):
    """The root of every error raised on purpose."""


class Problem(NamedTuple):
    """One fault in something a person wrote: where it is and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def within(self, path: str) -> Problem:
        """The same problem, seen from further out; an empty path is the whole."""
        return Problem(f"{path}.{self.path}" if self.path else path, self.message)


class ConfigError(GradelineError, ValueError):
    """A config is wrong. ``problems`` holds every fault found, not just the first."""

    def __init__(self, problems: Problem | Iterable[Problem], subject: str = "") -> None:
        self.problems: Sequence[Problem] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        lines = [str(problem) for problem in self.problems]
        lead = f"{subject}: " if subject else ""
        super().__init__(lead + (lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)))


class UnknownNameError(ConfigError):
    """No declaration of that name."""

    def __init__(self, what: str, name: str, known: Iterable[str], path: str = "") -> None:
        known = sorted(known)
        close = closest(name, known)
        hint = f"did you mean {close!r}?" if close else f"known are {', '.join(known)}"
        super().__init__(Problem(path, f"no {what} named {name!r}; {hint}"))


class ProviderRefusedError(ConfigError):
    """A model's provider refuses every call until a person has fixed something: a key, a model's name, an account.

    It ends a run, which can be resumed once that is done.
    """


class DataError(GradelineError, ValueError):
    """A value that no record can hold."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.problem = Problem(path, reason)
        super().__init__(str(self.problem))


class StoreError(GradelineError):
    """The store could not be opened, read or written; the message names it and says what to do.

    ``retryable`` says that nothing was tried yet (another process held the lock): the same call
    may work later. Nothing else may be repeated before the cause is gone.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class AgentError(GradelineError):
    """The agent's call failed; ``type`` is a key of `RESPONSE_POLICY`.

    ``traceback`` has the frames of an agent that is Python code, ``output`` what it printed.
    """

    def __init__(
        self, error_type: str, message: str, *, traceback: str | None = None, output: str | None = None
    ) -> None:
        super().__init__(message)
        self.type = error_type
        self.traceback = traceback
        self.output = output


class BudgetExceeded(GradelineError):  # noqa: N818 - the name that callers were promised
    """A call was not sent: it would have passed a limit, or its price is unknown while the cost is limited."""


class GraderError(GradelineError):
    """A grader could not give a score; ``type`` is what the record says.

    ``rationale`` and ``metadata`` are kept with the grade.
    """

    type: str = "ungradable"
    rationale: str | None = None
    metadata: Mapping[str, object] = MappingProxyType({})

    @property
    def fault(self) -> Fault:
        """Whose fault it is, by the policy of its type."""
        return grade_policy(self.type).fault


class UngradableError(GraderError, ValueError):
    """This submission or this expectation cannot be graded: an error, never a score."""


class TooLargeError(UngradableError):
    """A text past the grader's size bound."""

    type = "too_large"


class MissingDataError(UngradableError):
    """What the grader reads is not in the record (no latency, no trajectory)."""

    type = "missing"


class NeedsIsolationError(GraderError):
    """Running this in-process could hang; a killable worker must do it."""

    type = "needs_isolation"


class BadReplyError(GraderError):
    """A grader gave back something that is no grade."""

    type = "bad_reply"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name``, when one is like it at all."""
    from difflib import get_close_matches  # loaded only when something is misspelt

    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
