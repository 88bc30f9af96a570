"""Archives and documents that are damaged or hostile are refused, or read as far as they are whole."""

from __future__ import annotations

import io
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline.cli.commands import run_command
from gradeline.errors import ConfigError, DataError
from gradeline.importers import inspect_sample, zip_members
from gradeline.importers.inspect_files import InspectLog, PlacedSample, UnreadableSample, array_items, open_log
from gradeline.importers.inspect_format import LoggedSample, decode
from gradeline.importers.inspect_sample import import_sample

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

EVAL = {"task": "t", "model": "m", "created": "2026-11-16T10:00:00+00:00", "dataset": {}, "config": {}}
HEADER: dict[str, Any] = {"version": 2, "status": "success", "eval": EVAL}


def sample(ident: str = "a", **parts: Any) -> dict[str, Any]:
    return {"id": ident, "epoch": 1, "input": "hi", "target": "ho", "scores": {"s": {"value": "C"}}, **parts}


def archive(members: Mapping[str, Any], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as written:
        for name, content in members.items():
            written.writestr(name, content if isinstance(content, bytes | str) else json.dumps(content))
    return file.getvalue()


def log(*samples: dict[str, Any], **members: Any) -> dict[str, Any]:
    named = {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in samples}
    return {"header.json": HEADER, **named, **members}


def opened(folder: Path, raw: bytes, name: str = "log.eval") -> InspectLog:
    path = folder / name
    path.write_bytes(raw)
    return open_log(path)


def read(folder: Path, raw: bytes, name: str = "log.eval") -> list[str]:
    """The ids of the samples, and what is wrong with those that cannot be read."""
    found = opened(folder, raw, name)
    try:
        return [one.reason if isinstance(one, UnreadableSample) else str(one.sample.id) for one in found.samples()]
    finally:
        found.close()


def refusal(folder: Path, raw: bytes, name: str = "log.eval") -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, raw, name)
    return caught.value.problems[0].message


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_methods_of_packing(method: int, tmp_path: Path) -> None:
    assert read(tmp_path, archive(log(sample("a"), sample("b")), method)) == ["a", "b"]


def test_samples_are_in_the_order_of_the_dataset_by_epoch(tmp_path: Path) -> None:
    samples = [sample("a"), sample("b"), {**sample("a"), "epoch": 2}, {**sample("b"), "epoch": 2}]
    ordered = {**HEADER, "eval": {**EVAL, "dataset": {"sample_ids": ["b", "a"]}}}
    found = opened(tmp_path, archive({**log(*reversed(samples)), "header.json": ordered}))
    read_samples = [one.sample for one in found.samples() if isinstance(one, PlacedSample)]
    assert [(one.id, one.epoch) for one in read_samples] == [("b", 1), ("a", 1), ("b", 2), ("a", 2)]
    found.close()


@pytest.mark.parametrize("name", ["../evil.json", "samples/../../evil.json", "/etc/passwd", "..\\evil", "\\\\host\\x"])
def test_names_that_lead_out_of_the_archive_are_refused(name: str, tmp_path: Path) -> None:
    assert "leads out of the archive; no log has such names" in refusal(tmp_path, archive(log(sample(), **{name: "x"})))


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    packed = zlib.compressobj(6, zlib.DEFLATED, -15)
    zeros = b"0" * 2**20
    content = b"".join(packed.compress(zeros) for _ in range(300)) + packed.flush()
    message = refusal(tmp_path, stated(content, 300 * 2**20))
    assert "unpacks to 300 MiB, more than 250 times its size" in message
    assert "unpack it with `inspect log convert --to json`" in message


def stated(content: bytes, size: int, method: int = 8, flags: int = 0) -> bytes:
    """An archive with a header, and a sample that is packed as given and states its size."""
    name = b"samples/a_epoch_1.json"
    written = archive({"header.json": HEADER})
    start = written.index(b"PK\x01\x02")
    directory = written[start : written.rindex(b"PK\x05\x06")]
    local = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, flags, method, 0, 0, 0, len(content), size, len(name), 0)
    entry = struct.pack(
        "<4s6H3I5H2I", b"PK\x01\x02", 20, 20, flags, method, 0, 0, 0, len(content), size, len(name), *[0] * 5, start
    )
    body = written[:start] + local + name + content
    entries = directory + entry + name
    return body + entries + struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 2, 2, len(entries), len(body), 0)


def test_a_member_that_is_larger_than_it_states_is_not_read(tmp_path: Path) -> None:
    packed = zlib.compress(b"0" * 10_000_000, wbits=-15)
    assert read(tmp_path, stated(packed, 100)) == ["is larger than the 100 bytes that the archive states"]


def test_a_member_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_members, "_RATIO_FROM", 2**40)
    assert read(tmp_path, stated(b"x", 257 * 2**20)) == ["has 257 MiB, and at most 256 MiB are read"]


