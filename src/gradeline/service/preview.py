"""Grading one answer without storing anything."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import NamedTuple

from gradeline import extractors, graders
from gradeline.api.threads import wait_for
from gradeline.engine.grade import Graded, GraderUse, Grading, UserGrader, grade_once
from gradeline.engine.prepare import bound_grader
from gradeline.errors import ConfigError, Fault, Outcome
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.model import ErrorInfo, Grade, Response, ResponseKey, Sample, Storage, clean_text
from gradeline.model.resources import Resources
from gradeline.service.caller import Caller
from gradeline.service.egress import ServiceEgress
from gradeline.service.failures import ApiError, Code, not_found
from gradeline.service.grader_definitions import refused
from gradeline.service.grader_files import GraderFolder
from gradeline.service.result_shapes import Score, read_result_id, score_of
from gradeline.service.secrets import Secrets
from gradeline.service.stored_graders import ResolvedGrader
from gradeline.service.world import check_judges, outside_of, secrets_of
from gradeline.usercode.pool import WorkerPool

MOST_S = 60.0
"""Seconds that a preview may take, whatever a judge's own timeout and retries are."""


class Previewed(NamedTuple):
    """An answer to grade for a look."""

    sample: Sample
    response: Response
    stored: bool
    """Whether it is a run's result; else its text is the submission."""


class Previewer:
    """Runs graders for a look at what they say. User code runs in worker processes, judges within the egress policy."""

    def __init__(self, files: GraderFolder, secrets: Secrets, egress: ServiceEgress, caller: Caller) -> None:
        self._files = files
        self._secrets = secrets
        self._egress = egress
        self._caller = caller

    def score(self, grader: ResolvedGrader, answer: Previewed) -> Score:
        """The grader's score; an error of its own is a score of status ``error``.

        `ApiError` where it cannot be asked at all: a key is missing, its code cannot be loaded.
        """
        try:
            if grader.function is not None:
                graded = self._by_function(grader, grader.function, answer)
            else:
                graded = self._by_definition(grader, answer)
        except ConfigError as error:
            raise refused(Code.INVALID_GRADER, error.problems) from None
        return score_of(grader.key, graded.grade, grader.name)

    def _by_definition(self, grader: ResolvedGrader, answer: Previewed) -> Graded:
        document = {"graders": {grader.key: {"kind": grader.kind, "config": grader.config}}}
        check_judges(document["graders"], self._egress, self._secrets, self._caller)
        outside = outside_of(secrets_of(document, self._secrets), self._egress)
        resources = Resources(None, outside.environment, outside.policy, secrets=outside.secrets)
        made = bound_grader(grader.kind, grader.config, resources)
        extractor = extractors.create(graders.default_extractor(grader.kind) if answer.stored else DEFAULT_EXTRACTOR)
        return wait_for(lambda _: _bounded(grader, grade_once(made, extractor, answer.sample, answer.response)))

    def _by_function(self, grader: ResolvedGrader, function: str, answer: Previewed) -> Graded:
        async def grade() -> Graded:
            async with WorkerPool(self._files.code([function]), size=1) as pool:
                (entry,) = (await pool.start()).entries
                user = UserGrader(function, entry.fingerprint)
                grading = Grading([GraderUse(grader.key, user, extractors.create(DEFAULT_EXTRACTOR))], pool)
                return (await grading.grade(answer.sample, answer.response))[grader.key]

        return wait_for(lambda _: _bounded(grader, grade()))


async def _bounded(grader: ResolvedGrader, grading: Coroutine[object, object, Graded]) -> Graded:
    """What the grader says in time, whatever its own options allow."""
    try:
        async with asyncio.timeout(MOST_S):
            return await grading
    except TimeoutError:
        error = ErrorInfo("timeout", f"no score within {MOST_S:g} s, the maximum of a preview", Fault.GRADER)
        return Graded(None, Grade(grader.kind, str(grader.definition["fingerprint"]), Outcome.ERROR, error=error))


def texts(agent_response: str, expected_output: str | None, asked: str | None) -> Previewed:
    """An answer to grade that belongs to no run: its text is the submission."""
    for name, text in (("agent_response", agent_response), ("expected_output", expected_output), ("input", asked)):
        if text is not None and clean_text(text).changed:
            raise ApiError(Code.INVALID_INPUT, f"Field '{name}' holds NUL or half a surrogate pair; leave it out")
    sample = Sample(id="preview", input=asked or "", ground_truth=expected_output)
    return Previewed(sample, Response(text=agent_response), stored=False)


def stored_result(storage: Storage, evaluation: str, result: str) -> Previewed:
    """An answer to grade that a run has: the grader takes out of it what it grades."""
    if clean_text(evaluation).changed or storage.get_run(evaluation) is None:
        raise not_found("evaluation", evaluation)
    for case, repeat in read_result_id(result):
        if not clean_text(case).changed:
            record = storage.get_record(ResponseKey(evaluation, case, repeat))
            if record is not None:
                return Previewed(record.sample, record.response, stored=True)
    raise not_found("result", result)
