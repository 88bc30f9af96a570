"""The page of exit codes and error types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from inspect import cleandoc

from gradeline import errors
from gradeline.cli.commands import cli
from gradeline.errors import GRADE_POLICY, RESPONSE_POLICY, Policy

from .tables import GENERATED, page, table

_CODES = {
    0: "The gate passes; without one, enough cases have a score. `compare`: better, or not worse. `grade`: all pass.",
    1: "The gate fails. `compare`: worse. `grade`: at least one case fails. `route plan`: a gate refuses.",
    2: "The suite, a file, an option or a name is invalid; no call was made, or the run ended at the invalid row. "
    "`compare`: the runs cannot be compared.",
    3: "Undecided: too few cases have a score, or the difference may be chance. The output gives the reason.",
    4: "Nothing could be graded (for example, every call failed), or gradeline itself failed.",
    130: "Interrupted by Ctrl-C. Finished work is stored; `gradeline resume` continues.",
}

_RESPONSES = {
    "timeout": "No complete response within the deadline.",
    "status": "An HTTP error status, or a program's exit code.",
    "status_5xx": "An HTTP status of 500 or above; records have `status`.",
    "bad_response": "A response that the target cannot read: not JSON, no text at the path, an unsupported value.",
    "agent_error": "The code of a Python agent raised an exception; the message has the file and line, `traceback` "
    "the frames.",
    "crashed": "The process of a Python agent ended: it exited or was killed by a signal.",
    "memory": "A Python agent ran out of memory: `MemoryError`, its limit, or the system's out-of-memory killer.",
    "truncated": "The response was cut off.",
    "too_large": "The response exceeds the size limit; an endless stream does too.",
    "redirect": "A redirect without a valid target, or to an address that is not allowed.",
    "rate_limited": "429 or an equivalent, after all retries.",
    "quota": "The account at a model's provider is exhausted: credit, spend limit, or daily quota.",
    "connect": "The connection was refused.",
    "reset": "The connection was reset.",
    "dns": "The host name does not resolve.",
    "tls": "The certificate is not valid, or the handshake failed.",
}

_GRADES = {
    "timeout": "The grader took longer than its `timeout`.",
    "crashed": "Its process ended: it exited or was killed by a signal.",
    "memory": "Its process ran out of memory: it reached its limit, or the system's out-of-memory killer ended it.",
    "too_large": "The text, or the grader's result, exceeds the size limit.",
    "bad_reply": "It returned something that is not a grade.",
    "no_score": "It returned a `GradeResult` whose score is None; the message is its rationale.",
    "ungradable": "This response or this expected value cannot be graded.",
    "needs_isolation": "A pattern that must run in a worker process; a run provides one.",
    "missing": "The record lacks what the grader reads (a latency, a trajectory).",
    "invalid_reply": "A judge's reply has no verdict, or two, or a score that is not a number in 0..1.",
    "refused": "A judge or its provider declined this request: a refusal, a content filter, HTTP 400, 403 or 404.",
    "truncated": "A judge's reply was cut off, and again with a larger limit.",
    "empty_reply": "A judge's reply has no text.",
    "no_statements": "A judge found no statement in the text that it was to judge statement by statement.",
    "judge_failed": "A judge, or the server of an `http` grader, could not be called: it failed or could not be"
    " reached, after all retries.",
    "budget": "A judge was not called, because that would have exceeded a budget.",
    "order_decided": "A judge saw two responses in both orders and named a different winner in each.",
    "unsure": (
        "A judge's verdict is [less certain than `agreement` requires](selective-judging.md); it is in the metadata."
    ),
}


def failures() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Exit codes and errors", "", "The exit codes of all commands, and the types of errors in records.")
    yield from (f"`gradeline show latest` prints the errors of your last run. {GENERATED}", "", "## Exit codes", "")
    documented = {int(code) for code in re.findall(r"\b\d+\b", cli.epilog or "")}
    if documented != set(_CODES):
        raise ValueError(f"the help has the exit codes {sorted(documented)}, this page {sorted(_CODES)}")
    yield from table(("code", "meaning"), ((f"`{code}`", text) for code, text in _CODES.items()))
    yield "With several runs (one for each model), the first of these codes that occurs: 130, 4, 2, 1, 3, 0."
    yield from ("", "## A failed call of the agent", "")
    yield "The response has `status: error` (or `timeout`) and an `error` with one of these types; its grades are"
    yield "`skipped`. The fault is for information only. Errors that can be retried are retried, up to the target's"
    yield "`retries`."
    yield ""
    yield from _policies(RESPONSE_POLICY, _RESPONSES)
    yield from ("## A failed grade", "")
    yield "The grade has the outcome `error` and no score. An exception in a grader has its class name as the"
    yield from ("type, for example `ValueError`.", "")
    yield from _policies(GRADE_POLICY, _GRADES)
    yield from ("## Exceptions", "", "The exceptions of gradeline, from `gradeline.errors`:", "", "```text")
    tree = cleandoc(errors.__doc__ or "").split("\n\n")[1]
    yield from (line.removeprefix("    ") for line in tree.splitlines())
    yield from ("```", "")


def _policies(policies: Mapping[str, Policy], texts: Mapping[str, str]) -> Iterator[str]:
    yield from table(
        ("type", "fault", "retried", "what happened"),
        (
            (f"`{name}`", policy.fault.value, "yes" if policy.retry else "no", texts[name])
            for name, policy in policies.items()
        ),
    )