@pytest.mark.parametrize(
    ("method", "flags", "reason"),
    [
        (8, 1, "is encrypted; decrypt the log first"),
        (12, 0, "is packed by method 12; Inspect's logs are packed by deflate or zstandard"),
        (8, 0, "is damaged (Error -3 while decompressing data: invalid block type); copy the log again"),
        (0, 0, "is damaged: size or checksum differ; copy the log again"),
    ],
)
def test_members_that_cannot_be_unpacked(method: int, flags: int, reason: str, tmp_path: Path) -> None:
    assert read(tmp_path, stated(b"\xff" * 30, 30, method, flags)) == [reason]


class TestZstandard:
    def test_several_frames(self, tmp_path: Path) -> None:
        raw = json.dumps(sample()).encode()
        content = zstd.compress(raw[:40]) + zstd.compress(raw[40:])
        written = stated(content, len(raw), 93)
        checksum = struct.pack("<I", zlib.crc32(raw))
        at = written.rindex(b"PK\x01\x02") + 16
        assert read(tmp_path, written[:at] + checksum + written[at + 4 :]) == ["a"]

    def test_a_bomb(self, tmp_path: Path) -> None:
        content = zstd.compress(b"0" * 50_000_000)
        assert read(tmp_path, stated(content, 1000, 93)) == ["is larger than the 1,000 bytes that the archive states"]

    def test_a_window_that_needs_gigabytes(self, tmp_path: Path) -> None:
        content = b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x00" * 20  # a window of 2 GiB
        (reason,) = read(tmp_path, stated(content, 10, 93))
        assert reason.startswith("is damaged (")

    def test_a_frame_that_ends_too_early(self, tmp_path: Path) -> None:
        content = zstd.compress(json.dumps(sample()).encode())[:-5]
        assert read(tmp_path, stated(content, 1000, 93)) == ["ends too early; copy the log again"]

    def test_without_the_package_the_extra_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("backports.zstd", "compression.zstd"):
            monkeypatch.setitem(sys.modules, name, None)
        message = refusal(tmp_path, stated(zstd.compress(b"{}"), 2, 93))
        assert "needs: pip install 'gradeline[inspect]'" in message


def test_members_that_overlap_are_refused(tmp_path: Path) -> None:
    written = archive(log(sample("a"), sample("b")))
    places = [at for at in range(len(written)) if written.startswith(b"PK\x01\x02", at)]
    start = written[places[0] + 42 : places[0] + 46]
    for at in places[1:]:
        written = written[: at + 42] + start + written[at + 46 :]
    assert "overlap; no log has this" in refusal(tmp_path, written)


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_members, "MAX_MEMBERS", 3)
    raw = archive(log(*(sample(str(number)) for number in range(5))))
    assert refusal(tmp_path, raw) == "has 6 members, and at most 3 are read; import a log with fewer samples"


def test_an_archive_that_is_no_log(tmp_path: Path) -> None:
    message = "has neither header.json nor _journal/start.json, so it is not a log of Inspect"
    assert refusal(tmp_path, archive({"notes.txt": "x"})) == message


@pytest.mark.parametrize("cut", range(5, 95, 15))
def test_an_archive_written_as_a_stream_and_cut_off(cut: int, tmp_path: Path) -> None:
    """Its members state their sizes after their content."""
    whole = streamed(log(*(sample(str(number), metadata={"text": "x" * 500}) for number in range(9))))
    ends = [at for at in range(len(whole)) if whole.startswith((b"PK\x03\x04", b"PK\x01\x02"), at)]
    size = len(whole) * cut // 100
    complete = sum(end <= size for end in ends[1:11])
    if not complete:
        assert "has no readable start: it was cut off in its member 1" in refusal(tmp_path, whole[:size])
        return
    found = read(tmp_path, whole[:size])
    # a last member whose content is whole, and the record after it is not, is read too
    assert found in ([str(number) for number in range(complete - 1)], [str(number) for number in range(complete)])


def streamed(members: Mapping[str, Any]) -> bytes:
    class Stream(io.RawIOBase):
        written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.written += bytes(data)
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, json.dumps(content))
    return stream.written


