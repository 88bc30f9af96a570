"""The search in texts: what the database lets through is never too little, so the results are those of plain Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple
from unicodedata import category

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradeline.model import ErrorInfo, Fault, Response, ResponseKey, Run, Sample, Storage
from gradeline.store import open_storage
from gradeline.store.database import Database
from gradeline.store.result_pages import FOLDED_INTO_ASCII, ResultFilter, ResultPages, TextFilter, prefilter

ODD = "sStTiIkKfFnNaA1 \"\\/\n\t\x1b\x7f%_*?['éÉßẞſKİıŉﬁﬆǅΣςσЖж你好ตא\u0301\u2028𝄞𐐀𐐨"
"""Characters that JSON escapes, that SQL's patterns mean something by, that fold into others, or that have no case."""
WORDS = ("input", "text", "success", "schema", "straße", "Kelvin", "ﬁnal", "u001b", "\\u", "\\n", "question 12")


class Case(NamedTuple):
    """A result to be found, or not."""

    key: str
    input: str | list[str]
    expected: str | list[str] | None
    answer: str | None
    error: str | None
    tags: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        turns = [value for value in (self.input, self.expected) if value is not None]
        joined = [value if isinstance(value, str) else "\n\n".join(value) for value in turns]
        return [self.key, *joined, self.answer or "", self.error or ""]

    def has(self, q: str | None, tag: str | None) -> bool:
        """The plain meaning of a search."""
        named = tag is None or any(tag in one for one in self.tags)
        return named and (q is None or any(q.casefold() in text.casefold() for text in self.texts))


texts = st.lists(st.one_of(st.sampled_from(ODD), st.sampled_from(WORDS)), max_size=8).map("".join)
turns = st.one_of(texts, st.lists(texts, min_size=1, max_size=3))
cases = st.builds(
    Case, texts, turns, st.one_of(st.none(), turns), st.one_of(st.none(), texts), st.one_of(st.none(), texts),
    st.lists(texts, max_size=2).map(tuple),
)  # fmt: skip


@st.composite
def searches(draw: st.DrawFn) -> tuple[list[Case], str | None, str | None]:
    """Some results, and what is looked for in them: mostly a part of one of their texts, written in another case."""
    found = draw(st.lists(cases, min_size=1, max_size=4, unique_by=lambda case: case.key))
    parts = [text for case in found for text in case.texts]
    tags = [tag for case in found for tag in case.tags]
    return found, draw(_part_of(parts, fold=True)), draw(_part_of(tags, fold=False))


@st.composite
def _part_of(draw: st.DrawFn, wholes: list[str], *, fold: bool) -> str | None:
    """A part of one of the texts, now and then some other text or nothing."""
    parts = sorted({text[a:b] for text in wholes for a in range(len(text)) for b in range(a + 1, len(text) + 1)})
    choices = [st.none(), texts] + [st.sampled_from(parts)] * 4 if parts else [st.none(), texts]
    part = draw(st.one_of(choices))
    if fold and part is not None:
        part = draw(st.sampled_from([part, part.upper(), part.casefold(), part.swapcase()]))
    return part or None


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """One store for all examples, each of which is a run of its own."""
    if request.param == "sqlite":
        url = str(Path(tmp_path_factory.mktemp("texts")) / "store.db")
    else:
        url = request.getfixturevalue("postgres_database").url
    opened = open_storage(url)
    yield opened
    opened.close()
    if request.param == "postgresql":
        request.getfixturevalue("postgres_database").empty()


def database_of(storage: Storage) -> Database:
    database: Database = storage.database  # type: ignore[attr-defined]
    return database


def saved(storage: Storage, results: list[Case]) -> str:
    run = storage.save_run(Run(name="n", suite="s", status="completed", total=len(results)))
    for case in results:
        error = None if case.error is None else ErrorInfo("odd", case.error, Fault.AGENT)
        response = Response("success" if error is None else "error", text=case.answer, error=error)
        sample = Sample(case.key, case.input, case.expected, tags=case.tags)
        storage.put_response(ResponseKey(run, case.key), response, sample)
    return run


@given(search=searches())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_search_agrees_with_plain_python(storage: Storage, search: tuple[list[Case], str | None, str | None]) -> None:
    results, q, tag = search
    run = saved(storage, results)
    found = ResultPages(database_of(storage)).page(run, run, ResultFilter(q=q, tag=tag))
    assert [place.case for place in found.positions] == [case.key for case in results if case.has(q, tag)]
    assert found.following is None


@pytest.mark.parametrize(
    ("text", "q"),
    [
        ('say "hi"', ' "hi'),
        ("a\\b", "A\\B"),
        ("line\nbreak", "e\nb"),
        ("\x1b[31m", "\x1b[31M"),
        ("Straße", "STRASSE"),
        ("STRASSE", "straße"),
        ("\u212aelvin", "kelvin"),
        ("o\ufb03ce", "OFFICE"),
        ("ΣΟΦΟΣ", "σοφος"),
        ("ПРИВЕТ, мир", "привет"),
        ("100%_*", "%_*"),
        ("\u4f60\u597d", "\u597d"),
    ],
)
def test_a_text_is_found_however_it_is_stored_or_written(storage: Storage, text: str, q: str) -> None:
    places = [
        Case("input", text, None, None, None, ()),
        Case("turn", ["?", text], None, None, None, ()),
        Case("expected", "?", text, None, None, ()),
        Case("answer", "?", None, text, None, ()),
        Case("error", "?", None, None, text, ()),
        Case(f"the key {text}", "?", None, None, None, ()),
        Case("tag", "?", None, None, None, (text,)),
    ]
    run = saved(storage, places)
    scan = ResultPages(database_of(storage))
    assert len(scan.page(run, run, ResultFilter(q=q)).positions) == 6
    assert [place.case for place in scan.page(run, run, ResultFilter(tag=text)).positions] == ["tag"]


def test_the_database_filter_is_selective(storage: Storage) -> None:
    numbers = count()
    results = [Case(f"c{next(numbers)}", f"question {n}", "é", "answer", None, ("even", "odd")) for n in range(40)]
    run = saved(storage, results)
    database = database_of(storage)

    def likely(**criteria: str) -> int:
        condition, values = prefilter(TextFilter(**criteria), database.dialect.name)
        ((found,),) = database.read(
            f"""SELECT count(*) FROM samples JOIN responses ON responses.run = samples.run
            AND responses.case_key = samples.case_key WHERE samples.run = ? AND {condition}""",
            run,
            *values,
        )
        return int(found)

    assert likely(q="QUESTION 17") == 1
    assert likely(q='question 17"') == 1
    assert likely(q="c7") == 1
    assert likely(q="straße") == 0
    assert likely(tag="eve") == 40
    assert likely(tag="Eve") == 0
    # nothing in it that the database could look for
    assert likely(q="É") == 40


def test_no_other_character_becomes_ascii_when_it_is_folded() -> None:
    every = (chr(code) for code in range(0x80, sys.maxunicode + 1))
    assert "".join(one for one in every if any(part.isascii() for part in one.casefold())) == FOLDED_INTO_ASCII


def test_letters_without_case_are_not_folded_from_other_characters() -> None:
    folded = ((one, one.casefold()) for one in map(chr, range(sys.maxunicode + 1)))
    changed = ((one, parts) for one, parts in folded if one != parts)
    assert [one for one, parts in changed if any(category(part) == "Lo" for part in parts)] == []
