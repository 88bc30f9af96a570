from __future__ import annotations

import csv
import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError
from gradeline.model import Sample, to_json
from gradeline.suite.cases import DatasetError
from gradeline.suite.dataset import Dataset
from gradeline.suite.dataset import open_dataset as open_source
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.document import parse_document


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(*rows: Any) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows)


def open_dataset(source: Any, **options: Any) -> Dataset:
    """Rows without an id keep their number, which shows their order; see `test_case_ids` for the other scheme."""
    parts, rows = ((source,), ()) if isinstance(source, Path) else ((), source)
    return open_source(DatasetSource(parts, rows, ids="number"), **options)


def problem(source: Any, **options: Any) -> str:
    with pytest.raises(DatasetError) as caught:
        list(open_dataset(source, **options))
    return "\n".join(str(found) for found in caught.value.problems)


def one(row: dict[str, Any]) -> Sample:
    (sample,) = open_dataset([row])
    return sample


class TestRows:
    def test_a_row_can_have_every_field_of_a_sample(self) -> None:
        row = {
            "input": ["a", "b"],
            "ground_truth": ["1", "2"],
            "id": "first",
            "metadata": {"m": 1},
            "agent_args": {"a": 1},
            "rubric_vars": {"r": 1},
            "extra_vars": {"e": 1},
            "rubric": "be kind",
            "tags": ["t"],
            "level": 3,
        }
        assert one(row) == Sample(
            id="first",
            input=["a", "b"],
            ground_truth=["1", "2"],
            metadata={"m": 1, "level": 3},
            agent_args={"a": 1},
            rubric_vars={"r": 1},
            extra_vars={"e": 1},
            rubric="be kind",
            tags=("t",),
        )

    def test_null_is_absent(self) -> None:
        keys = "ground_truth id sample_id prompt metadata agent_args extra_vars rubric rubric_path tags".split()
        assert one({"input": "q", **dict.fromkeys(keys)}) == Sample(id=0, input="q")

    def test_prompt_is_an_alias_of_input(self) -> None:
        assert one({"prompt": "q"}) == Sample(id=0, input="q")
        assert one({"prompt": "p", "input": "q"}) == Sample(id=0, input="q", metadata={"prompt": "p"})

    def test_the_sample_id_overrides_the_id_and_the_row_number(self) -> None:
        assert one({"input": "q", "sample_id": "s", "id": 7}) == Sample(id="s", input="q", metadata={"id": 7})
        assert [sample.id for sample in open_dataset([{"input": "a"}, {"input": "b", "id": "x"}, {"input": "c"}])] == [
            0,
            "x",
            2,
        ]

    def test_variables_are_also_read_from_the_metadata(self) -> None:
        sample = one(
            {
                "input": "q",
                "rubric_vars": {"a": 1},
                "metadata": {"rubric_vars": {"a": 2}, "extra_vars": {"b": 3}, "c": 4},
            }
        )
        assert (sample.rubric_vars, sample.extra_vars, sample.metadata) == ({"a": 1}, {"b": 3}, {"c": 4})

    @pytest.mark.parametrize(
        ("value", "text"),
        [(4, "4"), (1.5, "1.5"), (True, "true"), (False, "false"), ([1, True, "x"], ["1", "true", "x"])],
    )
    def test_numbers_and_booleans_become_text(self, value: Any, text: Any) -> None:
        sample = one({"input": value, "ground_truth": value})
        assert (sample.input, sample.ground_truth) == (text, text)

    def test_a_conversation_may_have_one_ground_truth(self) -> None:
        assert one({"input": ["a", "b"], "ground_truth": "x"}).ground_truth == "x"

    def test_an_empty_ground_truth_is_not_null(self) -> None:
        assert one({"input": "a", "ground_truth": ""}).ground_truth == ""

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("text", """dataset[0]: expected {"input": …, "ground_truth": …}, got 'text'"""),
            ({}, "dataset[0].input: is required"),
            ({"input": ""}, "dataset[0].input: must not be empty, got ''"),
            ({"input": []}, "dataset[0].input: must not be empty, got []"),
            ({"input": ["a", ""]}, "dataset[0].input: must not be empty, got ['a', '']"),
            ({"prompt": ""}, "dataset[0].prompt: must not be empty"),
            ({"input": {}}, "dataset[0].input: expected a string or a list of strings, got {}"),
            ({"input": ["a", None]}, "dataset[0].input: expected a string or a list of strings"),
            ({"ground_truth": ["x"]}, "ground_truth: is a list, so input must be a list with the same number of turns"),
            ({"input": ["a"], "ground_truth": ["x", "y"]}, "ground_truth: has 2 items for 1 turn of input"),
            ({"metadata": 3}, "metadata: expected a mapping, got 3"),
            ({"agent_args": []}, "agent_args: expected a mapping, got []"),
            ({"metadata": {"extra_vars": 3}}, "metadata.extra_vars: expected a mapping, got 3"),
            ({"tags": "x"}, "tags: expected a list of strings, got 'x'"),
            ({"tags": [1]}, "tags: expected a list of strings, got [1]"),
            ({"rubric": 3}, "rubric: expected a string, got 3"),
            ({"rubric": "a", "rubric_path": "b"}, "rubric_path: conflicts with rubric; keep one of them"),
            ({"id": True}, "id: expected a string or a whole number, got True"),
            ({"id": ""}, "id: expected a string or a whole number, got ''"),
            ({"sample_id": 1.5}, "sample_id: expected a string or a whole number, got 1.5"),
            ({"x": float("nan")}, "$.x: nan is not a finite number"),
            ({"id": 1 << 5_000}, "$.id: an integer of 5001 bits is too large"),
            ({"input": "x" * 10_000_001}, "contains a string of more than 10,000,000 characters"),
        ],
    )
    def test_a_faulty_row_is_reported(self, row: Any, message: str) -> None:
        if isinstance(row, dict) and row and not {"input", "prompt"} & row.keys():
            row = {"input": "q", **row}
        assert message in problem([row])

    def test_all_faults_of_a_row_come_together(self) -> None:
        assert len(problem([{"metadata": 3, "tags": 3, "id": []}]).splitlines()) == 4

    def test_a_duplicate_id_is_refused(self) -> None:
        rows = [{"input": "a", "id": 1}, {"input": "b", "id": "1"}]
        assert problem(rows) == "dataset[1]: another case above has the id '1'"
        assert "named by its number" in problem([{"input": "a", "id": "1"}, {"input": "b"}])

    def test_text_is_cleaned_for_storage(self) -> None:
        assert one({"input": "a\0b\ud800"}).input == "a\u2400b\ufffd"

    def test_an_inline_row_has_its_position_in_the_suite(self) -> None:
        document = parse_document(b"dataset:\n  - input: a\n  - input: b\n    tags: x\n", "suite.yaml")
        rows = document.data["dataset"]
        assert problem(rows, position_of=document.position).startswith(
            "suite.yaml:4:11: dataset[1].tags: expected a list"
        )