def test_a_sample_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    bad = {
        "samples/b_epoch_1.json": "{",
        "samples/c_epoch_1.json": json.dumps(sample("c")).encode("utf-16"),
        "samples/d_epoch_1.json": '{"id": "d", "epoch": 1, "input": "caf\xe9"}'.encode("latin-1"),
        "samples/e_epoch_1.json": '{"id": "e", "epoch": 1, "metadata": {"deep": %s}}' % ("[" * 100_000 + "]" * 100_000),
        "samples/f_epoch_1.json": {"id": "f", "epoch": "one"},
    }
    found = read(tmp_path, archive(log(sample(), **bad)))
    assert found[0] == "a"
    assert [reason.split(":")[0] for reason in found[1:]] == [
        "is not a part of an Inspect log",
        "is not a part of an Inspect log",
        "is not a part of an Inspect log",
        "is nested too deeply",
        "is not a part of an Inspect log",
    ]
    assert found[5].endswith("Expected `int`, got `str` - at `$.epoch`")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            b'{"version": 2, "status": "success"}',
            "is not a part of an Inspect log: Object missing required field `eval`",
        ),
        (json.dumps(HEADER).encode("utf-16"), "is not a part of an Inspect log: "),
        (b'{"version": 2, "status": "success", "eval": {"task": "caf\xe9"}}', "is not a part of an Inspect log: "),
        (b"", "is not a part of an Inspect log: "),
    ],
)
def test_a_document_that_is_no_log(raw: bytes, message: str, tmp_path: Path) -> None:
    assert refusal(tmp_path, raw, "log.json").startswith(message)


def test_a_document_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    with path.open("wb") as file:
        file.write(json.dumps(HEADER).encode())
        file.truncate(2 * 2**30)
    with pytest.raises(ConfigError, match=r"has 2,048 MiB, and at most 512 MiB of JSON are read; convert it with"):
        open_log(path)


def test_a_document_with_a_byte_order_mark_and_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    text = json.dumps({**HEADER, "samples": [sample("a", scores={"s": {"value": float("nan")}}), sample("NaN, b")]})
    assert "NaN}" in text
    assert read(tmp_path, b"\xef\xbb\xbf" + text.encode(), "log.json") == ["a", "NaN, b"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)
    )
)
def test_json_with_numbers_that_it_does_not_have_is_read_as_python_reads_it(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    names = {"NaN": None, "Infinity": "Infinity", "-Infinity": "-Infinity"}
    assert decode(text.encode(), object) == json.loads(text, parse_constant=names.__getitem__)


@given(st.lists(st.recursive(st.integers() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one))))
def test_items_of_an_array_are_found_without_parsing_it(items: list[Any]) -> None:
    for indent in (None, 1):
        raw = json.dumps(items, ensure_ascii=False, indent=indent).encode()
        assert [json.loads(bytes(item)) for item in array_items(memoryview(raw))] == items


