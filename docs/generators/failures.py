"""Exit codes, and what each type of error means."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc

from gradeline import errors
from gradeline.cli.commands import cli
from gradeline.errors import GRADE_POLICY, RESPONSE_POLICY, Policy

from .tables import MADE, page, table

_CODES = {
    0: "The gate passes; without one, enough cases have a score. `compare`: better, or not worse. `grade`: all pass.",
    1: "The gate fails. `compare`: one grader says worse. `grade`: one case fails.",
    2: "The suite, a file, an option or a name is wrong; nothing was asked, or the run ended at the bad row. "
    "`compare`: the runs cannot be compared.",
    3: "Undecided: too few cases have a score, or the difference may be chance. The reasons say which.",
    4: "Nothing could be graded (every call failed, say), or gradeline itself broke.",
    130: "Interrupted by Ctrl-C. What was answered is stored; `gradeline resume` goes on.",
}

_RESPONSES = {
    "timeout": "No whole answer within the deadline.",
    "status": "A bad HTTP status, or a program's exit code.",
    "status_5xx": "An HTTP status from 500 on; records say `status`.",
    "bad_response": "An answer that is not what the target expects: no JSON, no text at the path, a value that is "
    "not an answer.",
    "agent_error": "The code of a Python agent raised an exception; the message has its file and line, `traceback` "
    "its frames.",
    "crashed": "The process of a Python agent ended: it exited or died by a signal.",
    "memory": "A Python agent ran out of memory, with evidence: `MemoryError`, its limit, or the system's killer.",
    "truncated": "The answer broke off.",
    "too_large": "More than the size that an answer may have, an endless stream included.",
    "redirect": "A redirect that leads nowhere, or where it may not.",
    "rate_limited": "429, or the like, after all retries.",
    "quota": "The account at a model's provider is used up: credit, spend limit, or the quota of a day.",
    "connect": "Nobody listens there.",
    "reset": "The connection was cut.",
    "dns": "The host's name is not known.",
    "tls": "The certificate or the handshake is wrong.",
}

_GRADES = {
    "timeout": "The grader took longer than its `timeout`.",
    "crashed": "Its process ended: it exited or died by a signal.",
    "memory": "Its process ran out of memory, with evidence: its limit was reached, or the system's killer ended it.",
    "too_large": "The text, or what the grader gave back, is past the bound.",
    "bad_reply": "It gave back something that is no grade.",
    "no_score": "It returned a `GradeResult` whose score is None; the message is its rationale.",
    "ungradable": "This answer or this expectation cannot be graded.",
    "needs_isolation": "A pattern that only a killable process may run; a run gives it one.",
    "missing": "What the grader reads (a latency, a trajectory) is not in the record.",
    "invalid_reply": "A judge's reply holds no verdict, or two, or a score that is no number in 0..1.",
    "refused": "A judge or its provider declined this request: a refusal, a content filter, HTTP 400, 403 or 404.",
    "truncated": "A judge's reply was cut off, and again with a larger limit.",
    "empty_reply": "A judge's reply has no text.",
    "judge_failed": "A judge could not be asked: its server failed or could not be reached, after all retries.",
    "budget": "A judge was not asked, because that would have passed a limit.",
    "order_decided": "A judge was shown two answers in both orders, and names another winner in each.",
}


def failures() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Exit codes and errors", "", MADE, "", "## Exit codes", "")
    told = {int(code) for code in re.findall(r"\b\d+\b", cli.epilog or "")}
    if told != set(_CODES):
        raise ValueError(f"the help tells the exit codes {sorted(told)}, this page {sorted(_CODES)}")
    yield from table(("code", "means"), ((f"`{code}`", text) for code, text in _CODES.items()))
    yield "Of several runs (one for each model) the code that asks for a person first is given: 130, 4, 2, 1, 3, 0."
    yield from ("", "## A failed call of the agent", "")
    yield "The response has `status: error` (or `timeout`) and an `error` with one of these types; its grades are"
    yield "`skipped`. Whose fault it is decides nothing, but is told. What is worth repeating is repeated, as often as"
    yield "the target's `retries` say."
    yield ""
    yield from _policies(RESPONSE_POLICY, _RESPONSES)
    yield from ("## A failed grade", "")
    yield "The grade has the outcome `error` and no score. An exception in a grader is told by its class name,"
    yield from ("`ValueError` for example.", "")
    yield from _policies(GRADE_POLICY, _GRADES)
    yield from ("## Exceptions", "", "All that `gradeline` raises on purpose, from `gradeline.errors`:", "", "```text")
    tree = cleandoc(errors.__doc__ or "").split("\n\n")[1]
    yield from (line.removeprefix("    ") for line in tree.splitlines())
    yield from ("```", "")


def _policies(policies: Mapping[str, Policy], texts: Mapping[str, str]) -> Iterator[str]:
    yield from table(
        ("type", "whose fault", "worth repeating", "what happened"),
        (
            (f"`{name}`", policy.fault.value, "yes" if policy.retry else "no", texts[name])
            for name, policy in policies.items()
        ),
    )
