"""Grading one answer without storing anything."""

from __future__ import annotations

from gradeline import extractors, graders
from gradeline.api.threads import wait_for
from gradeline.engine.grade import Graded, GraderUse, Grading, UserGrader, grade_once
from gradeline.errors import ConfigError
from gradeline.graders.base import DeclaredGrader
from gradeline.model import Response, ResponseKey, Sample, Storage, clean_text
from gradeline.service.failures import ApiError, Code, not_found
from gradeline.service.grader_definitions import refused
from gradeline.service.grader_files import GraderFolder
from gradeline.service.judge_places import surroundings_of
from gradeline.service.result_shapes import Score, read_result_id, score_of
from gradeline.service.secrets import Secrets
from gradeline.service.stored_graders import ResolvedGrader
from gradeline.transport.egress import EgressPolicy
from gradeline.usercode.pool import WorkerPool

_EXTRACTOR = "last_assistant"


class Previewer:
    """Runs graders for a look at what they say. User code runs in worker processes, judges within the egress policy."""

    def __init__(self, files: GraderFolder, secrets: Secrets, egress: EgressPolicy) -> None:
        self._files = files
        self._secrets = secrets
        self._egress = egress

    def score(self, grader: ResolvedGrader, sample: Sample, response: Response) -> Score:
        """What the grader says; an error of its own is a score of status ``error``.

        `ApiError` where it cannot be asked at all: a key is missing, its code cannot be loaded.
        """
        try:
            if grader.function is not None:
                graded = self._by_function(grader, grader.function, sample, response)
            else:
                graded = self._by_definition(grader, sample, response)
        except ConfigError as error:
            raise refused(Code.INVALID_GRADER, error.problems) from None
        return score_of(grader.key, graded.grade, grader.name)

    def _by_definition(self, grader: ResolvedGrader, sample: Sample, response: Response) -> Graded:
        made = graders.create(grader.kind, grader.config)
        if isinstance(made, DeclaredGrader):
            made = made.within(surroundings_of([made], self._secrets, self._egress))
        extractor = extractors.create(_EXTRACTOR)
        # in a thread with a loop of its own: a slow grader holds up nobody else
        return wait_for(lambda _: grade_once(made, extractor, sample, response))

    def _by_function(self, grader: ResolvedGrader, function: str, sample: Sample, response: Response) -> Graded:
        async def grade() -> Graded:
            async with WorkerPool(self._files.code([function]), size=1) as pool:
                (entry,) = (await pool.start()).entries
                user = UserGrader(function, entry.fingerprint)
                grading = Grading([GraderUse(grader.key, user, extractors.create(_EXTRACTOR))], pool)
                return (await grading.grade(sample, response))[grader.key]

        return wait_for(lambda _: grade())


def texts(agent_response: str, expected_output: str | None, asked: str | None) -> tuple[Sample, Response]:
    """An answer to grade that is no run's."""
    for name, text in (("agent_response", agent_response), ("expected_output", expected_output), ("input", asked)):
        if text is not None and clean_text(text).changed:
            raise ApiError(Code.INVALID_INPUT, f"Field '{name}' holds NUL or half a surrogate pair; leave it out")
    return Sample(id="preview", input=asked or "", ground_truth=expected_output), Response(text=agent_response)


def stored_result(storage: Storage, evaluation: str, result: str) -> tuple[Sample, Response]:
    """An answer to grade that a run has."""
    if clean_text(evaluation).changed or storage.get_run(evaluation) is None:
        raise not_found("evaluation", evaluation)
    for case, repeat in read_result_id(result):
        if not clean_text(case).changed:
            record = storage.get_record(ResponseKey(evaluation, case, repeat))
            if record is not None:
                return record.sample, record.response
    raise not_found("result", result)
