"""Labels that people gave in other tools: scores of Langfuse, ratings of promptfoo, records of Argilla.

They become rows of a file of labels, which `import_labels` checks and stores like any other.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from gradeline.errors import ConfigError, Problem
from gradeline.importers.promptfoo_rows import OVERALL, ResultRow, all_components, run_key, test_of, type_of
from gradeline.importers.promptfoo_tests import CaseNames
from gradeline.importers.trace_scores import grader_name, value_of_word
from gradeline.model.label import MAX_COMMENT
from gradeline.model.text import quote
from gradeline.trust.label_files import LabelFileRow, rows_of
from gradeline.trust.labelling import LabelScale, is_label_name

LabelFormat: TypeAlias = Literal["gradeline", "langfuse", "promptfoo", "argilla"]
LABEL_FORMATS: tuple[LabelFormat, ...] = get_args(LabelFormat)

_MAX_BYTES = 200_000_000
_MAX_HEADER = 100_000
_Object: TypeAlias = Mapping[str, Any]
_Read: TypeAlias = LabelFileRow | tuple[int, str]
"""A row, or the number of an entry and its problem."""


class ToolLabels(NamedTuple):
    """The labels in a file of another tool."""

    format: LabelFormat
    rows: list[_Read]
    left_out: dict[str, int]
    """What is no label of a person on a whole response, with the number of such entries."""
    unit: str
    """What the numbers of rows count: ``line`` or ``entry``."""

    def for_question(self, known: Collection[str], question: str | None) -> ToolLabels:
        """The same as labels of this question, if the file has one question that the run does not know."""
        names = {row.cells.get("question") for row in self.rows if isinstance(row, LabelFileRow)}
        if self.format == "gradeline" or question is None or len(names) != 1 or names & set(known):
            return self
        rows = [
            row._replace(cells={**row.cells, "question": question}) if isinstance(row, LabelFileRow) else row
            for row in self.rows
        ]
        return self._replace(rows=rows)


def read_labels_of_tool(path: Path, given: LabelFormat | None = None, scale: LabelScale | None = None) -> ToolLabels:
    """The labels of a file; its format is detected unless it is ``given``. ``scale`` is that of its ratings.

    `ConfigError` if the file cannot be read as a whole; problems of single entries are among the rows.
    """
    if given == "gradeline" or (given is None and _is_own_table(path)):
        return _own(path)
    file = _read(path)
    found = given or _detected(file)
    if found is None and file.unit == "line":
        return _own(path)  # which says what is wrong with it
    if found is None:
        raise ConfigError(
            Problem(
                str(path),
                "neither a file of labels nor of Langfuse scores, promptfoo results or Argilla records; name its"
                f" kind with --format {'|'.join(LABEL_FORMATS)}",
            )
        )
    if found == "gradeline":
        return _own(path)
    left_out: Counter[str] = Counter()
    entries = list(_ENTRIES[found](file))
    rows = list(file.problems)
    if found == "promptfoo":
        rows += _promptfoo(path, entries, left_out)
    else:
        read = _langfuse if found == "langfuse" else _argilla
        for number, data in entries:
            rows += read(number, data, scale or LabelScale(), left_out)
    return ToolLabels(found, rows, dict(left_out), file.unit)


def _own(path: Path) -> ToolLabels:
    return ToolLabels("gradeline", list(rows_of(path)), {}, "line")


def _is_own_table(path: Path) -> bool:
    """Whether a file is CSV without the columns of another tool."""
    if path.suffix.casefold() != ".csv":
        return False
    with path.open("rb") as file:
        first = file.readline(_MAX_HEADER).decode("utf-8-sig", "replace")
    return not {cell.strip(' "\r\n') for cell in first.split(",")} & {"traceId", "trace_id"}


class _LabelObjects(NamedTuple):
    """The objects of a file with their numbers."""

    document: _Object | None
    """The whole file, if it is one object."""
    objects: list[tuple[int, _Object]]
    problems: list[_Read]
    unit: str


def _read(path: Path) -> _LabelObjects:
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ConfigError(Problem(str(path), f"the file has {size:,} bytes; split it, {_MAX_BYTES:,} are the maximum"))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        remedy = "save the file as UTF-8"
        raise ConfigError(Problem(str(path), f"not valid UTF-8 at byte {error.start + 1:,}; {remedy}")) from None
    kind = path.suffix.casefold()
    if kind == ".csv":
        return _csv_file(text, path)
    if kind in (".jsonl", ".ndjson"):
        return _lines(text)
    if kind != ".json":
        raise ConfigError(Problem(str(path), f"unknown kind of file {quote(path.suffix)}: use .csv, .json or .jsonl"))
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem(str(path), f"not valid JSON: {error}")) from None
    if isinstance(data, dict):
        return _LabelObjects(data, [(1, data)], [], "entry")
    if not isinstance(data, list):
        raise ConfigError(Problem(str(path), f"expected a JSON object or list, got {quote(data, 60)}"))
    return _of_list(None, data)


def _csv_file(text: str, path: Path) -> _LabelObjects:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.DictReader(StringIO(text, newline=""), strict=True)
    try:
        rows: list[tuple[int, _Object]] = [
            (reader.line_num, {name: cell for name, cell in row.items() if isinstance(name, str) and cell != ""})
            for row in reader
        ]
    except csv.Error as error:
        raise ConfigError(Problem(str(path), f"not valid CSV: {error}")) from None
    return _LabelObjects(dict.fromkeys(reader.fieldnames or ()), rows, [], "line")


def _lines(text: str) -> _LabelObjects:
    objects: list[tuple[int, _Object]] = []
    problems: list[_Read] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError) as error:
            problems.append((number, f"not valid JSON: {error}"))
            continue
        if isinstance(data, dict):
            objects.append((number, data))
        else:
            problems.append((number, f"expected a JSON object, got {quote(data, 60)}"))
    return _LabelObjects(None, objects, problems, "line")


def _of_list(document: _Object | None, items: Sequence[object]) -> _LabelObjects:
    objects: list[tuple[int, _Object]] = []
    problems: list[_Read] = []
    for number, item in enumerate(items, 1):
        if isinstance(item, dict):
            objects.append((number, item))
        else:
            problems.append((number, f"expected a JSON object, got {quote(item, 60)}"))
    return _LabelObjects(document, objects, problems, "entry")


def _detected(file: _LabelObjects) -> LabelFormat | None:
    whole = set(file.document or ())
    first = next((data for _, data in _parts_of(file, "data", "items", "records")), {})
    keys = whole | set(first)
    if "case" in keys and "traceId" not in keys:
        return "gradeline"
    if "results" in whole or keys >= {"promptIdx", "testIdx"}:
        return "promptfoo"
    if "responses" in keys:
        return "argilla"
    if keys & {"traceId", "trace_id", "scores"} and (keys & {"value", "stringValue", "string_value", "scores"}):
        return "langfuse"
    return None


def _parts_of(file: _LabelObjects, *names: str) -> Iterator[tuple[int, _Object]]:
    """The objects of a file, or those in the list of a page or an export."""
    inner = next((found for name in names if isinstance(found := (file.document or {}).get(name), list)), None)
    if inner is None:
        yield from file.objects
        return
    listed = _of_list(None, inner)
    file.problems.extend(listed.problems)
    yield from listed.objects


def _langfuse_entries(file: _LabelObjects) -> Iterator[tuple[int, _Object]]:
    """The scores; an export of traces has those of a trace in its object."""
    for number, data in _parts_of(file, "data", "scores"):
        nested = data.get("scores")
        if not isinstance(nested, list):
            yield number, data
            continue
        for score in nested:
            if isinstance(score, dict):
                yield number, {"traceId": data.get("id"), **score}


def _promptfoo_entries(file: _LabelObjects) -> Iterator[tuple[int, _Object]]:
    inner = (file.document or {}).get("results")
    document = inner if isinstance(inner, dict) else file.document
    yield from _parts_of(file._replace(document=document), "results")


_ENTRIES: Mapping[LabelFormat, Callable[[_LabelObjects], Iterator[tuple[int, _Object]]]] = {
    "langfuse": _langfuse_entries,
    "promptfoo": _promptfoo_entries,
    "argilla": lambda file: _parts_of(file, "items", "records", "data"),
}


def _langfuse(number: int, data: _Object, scale: LabelScale, left_out: Counter[str]) -> Iterator[_Read]:
    """The label in a score by a person, an annotation."""
    source = str(data.get("source") or "unknown").upper()
    if source != "ANNOTATION":
        left_out[f"scores of source {source}, which are not annotations of people"] += 1
        return
    metadata = data.get("metadata")
    place: _Object = metadata if isinstance(metadata, dict) else {}
    if _of(data, "observationId", "observation_id") and "case" not in place:
        left_out["scores of one step of a trace, and a label is about the whole response"] += 1
        return
    kind = str(_of(data, "dataType", "data_type") or "").upper()
    raw, text = data.get("value"), _of(data, "stringValue", "string_value")
    if kind == "CATEGORICAL" or raw is None:
        raw = text if text is not None else raw
    elif kind == "BOOLEAN":
        raw = {"1": True, "0": False, "1.0": True, "0.0": False}.get(str(raw), raw)
    name = str(data.get("name") or "")
    yield _row(
        number,
        left_out,
        _value(raw, scale, name),
        case=place.get("case", _of(data, "traceId", "trace_id")),
        repeat=place.get("repeat"),
        question=grader_name(name),
        comment=_comment(data.get("comment")),
        rater=_of(data, "authorUserId", "author_user_id"),
        at=_of(data, "updatedAt", "updated_at", "timestamp", "createdAt", "created_at"),
    ) or (number, f"the score {quote(name, 60)} has no value")


def _argilla(number: int, data: _Object, scale: LabelScale, left_out: Counter[str]) -> Iterator[_Read]:
    """The labels in a record: the submitted answers of its users."""
    metadata = data.get("metadata")
    place: _Object = metadata if isinstance(metadata, dict) else {}
    case = place.get("case") or _of(data, "external_id") or data.get("id")
    for question, answer in _answers(data.get("responses")):
        status = answer.get("status")
        if isinstance(status, str) and status != "submitted":
            left_out[f"responses with the status {status}"] += 1
            continue
        row = _row(
            number,
            left_out,
            _value(answer.get("value"), scale, question),
            case=case,
            repeat=place.get("repeat"),
            question=grader_name(question),
            rater=_of(answer, "user_id", "user"),
            at=_of(answer, "updated_at", "inserted_at"),
        )
        if row is not None:
            yield row


def _answers(responses: object) -> Iterator[tuple[str, _Object]]:
    """Question and answer of each user, as records of either version have them."""
    if isinstance(responses, dict):  # by question, as the records of version 2 are written
        for question, answers in responses.items():
            for answer in answers if isinstance(answers, list) else [answers]:
                if isinstance(answer, dict):
                    yield str(question), answer
    for response in responses if isinstance(responses, list) else ():
        if not isinstance(response, dict):
            continue
        values = response.get("values")
        if isinstance(values, dict):  # by user, as the API has them
            for question, answer in values.items():
                inner = answer if isinstance(answer, dict) else {"value": answer}
                yield str(question), {**response, **inner}
        elif "question_name" in response:
            yield str(response["question_name"]), response


def _promptfoo(path: Path, entries: Sequence[tuple[int, _Object]], left_out: Counter[str]) -> Iterator[_Read]:
    """The ratings of people in results; cases have the names that an import of the results gives them."""
    rated: list[tuple[int, _Object, _Object, str, int]] = []
    names, named = CaseNames(), dict[str, str]()
    repeats: Counter[tuple[str, str]] = Counter()
    for number, data in entries:
        test = test_of(ResultRow(f"{path.name}:{number}", data))
        digest = test.whole_digest
        if digest not in named:
            named[digest] = names.name(test)
        run = run_key(data)
        repeat = repeats[run, digest]
        repeats[run, digest] += 1
        human = next((one for one in all_components(data) if type_of(one) == "human"), None)
        if human is None:
            left_out["results without a rating of a person"] += 1
        else:
            rated.append((number, data, human, named[digest], repeat))
    if len({run_key(data) for _, data, *_ in rated}) > 1:
        why = "has ratings of several prompts or providers, and a run has one of them"
        raise ConfigError(Problem(str(path), f"{why}; gradeline import {path.name} keeps them apart, with the ratings"))
    for number, data, human, case, repeat in rated:
        grading = data.get("gradingResult")
        comment = grading.get("comment") if isinstance(grading, dict) else None
        value = _value(human.get("pass"), LabelScale(), "rating")
        if not isinstance(human.get("pass"), bool):
            yield number, f"the rating has no pass, true or false, but {quote(human.get('pass'), 60)}"
            continue
        comment = _comment(human.get("comment") or comment)
        row = _row(number, left_out, value, case=case, repeat=repeat, question=OVERALL, comment=comment)
        if row is not None:
            yield row


class _LabelValue(NamedTuple):
    """The value of a label, or why there is none."""

    cells: Mapping[str, object]
    problem: str | None = None
    reason: str | None = None
    """Why it is left out."""


def _value(raw: object, scale: LabelScale, name: str) -> _LabelValue:
    """Pass or fail for a word that clearly means it, a score for a number, a category for another word."""
    if isinstance(raw, bool):
        return _LabelValue({"verdict": "pass" if raw else "fail"})
    number = _number(raw)
    if number is not None:
        if scale.low is not None:
            scaled = (number - scale.low) / (scale.high - scale.low)
            outside = f"{number:g} of {quote(name, 60)} is not from {scale.low} to {scale.high}"
        else:
            scaled = number
            outside = f"{number:g} of {quote(name, 60)} is not from 0 to 1; name its scale, as in --scale 1-5"
        return _LabelValue({"score": scaled}) if 0 <= scaled <= 1 else _LabelValue({}, outside)
    if isinstance(raw, str) and raw.strip():
        word = raw.strip()
        found = value_of_word(word)
        if found is not None:
            return _LabelValue({"verdict": "pass" if found else "fail"})
        if is_label_name(word):
            return _LabelValue({"category": word})
        return _LabelValue({}, reason="free texts")
    if raw is None or raw == "":
        return _LabelValue({}, reason="entries without a value")
    return _LabelValue({}, reason="lists and rankings, which are not pass or fail, a score or a category")


def _number(raw: object) -> float | None:
    if isinstance(raw, int | float):
        return float(raw)
    try:
        return float(raw) if isinstance(raw, str) and "_" not in raw else None
    except ValueError:
        return None


def _row(number: int, left_out: Counter[str], value: _LabelValue, **cells: object) -> _Read | None:
    """The row with its value, or its problem; None if it is left out."""
    if value.problem is not None:
        return number, value.problem
    if value.reason is not None:
        left_out[value.reason] += 1
        return None
    return LabelFileRow(number, {name: cell for name, cell in {**cells, **value.cells}.items() if cell is not None})


def _comment(text: object) -> str | None:
    return text[:MAX_COMMENT] if isinstance(text, str) and text else None


def _of(data: _Object, *names: str) -> object:
    """The first of these fields that has a value."""
    return next((data[name] for name in names if data.get(name) not in (None, "")), None)