class TestChoosing:
    ROWS = [{"input": str(number), "tags": ["all"] + ["even"] * (number % 2 == 0)} for number in range(6)]

    @pytest.mark.parametrize(
        ("tags", "limit", "chosen"),
        [
            ((), 0, "012345"),
            ((), 2, "01"),
            (("even",), 0, "024"),
            (("even", "all"), 2, "02"),
            (("even", "none"), 0, ""),
            ((), 99, "012345"),
        ],
    )
    def test_samples_with_all_tags_then_at_most_the_limit(self, tags: tuple[str, ...], limit: int, chosen: str) -> None:
        samples = list(open_dataset(self.ROWS, tags=tags, limit=limit))
        assert "".join(str(sample.input) for sample in samples) == chosen
        assert all(str(sample.id) == sample.input for sample in samples)

    def test_rows_after_the_limit_are_not_read(self, folder: Path) -> None:
        assert len(list(open_dataset(write(folder, "a.jsonl", jsonl({"input": "a"}, "broken")), limit=1))) == 1


class TestJsonl:
    def test_blank_lines_a_bom_and_crlf_are_fine(self, folder: Path) -> None:
        path = write(folder, "a.jsonl", b'\xef\xbb\xbf\r\n{"input": "\xc3\xa4"}\r\n  \r\n{"input": "b"}\r\n\r\n')
        assert list(open_dataset(path)) == [Sample(id=0, input="ä"), Sample(id=1, input="b")]

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("{", "a.jsonl:3: not JSON: it ends too early, got '{'"),
            ('{"input": NaN}', "a.jsonl:3: not JSON: invalid character"),
            ('{"input": Infinity}', "a.jsonl:3: not JSON"),
            ('{"input": 1e999}', "a.jsonl:3: not JSON: Number out of range"),
            ('{"input": ' + "9" * 5_000 + "}", "a.jsonl:3: not JSON: Integer value out of range"),
            ('{"input": ' + "[" * 100_000, "a.jsonl:3: not JSON: nested too deeply"),
            ('{"x": ' + "[" * 300 + "]" * 300 + "}", "a.jsonl:3: $.x"),
            ("[1]", "a.jsonl:3: expected {"),
            ('{"input": ""}', "a.jsonl:3: input: must not be empty"),
            (
                '{"input": "' + "x" * 10_000_001 + '"}',
                "a.jsonl:3: contains a string of more than 10,000,000 characters",
            ),
            ("x" * 70_000_000, "a.jsonl:3: contains a string of more than 10,000,000 characters"),
        ],
        ids=range(11),
    )
    def test_a_bad_line_is_named(self, folder: Path, row: str, message: str) -> None:
        path = write(folder, "a.jsonl", jsonl({"input": "a"}, "", row))
        assert f"{folder}/{message}" in problem(path)

    def test_a_long_row_of_shorter_texts_is_read(self, folder: Path) -> None:
        path = write(folder, "a.jsonl", jsonl({"input": ["x" * 6_000_000, "y" * 6_000_000]}))
        assert len(list(open_dataset(path))) == 1

    def test_invalid_utf8_is_refused(self, folder: Path) -> None:
        path = write(folder, "a.jsonl", b'{"input": "a"}\n{"input": "\xff"}')
        assert "a.jsonl:2: is not UTF-8: byte 0xff" in problem(path)

    def test_the_error_is_a_config_error_with_positions(self, folder: Path) -> None:
        path = write(folder, "a.jsonl", jsonl({"input": "a"}, {"input": ""}))
        with pytest.raises(ConfigError) as caught:
            list(open_dataset(path))
        assert isinstance(caught.value, DatasetError)
        assert caught.value.suite_problems[0][:4] == (str(path), 2, 0, "input")


