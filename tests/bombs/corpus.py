"""Small inputs that cost much time or memory where they are evaluated without a limit.

Each entry is data, and is made by code where it is long. The tests of the library, the command line and the service
use the same corpus; ``tests/bombs/attack.py`` sends it to a server under a memory limit.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any, NamedTuple

JSON = dict[str, Any]


class GraderBomb(NamedTuple):
    """A grader's options, an answer and an expectation."""

    name: str
    kind: str
    config: JSON
    submission: str
    expected: str | None = None


class AnswerBomb(NamedTuple):
    """The ``response`` of an http target, and the body that an agent answers."""

    name: str
    response: JSON
    body: str


class FileBomb(NamedTuple):
    """A file that somebody uploads or runs."""

    name: str
    suffix: str
    content: bytes


def doubled_references(levels: int, keyword: str = "anyOf") -> JSON:
    """Each definition refers to the next one twice."""
    definitions: JSON = {f"d{level}": {keyword: [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return {"$defs": {**definitions, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def _in_property(name: str, schema: JSON) -> JSON:
    return {"$defs": schema["$defs"], "properties": {name: {"$ref": schema["$ref"]}}}


def doubled_anchors(levels: int) -> JSON:
    definitions: JSON = {
        f"d{level}": {"$anchor": f"a{level}", "anyOf": [{"$ref": f"#a{level + 1}"}] * 2} for level in range(levels)
    }
    return {"$defs": {**definitions, "end": {"$anchor": f"a{levels}", "type": "string"}}, "$ref": "#a0"}


def nested_list(depth: int) -> str:
    return "[" * depth + "1" + "]" * depth


DOUBLING = "|".join(["[@,@][]"] * 60)
"""A JMESPath of half a kilobyte that makes 2**60 values of one."""


def _schemas() -> Iterator[tuple[str, JSON, str]]:
    yield "references doubled in anyOf", doubled_references(60), "1"
    yield "references doubled in allOf", doubled_references(60, "allOf"), '"x"'
    yield "references doubled in oneOf", doubled_references(60, "oneOf"), "1"
    yield "anchors doubled", doubled_anchors(60), "1"
    yield (
        "percent-encoded references doubled",
        json.loads(json.dumps(doubled_references(60)).replace("/d", "/%64")),
        "1",
    )
    yield (
        "references in a property named definitions",
        _in_property("definitions", doubled_references(60)),
        ('{"definitions": 1}'),
    )
    yield "faults that copy a long string", {"allOf": [{"type": "integer"}] * 2_000}, json.dumps("x" * 1_000_000)
    yield (
        "many alternatives on many values",
        {"anyOf": [{"items": {"type": "string"}}] * 2_000},
        json.dumps(["a"] * 500_000 + [1]),
    )
    yield "a counted pattern", {"pattern": "(a{1000}){50}"}, json.dumps("a" * 1_000_000)
    yield "a hundred counted patterns", {"allOf": [{"pattern": f"(a{{1000}}){{{50 + n}}}"} for n in range(100)]}, '"a"'
    yield (
        "counted patterns of properties",
        {"patternProperties": {f"(a?){{900}}{n}": {} for n in range(50)}},
        (json.dumps({"a" * 100_000: 1})),
    )
    yield "recursive alternatives", {"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 8}, nested_list(60)


def path_bombs() -> list[tuple[str, str, str]]:
    """A name, a JMESPath and the JSON that it is searched in."""
    return [
        ("doubling", DOUBLING, "[1]"),
        ("doubling of objects", "|".join(["[@,@].{a:@,b:@}.[a,b]"] * 30), "[1]"),
        ("doubling without flattening", "to_string(" + "|".join(["[@,@]"] * 60) + ")", "[1]"),
        ("escapes of escapes", "to_string([" * 60 + "@" + "])" * 60, json.dumps('"' * 20)),
        ("an expression that is passed on", f"[&({DOUBLING}),@]|map([0],[1])", "[1,2,3]"),
        ("a separator from the data", "join([0],[1])", json.dumps(["x" * 100_000, ["y"] * 100_000])),
        ("a long list from literals", "|".join(["map(&`[1,2,3,4,5,6,7,8]`,@)[]"] * 12), "[1,2,3,4,5,6,7,8]"),
    ]


def grader_bombs() -> list[GraderBomb]:
    bombs = [
        GraderBomb(f"schema: {name}", "json_schema", {"schema": schema}, text) for name, schema, text in _schemas()
    ]
    bombs += [
        GraderBomb(f"rule: {name}", "custom-rules", {"rules": [{"condition": "json_schema", "value": schema}]}, text)
        for name, schema, text in list(_schemas())[:2]
    ]
    bombs += [
        GraderBomb(f"JMESPath: {name}", "custom-rules", _rules("json", path=path, operator="exists"), text)
        for name, path, text in path_bombs()
    ]
    pattern = "(a?){1000}b"
    bombs += [
        GraderBomb("rule: a counted pattern", "custom-rules", _rules("regex", value=pattern), "a" * 2_000_000),
        GraderBomb(
            "rule: a hundred patterns",
            "custom-rules",
            {"rules": [{"condition": "regex", "value": f"(a?){{{100 + n}}}b"} for n in range(100)]},
            "a" * 5_000,
        ),
        GraderBomb("rule: nested patterns", "custom-rules", _nested(pattern), "a" * 5_000),
        GraderBomb(
            "rule: all matches, each to the end",
            "custom-rules",
            _rules("count", pattern="a.*b|a", min=1),
            "a" * 300_000,
        ),
        GraderBomb("regex_match: backtracking", "regex_match", {}, "a" * 40 + "!", r"(?=a)(a+)+$"),
        GraderBomb("regex_match: a counted pattern", "regex_match", {}, "a" * 1_000_000, pattern),
        GraderBomb("similarity: long texts", "similarity", {}, _letters(100_000, 7), _letters(100_000, 11)),
        GraderBomb("rouge: long texts", "rouge", {}, " ".join(_letters(50_000, 7)), " ".join(_letters(50_000, 11))),
        GraderBomb(
            "string-match: fuzzy, long texts",
            "string-match",
            {"mode": "fuzzy"},
            _letters(90_000, 7),
            _letters(90_000, 5),
        ),
        GraderBomb(
            "json_match: lists in any order",
            "json_match",
            {"mode": "subset", "ignore_list_order": True},
            json.dumps([[*range(index, index + 60)] for index in range(900)]),
            json.dumps([[*range(index, index + 59), -1] for index in range(900)]),
        ),
        GraderBomb("json_match: depth", "json_match", {}, nested_list(100_000), "[[1]]"),
        GraderBomb("json_match: a huge number", "json_match", {}, "9" * 5_000_000, "[1]"),
        GraderBomb("numeric: a huge number", "numeric", {}, "9" * 1_000_000, "1"),
        *long_inputs(),
        GraderBomb("string-match: a flood of marks", "string-match", {}, "a" + "\u0315\u0300" * 500_000, "a"),
    ]
    return bombs


def long_inputs() -> list[GraderBomb]:
    """Bombs whose time grows with their length, or with the product of two lengths."""
    numbers = json.dumps([0.5] * 1_200_000)
    calls, half = range(1_000), list(range(500))
    return [
        GraderBomb("numeric: many numbers", "numeric", {}, "1 " * 4_900_000, "1"),
        GraderBomb("numeric: many fractions", "numeric", {}, "\\frac{1}{2}" * 800_000, "1"),
        GraderBomb("string-match: many words", "string-match", {"normalize_whitespace": True}, "ab " * 3_000_000, "a"),
        GraderBomb("json_match: long lists in any order", "json_match", {"ignore_list_order": True}, numbers, numbers),
        GraderBomb("json_schema: a long list", "json_schema", {"schema": {"type": "object"}}, numbers),
        GraderBomb(
            "tool_calls: half of the calls match",
            "tool_calls",
            {"mode": "unordered"},
            json.dumps([{"name": "f", "arguments": {"a": number}} for number in calls]),
            json.dumps([{"name": "f", "arguments": {"a": half}} for _ in calls]),
        ),
        GraderBomb(
            "tool_calls: many calls of short text",
            "tool_calls",
            {"mode": "unordered"},
            json.dumps([{"name": "f"}] * 1_000),
            json.dumps([{"name": "f", "arguments": {"a": number}} for number in calls]),
        ),
    ]


def _rules(condition: str, **options: Any) -> JSON:
    return {"rules": [{"condition": condition, **options}]}


def _nested(pattern: str) -> JSON:
    rules: list[JSON] = [{"condition": "regex", "value": pattern}] * 4
    for _ in range(4):
        rules = [{"condition": "at_least", "n": 1, "rules": rules}] * 4
    return {"rules": rules}


def _letters(length: int, step: int) -> str:
    return "".join(chr(97 + (index * step + index // 13) % 26) for index in range(length))


def answer_bombs() -> list[AnswerBomb]:
    """Answers of agents with the options of an http target that make them expensive."""
    body = json.dumps({"response": "yes", "list": [1]})
    return [
        AnswerBomb("output", {"output": f"list|{DOUBLING}"}, body),
        AnswerBomb("tool_calls", {"output": "response", "tool_calls": f"list|{DOUBLING}"}, body),
        AnswerBomb("error", {"output": "response", "error": f"list|{DOUBLING}"}, body),
        AnswerBomb(
            "a large answer",
            {"output": "list[*].[@,@][]|[*].to_string([@,@,@,@])|join('',@)"},
            json.dumps({"list": ["x" * 100] * 80_000}),
        ),
    ]


def file_bombs() -> list[FileBomb]:
    aliases = ["a: &a [x,x,x,x,x,x,x,x,x]"]
    aliases += [f"{new}: &{new} [{','.join(['*' + old] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cases.csv", b"0" * 50_000_000)
    return [
        FileBomb("aliases", ".yaml", "\n".join(aliases).encode()),
        FileBomb("depth in YAML", ".yaml", b"[" * 100_000),
        FileBomb("depth in JSON", ".json", b"[" * 1_000_000),
        FileBomb("a huge number", ".json", b"9" * 5_000_000),
        FileBomb("a ZIP archive", ".csv", zipped.getvalue()),
        FileBomb("a gzip file", ".jsonl", gzip.compress(b"0" * 50_000_000)),
    ]
