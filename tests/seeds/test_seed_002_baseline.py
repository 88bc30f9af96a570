"""Seed 002, baseline grading: its surface, its seven invariants, its error contract, its caveats."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from math import inf, nan
from typing import Any, get_type_hints

import pytest

from gradeline import adapters, judges
from gradeline.adapters import BudgetTracker, EmbeddingAdapter, LLMAdapter, LLMResponse, RunConfig
from gradeline.judges import (
    BaselineGrader,
    EmbeddingSimilarityJudge,
    EmptyReply,
    ExactMatchJudge,
    GradingResult,
    InvalidReply,
    Judge,
    LLMJudge,
    PairedGrader,
    RefusedReply,
    SideFailed,
    TruncatedReply,
)
from gradeline.judges.llm import RUBRIC_HASH
from gradeline.testing import ScriptedAdapter

SEED = "002_446b137375e2de76.txt"
BASELINE, CANDIDATE = LLMResponse("Paris", model="big"), LLMResponse("paris", model="small")
CONFIG = RunConfig(model="any", temperature=0.8, budget=BudgetTracker(calls=0), model_params={"top_p": 0.9})
GOOD = '{"quality_score": 0.8, "notes": "Close."}'


class Vectors:
    """An embedding adapter that returns the given vectors."""

    adapter_id = "vectors"

    def __init__(self, *vectors: Sequence[float]) -> None:
        self.vectors = [list(vector) for vector in vectors]
        self.batches: list[list[str]] = []

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        self.batches.append(list(texts))
        return self.vectors

    async def aembed(self, texts: Sequence[str]) -> list[list[float]]:
        return self.embed(texts)


def judged(judge: Judge, baseline: LLMResponse = BASELINE, candidate: LLMResponse = CANDIDATE) -> GradingResult:
    """By both forms, which must agree."""
    result = judge.judge(baseline, candidate, prompt="Capital of France?", run_config=CONFIG)
    again = asyncio.run(judge.ajudge(baseline, candidate, prompt="Capital of France?", run_config=CONFIG))
    assert again == result
    return result


def all_judges() -> list[Judge]:
    return [ExactMatchJudge(), EmbeddingSimilarityJudge(Vectors([1, 2], [2, 1])), LLMJudge(ScriptedAdapter(GOOD))]


class TestPublicSurface:
    def test_every_name_of_the_document_exists(self, seed: Callable[[str], str]) -> None:
        classes = re.findall(r"\bclass (\w+)", seed(SEED))
        assert classes == [
            "GradingResult",
            "Judge",
            "BaselineGrader",
            "ExactMatchJudge",
            "EmbeddingSimilarityJudge",
            "LLMJudge",
            "PairedGrader",
        ]
        assert [name for name in classes if name not in judges.__all__ or not hasattr(judges, name)] == []

    def test_a_result_is_a_frozen_dataclass_of_five_fields(self) -> None:
        assert [(field.name, hint) for field, hint in zip(
            dataclasses.fields(GradingResult), get_type_hints(GradingResult).values(), strict=True
        )] == [
            ("quality_score", float),
            ("notes", str),
            ("grader_id", str),
            ("baseline_response", LLMResponse),
            ("candidate_response", LLMResponse),
        ]  # fmt: skip
        result = GradingResult(0.5, "", "g", BASELINE, CANDIDATE)
        with pytest.raises(dataclasses.FrozenInstanceError):
            result.quality_score = 1.0  # type: ignore[misc]

    @pytest.mark.parametrize(
        ("judge", "signature"),
        [
            (ExactMatchJudge, {"grader_id": "exact-match", "case_sensitive": True, "normalize_whitespace": False}),
            (EmbeddingSimilarityJudge, {"embedding_adapter": ..., "grader_id": "embedding-similarity"}),
            (LLMJudge, {"adapter": ..., "seed": None, "model": None, "budget": None, "grader_id": None}),
            (PairedGrader, {"judge": ...}),
        ],
    )
    def test_the_constructors_are_those_of_the_contract(self, judge: type, signature: dict[str, Any]) -> None:
        parameters = inspect.signature(judge).parameters.values()
        assert {one.name: ... if one.default is one.empty else one.default for one in parameters} == signature
        assert dataclasses.is_dataclass(judge)

    def test_the_protocols_are_runtime_checkable(self) -> None:
        assert all(isinstance(judge, Judge) for judge in all_judges())
        assert isinstance(PairedGrader(ExactMatchJudge()), BaselineGrader)
        assert isinstance(ScriptedAdapter(""), LLMAdapter)
        assert isinstance(Vectors(), EmbeddingAdapter)
        assert not isinstance(object(), Judge | BaselineGrader | LLMAdapter | EmbeddingAdapter)
        assert {"LLMAdapter", "EmbeddingAdapter", "LLMResponse", "RunConfig", "BudgetTracker"} <= set(adapters.__all__)


class TestInvariants:
    @pytest.mark.parametrize("score", [0, 0.0, 0.25, 1, 1.0])
    def test_invariant_1_quality_score_is_always_validated_as_0_to_1(self, score: float) -> None:
        assert GradingResult(score, "", "g", BASELINE, CANDIDATE).quality_score == score
        assert all(0.0 <= judged(judge).quality_score <= 1.0 for judge in all_judges())

    def test_invariant_2_a_result_always_preserves_both_responses(self) -> None:
        for judge in all_judges():
            result = judged(judge)
            assert (result.baseline_response, result.candidate_response) == (BASELINE, CANDIDATE)

    @pytest.mark.parametrize("form", ["grade", "agrade"])
    def test_invariant_3_paired_grader_sends_both_the_same_and_delegates_to_its_judge(self, form: str) -> None:
        baseline, candidate = ScriptedAdapter(["Paris"], "big"), ScriptedAdapter(["paris"], "small")
        config = RunConfig(model="any", temperature=0.8, system="Be brief.")
        heard: list[tuple[Any, ...]] = []

        class Listening(ExactMatchJudge):
            def judge(self, *responses: LLMResponse, prompt: str, run_config: RunConfig) -> GradingResult:
                heard.append((*responses, prompt, run_config))
                return super().judge(*responses, prompt=prompt, run_config=run_config)

        grader = PairedGrader(Listening(case_sensitive=False))
        if form == "grade":
            result = grader.grade(baseline, candidate, "Capital of France?", config)
        else:
            result = asyncio.run(grader.agrade(baseline, candidate, "Capital of France?", config))
        assert baseline.calls == candidate.calls == [("Capital of France?", config)]
        assert heard == [(result.baseline_response, result.candidate_response, "Capital of France?", config)]
        assert (result.baseline_response.content, result.candidate_response.content) == ("Paris", "paris")
        assert result.quality_score == 1.0

    @pytest.mark.parametrize(("candidate", "score"), [("Paris", 1.0), ("Paris \n", 1.0), ("paris", 0.0), ("", 0.0)])
    def test_invariant_4_exact_match_is_1_for_matched_content_and_0_otherwise(
        self, candidate: str, score: float
    ) -> None:
        assert judged(ExactMatchJudge(), candidate=LLMResponse(candidate)).quality_score == score

    @pytest.mark.parametrize(
        ("vectors", "score"),
        [
            (([1, 0], [1, 0]), 1.0),
            (([1, 0], [1, 1]), 0.7071067811865475),
            (([1, 0], [-1, 0]), 0.0),
            (([0, 0], [1, 0]), 0.0),
        ],
    )
    def test_invariant_5_embeddings_are_one_batch_and_the_cosine_is_clamped(
        self, vectors: tuple[list[float], list[float]], score: float
    ) -> None:
        adapter = Vectors(*vectors)
        judge = EmbeddingSimilarityJudge(adapter)
        result = judge.judge(BASELINE, CANDIDATE, prompt="?", run_config=CONFIG)
        assert result.quality_score == pytest.approx(score)
        assert adapter.batches == [["Paris", "paris"]]

    def test_invariant_6_the_llm_judge_has_a_fixed_rubric_and_expects_json_with_optional_notes(self) -> None:
        adapter = ScriptedAdapter([GOOD, '{"quality_score": 0.8}'])
        judge = LLMJudge(adapter)
        first, second = (judge.judge(BASELINE, CANDIDATE, prompt="?", run_config=CONFIG) for _ in range(2))
        assert first == GradingResult(0.8, "Close.", f"llm-judge@{RUBRIC_HASH}", BASELINE, CANDIDATE)
        assert second == dataclasses.replace(first, notes="")
        one, other = (re.sub("[0-9a-f]{16}", "", call.text) for call in adapter.calls)
        assert one == other

    def test_invariant_7_the_llm_judge_is_at_temperature_0_without_the_callers_budget_and_seeded(self) -> None:
        adapter = ScriptedAdapter(GOOD)
        for judge in (LLMJudge(adapter, seed=42), LLMJudge(adapter)):
            judge.judge(BASELINE, CANDIDATE, prompt="?", run_config=CONFIG)
        seeded, plain = (call.run_config for call in adapter.calls)
        assert (seeded.temperature, seeded.budget, seeded.model_params) == (0.0, None, {"top_p": 0.9, "seed": 42})
        assert (plain.temperature, plain.budget, plain.model_params) == (0.0, None, {"top_p": 0.9})
        assert (CONFIG.temperature, CONFIG.model_params) == (0.8, {"top_p": 0.9})


class TestErrorContract:
    @pytest.mark.parametrize("score", [-0.01, 1.01, nan, inf, -inf, True, False, "0.5", None, [0.5]])
    def test_error_invalid_quality_score_is_a_value_error(self, score: Any) -> None:
        with pytest.raises(ValueError, match="score must be"):
            GradingResult(score, "", "g", BASELINE, CANDIDATE)

    @pytest.mark.parametrize(
        "raw_reply", ["1.2", "-0.1", "80", "true", "null", '"0.8"', '"80%"', '"8/10"', "NaN", "8/10"]
    )
    def test_error_invalid_quality_score_in_a_judges_reply_is_a_value_error(self, raw_reply: str) -> None:
        with pytest.raises(ValueError, match="the judge's reply"):
            judged(LLMJudge(ScriptedAdapter(f'{{"quality_score": {raw_reply}}}')))

    @pytest.mark.parametrize("grader_id", ["", " ", "\n\t"])
    def test_error_empty_grader_id_is_a_value_error(self, grader_id: str) -> None:
        makers: list[Callable[[], object]] = [
            lambda: GradingResult(0.5, "", grader_id, BASELINE, CANDIDATE),
            lambda: ExactMatchJudge(grader_id),
            lambda: EmbeddingSimilarityJudge(Vectors(), grader_id),
            lambda: LLMJudge(ScriptedAdapter(GOOD), grader_id=grader_id),
        ]
        for make in makers:
            with pytest.raises(ValueError, match="grader_id"):
                make()

    @pytest.mark.parametrize("vectors", [[], [[1.0]], [[1.0], [1.0], [1.0]]])
    def test_error_other_than_two_vectors_is_a_value_error(self, vectors: list[list[float]]) -> None:
        with pytest.raises(ValueError, match=f"returned {len(vectors)} vectors for 2 texts"):
            judged(EmbeddingSimilarityJudge(Vectors(*vectors)))

    @pytest.mark.parametrize("vectors", [[[1.0], [1.0, 2.0]], [[nan], [1.0]], [[1.0], [inf]]])
    def test_error_unequal_or_non_finite_vectors_are_a_value_error(self, vectors: list[list[float]]) -> None:
        with pytest.raises(ValueError, match="vector"):
            judged(EmbeddingSimilarityJudge(Vectors(*vectors)))

    @pytest.mark.parametrize("reply", ["Rather good.", "0.8", "{'quality_score': 0.8}", '["quality_score", 0.8]'])
    def test_error_a_reply_without_parseable_json_is_a_value_error_with_the_raw_text(self, reply: str) -> None:
        with pytest.raises(ValueError, match="the judge's reply") as caught:
            judged(LLMJudge(ScriptedAdapter(reply)))
        assert isinstance(caught.value, InvalidReply)
        assert caught.value.raw == reply

    @pytest.mark.parametrize(
        ("response", "kind"),
        [
            (LLMResponse("No.", finish_reason="refusal"), RefusedReply),
            (LLMResponse(GOOD, finish_reason="length"), TruncatedReply),
            (LLMResponse("", finish_reason="stop"), EmptyReply),
            (LLMResponse("Fine.", finish_reason="stop"), InvalidReply),
        ],
    )
    def test_refused_truncated_empty_and_invalid_replies_are_distinguished(
        self, response: LLMResponse, kind: type[ValueError]
    ) -> None:
        with pytest.raises(ValueError, match="judge") as caught:
            judged(LLMJudge(ScriptedAdapter([response, response])))
        assert type(caught.value) is kind

    @pytest.mark.parametrize("side", ["baseline", "candidate"])
    def test_a_failed_side_is_named_with_the_other_sides_response(self, side: str) -> None:
        error = TimeoutError("late")
        made = {"baseline": ScriptedAdapter(["Paris"]), "candidate": ScriptedAdapter(["Paris"])}
        made[side] = ScriptedAdapter([error])
        with pytest.raises(SideFailed) as caught:
            PairedGrader(ExactMatchJudge()).grade(
                made["baseline"], made["candidate"], "Capital of France?", RunConfig(model="any")
            )
        assert (caught.value.side, caught.value.__cause__) == (side, error)
        assert caught.value.response == LLMResponse("Paris", model="any", finish_reason="stop")


@pytest.mark.parametrize("bias", ["Length bias", "Format bias", "Position bias", "Self-preference"])
def test_each_caveat_of_the_document_is_in_our_docs(bias: str, seed: Callable[[str], str]) -> None:
    assert bias in seed(SEED)
    word = bias.removesuffix(" bias").lower()
    assert word in (judges.__doc__ or "").lower()
    assert word in (LLMJudge.__doc__ or "").lower()
