"""Judging statement by statement: the judge lists the statements of a text, each with its evidence and its verdict.

One call lists and judges. Two calls, one to list and one to judge, would cost twice as much, and the second call could
only judge what the first one found: an error of the first is an error of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, NamedTuple

from gradeline.judges.logprobs import Scale
from gradeline.judges.reply_parsing import InvalidReply, JudgeVerdict, ReplyError, read_object
from gradeline.model.text import clean_text, quote

MAX_STATEMENTS = 50
MAX_STATEMENT_CHARS = 1_000
MAX_QUOTE_CHARS = 1_000
STATEMENTS, STATEMENT, DOCUMENT, QUOTE, VERDICT = "statements", "statement", "document", "quote", "verdict"
_SHOWN = 3
_MAX_QUOTED = 300

Cited = Literal["documents", "submission"]
"""The text that the evidence of a statement is quoted from."""


class NoStatementsError(ReplyError):
    """The judge found no statements, so there is no share to compute."""

    type = "no_statements"


class Verdicts(NamedTuple):
    """The verdicts on a statement: the good one, which counts, and the others, which do not."""

    good: str
    others: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return (self.good, *self.others)


@dataclass(frozen=True)
class StatementsFormat:
    """JSON with a list of statements; the score is the share of statements with the good verdict.

    With evidence from documents, a good statement must name one that exists.
    """

    of: str
    """The text whose statements are judged."""
    verdicts: Verdicts
    cites: Cited
    texts: Sequence[str] = ()
    """The texts of this case that can be cited: its documents, or its submission."""

    def for_texts(self, texts: Sequence[str]) -> StatementsFormat:
        """The format for one case."""
        return replace(self, texts=texts)

    @property
    def instruction(self) -> str:
        verdicts = ", ".join(f'"{verdict}"' for verdict in self.verdicts.all)
        number = f'"{DOCUMENT}", the number of the document that decides, 0 if none does; ' if self._numbered else ""
        source = "that document" if self._numbered else "the submission"
        return (
            f'Reply with one JSON object and nothing else: "{STATEMENTS}", a list with one object for each statement of'
            f" {self.of}, in order, at most {MAX_STATEMENTS}. A statement is one claim that can be judged on its own."
            f' Each object has first "{STATEMENT}", the statement as one sentence; then {number}"{QUOTE}", the words of'
            f" {source} that decide, copied exactly, empty if there are none; then"
            f' "{VERDICT}", exactly one of {verdicts}. The list is empty only if {self.of} makes no statement.'
        )

    @property
    def schema(self) -> Mapping[str, Any]:
        text = {"type": "string"}
        number = {DOCUMENT: {"type": "integer"}} if self._numbered else {}
        item = {STATEMENT: text, **number, QUOTE: text, VERDICT: {"type": "string", "enum": list(self.verdicts.all)}}
        return _object({STATEMENTS: {"type": "array", "items": _object(item)}})

    @property
    def scale(self) -> Scale:
        return Scale()

    def score_span(self, text: str) -> tuple[int, int] | None:  # noqa: ARG002 - a list has no number
        return None

    def read(self, text: str) -> JudgeVerdict:
        listed = read_object(text).get(STATEMENTS)
        if not isinstance(listed, list):
            raise _invalid(f"has no list of {STATEMENTS!r}", text)
        if not listed:
            raise NoStatementsError(f"the judge found no statement in {self.of}, so there is nothing to score", text)
        if len(listed) > MAX_STATEMENTS:
            raise _invalid(f"has {len(listed):,} statements, at most {MAX_STATEMENTS} are possible", text)
        found = [self._statement(item, number, text) for number, item in enumerate(listed, 1)]
        score = fmean(float(one[VERDICT] == self.verdicts.good) for one in found)
        return JudgeVerdict(score, self._rationale(found), data={STATEMENTS: found})

    @property
    def _numbered(self) -> bool:
        return self.cites == "documents"

    def _statement(self, item: object, number: int, raw: str) -> dict[str, Any]:
        """A statement with its verdict and its evidence, as the grade stores them."""
        what = f"statement {number}"
        if not isinstance(item, Mapping):
            raise _invalid(f"has {quote(item, 80)} as {what}, which is not an object", raw)
        statement, evidence, verdict = item.get(STATEMENT), item.get(QUOTE), item.get(VERDICT)
        if not isinstance(statement, str) or not statement.strip():
            raise _invalid(f"has no text for {what}", raw)
        known = next((one for one in self.verdicts.all if isinstance(verdict, str) and one == verdict.strip()), None)
        if known is None:
            shown = f"the verdict {quote(verdict, 80)}" if VERDICT in item else "no verdict"
            raise _invalid(f"has {shown} for {what}; it must be one of {', '.join(self.verdicts.all)}", raw)
        if evidence is not None and not isinstance(evidence, str):
            raise _invalid(f"has the quote {quote(evidence, 80)} for {what}, which is not a text", raw)
        cited: dict[str, Any] = {}
        document = 1
        if self._numbered:
            document = self._document(item, known, what, raw)
            cited = {DOCUMENT: document or None}
        if evidence and document:
            cited |= {
                QUOTE: _cut(evidence, MAX_QUOTE_CHARS),
                "quote_found": _occurs(evidence, self.texts[document - 1]),
            }
        return {STATEMENT: _cut(statement, MAX_STATEMENT_CHARS), VERDICT: known, **cited}

    def _document(self, item: Mapping[str, Any], verdict: str, what: str, raw: str) -> int:
        document = item.get(DOCUMENT)
        if isinstance(document, bool) or not isinstance(document, int):
            raise _invalid(f"has the document {quote(document, 80)} for {what}, which is not a number", raw)
        if not 0 <= document <= len(self.texts):
            raise _invalid(f"has document {document} for {what}, and there are {len(self.texts):,} documents", raw)
        if not document and verdict == self.verdicts.good:
            raise _invalid(f"calls {what} {verdict} and names no document for it", raw)
        return document

    def _rationale(self, found: Sequence[Mapping[str, Any]]) -> str:
        bad = [one for one in found if one[VERDICT] != self.verdicts.good]
        text = f"{len(found) - len(bad)} of {len(found)} statements are {self.verdicts.good}"
        shown = "; ".join(f"{one[VERDICT]}: {one[STATEMENT]}" for one in bad[:_SHOWN])
        return f"{text}; {shown}{'; …' if len(bad) > _SHOWN else ''}" if bad else text


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _occurs(evidence: str, text: str) -> bool:
    """Whether a quote is in a text, whatever its case, its whitespace and the quotation marks around it."""
    return " ".join(evidence.casefold().split()).strip(" \"'“”.…") in " ".join(text.casefold().split())


def _cut(text: str, limit: int) -> str:
    return clean_text(text if len(text) <= limit else f"{text[: limit - 1]}…").text


def _invalid(what: str, raw: str) -> InvalidReply:
    return InvalidReply(f"the judge's reply {what}: {quote(raw, _MAX_QUOTED)}", raw)