class TestCsv:
    def read(self, folder: Path, text: str | bytes) -> list[Sample]:
        return list(open_dataset(write(folder, "a.csv", text)))

    @pytest.mark.parametrize("cell", ["4", "1.50", "NA", "None", "null", "true", "007", " x ", "nan"])
    def test_cells_are_strings_as_written(self, folder: Path, cell: str) -> None:
        samples = self.read(folder, f"input,ground_truth,other\n{cell},{cell},{cell}\nq,,\n")
        assert samples == [
            Sample(id=0, input=cell, ground_truth=cell, metadata={"other": cell}),
            Sample(id=1, input="q"),
        ]

    def test_quotes_commas_lines_a_bom_and_crlf_are_fine(self, folder: Path) -> None:
        text = '\ufeffinput,ground_truth\r\n"a, ""b""\r\nc",x\r\n\r\n,\r\nd,y\r\n'
        assert self.read(folder, text) == [
            Sample(id=0, input='a, "b"\r\nc', ground_truth="x"),
            Sample(id=1, input="d", ground_truth="y"),
        ]

    def test_lists_and_objects_are_json(self, folder: Path) -> None:
        row = ['["a", "b"]', '["1", "2"]', '{"k": 1}', '{"e": 2}', "x, y", "7"]
        out = io.StringIO()
        csv.writer(out).writerows([["input", "ground_truth", "agent_args", "metadata", "tags", "id"], row])
        assert self.read(folder, out.getvalue()) == [
            Sample(
                id="7",
                input=["a", "b"],
                ground_truth=["1", "2"],
                agent_args={"k": 1},
                metadata={"e": 2},
                tags=("x", "y"),
            )
        ]

    def test_tags_may_be_a_json_list(self, folder: Path) -> None:
        assert self.read(folder, "input,tags\nq,[]\n")[0].tags == ()
        assert self.read(folder, 'input,tags\nq,"[""a,b"", ""c""]"\n')[0].tags == ("a,b", "c")

    @pytest.mark.parametrize("cell", ["[not json]", "[1]", "[]", "[null]"])
    def test_a_cell_that_only_looks_like_a_list_is_a_string_with_a_warning(self, folder: Path, cell: str) -> None:
        dataset = open_dataset(write(folder, "a.csv", f"input,other\n{cell},[x]\n"))
        assert next(dataset) == Sample(id=0, input=cell, metadata={"other": "[x]"})
        assert [str(warning) for warning in dataset.warnings] == [
            f"{folder}/a.csv:2: input: is not a JSON list of strings, so it is used as a string: {cell!r}"
        ]

    def test_the_list_of_warnings_ends(self, folder: Path) -> None:
        dataset = open_dataset(write(folder, "a.csv", "input\n" + "[x]\n" * 1_000))
        assert len(list(dataset)) == 1_000
        assert len(dataset.warnings) == 101

    def test_the_index_column_of_pandas_is_left_out(self, folder: Path) -> None:
        assert self.read(folder, ",input\n0,a\n1,b\n") == [Sample(id=0, input="a"), Sample(id=1, input="b")]

    def test_large_cells_are_read(self, folder: Path) -> None:
        assert self.read(folder, f"input\n{'x' * 1_000_000}\n")[0].input == "x" * 1_000_000

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("input,x\na\n", "a.csv:2: has 1 cells, but the header has 2"),
            ('input\n"a\nb"\n\nc,d\n', "a.csv:5: has 2 cells, but the header has 1"),
            ('input\na\n"open\n', "a.csv:3: not CSV: unexpected end of data"),
            ("question,answer\na,b\n", "a.csv:2: input: is required"),
            ("input,input\n", "a.csv:1: two columns are named 'input'"),
            ("input;ground_truth\n", "a.csv:1: the only column is 'input;ground_truth'; separate columns with commas"),
            ("input,agent_args\nq,[1]\n", "a.csv:2: agent_args: must be a JSON object, got '[1]'"),
            ("input,tags\nq,[x]\n", "a.csv:2: tags: expected a list of strings"),
            ('input,ground_truth\nq,"[""x""]"\n', "a.csv:2: ground_truth: is a list, so input must be a list"),
        ],
    )
    def test_a_bad_row_is_named(self, folder: Path, text: str, message: str) -> None:
        assert message in problem(write(folder, "a.csv", text))

    def test_a_cell_over_10_mb_is_refused(self, folder: Path) -> None:
        assert "a.csv:2: not CSV: field larger than field limit" in problem(
            write(folder, "a.csv", "input\n" + "x" * 10_000_001)
        )


