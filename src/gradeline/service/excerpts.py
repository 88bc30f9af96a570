"""The beginnings of a run's texts, many at once: the database cuts them, however long they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from gradeline.service.run_rows import source_of
from gradeline.store.database import Database, Value

LONGEST = 200
"""Characters of an excerpt."""

_READ = 2 * LONGEST
"""More than is shown: blanks are put together."""
_AT_ONCE = 500

# of an input of several turns the first one
_COLUMNS: Mapping[Literal["sqlite", "postgresql"], tuple[str, str]] = {
    "sqlite": (
        "coalesce(json_extract(samples.sample, '$.input[0]'), json_extract(samples.sample, '$.input'))",
        "json_extract(responses.response, '$.text')",
    ),
    "postgresql": (
        "coalesce(samples.sample::json #>> '{input,0}', samples.sample::json ->> 'input')",
        "responses.response::json ->> 'text'",
    ),
}


class Excerpt(NamedTuple):
    """What was asked and answered; None where there is nothing."""

    input: str | None
    output: str | None


NOTHING = Excerpt(None, None)


class Excerpts:
    """Reads excerpts from a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, run: str, cases: Sequence[str]) -> dict[str, Excerpt]:
        """The excerpts of a run's cases, of their first repeat; a run that regrades has those of its parent."""
        if not cases:
            return {}
        source = source_of(self._database.read, run)
        asked, answered = _COLUMNS[self._database.dialect.name]
        found: dict[str, Excerpt] = {}
        for start in range(0, len(cases), _AT_ONCE):
            some: list[Value] = list(cases[start : start + _AT_ONCE])
            rows = self._database.read(
                f"""SELECT samples.case_key, substr({asked}, 1, ?), substr({answered}, 1, ?)
                FROM samples LEFT JOIN responses ON responses.run = samples.run
                    AND responses.case_key = samples.case_key AND responses.repeat = 0
                WHERE samples.run = ? AND samples.case_key IN ({", ".join("?" * len(some))})""",  # noqa: S608 - made of constants
                _READ,
                _READ,
                source,
                *some,
            )
            found |= {case: Excerpt(one_line(first), one_line(second)) for case, first, second in rows}
        return found


def one_line(text: str | None) -> str | None:
    """The beginning of a text, blanks put together, cut with a mark where there is more."""
    if text is None:
        return None
    line = " ".join(text.split())
    whole = len(line) <= LONGEST and len(text) < _READ
    return line if whole else f"{line[: LONGEST - 1]}…"
