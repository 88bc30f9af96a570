"""Judges compare a candidate's answer with a baseline's and return a quality score.

    from gradeline.judges import LLMJudge, PairedGrader

    result = PairedGrader(LLMJudge(judge_adapter)).grade(baseline_adapter, candidate_adapter, prompt, run_config)
    result.quality_score

A model's judgement is a heuristic. Every model judge has four known biases:

- length: longer answers can be preferred even when they are not better;
- format: familiar formatting can be rewarded whatever its content;
- position: the order in which answers are shown can change the verdict;
- self-preference: a judge may favour answers of its own model family.

Calibrate an `LLMJudge` against at least one judge that is not a model (exact match, embedding similarity) before you
act on its scores. A reply without a verdict is an error (`InvalidReply`, `RefusedReply`, `TruncatedReply`,
`EmptyReply`, each a `ValueError` with the reply in ``raw``), never a score.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradeline.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from gradeline.judges.embedding import EmbeddingSimilarityJudge
    from gradeline.judges.llm import LLMJudge
    from gradeline.judges.paired import BaselineGrader, ExactMatchJudge, PairedGrader, SideFailed
    from gradeline.judges.reply_parsing import EmptyReply, InvalidReply, RefusedReply, ReplyError, TruncatedReply
    from gradeline.model.llm import GradingResult, Judge

__all__ = [
    "BaselineGrader",
    "EmbeddingSimilarityJudge",
    "EmptyReply",
    "ExactMatchJudge",
    "GradingResult",
    "InvalidReply",
    "Judge",
    "LLMJudge",
    "PairedGrader",
    "RefusedReply",
    "ReplyError",
    "SideFailed",
    "TruncatedReply",
]

_HOMES = {
    "BaselineGrader": "gradeline.judges.paired",
    "EmbeddingSimilarityJudge": "gradeline.judges.embedding",
    "EmptyReply": "gradeline.judges.reply_parsing",
    "ExactMatchJudge": "gradeline.judges.paired",
    "GradingResult": "gradeline.model.llm",
    "InvalidReply": "gradeline.judges.reply_parsing",
    "Judge": "gradeline.model.llm",
    "LLMJudge": "gradeline.judges.llm",
    "PairedGrader": "gradeline.judges.paired",
    "RefusedReply": "gradeline.judges.reply_parsing",
    "ReplyError": "gradeline.judges.reply_parsing",
    "SideFailed": "gradeline.judges.paired",
    "TruncatedReply": "gradeline.judges.reply_parsing",
}

__getattr__, __dir__ = lazy_exports(globals(), _HOMES)