json_rows = st.lists(
    st.fixed_dictionaries({"input": st.text(min_size=1), "x": st.text() | st.lists(st.text('"\\[]{},', max_size=5))}),
    max_size=5,
)


class TestJson:
    @given(json_rows, st.sampled_from([None, 0, 2]), st.booleans(), st.integers(1, 7))
    def test_any_list_is_read_whatever_its_layout(
        self, tmp_path_factory: pytest.TempPathFactory, rows: list[Any], indent: int | None, escape: bool, chunk: int
    ) -> None:
        path = tmp_path_factory.mktemp("json") / "a.json"
        path.write_text(json.dumps(rows, indent=indent, ensure_ascii=escape), encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gradeline.suite.text_files._CHUNK", chunk)
            assert list(open_dataset(path)) == list(open_dataset(rows))

    @pytest.mark.parametrize("text", ["[]", " \n[ \n ]\n\n", "\ufeff[]"])
    def test_an_empty_list_has_no_sample(self, folder: Path, text: str) -> None:
        assert list(open_dataset(write(folder, "a.json", text))) == []

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "a.json: is empty"),
            ('\n{"input": "a"}', "a.json:2: expected a list of rows"),
            ('[\n{"input": "a"},\n\n{"input": ""}\n]', "a.json:4: input: must not be empty"),
            ('[{"input": "a"},\n]', "a.json:2: not JSON: a row is missing next to a comma"),
            ('[,{"input": "a"}]', "a.json:1: not JSON: a row is missing next to a comma"),
            ('[{"input": "a"}\n', "a.json:2: not JSON: the list ends too early"),
            ('[{"input": "a}]\n', "a.json:2: not JSON: the list ends too early"),
            ('[{"input": "a"}]\n\n x', "a.json:3: not JSON: unexpected text after the list"),
            ('[\n{"input": a}]', "a.json:2: not JSON: invalid character"),
            ('[\n{"input": "a" "b"}]', "a.json:2: not JSON"),
        ],
    )
    def test_a_fault_has_its_line(self, folder: Path, text: str, message: str) -> None:
        assert message in problem(write(folder, "a.json", text))

    def test_a_row_without_end_is_refused_before_it_fills_the_memory(self, folder: Path) -> None:
        path = write(folder, "a.json", b'[\n{"input": "' + b"x" * 70_000_000)
        assert "a.json:1: contains a string of more than 10,000,000 characters" in problem(path)


