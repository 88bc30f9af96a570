"""Grader of the reason why an answer ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import MissingDataError, Problem
from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.graders.case_values import REFERENCES, Reference, case_texts, reference_faults
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.model.llm import common_stop_reason

_UNKNOWN = (
    "the response has no stop_reason; chat targets store the model's; http and command: map stop_reason under the "
    "target's response:; python: return a dict or Response with stop_reason; in a replay file, add stop_reason to the "
    "response"
)
Reasons = Annotated[list[str], Meta(min_length=1)] | Reference
_EXPECTED = "a list of reasons"


class FinishReasonConfig(Config, frozen=True):
    """Options of `FinishReasonGrader`."""

    allowed: Annotated[
        Reasons | UnsetType,
        described(
            "Reasons that pass, such as stop, length, tool_calls, content_filter, refusal, or the provider's own word "
            f"(default stop, without forbidden); or {REFERENCES}.",
            expected=f"{_EXPECTED}, {REFERENCES}",
        ),
    ] = UNSET
    forbidden: Annotated[
        Reasons | UnsetType,
        described("Reasons that fail (default none).", expected=f"{_EXPECTED}, {REFERENCES}"),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("allowed", self.allowed, _EXPECTED)
        yield from reference_faults("forbidden", self.forbidden, _EXPECTED)


class FinishReasonGrader(DeclaredGrader[FinishReasonConfig]):
    """Checks why the answer ended: complete, cut off, filtered, refused. An unknown reason is an error, not a pass.

    Reasons are compared without case, with the provider's word and with its common name: `end_turn` is `stop`,
    `MAX_TOKENS` is `length`.
    """

    kind = "finish_reason"
    name = "Finish reason"
    scoring_guide = "1.0 when the answer ended for an allowed reason, else 0.0; an unknown reason is an error."
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        reason = None if ctx.response is None else ctx.response.stop_reason
        if reason is None:
            raise MissingDataError("the context has no response" if ctx.response is None else _UNKNOWN)
        allowed, forbidden = self._reasons("allowed", ctx), self._reasons("forbidden", ctx)
        if allowed is None and forbidden is None:
            allowed = {"stop"}
        names = {reason.lower(), common_stop_reason(reason)}
        holds = (allowed is None or bool(names & allowed)) and not names & (forbidden or set())
        wanted = "" if allowed is None else f", allowed {', '.join(sorted(allowed))}"
        unwanted = "" if forbidden is None else f", forbidden {', '.join(sorted(forbidden))}"
        return binary_result(holds, f"ended with {quote(reason, 80)}{wanted}{unwanted}", {"stop_reason": reason})

    def _reasons(self, option: str, ctx: GradeContext) -> set[str] | None:
        value = getattr(self.options, option)
        return None if value is UNSET else {reason.lower() for reason in case_texts(value, ctx, option)}
