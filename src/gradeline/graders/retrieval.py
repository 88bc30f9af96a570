"""Grader of retrieval: the ids of the response's documents against the relevant ids of the case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite, log2
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from gradeline.errors import MissingDataError, Problem, UngradableError
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.case_values import REFERENCES, Reference, case_value, is_reference
from gradeline.model import Config, Document, GradeContext, GradeResult, described, quote
from gradeline.model.response import UNKNOWN_DOCUMENTS

Metric = Literal["precision", "recall", "mrr", "ndcg"]
MAX_GRADE = 100
"""Maximum relevance of a document."""
MAX_RELEVANT = 100_000
_SHOWN = 5


class RetrievalConfig(Config, frozen=True, kw_only=True):
    """Options of `RetrievalGrader`."""

    metric: Annotated[Metric, described("The score: precision, recall, mrr (reciprocal rank) or ndcg.")] = "recall"
    k: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Number of documents that count, from the first (default all).")
    ] = None
    relevant: Annotated[
        Reference, described("Where the case has the relevant ids: a list, or a mapping of ids to grades of relevance.")
    ] = "$metadata.relevant"
    gain: Annotated[
        Literal["linear", "exponential"],
        described("Gain of a document for ndcg: its relevance, or 2 to the power of it minus 1."),
    ] = "linear"

    def faults(self) -> Iterator[Problem]:
        if not is_reference(self.relevant):
            yield Problem("relevant", f"expected {REFERENCES}, got {quote(self.relevant)}")
        if self.gain != "linear" and self.metric != "ndcg":
            yield Problem("gain", f"has no effect with metric: {self.metric}; write metric: ndcg, or leave it out")


class RetrievalGrader(DeclaredGrader[RetrievalConfig]):
    """Compares the documents that the agent retrieved with those that are relevant for the case, by their ids.

    A document that is retrieved several times counts once, at its first rank. The grade's metadata has all four
    metrics. Unknown documents, documents without ids and a case without relevant ids are errors of type `missing`.
    """

    kind = "retrieval"
    name = "Retrieval"
    scoring_guide = (
        "precision: share of the first k documents that are relevant. recall: share of the relevant documents among"
        " the first k. mrr: 1 / rank of the first relevant one, 0.0 without one. ndcg: discounted gain as a share of"
        " the ideal ranking's. Unknown documents are an error."
    )
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        options = self.options
        relevance = _relevance(case_value(options.relevant, ctx, "relevant"), options.relevant)
        if ctx.documents is None:
            raise MissingDataError("the context has no response" if ctx.response is None else UNKNOWN_DOCUMENTS)
        ranking = _ids(ctx.documents)
        metrics = retrieval_metrics(ranking, relevance, options.k, exponential=options.gain == "exponential")
        score: float = getattr(metrics, options.metric)
        found = ranking[: options.k]
        lost = [ident for ident, grade in relevance.items() if grade > 0 and ident not in found]
        metadata: dict[str, Any] = {"metrics": metrics._asdict(), "retrieved": len(ranking), "k": options.k}
        return GradeResult(score, self._rationale(score, sum(g > 0 for g in relevance.values()), lost), metadata)

    def _rationale(self, score: float, relevant: int, lost: Sequence[str]) -> str:
        name = self.options.metric if self.options.k is None else f"{self.options.metric}@{self.options.k}"
        text = f"{name} {score:.3f}; found {relevant - len(lost):,} of {relevant:,} relevant documents"
        if not lost:
            return text
        more = f" and {len(lost) - _SHOWN:,} more" if len(lost) > _SHOWN else ""
        return f"{text}, not {', '.join(quote(ident, 80) for ident in lost[:_SHOWN])}{more}"


class RetrievalMetrics(NamedTuple):
    """Metrics of one ranking, each in 0..1."""

    precision: float
    recall: float
    mrr: float
    ndcg: float


def retrieval_metrics(
    ranking: Sequence[str], relevance: Mapping[str, float], k: int | None = None, *, exponential: bool = False
) -> RetrievalMetrics:
    """The metrics of the first ``k`` distinct ids of a ranking; an id is relevant if its grade is above 0.

    Precision divides by ``k`` even if fewer were retrieved, as in trec_eval; without ``k`` by their number. The gain of
    rank i is divided by log2(i + 1) (Järvelin and Kekäläinen 2002); the ideal ranking has the highest grades first.
    At least one grade must be above 0.
    """
    found = ranking[:k]
    grades = [relevance.get(ident, 0.0) for ident in found]
    hits = sum(1 for grade in grades if grade > 0)
    first = next((rank for rank, grade in enumerate(grades, 1) if grade > 0), None)
    gains = [2**grade - 1 for grade in grades] if exponential else grades
    ideal = sorted((2**grade - 1 if exponential else grade for grade in relevance.values()), reverse=True)[:k]
    return RetrievalMetrics(
        precision=hits / (k or len(found) or 1),
        recall=hits / sum(1 for grade in relevance.values() if grade > 0),
        mrr=0.0 if first is None else 1 / first,
        ndcg=min(1.0, _discounted(gains) / _discounted(ideal)),
    )


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / log2(rank + 1) for rank, gain in enumerate(gains, 1))


def _ids(documents: Sequence[Document]) -> list[str]:
    """The distinct ids in order."""
    for rank, document in enumerate(documents, 1):
        if document.id is None:
            raise MissingDataError(
                f"document {rank} of {len(documents):,} has no id; map documents with ids, such as"
                " docs[].{text: body, id: key}"
            )
    return list(dict.fromkeys(document.id for document in documents if document.id is not None))


def _relevance(value: object, reference: str) -> dict[str, float]:
    """The grades of relevance by id."""
    if isinstance(value, str | int) and not isinstance(value, bool):
        value = [value]
    if isinstance(value, Mapping):
        found = {str(ident): _grade(grade, ident, reference) for ident, grade in value.items()}
    elif isinstance(value, list | tuple):
        found = {_id(ident, reference): 1.0 for ident in value}
    else:
        raise UngradableError(f"{reference} must be a list of ids or a mapping of ids to grades, got {quote(value)}")
    if len(found) > MAX_RELEVANT:
        raise UngradableError(f"{reference} has {len(found):,} ids, at most {MAX_RELEVANT:,} are possible")
    if not any(grade > 0 for grade in found.values()):
        raise MissingDataError(f"{reference} has no relevant id, so there is nothing to find")
    return found


def _id(ident: object, reference: str) -> str:
    if isinstance(ident, bool) or not isinstance(ident, str | int):
        raise UngradableError(f"{reference} has an id that is not a string: {quote(ident)}")
    return str(ident)


def _grade(grade: object, ident: object, reference: str) -> float:
    if isinstance(grade, bool):
        return float(grade)
    if not isinstance(grade, int | float) or not isfinite(grade) or not 0 <= grade <= MAX_GRADE:
        raise UngradableError(
            f"{reference} has the grade {quote(grade)} for {quote(ident)}; use a number from 0 to {MAX_GRADE}"
        )
    return float(grade)