@given(st.data())
def test_damaged_bytes_never_crash(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = archive(log(*(sample(str(number)) for number in range(4))))
    raw = bytearray(whole[: data.draw(st.integers(1, len(whole)))])
    for _ in range(data.draw(st.integers(0, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ConfigError):
        read(tmp_path_factory.getbasetemp(), bytes(raw))


class TestChunkedSamples:
    def test_chunks_are_joined_in_the_order_of_their_numbers(self, tmp_path: Path) -> None:
        chunks = {f"samples/a_epoch_1/messages/{start}.json": [message(str(start))] for start in (10, 2, 0, 1)}
        file = opened(tmp_path, archive({**shell([[0, 3], [10, 11]]), **chunks}))
        (found,) = file.samples()
        file.close()
        assert isinstance(found, PlacedSample)
        assert [one.content for one in found.sample.messages] == ["0", "1", "2", "10"]

    def test_a_chunk_that_is_missing(self, tmp_path: Path) -> None:
        chunks = {"samples/a_epoch_1/messages/0.json": [message("0")]}
        assert read(tmp_path, archive({**shell([[0, 2]]), **chunks})) == [
            "has no message 1; a chunk of its messages is missing"
        ]

    def test_references_to_billions_of_messages(self, tmp_path: Path) -> None:
        chunks = {"samples/a_epoch_1/messages/0.json": [message("0")]}
        raw = archive({**shell([[0, 10**12]]), **chunks})
        assert read(tmp_path, raw) == ["refers to 1,000,000,000,000 messages, and has 1"]

    def test_its_chunks_are_no_larger_than_a_member_may_be(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gradeline.importers.inspect_files.MAX_MEMBER_BYTES", 10_000)
        chunks = {f"samples/a_epoch_1/messages/{start}.json": [message("x" * 3000)] for start in range(9)}
        (reason,) = read(tmp_path, archive({**shell([[0, 9]]), **chunks}))
        assert reason.startswith("has 0 MiB, and at most 0 MiB are read")


def shell(refs: list[list[int]]) -> dict[str, Any]:
    return {"header.json": HEADER, "samples/a_epoch_1/sample.json": sample(message_refs=refs)}


def message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_attachments_that_are_referred_to_very_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_sample, "_MAX_CHARS", 10_000)
    messages = [message("attachment://0")] * 100
    logged = decode(json.dumps(sample(messages=messages, attachments={"0": "x" * 1000})).encode(), LoggedSample)
    with pytest.raises(DataError, match="has more than 10,000 characters with its attachments in place"):
        import_sample(logged)


@pytest.mark.parametrize(("seconds", "latency_ms"), [(0.25, 250.0), (0, 0.0), (-5, None), (1e308, None)])
def test_times_that_are_none_are_unknown(seconds: float, latency_ms: float | None) -> None:
    logged = decode(json.dumps(sample(total_time=seconds)).encode(), LoggedSample)
    assert import_sample(logged).response.latency_ms == latency_ms


class TestImport:
    @pytest.fixture(autouse=True)
    def project(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

    def imported(self, raw: bytes, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
        Path("log.eval").write_bytes(raw)
        code = run_command(["import", "log.eval", "--output", "imported", "--json"])
        return code, json.loads(capsys.readouterr().out)

    def test_what_cannot_be_read_is_reported_with_its_place(self, capsys: pytest.CaptureFixture[str]) -> None:
        twice = {"samples/b_epoch_1.json": "{", "samples/a_epoch_01.json": sample()}
        code, report = self.imported(archive(log(sample(), **twice)), capsys)
        left_out = {item["places"][0]: item["note"] for item in report["items"] if item["state"] == "not mapped"}
        assert code == 1
        assert left_out["log.eval:samples/a_epoch_01.json"] == "its id and epoch are those of another; that is kept"
        assert left_out["log.eval:samples/b_epoch_1.json"].startswith("is not a part of an Inspect log: ")

    def test_a_log_without_samples(self, capsys: pytest.CaptureFixture[str]) -> None:
        Path("log.eval").write_bytes(archive({"header.json": HEADER}))
        assert run_command(["import", "log.eval", "--output", "imported"]) == 2
        assert "has no samples that can be read: run Inspect with --log-samples" in capsys.readouterr().err
        assert not Path("imported").exists()

    def test_epochs_are_bounded_and_counted(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A suite that repeats its cases 10^30 times never ends, and a store has no such number."""
        bad = {f"samples/{epoch}_epoch_1.json": sample(epoch=int(epoch)) for epoch in ("0", "-5", "10001", "9" * 30)}
        code, report = self.imported(archive(log(sample("a"), sample("a", epoch=3), **bad)), capsys)
        assert code == 1
        places = [place for item in report["items"] if item["state"] == "not mapped" for place in item["places"]]
        assert sorted(places) == sorted(f"log.eval:{name}" for name in bad)
        assert "repeats: 3" in Path("imported/suite.yaml").read_text()
        header = {**HEADER, "eval": {**EVAL, "config": {"epochs": 10**30}}}
        Path("log.eval").write_bytes(archive({**log(sample()), "header.json": header}))
        assert run_command(["import", "log.eval", "--output", "again"]) == 2
        assert "Expected `int` <= 10000 - at `$.eval.config.epochs`" in capsys.readouterr().err

    def test_columns_of_scores_are_bounded(self, capsys: pytest.CaptureFixture[str]) -> None:
        samples = [
            sample(str(one), scores={"s": {"value": {f"{one}-{key}": 1 for key in range(900)}}}) for one in range(3)
        ]
        code, report = self.imported(archive(log(*samples)), capsys)
        left_out = [item for item in report["items"] if item["state"] == "not mapped"]
        assert code == 1
        assert left_out[0]["note"] == "is beyond the first 200 columns of scores; import fewer scorers"
        assert run_command(["show", "latest", "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["summary"]["graders"]) == 200

    def test_an_archive_is_known_by_its_members(self, capsys: pytest.CaptureFixture[str]) -> None:
        whole = archive(log(sample("a"), sample("b")))
        for name, raw in (("log.zip", whole), ("cut.zip", whole[: whole.index(b"samples/b")])):
            Path(name).write_bytes(raw)
            assert run_command(["import", name, "--output", f"from {name}", "--json"]) in (1, 3)
            assert json.loads(capsys.readouterr().out)["kind"] == "inspect"

    def test_text_of_the_log_is_inert(self, capsys: pytest.CaptureFixture[str]) -> None:
        name = "s\x1b[31m<script>"
        header = {**HEADER, "eval": {**EVAL, "task": "../../etc/\x1b[0m", "scorers": [{"name": name}]}}
        hostile = sample("a\x00../b", scores={name: {"value": "C"}}, metadata={"__proto__": {"x": 1}})
        code, report = self.imported(archive({"header.json": header, "samples/a_epoch_1.json": hostile}), capsys)
        assert code == 1
        assert "\x1b" not in json.dumps(report, ensure_ascii=False)
        text = Path("imported/import.md").read_text()
        assert "\x1b" not in text
        assert "<script>" not in text
        assert sorted(path.name for path in Path("imported").iterdir()) == [
            "answers.jsonl",
            "cases.jsonl",
            "import.md",
            "suite.yaml",
        ]
