"""Labels in files: what is exported can be imported, and every problem of a file is reported at once."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from labelled_runs import judged_run

from gradeline.errors import ConfigError
from gradeline.model import Response, ResponseKey, Run, Sample
from gradeline.model.label import HumanVerdict
from gradeline.store import SqliteStorage
from gradeline.store.labels import count_labels, has_label_tables, labels_of_run
from gradeline.trust import draw_sample, export_labels, import_labels, reference_labels
from gradeline.trust.label_files import write_template
from gradeline.trust.labelling import Labelling


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage


@pytest.fixture
def run(store: SqliteStorage) -> Run:
    return judged_run(store, cases=6, failing=2, repeats=2)


def put(
    store: SqliteStorage, run: Run, case: str, value: HumanVerdict, rater: str = "ada", question: str = "quality"
) -> None:
    labelling = Labelling(store, run, question, rater, value.role)
    labelling.put(labelling.record(case, 0), value)


def exported(store: SqliteStorage, run: Run, kind: str = "csv", *, history: bool = False) -> str:
    file = io.StringIO(newline="")
    export_labels(store, run, file, kind, history=history)
    return file.getvalue()


def import_text(
    store: SqliteStorage, run: Run, folder: Path, text: str, name: str = "labels.csv", **keys: object
) -> tuple[int, int, int]:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return tuple(import_labels(store, run, path, rater="ada", **keys))  # type: ignore[arg-type, return-value]


def problems(store: SqliteStorage, run: Run, folder: Path, text: str, name: str = "labels.csv") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        import_text(store, run, folder, text, name, question="quality")
    assert not has_label_tables(store.database.read) or count_labels(store.database.read, run.id) == 0
    assert f"no label of {folder / name} was stored" in str(caught.value)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_an_exported_file_changes_nothing_when_imported(
    store: SqliteStorage, run: Run, tmp_path: Path, kind: str
) -> None:
    put(store, run, "c0", HumanVerdict("pass", '=cmd|" /C calc"!A1', probability=0.25, sample="random-1-aaaaaa"))
    put(store, run, "c1", HumanVerdict(score=0.1, comment='\'tis\nfine; "quoted"'), rater="eve")
    put(store, run, "c1", HumanVerdict("fail", category="-rude", role="adjudicator"), rater="eve")
    put(store, run, "c2", HumanVerdict(category="polite"), question="tone")
    before = labels_of_run(store.database.read, run.id)
    text = exported(store, run, kind)
    assert import_text(store, run, tmp_path, text, f"labels.{kind}") == (0, 4, 0)
    assert labels_of_run(store.database.read, run.id) == before
    other = judged_run(store, cases=6, failing=2, repeats=2)
    assert import_text(store, other, tmp_path, text, f"labels.{kind}", new_question="tone") == (4, 0, 0)
    copied = labels_of_run(store.database.read, other.id)
    assert [row._replace(n=0) for row in copied] == [row._replace(n=0) for row in before]


def test_a_cell_cannot_be_a_formula(store: SqliteStorage, run: Run) -> None:
    put(store, run, "c0", HumanVerdict("pass", "=1+1"), rater="@ada")
    (row,) = csv.DictReader(io.StringIO(exported(store, run)))
    assert (row["comment"], row["rater"]) == ("'=1+1", "'@ada")


def test_all_changes_can_be_exported_and_are_not_imported(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    labelling = Labelling(store, run, "quality", "ada")
    labelling.put(labelling.record("c0", 0), HumanVerdict("pass"))
    labelling.put(labelling.record("c0", 0), HumanVerdict("fail"))
    labelling.withdraw("c0", 0)
    rows = [json.loads(line) for line in exported(store, run, "jsonl", history=True).splitlines()]
    assert [(row["verdict"], row["withdrawn"]) for row in rows] == [("pass", False), ("fail", False), (None, True)]
    assert exported(store, run, "jsonl") == ""
    (problem,) = problems(store, run, tmp_path, exported(store, run, history=True))
    assert problem == "line 1: the file has the history of labels; import one that was exported without --history"


def test_a_template_is_filled_in_and_imported_once(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    sample = draw_sample(store, run, "quality", 4, 1)
    file = io.StringIO(newline="")
    assert write_template(store, run, sample, file) == 4
    text = file.getvalue()
    assert "secret" not in text
    assert "pass" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    first = sample.draws[0]
    assert rows[0]["answer"] == f"answer {first.case[1:]}.{first.repeat}"
    assert rows[0]["expected"] == f"expected {first.case[1:]}"
    assert import_text(store, run, tmp_path, text) == (0, 0, 4)
    for row in rows[:3]:
        row["verdict"] = "PASS"
    filled = io.StringIO(newline="")
    table = csv.DictWriter(filled, list(rows[0]), delimiter=";")
    table.writeheader()
    table.writerows(rows)
    assert import_text(store, run, tmp_path, "\ufeff" + filled.getvalue()) == (3, 0, 1)
    assert import_text(store, run, tmp_path, filled.getvalue()) == (0, 3, 1)
    found = reference_labels(store, run, "quality").labels
    assert [(one.passed, one.probability) for one in found] == [(True, 3 / 12)] * 3


def test_a_template_with_long_and_hostile_answers_can_be_read(store: SqliteStorage, tmp_path: Path) -> None:
    run = judged_run(store, cases=2, failing=1)
    for number, text in enumerate(('=1+1,"\r\n;\x1b[2J', "long\r" * 60_000)):
        store.put_response(ResponseKey(run.id, f"c{number}"), Response(text=text), Sample(f"c{number}", "@q;;;;;;;;;"))
    file = io.StringIO(newline="")
    assert write_template(store, run, draw_sample(store, run, "tone"), file) == 2
    text = file.getvalue()
    assert ",'=1+1" in text or ",\"'=1+1" in text
    assert import_text(store, run, tmp_path, text, new_question="tone") == (0, 0, 2)
    assert import_text(store, run, tmp_path, text.replace(",,,,,", ",pass,,,,"), new_question="tone") == (2, 0, 0)


def test_a_label_of_a_named_sample_has_its_probability(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    first = draw_sample(store, run, "quality", 3, 1).draws[0]
    text = f"case,repeat,verdict,sample\n{first.case},{first.repeat},pass,{first.sample}\n"
    import_text(store, run, tmp_path, text, question="quality")
    assert [row.probability for row in labels_of_run(store.database.read, run.id)] == [0.25]


def test_all_problems_are_reported_with_their_lines_and_nothing_is_stored(
    store: SqliteStorage, run: Run, tmp_path: Path
) -> None:
    text = """case,repeat,question,verdict,score,category,rater,comment,role,probability,at
