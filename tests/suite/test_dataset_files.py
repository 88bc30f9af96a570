from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.cases import DatasetError
from gradeline.suite.dataset import open_dataset
from gradeline.suite.dataset_source import DatasetNameError, DatasetSource, read_source
from gradeline.suite.hub import HubDataset


def rows(*inputs: str) -> str:
    return "".join(json.dumps({"id": text, "input": text}) + "\n" for text in inputs)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "a.jsonl").write_text(rows("a1", "a2"))
    (tmp_path / "b" / "2.jsonl").write_text(rows("b2"))
    (tmp_path / "b" / "1.jsonl").write_text(rows("b1"))
    (tmp_path / "b" / "note.txt").write_text("no dataset")
    return tmp_path


def inputs(source: Any, folder: Path) -> list[Any]:
    return [sample.input for sample in open_dataset(read_source(source, folder))]


def test_files_come_in_the_order_of_the_list_and_those_of_a_pattern_sorted(folder: Path) -> None:
    assert inputs(["b/*.jsonl", "a.jsonl"], folder) == ["b1", "b2", "a1", "a2"]
    assert inputs("**/*.jsonl", folder) == ["a1", "a2", "b1", "b2"]
    assert inputs(str(folder / "b" / "*.jsonl"), folder) == ["b1", "b2"]


def test_a_file_may_have_the_characters_of_a_pattern(folder: Path) -> None:
    (folder / "a[1].jsonl").write_text(rows("x"))
    assert inputs("a[1].jsonl", folder) == ["x"]


def test_rows_are_numbered_through_all_files(folder: Path) -> None:
    source = DatasetSource((folder / "x.jsonl", folder / "y.csv"), ids="number")
    (folder / "x.jsonl").write_text('{"input": "a"}\n{"input": "b"}\n')
    (folder / "y.csv").write_text("input\nc\n")
    assert [sample.id for sample in open_dataset(source)] == [0, 1, 2]


def test_an_id_is_unique_in_all_files(folder: Path) -> None:
    (folder / "z.jsonl").write_text(rows("a1"))
    with pytest.raises(DatasetError, match=r"z.jsonl:1: another case above has the id 'a1'"):
        inputs(["a.jsonl", "z.jsonl"], folder)


def test_a_list_of_mappings_is_a_list_of_cases(folder: Path) -> None:
    assert inputs([{"input": "x"}], folder) == ["x"]
    assert read_source([], folder).is_empty


@pytest.mark.parametrize(
    ("written", "path", "message"),
    [
        ("c/*.jsonl", (), "no file matches 'c/*.jsonl' in "),
        (["a.jsonl", "b/*.csv"], (1,), "no file matches 'b/*.csv' in "),
        (["a.jsonl", "A.jsonl"], (1,), "no file 'A.jsonl'; did you mean 'a.jsonl'?"),
        ("b/3.jsonl", (), "no file 'b/3.jsonl'; did you mean 'b/"),
        ("b", (), "'b' is a folder; name its files, such as b/*.jsonl"),
        (["a.jsonl", {"input": "x"}], (1,), "is a case in a list of files; write either files or cases"),
        (["*.jsonl", "a.jsonl"], (1,), "a.jsonl' a second time; leave it out"),
        ("hf://datasets/a/b/c", (), "expected hf://datasets/OWNER/NAME/CONFIG/SPLIT"),
        ("hf://models/a/b/c/d", (), "expected hf://datasets/OWNER/NAME/CONFIG/SPLIT"),
    ],
)
def test_a_name_of_nothing_is_refused_with_its_place(folder: Path, written: Any, path: Any, message: str) -> None:
    with pytest.raises(DatasetNameError) as caught:
        read_source(written, folder)
    assert message in str(caught.value)
    assert caught.value.path == path


def test_a_dataset_of_the_hub_is_read_from_its_name() -> None:
    dataset = HubDataset.parse("hf://datasets/ibm/duorc@refs%2Fx/SelfRC/test")
    assert dataset == HubDataset("ibm/duorc", "SelfRC", "test", "refs/x")
    assert str(dataset) == "hf://datasets/ibm/duorc@refs%2Fx/SelfRC/test"


