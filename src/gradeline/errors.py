"""The exception tree, and what each error type means for a run.

    GradelineError
    ├── ConfigError (ValueError)         invalid config, rule or option; the user must fix it
    │   ├── UnknownNameError             unknown grader or extractor; suggests the closest name
    │   └── ProviderRefusedError         the provider refuses every call: API key, model name, account
    ├── DataError (ValueError)           a value that cannot be stored (NaN, a set, a cycle)
    ├── StoreError                       the store cannot be opened, read or written
    ├── AgentError                       the agent call failed; has a type of RESPONSE_POLICY
    ├── BudgetExceeded                   a call was not sent because it would exceed the budget
    └── GraderError                      a grader has no score; has a type of GRADE_POLICY
        ├── CaseLeftOut                  the grader leaves the case out: skipped, or not applicable
        ├── UngradableError (ValueError) this submission or expected value cannot be graded
        │   ├── TooLargeError            a string above the grader's size limit
        │   └── MissingDataError         data the grader needs is not in the record
        ├── NeedsIsolationError          only a worker process with a deadline may run this
        └── BadReplyError                a grader returned something that is not a grade

`gradeline.judges` adds subclasses of `UngradableError` for judge replies without a verdict, and `SideFailed`.

Records store the type of an error. Two tables map each type to whose fault it is, whether the call is retried, and the
outcome of the case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Outcome(StrEnum):
    """Outcome of one grader on one case."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    ERROR = "error"
    """The grader failed: there is no score."""
    SKIPPED = "skipped"
    """The agent call failed: there is nothing to grade."""
    NOT_APPLICABLE = "not_applicable"
    """The grader does not apply to this case, which is outside its coverage."""


class Fault(StrEnum):
    """Whose fault an error is."""

    AGENT = "agent"
    GRADER = "grader"
    INFRASTRUCTURE = "infrastructure"


class Policy(NamedTuple):
    """How a run treats one error type."""

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
"""Failed agent calls. Records have ``status`` for every HTTP error status; ``status_5xx`` is a separate entry because
only those are retried (see `response_policy`)."""

ORDER_DECIDED = "order_decided"
"""A judge's verdicts on two answers differ between the two orders. Not retried: repeating until both orders agree would
let the order decide."""

UNSURE = "unsure"
"""A judge's verdict is less certain than the suite requires. Not retried: repeating until it is certain would let
chance decide."""

SETTLED_ERRORS = (ORDER_DECIDED, UNSURE)
"""Errors of judges that are results: a resume does not call these judges again."""

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
        "no_statements": _grade(Fault.GRADER),
        "judge_failed": _grade(Fault.INFRASTRUCTURE),
        "budget": _grade(Fault.INFRASTRUCTURE),
        ORDER_DECIDED: _grade(Fault.GRADER),
        UNSURE: _grade(Fault.GRADER),
    }
)
"""Failed grades. Class names of other exceptions are types too and fall under `UNLISTED_GRADE`."""

_OLD_GRADE_TYPES = {"refused_reply": "refused", "truncated_reply": "truncated"}
"""Types in records of earlier releases."""

UNLISTED_RESPONSE = _response(Fault.INFRASTRUCTURE, retry=False)
UNLISTED_GRADE = _grade(Fault.GRADER)


def response_policy(error_type: str, http_status: int | None = None) -> Policy:
    """The policy for a failed agent call; ``http_status`` distinguishes 5xx within ``status``."""
    if error_type == "status" and http_status is not None and http_status >= 500:
        error_type = "status_5xx"
    return RESPONSE_POLICY.get(error_type, UNLISTED_RESPONSE)


def grade_policy(error_type: str) -> Policy:
    """The policy for a failed grade."""
    return GRADE_POLICY.get(_OLD_GRADE_TYPES.get(error_type, error_type), UNLISTED_GRADE)


class GradelineError(Exception):
    """Base class of all gradeline errors."""


class Problem(NamedTuple):
    """One fault in user input: where it is and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def within(self, path: str) -> Problem:
        """The same problem with ``path`` prepended."""
        return Problem(f"{path}.{self.path}" if self.path else path, self.message)


class ConfigError(GradelineError, ValueError):
    """Invalid configuration. ``problems`` has every fault found, not only the first."""

    def __init__(self, problems: Problem | Iterable[Problem], subject: str = "") -> None:
        self.problems: Sequence[Problem] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        lines = [str(problem) for problem in self.problems]
        lead = f"{subject}: " if subject else ""
        super().__init__(lead + (lines[0] if len(lines) == 1 else "".join(f"\n  {line}" for line in lines)))


class UnknownNameError(ConfigError):
    """No grader, extractor or target of that name."""

    def __init__(self, what: str, name: str, known: Iterable[str], path: str = "") -> None:
        known = sorted(known)
        close = closest_match(name, known)
        hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(known)}"
        super().__init__(Problem(path, f"no {what} named {name!r}; {hint}"))


class ProviderRefusedError(ConfigError):
    """A model provider refuses every call until the user fixes the API key, model name or account.

    It ends the run, which can be resumed afterwards.
    """


class DataError(GradelineError, ValueError):
    """A value that cannot be stored."""

    def __init__(self, reason: str, path: str = "") -> None:
        self.problem = Problem(path, reason)
        super().__init__(str(self.problem))


class StoreError(GradelineError):
    """The store could not be opened, read or written; the message names it and says what to do.

    ``retryable`` means that nothing was written yet (another process held the lock): the same call may work later.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class AgentError(GradelineError):
    """The agent call failed; ``type`` is a key of `RESPONSE_POLICY`.

    For a Python agent, ``traceback`` has its frames and ``output`` what it printed.
    """

    def __init__(
        self, error_type: str, message: str, *, traceback: str | None = None, output: str | None = None
    ) -> None:
        super().__init__(message)
        self.type = error_type
        self.traceback = traceback
        self.output = output


class BudgetExceeded(GradelineError):  # noqa: N818 - public name
    """A call was not sent: it would exceed the budget, or its price is unknown while cost is limited."""


class GraderError(GradelineError):
    """A grader has no score; ``type`` is stored in the record, ``rationale`` and ``metadata`` with the grade."""

    type: str = "ungradable"
    rationale: str | None = None
    metadata: Mapping[str, object] = MappingProxyType({})

    @property
    def fault(self) -> Fault:
        """Whose fault it is, by the policy of the type."""
        return grade_policy(self.type).fault


class UngradableError(GraderError, ValueError):
    """This submission or expected value cannot be graded: an error, never a score."""


class TooLargeError(UngradableError):
    """A string above the grader's size limit."""

    type = "too_large"


class MissingDataError(UngradableError):
    """Data the grader needs is not in the record, such as latency or trajectory."""

    type = "missing"


class NeedsIsolationError(GraderError):
    """Could take too long in this process; must run in a worker process with a deadline."""

    type = "needs_isolation"


class CaseLeftOut(GraderError):  # noqa: N818 - not an error: the grade has neither a score nor an error
    """The grader leaves this case out: ``outcome`` is ``skipped`` or, outside its coverage, ``not_applicable``."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class BadReplyError(GraderError):
    """A grader returned something that is not a grade."""

    type = "bad_reply"


def closest_match(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``, or None if none is similar."""
    from difflib import get_close_matches  # keeps start-up light: only needed for misspelt names

    matches = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None