c0,0,quality,pass,,,,,,,
c9,0,quality,pass,,,,,,,
c1,7,quality,pass,,,,,,,
c1,-1,quality,pass,,,,,,,
c1,0,qualty,pass,,,,,,,
c1,0,quality,yes,,,,,,,
c1,0,quality,,1.5,,,,,,
c1,0,quality,,nan,,,,,,
,0,quality,pass,,,,,,,
c1,0,quality,pass,,,,,judge,,
c1,0,quality,pass,,,,,,0,
c1,0,quality,pass,,,,,,,yesterday
c0,0,quality,fail,,,,,,,
c2,0,quality,pass,,,"a\tb",,,,
"""
    assert problems(store, run, tmp_path, text) == [
        f"line 3: no case 'c9' in run {run.id}; it has 7 cases",
        "line 4: no repeat 7 of case 'c1'; it has 0, 1",
        "line 5: invalid repeat '-1': use a whole number from 0",
        f"line 6: no grader 'qualty' in run {run.id}; did you mean 'quality'?",
        "line 7: invalid verdict 'yes': use pass or fail",
        "line 8: invalid score '1.5': use a number from 0 to 1",
        "line 9: invalid score 'nan': use a number from 0 to 1",
        "line 10: the case is missing",
        "line 11: invalid role 'judge': use rater or adjudicator",
        "line 12: invalid probability '0': use a number above 0 and at most 1",
        "line 13: invalid at 'yesterday': use a time such as 2026-01-31T12:00:00Z",
        "line 14: 'ada' labels case 'c0', repeat 0, question 'quality' differently in line 2; keep one of them",
        "line 15: invalid rater 'a\\tb': use 1 to 200 characters on one line, trimmed",
    ]


def test_json_lines_have_types(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    lines = [
        {"case": "c0", "score": True},
        {"case": "c0", "verdict": 1},
        {"case": ["c0"], "verdict": "pass"},
        {"case": "c0"},
        {"case": "c0", "verdict": "pass", "grader": "quality"},
        {"case": "c0", "score": 1e400},
    ]
    text = "\n".join(["{", "[]", "", *map(json.dumps, lines)])
    found = problems(store, run, tmp_path, text, "labels.jsonl")
    assert [line.partition(":")[0] for line in found] == [f"line {n}" for n in (1, 2, 4, 5, 6, 7, 8, 9)]
    assert found[1] == "line 2: expected a JSON object, got []"
    assert found[2] == "line 4: invalid score True: use a number from 0 to 1"
    assert found[3] == "line 5: invalid verdict '1': use pass or fail"
    assert found[6].startswith("line 8: unknown column 'grader'; ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: the column case is missing"),
        ("case,score,score\n", "line 1: the column score occurs twice; keep one"),
        ("case,verdct\nc0,pass\n", "line 1: unknown column 'verdct'; did you mean verdict?"),
        ("case,comment\nc0,x\n", "line 1: no column with labels: write verdict, score or category"),
        ("case,verdict\nc0,pass,more\n", "line 2: has 3 cells, the first line has 2"),
        ('case,verdict\nc0,"pass\n', "line 2: not valid CSV: unexpected end of data"),
    ],
)
def test_wrong_columns_are_refused(store: SqliteStorage, run: Run, tmp_path: Path, text: str, expected: str) -> None:
    assert expected in problems(store, run, tmp_path, text)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.txt", b"case,verdict\n", "unknown kind of file '.txt': use .csv or .jsonl"),
        ("labels.csv", b"case,verdict\nc\xff,pass\n", "not valid UTF-8 at byte 15; save the file as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(
    store: SqliteStorage, run: Run, tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        import_labels(store, run, tmp_path / name, rater="ada")
    assert message in str(caught.value)


def test_a_question_is_needed(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"line 2: no question: fill the column question, or use --grader"):
        import_text(store, run, tmp_path, "case,verdict\nc0,pass\n")


def test_a_label_that_differs_from_the_stored_one_is_a_conflict(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    put(store, run, "c0", HumanVerdict("fail", "no"))
    put(store, run, "c0", HumanVerdict("pass"), rater="eve")
    text = "case,verdict\nc1,pass\nc0,pass\n"
    with pytest.raises(ConfigError) as caught:
        import_text(store, run, tmp_path, text, question="quality")
    assert [str(one) for one in caught.value.problems] == [
        "line 3: 'ada' has labelled case 'c0', repeat 0 fail ('no') before, here it is pass; replace it with --replace"
    ]
    assert count_labels(store.database.read, run.id) == 2
    assert import_text(store, run, tmp_path, text, question="quality", replace=True) == (2, 0, 0)
    assert count_labels(store.database.read, run.id) == 3


def test_a_label_of_another_response_is_refused(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    put(store, run, "c0", HumanVerdict("pass"))
    text = exported(store, run)
    store.put_response(ResponseKey(run.id, "c0", 0), Response(text="replaced"), Sample("c0", "question 0"))
    assert import_text(store, run, tmp_path, text) == (0, 1, 0), "the store has it"
    other = judged_run(store, cases=6, failing=2, repeats=2)
    store.put_response(ResponseKey(other.id, "c0", 0), Response(text="another"), Sample("c0", "question 0"))
    with pytest.raises(ConfigError, match=r"line 2: the label is about another response to case 'c0'"):
        import_text(store, other, tmp_path, text)


def test_many_problems_are_cut(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    found = problems(store, run, tmp_path, "case,verdict\n" + "c0,maybe\n" * 250)
    assert len(found) == 101
    assert found[-1] == "and 150 more problems"