class TestGzip:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("a.jsonl.gz", rows("x", "y")),
            ("a.csv.gz", "input\nx\ny\n"),
            ("a.json.gz", '[{"input": "x"}, {"input": "y"}]'),
            ("A.JSONL.GZ", rows("x", "y")),
        ],
    )
    def test_packed_text_is_read(self, folder: Path, name: str, text: str) -> None:
        (folder / name).write_bytes(gzip.compress(text.encode()))
        assert inputs(name, folder) == ["x", "y"]

    def test_a_fault_has_the_line_of_the_text(self, folder: Path) -> None:
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(rows("x").encode() + b"{"))
        with pytest.raises(DatasetError, match=r"a.jsonl.gz:2: not JSON"):
            inputs("a.jsonl.gz", folder)

    @pytest.mark.parametrize(
        "packed", [b"no gzip", gzip.compress(b'{"input": "x"}\n' * 100)[:-12]], ids=["other bytes", "truncated"]
    )
    def test_an_incomplete_gzip_file_is_refused(self, folder: Path, packed: bytes) -> None:
        (folder / "a.jsonl.gz").write_bytes(packed)
        with pytest.raises(DatasetError, match=r"a.jsonl.gz: is not a complete gzip file"):
            inputs("a.jsonl.gz", folder)

    def test_a_bomb_is_refused_before_it_is_unpacked(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gradeline.suite.text_files._RATIO_FROM", 1_000_000)
        (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"\n" * 50_000_000))
        with pytest.raises(DatasetError, match="unpacks to more than 200 times its size"):
            inputs("a.jsonl.gz", folder)


class TestParquet:
    def write(self, folder: Path, select: str) -> Path:
        duckdb = pytest.importorskip("duckdb")
        path = folder / "a.parquet"
        duckdb.connect(":memory:").execute(f"COPY ({select}) TO '{path}' (FORMAT parquet)")
        return path

    def test_values_become_data_by_the_documented_rule(self, folder: Path) -> None:
        path = self.write(
            folder,
            "SELECT 'q' AS input, 42 AS ground_truth, ['a', 'b'] AS tags, {'a': 1, 'b': [date '2026-11-16']} AS nested,"
            " map {'k': 1.5::decimal(4,2)} AS m, 1.50::decimal(10,2) AS price, true AS yes, 'nan'::double AS nothing,"
            " timestamp '2026-11-16 09:30:00' AS at, timestamptz '2026-11-16 09:30:00+02' AS zoned,"
            " time '09:30:00' AS clock, NULL::int AS gone, uuid '00000000-0000-0000-0000-000000000001' AS u",
        )
        (sample,) = open_dataset(path)
        assert (sample.input, sample.ground_truth, sample.tags) == ("q", "42", ("a", "b"))
        assert sample.metadata == {
            "nested": {"a": 1, "b": ["2026-11-16"]},
            "m": {"k": "1.50"},
            "price": "1.50",
            "yes": True,
            "at": "2026-11-16T09:30:00",
            "zoned": "2026-11-16 07:30:00+00",
            "clock": "09:30:00",
            "u": "00000000-0000-0000-0000-000000000001",
        }

    def test_columns_lead_into_structs(self, folder: Path) -> None:
        path = self.write(folder, "SELECT 'q' AS question, {'text': ['yes']} AS answers")
        (sample,) = open_dataset(path, columns={"input": "question", "ground_truth": "answers.text[0]"})
        assert (sample.input, sample.ground_truth) == ("q", "yes")

    def test_a_binary_column_is_refused_unless_it_is_left_out(self, folder: Path) -> None:
        path = self.write(folder, "SELECT 'q' AS input, {'bytes': 'x'::blob} AS image, 1 AS level")
        with pytest.raises(DatasetError) as caught:
            list(open_dataset(path))
        assert str(caught.value) == (
            f"{path}:1: image: the column is binary (STRUCT(bytes BLOB)), and a case is text; leave it out by listing the"
            " columns you need: columns: {input: …, ground_truth: …, metadata: {…}}"
        )
        (sample,) = open_dataset(path, columns={"metadata": {"level": "level"}})
        assert sample.metadata == {"level": 1}

    def test_a_fault_has_its_row(self, folder: Path) -> None:
        path = self.write(folder, "SELECT CASE WHEN i = 700 THEN '' ELSE 'q' || i END AS input FROM range(1000) r(i)")
        with pytest.raises(DatasetError, match=r"a.parquet:701: input: "):
            list(open_dataset(path))
        assert len(list(open_dataset(path, limit=700))) == 700

    def test_an_unknown_column_is_refused_by_the_schema(self, folder: Path) -> None:
        path = self.write(folder, "SELECT 'q' AS question LIMIT 0")
        with pytest.raises(DatasetError, match=r"no column 'qestion'; did you mean 'question'\?"):
            list(open_dataset(path, columns={"input": "qestion"}))

    def test_a_file_that_is_not_parquet_is_refused(self, folder: Path) -> None:
        (folder / "a.parquet").write_text("no")
        with pytest.raises(DatasetError, match=r"a.parquet: cannot be read as Parquet"):
            list(open_dataset(folder / "a.parquet"))

    def test_a_name_with_the_characters_of_a_pattern(self, folder: Path) -> None:
        self.write(folder, "SELECT 'q' AS input").rename(folder / "a[b]*.parquet")
        assert inputs("a[b]*.parquet", folder) == ["q"]

    def test_without_duckdb_the_remedy_names_the_extra(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = self.write(folder, "SELECT 'q' AS input")
        monkeypatch.setitem(sys.modules, "duckdb", None)
        with pytest.raises(DatasetError, match=r"pip install 'gradeline\[export\]'"):
            list(open_dataset(path))
