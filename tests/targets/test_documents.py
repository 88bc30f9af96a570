"""The documents that an agent retrieved: reported by it, or taken from the results of its tool calls."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import AgentError, ConfigError
from gradeline.model import Document, Message, Response, Sample, ToolCall, Trajectory, to_json
from gradeline.model.documents import MAX_DOCUMENT_CHARS, MAX_DOCUMENTS, joined_documents, read_documents
from gradeline.targets import create
from gradeline.targets.answer import AnswerReader, ResponseMap
from gradeline.usercode import protocol

PARIS = {"text": "Paris is the capital of France.", "id": "p", "score": 0.9}


class TestReading:
    @pytest.mark.parametrize(
        ("value", "documents"),
        [
            (None, None),
            ([], ()),
            ("", ()),
            ("one text", (Document("one text"),)),
            (["a", "b"], (Document("a"), Document("b"))),
            ([PARIS], (Document("Paris is the capital of France.", "p", 0.9),)),
            ([{"page_content": "a"}, {"content": "b", "doc_id": 7}], (Document("a"), Document("b", "7"))),
            ([{"id": "only"}], (Document("", "only"),)),
            ([{"text": "a", "score": "high"}], (Document("a"),)),
            ([{"text": "a", "score": float("nan")}], (Document("a"),)),
            ([{"text": "a", "score": 10**400}], (Document("a"),)),
            (["a\0b"], (Document("a\u2400b"),)),
        ],
    )
    def test_a_value_is_read_as_documents(self, value: object, documents: tuple[Document, ...] | None) -> None:
        assert read_documents(value) == documents

    @pytest.mark.parametrize("value", [3, {"text": "a"}, [3], [{}], [{"text": 3}], [{"id": True}], [["a"]], b"x"])
    def test_anything_else_is_a_bad_response(self, value: object) -> None:
        with pytest.raises(AgentError) as caught:
            read_documents(value)
        assert caught.value.type == "bad_response"

    @pytest.mark.parametrize("value", [["a"] * (MAX_DOCUMENTS + 1), ["a" * (MAX_DOCUMENT_CHARS + 1)]])
    def test_documents_are_bounded(self, value: object) -> None:
        with pytest.raises(AgentError) as caught:
            read_documents(value)
        assert caught.value.type == "too_large"

    def test_turns_of_which_one_is_unknown_are_unknown(self) -> None:
        one, two = Document("a"), Document("b")
        assert joined_documents([(one,), (), (two,)]) == (one, two)
        assert joined_documents([(one,), None]) is None
        assert joined_documents([]) is None


class TestPaths:
    def test_context_reads_texts_and_documents_also_ids(self) -> None:
        data = {"answer": "Paris", "docs": [PARIS, {"text": "b"}]}
        of_texts = AnswerReader(ResponseMap(output="answer", context="docs[].text")).read(data)
        assert of_texts.documents == (Document(PARIS["text"]), Document("b"))
        assert AnswerReader(ResponseMap(output="answer", documents="docs")).read(data).documents == (
            Document("Paris is the capital of France.", "p", 0.9),
            Document("b"),
        )

    def test_an_absent_field_is_unknown_and_an_empty_list_is_not(self) -> None:
        assert AnswerReader(ResponseMap(documents="docs")).read({"answer": "x"}).documents is None
        assert AnswerReader(ResponseMap(documents="docs || `[]`")).read({"answer": "x"}).documents == ()

    def test_a_stream_keeps_the_last_documents(self) -> None:
        reader = AnswerReader(ResponseMap(output="text", documents="docs"))
        events = [{"docs": ["a"]}, {"text": "x"}, {"text": "y", "docs": ["b"]}, {"docs": []}]
        assert reader.read_stream(map(json.dumps, events)).documents == (Document("b"),)

    def test_both_paths_conflict(self) -> None:
        with pytest.raises(ConfigError, match="conflicts with documents"):
            create("http", {"url": "http://a", "response": {"context": "a", "documents": "b"}})

    def test_a_program_reports_them(self) -> None:
        code = f"import json; print(json.dumps({{'text': 'x', 'docs': [{json.dumps(PARIS)}]}}))"
        config = {"command": [sys.executable, "-c", code], "output": "json", "response": {"documents": "docs"}}
        assert respond("command", config).documents == (Document("Paris is the capital of France.", "p", 0.9),)


def respond(kind: str, config: Mapping[str, Any], secrets: tuple[str, ...] = ()) -> Response:
    async def ask() -> Response:
        async with create(kind, config, secrets) as target:
            return await target.respond(Sample(id="1", input="x"))

    return asyncio.run(ask())


def searched(*results: Message, calls: int = 1, tools_known: bool = True) -> Response:
    made = tuple(ToolCall("search", "{}", f"c{number}") for number in range(calls))
    turn = (Message("assistant", tool_calls=made), *results, Message("assistant", "answer"))
    return Response(text="answer", trajectory=Trajectory((turn,), tools_known=tools_known))


def found(content: str, number: int = 0, *, is_error: bool = False) -> Message:
    return Message("tool", content, tool_call_id=f"c{number}", is_error=is_error)


def of_tool(tmp_path: Path, response: Response, **source: str) -> tuple[Document, ...] | None:
    path = tmp_path / "responses.jsonl"
    path.write_text(json.dumps({"id": "1", "response": json.loads(to_json(response))}))
    documents = {"tool": "search", **source}
    return respond("replay", {"responses": str(path), "documents": documents}).documents


class TestToolResults:
    @pytest.mark.parametrize(
        ("content", "documents"),
        [
            ("plain text", (Document("plain text"),)),
            ("", ()),
            ("null", ()),
            ("[]", ()),
            (json.dumps([PARIS, "b"]), (Document("Paris is the capital of France.", "p", 0.9), Document("b"))),
            (json.dumps(PARIS), (Document("Paris is the capital of France.", "p", 0.9),)),
            (json.dumps([{"title": "t", "url": "u"}]), (Document('{"title":"t","url":"u"}'),)),
            ("42", (Document("42"),)),
        ],
    )
    def test_a_result_is_one_document_or_a_list(
        self, tmp_path: Path, content: str, documents: tuple[Document, ...]
    ) -> None:
        assert of_tool(tmp_path, searched(found(content))) == documents

    def test_a_path_selects_them(self, tmp_path: Path) -> None:
        content = json.dumps({"results": [{"body": "a", "key": 1}, {"body": "b", "key": 2}]})
        path = "results[].{text: body, id: key}"
        assert of_tool(tmp_path, searched(found(content)), path=path) == (Document("a", "1"), Document("b", "2"))

    def test_the_results_of_all_calls_count_without_failed_ones(self, tmp_path: Path) -> None:
        response = searched(found("a"), found("out of order", 1, is_error=True), found("b", 2), calls=3)
        assert of_tool(tmp_path, response) == (Document("a"), Document("b"))

    def test_a_tool_that_was_not_called_retrieved_nothing(self, tmp_path: Path) -> None:
        assert of_tool(tmp_path, searched(calls=0)) == ()

    @pytest.mark.parametrize(
        "response",
        [
            Response(text="answer"),
            searched(found("a"), tools_known=False),
            searched(calls=1),
            searched(found("not json")),
            searched(found("{}")),
        ],
    )
    def test_what_is_not_reported_is_unknown(self, tmp_path: Path, response: Response) -> None:
        assert of_tool(tmp_path, response, path="results") is None

    def test_reported_documents_win(self, tmp_path: Path) -> None:
        response = Response(text="answer", documents=(Document("own"),))
        assert of_tool(tmp_path, response) == (Document("own"),)

    def test_an_invalid_path_is_a_config_fault(self) -> None:
        with pytest.raises(ConfigError, match="is not a valid JMESPath"):
            create("replay", {"run": "r", "documents": {"tool": "t", "path": "a..b"}})


class TestPythonAgents:
    def returned(self, tmp_path: Path, value: str) -> Response:
        from gradeline import run_suite

        (tmp_path / "agent.py").write_text(
            f"from gradeline.model import Document, Response\n\n\ndef answer(text):\n    return {value}\n"
        )
        suite = {
            "name": "docs",
            "dataset": [{"id": "1", "input": "x", "ground_truth": "x"}],
            "target": {"kind": "python", "function": "agent.py:answer"},
            "graders": {"exact": {"kind": "string-match"}},
        }
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        (record,) = run_suite(tmp_path / "suite.yaml", store="memory://").records()
        return record.response

    @pytest.mark.parametrize(
        "value",
        [
            "{'text': 'x', 'documents': [{'text': 'a', 'id': 'p'}]}",
            "{'text': 'x', 'documents': [Document('a', 'p')]}",
            "Response(text='x', documents=(Document('a', 'p'),))",
        ],
    )
    def test_they_return_documents(self, tmp_path: Path, value: str) -> None:
        assert self.returned(tmp_path, value).documents == (Document("a", "p"),)

    def test_they_return_context(self, tmp_path: Path) -> None:
        assert self.returned(tmp_path, "{'text': 'x', 'context': 'a'}").documents == (Document("a"),)
        assert self.returned(tmp_path, "{'text': 'x', 'context': []}").documents == ()
        assert self.returned(tmp_path, "'x'").documents is None

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("{'text': 'x', 'documents': 3}", "agent.py:answer returned documents that cannot be read: documents are"),
            ("{'text': 'x', 'documents': [], 'context': []}", "returned a dict with both 'documents' and 'context'"),
        ],
    )
    def test_other_values_are_bad_responses(self, tmp_path: Path, value: str, message: str) -> None:
        error = self.returned(tmp_path, value).error
        assert error is not None
        assert (error.type, message in error.message) == ("bad_response", True)


def test_credentials_in_documents_are_masked(tmp_path: Path) -> None:
    code = "import json, os; print(json.dumps({'text': 'x', 'docs': [os.environ['API_KEY']]}))"
    config = {
        "command": [sys.executable, "-c", code],
        "output": "json",
        "response": {"context": "docs"},
        "env": {"API_KEY": "sk-12345678"},
    }
    response = respond("command", config)
    assert response.documents is not None
    assert "sk-12345678" not in response.documents[0].text
    assert response.cleaned


def test_workers_get_the_documents_of_a_response() -> None:
    response = Response(text="x", documents=(Document("a", "p", 0.5), Document("b")))
    job = protocol.Job(Sample(id="1", input="x"), (), response)
    sent = protocol.decode_request(protocol.encode(protocol.RunBatch(1, [job])))
    assert isinstance(sent, protocol.RunBatch)
    assert sent.jobs[0].response == response