class TestYaml:
    @pytest.mark.parametrize("name", ["a.yaml", "a.YML"])
    def test_a_list_is_read(self, folder: Path, name: str) -> None:
        path = write(folder, name, "- {input: no, ground_truth: 4, id: a}\n- input: |\n    two\n    lines\n")
        assert list(open_dataset(path)) == [
            Sample(id="a", input="no", ground_truth="4"),
            Sample(id=1, input="two\nlines\n"),
        ]

    def test_faults_have_their_position(self, folder: Path) -> None:
        assert "a.yaml:2:10: [1].input: must not be empty" in problem(
            write(folder, "a.yaml", "- input: a\n- input: ''")
        )
        assert "a.yaml:1:1: expected a list of rows" in problem(write(folder, "a.yaml", "input: a"))
        assert "a.yaml:1:10: [0].input: '.nan' is not a finite" in problem(write(folder, "a.yaml", "- input: .nan"))


class TestFiles:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("none.jsonl", "none.jsonl: no such file"),
            ("a.parquet", "no such file"),
            ("a.tsv", "unknown file format; use one of .jsonl, .csv, .json, .yaml, .yml"),
            ("folder.jsonl", "is a folder"),
        ],
    )
    def test_an_unreadable_source_is_reported_when_it_is_opened(self, folder: Path, name: str, message: str) -> None:
        (folder / "folder.jsonl").mkdir()
        with pytest.raises(ConfigError) as caught:
            open_dataset(folder / name)
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.jsonl", '\ufeff{"input": "a"}\r\n\r\n{"input": "b"}\n\n'),
            ("a.csv", "input\r\na\r\nb\r\n\r\n"),
            ("a.json", '[{"input": "a"}, {"input": "b"}]\n\n'),
            ("a.yaml", "- input: a\n- input: b\n# end\n"),
        ],
    )
    def test_the_digest_is_that_of_the_bytes_and_comes_at_the_end(self, folder: Path, name: str, text: str) -> None:
        path = write(folder, name, text)
        dataset = open_dataset(path)
        next(dataset)
        assert dataset.digest is None
        assert len(list(dataset)) == 1
        assert dataset.digest == hashlib.sha256(path.read_bytes()).hexdigest()

    def test_the_digest_of_a_list_changes_with_its_rows(self) -> None:
        def digest(*rows: Any) -> str | None:
            dataset = open_dataset(rows)
            list(dataset)
            return dataset.digest

        assert digest({"input": "a", "id": 1}) == digest({"id": 1, "input": "a"})
        assert digest({"input": "a"}) != digest({"input": "b"})

    def test_with_a_limit_the_digest_covers_what_was_read(self, folder: Path) -> None:
        def digest(last: str) -> str | None:
            dataset = open_dataset(write(folder, "a.jsonl", jsonl({"input": "a"}, {"input": last})), limit=1)
            list(dataset)
            return dataset.digest

        assert digest("b") == digest("c") is not None


class TestMemory:
    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
    def test_50_mb_stream_in_constant_memory(self, folder: Path, name: str) -> None:
        path = folder / name
        text = "x" * 5_000
        with path.open("w") as file:
            file.write({"a.json": "[\n", "a.csv": "input,ground_truth\n"}.get(name, ""))
            for number in range(10_000):
                row = f"{number} {text},4" if name == "a.csv" else f'{{"input": "{number} {text}", "ground_truth": 4}}'
                file.write(row + (",\n" if name == "a.json" and number < 9_999 else "\n"))
            file.write("]" if name == "a.json" else "")
        assert path.stat().st_size > 50_000_000
        tracemalloc.start()
        try:
            assert sum(1 for _ in open_dataset(path)) == 10_000
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 20_000_000


class TestRubricsInFiles:
    def test_the_text_of_the_file_becomes_part_of_the_case(self, folder: Path) -> None:
        (folder / "data").mkdir()
        write(folder, "kind.md", "\ufeffIs it kind?")
        rows = write(folder, "data/cases.jsonl", jsonl({"input": "a", "rubric_path": "kind.md"}, {"input": "b"}))
        assert list(open_dataset(rows, folder=folder)) == [
            Sample(0, "a", rubric="Is it kind?", rubric_path="kind.md"),
            Sample(1, "b"),
        ]

    def test_an_edited_file_makes_an_edited_case(self, folder: Path) -> None:
        def read(text: str) -> str:
            write(folder, "own.md", text)
            (sample,) = open_dataset([{"input": "a", "rubric_path": "own.md"}], folder=folder)
            return to_json(sample)

        assert read("Is it kind?") == read("Is it kind?") != read("Is it short?")

    def test_without_a_folder_the_path_stays_a_path(self) -> None:
        assert one({"input": "a", "rubric_path": "own.md"}) == Sample(0, "a", rubric_path="own.md")

    def test_a_file_that_many_cases_share_is_read_once(self, folder: Path) -> None:
        write(folder, "own.md", "Is it kind?")
        samples = open_dataset([{"input": str(n), "rubric_path": "own.md"} for n in range(3)], folder=folder)
        first = next(samples)
        (folder / "own.md").unlink()
        assert [sample.rubric for sample in (first, *samples)] == ["Is it kind?"] * 3

    @pytest.mark.parametrize(
        ("path", "reason"),
        [
            ("none.md", "'none.md' cannot be read: no such file"),
            ("../cases.jsonl", "'../cases.jsonl' is outside the suite's folder; move the file into it"),
            ("/etc/hostname", "'/etc/hostname' is outside the suite's folder; move the file into it"),
            ("away.md", "'away.md' is outside the suite's folder; move the file into it"),
            ("empty.md", "'empty.md' is empty"),
            ("binary.md", "'binary.md' is not valid UTF-8"),
        ],
    )
    def test_an_unreadable_rubric_is_reported_with_file_and_line(self, folder: Path, path: str, reason: str) -> None:
        write(folder, "empty.md", " \n")
        write(folder, "binary.md", b"\xff\xfe")
        (folder / "away.md").symlink_to("/etc/hostname")
        rows = write(folder, "cases.jsonl", jsonl({"input": "a"}, {"input": "b", "rubric_path": path}))
        assert problem(rows, folder=folder) == f"{rows}:2: rubric_path: {reason}"

    def test_files_of_cases_that_are_left_out_are_not_read(self, folder: Path) -> None:
        rows = [{"input": "a", "tags": ["t"]}, {"input": "b", "rubric_path": "none.md"}]
        assert [sample.input for sample in open_dataset(rows, tags=["t"], folder=folder)] == ["a"]
