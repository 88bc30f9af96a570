from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gradeline.errors import ConfigError, Problem
from gradeline.suite import document as module
from gradeline.suite.document import SuiteDocument, override, parse_document, read_document
from gradeline.suite.problems import DocumentError, SourcePosition, SuiteProblem
from gradeline.suite.read import read_suite

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def read(text: str, file: str = "suite.yaml") -> Any:
    return parse_document(text.encode(), file).data


def problems(text: str | bytes, file: str = "suite.yaml") -> list[str]:
    with pytest.raises(DocumentError) as caught:
        parse_document(text.encode() if isinstance(text, str) else text, file)
    return [str(problem) for problem in caught.value.suite_problems]


def problem(text: str | bytes, file: str = "suite.yaml") -> str:
    found = problems(text, file)
    assert len(found) == 1
    return found[0]


@pytest.fixture(params=["C", "Python"], autouse=True)
def loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every test runs without libyaml too."""
    if request.param == "Python":
        monkeypatch.setattr(module, "_LOADER", yaml.SafeLoader)
    return str(request.param)


class TestScalars:
    @pytest.mark.parametrize(
        ("written", "value"),
        [
            *((text, text) for text in ("no", "yes", "on", "off", "y", "N", "2020-01-01", "1:30", "1_000", "0b1")),
            *(
                (text, text)
                for text in ("-x", "+", ".", "1.2.3", "0o8", "0xg", "1e", "nan", "inf", "tRUE", "12 apples")
            ),
            ("true", True),
            ("False", False),
            ("TRUE", True),
            ("~", None),
            ("null", None),
            ("", None),
            ("12", 12),
            ("-7", -7),
            ("+7", 7),
            ("012", 12),
            ("0o17", 15),
            ("0xFf", 255),
            ("1.50", 1.5),
            ("-.5", -0.5),
            ("1.", 1.0),
            ("1e3", 1000.0),
            ("'12'", "12"),
            ('"true"', "true"),
            ("!!str 012", "012"),
            ("! 12", "12"),
            ("!!int '12'", 12),
            ("!!float 1", 1.0),
            ("!!null ''", None),
            ("|\n  two\n  lines\n", "two\nlines\n"),
        ],
    )
    def test_plain_scalars_follow_yaml_1_2(self, written: str, value: object) -> None:
        read_value = read(f"a: {written}")["a"]
        assert (read_value, type(read_value)) == (value, type(value))

    @pytest.mark.parametrize("written", [".nan", ".NaN", ".inf", "-.INF", "1e999"])
    def test_numbers_that_are_not_finite_are_refused(self, written: str) -> None:
        assert problem(f"a:\n  b: {written}").startswith(f"suite.yaml:2:6: a.b: {written!r} is not a finite number")

    def test_numbers_of_thousands_of_digits_are_refused(self) -> None:
        assert problem(f"a: {'9' * 5_000}").startswith("suite.yaml:1:4: a: a number of 5,000 digits is too large")

    @pytest.mark.parametrize("tag", ["!!python/object:os.system", "!!binary", "!!timestamp", "!mine", "!!set"])
    @pytest.mark.parametrize("value", ["x", "{}", "[]"])
    def test_other_tags_are_refused(self, tag: str, value: str) -> None:
        assert problem(f"a: {tag} {value}").startswith(f"suite.yaml:1:4: a: the tag {tag} is not supported")

    def test_a_tag_must_fit_its_value(self) -> None:
        assert problem("a: !!int x") == "suite.yaml:1:4: a: 'x' is not a valid int"


class TestKeys:
    def test_keys_are_texts_as_written(self) -> None:
        assert read("1: a\ntrue: b\nno: c\n0x1: d\n1.50: e\n~: f") == dict(
            zip(["1", "true", "no", "0x1", "1.50", "~"], "abcdef", strict=True)
        )

    def test_duplicates_are_refused_with_both_positions(self) -> None:
        assert problems("g:\n  a: 1\n  b: 2\n  a: 3\n'1': x\n1: y\n") == [
            "suite.yaml:4:3: g.a: the key is written twice (first in line 2, column 3); keep one",
            "suite.yaml:6:1: 1: the key is written twice (first in line 5, column 1); keep one",
        ]

    @pytest.mark.parametrize("key", ["? [a]\n", "? {a: b}\n", "[a]"])
    def test_lists_and_mappings_are_refused_as_keys(self, key: str) -> None:
        assert "a list or mapping cannot be a key" in problem(f"{key}: x\nb: 1")

    def test_aliases_are_refused_as_keys(self) -> None:
        assert problem("a: &x b\n*x : c") == "suite.yaml:2:1: an alias cannot be a key; write the key out"

    def test_an_empty_key_is_refused(self) -> None:
        assert problem("?\n: x") == "suite.yaml:1:2: a key is missing before ':'"


class TestAliases:
    def test_an_alias_repeats_its_value_as_a_copy(self) -> None:
        data = read("a: &x {b: [1]}\nc: *x")
        assert data == {"a": {"b": [1]}, "c": {"b": [1]}}
        data["c"]["b"].append(2)
        assert data["a"] == {"b": [1]}

    def test_merge_keys_fill_in_what_is_not_written(self) -> None:
        text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {<<: *b}\n'<<': text"
        assert read(text)["c"] == {"x": 1, "y": 1, "z": 3}
        assert read(text)["d"] == {"y": 2, "z": 2}
        assert read('"<<": {a: 1}') == {"<<": {"a": 1}}

    def test_only_mappings_can_be_merged(self) -> None:
        assert problem("a:\n  <<: 3").startswith("suite.yaml:2:7: a.<<: <<: requires a mapping")

    def test_unknown_and_recursive_aliases_are_refused(self) -> None:
        assert problem("a: *x") == "suite.yaml:1:4: a: no anchor &x above"
        assert problem("a: &x\n  b: [*x]") == "suite.yaml:2:7: a.b[0]: *x refers to itself"

    def test_alias_bombs_are_refused(self) -> None:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
        assert "aliases repeat more than 200,000 values" in problem("\n".join(lines))

    def test_long_texts_make_a_bomb_too(self) -> None:
        text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1_000)}]"
        assert "aliases repeat more than" in problem(text)

    def test_aliases_cannot_nest_deeper_than_the_limit(self) -> None:
        lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [[[[[*a{i - 1}]]]]]" for i in range(1, 40)]
        assert "nested more than 100 levels deep" in problem("\n".join(lines))


class TestPositions:
    TEXT = "name: x\ngraders:\n  exact:\n    kind: tool\n    list: [1, {a: ä, b: 2}]\n"

    @pytest.mark.parametrize(
        ("path", "line", "column"),
        [
            ((), 1, 1),
            (("name",), 1, 7),
            (("graders", "exact", "kind"), 4, 11),
            (("graders", "exact", "list", 1, "b"), 5, 25),
            (("graders", "exact", "missing"), 4, 5),
            (("graders", "exact", "list", 7), 5, 11),
            (("graders", "exact", "kind", "deeper", 3), 4, 11),
        ],
    )
    def test_a_path_has_the_position_of_its_value_or_its_nearest_parent(
        self, path: tuple[str | int, ...], line: int, column: int
    ) -> None:
        assert parse_document(self.TEXT.encode(), "s.yaml").position(path) == SourcePosition("s.yaml", line, column)

    def test_a_problem_has_position_and_path(self) -> None:
        found = parse_document(self.TEXT.encode(), "s.yaml").problem(("graders", "exact", "list", 0), "is odd")
        assert found == SuiteProblem("s.yaml", 5, 12, "graders.exact.list[0]", "is odd")
        assert str(found) == "s.yaml:5:12: graders.exact.list[0]: is odd"

    def test_an_alias_has_its_own_position_and_its_content_that_of_the_anchor(self) -> None:
        document = parse_document(b"a: &x\n  b: 1\nc: *x\nd:\n  <<: *x", "s.yaml")
        assert document.position(("c",)) == SourcePosition("s.yaml", 3, 4)
        assert document.position(("c", "b")) == document.position(("d", "b")) == SourcePosition("s.yaml", 2, 6)

    @given(st.dictionaries(st.text(), json_values, min_size=1, max_size=5))
    def test_any_json_reads_back_equal_with_every_line_right(self, tree: dict[str, Any]) -> None:
        text = json.dumps(tree, indent=1, ensure_ascii=len(tree) % 2 == 0)
        document = parse_document(text.encode(), "a.json")
        assert document.data == tree
        lines = text.split("\n")
        for path, value in leaves(tree):
            place = document.position(path)
            assert lines[place.line - 1][place.column - 1 :].startswith(
                json.dumps(value, ensure_ascii=len(tree) % 2 == 0)
            )

    @pytest.mark.slow
    @given(st.dictionaries(st.text("abc", min_size=1), json_values, max_size=5))
    def test_json_is_yaml_where_yaml_can_write_it(self, tree: dict[str, Any]) -> None:
        text = json.dumps(tree, indent=1)
        if "\\ud" not in text:
            assert read(text) == tree


def leaves(tree: Any, path: tuple[str | int, ...] = ()) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else None
    if not items:
        yield path, tree
    else:
        for step, item in items:
            yield from leaves(item, (*path, step))


class TestFiles:
    def test_a_file_is_read_with_its_digest(self, tmp_path: Path) -> None:
        path = tmp_path / "suite.yaml"
        path.write_bytes(b"\xef\xbb\xbfname: \xc3\xa4\r\nb: 1\r\n")
        document = read_document(path)
        assert document.data == {"name": "ä", "b": 1}
        assert document.position(("b",)) == SourcePosition(str(path), 2, 4)
        assert len(document.digest) == 64

    def test_an_unreadable_file_is_reported(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no\.yaml: no such file"):
            read_document(tmp_path / "no.yaml")
        with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
            read_document(tmp_path)

    def test_files_over_10_mb_are_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "big.yaml"
        with path.open("wb") as file:
            file.truncate(100_000_000)
        with pytest.raises(DocumentError, match="is larger than 10 MB"):
            read_document(path)

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
    def test_other_encodings_are_named(self, encoding: str) -> None:
        assert problem("name: x".encode(encoding)) == "suite.yaml: is UTF-16 or UTF-32; save it as UTF-8"

    def test_an_invalid_utf8_byte_is_reported_with_its_position(self) -> None:
        assert problem(b"a: 1\nb: \xc3\xa4\xff") == "suite.yaml:2:5: is not UTF-8: byte 0xff; save it as UTF-8"

    @pytest.mark.parametrize("character", ["\0", "\x07", "\x85", "\u2028"])
    def test_characters_that_yaml_forbids_or_breaks_lines_at_are_refused(self, character: str) -> None:
        code = f"{ord(character):04X}"
        assert problem(f"a: 1\nb: x{character}y").startswith(f"suite.yaml:2:5: the character U+{code} is not allowed")
        assert read(f'b: "x\\u{code}y"') == {"b": f"x{character}y"}

    @pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
    def test_an_empty_file_is_refused(self, text: str) -> None:
        assert problem(text) == "suite.yaml: is empty"

    def test_a_second_document_is_refused(self) -> None:
        assert problem("---\na: 1\n---\nb: 1\n").startswith("suite.yaml:3:1: a second document starts here")

    @pytest.mark.parametrize(("text", "got"), [("- a", "a list"), ("text", "'text'"), ("3", "3")])
    def test_the_top_must_be_a_mapping(self, text: str, got: str) -> None:
        assert problem(text) == f"suite.yaml:1:1: expected keys and values (name: …), got {got}"

    def test_the_top_can_be_a_list(self) -> None:
        assert parse_document(b"- 1", "a.yaml", top="list").data == [1]
        assert parse_document(b"3", "a.yaml", top="any").data == 3
        with pytest.raises(DocumentError, match=r"expected a list of rows .* got a mapping"):
            parse_document(b"a: 1", "a.yaml", top="list")

    @pytest.mark.parametrize(
        ("text", "file"), [("[" * 1_000_000, "a.yaml"), ("- " * 100_000, "a.yaml"), ("[" * 1_000_000, "a.json")]
    )
    def test_deep_nesting_is_refused(self, text: str, file: str) -> None:
        assert "nested more than 100 levels deep" in problem(text, file)
        assert read("a: " + "[" * 99 + "]" * 99)

    def test_many_tag_directives_are_refused(self) -> None:
        assert "%TAG directives" in problem("".join(f"%TAG !a{i}! b\n" for i in range(100_000)))


class TestFaults:
    def test_all_that_one_pass_finds_is_reported(self) -> None:
        with pytest.raises(DocumentError) as caught:
            parse_document(b"a: .nan\nb: !x 1\na: 2\nc: {\n", "s.yaml")
        assert [(problem.line, problem.path) for problem in caught.value.suite_problems[:3]] == [
            (1, "a"),
            (2, "b"),
            (3, "a"),
        ]
        assert "not YAML" in caught.value.suite_problems[3].message
        assert isinstance(caught.value, ConfigError)
        assert caught.value.problems[0] == Problem("s.yaml:1:4: a", caught.value.suite_problems[0].message)

    def test_the_list_of_problems_ends(self) -> None:
        found = problems("a: 1\n" * 10_000)
        assert len(found) == 101
        assert found[-1].endswith("there are more problems; fix those above first")

    @pytest.mark.parametrize(
        ("text", "place", "hint"),
        [
            ("a:\n\t- b\n", "2:1", "indent with spaces, not with tabs"),
            ("a: b: c", "1:5", "put a string that contains ': ' in quotes"),
            ("a: @x", "1:4", "put a string that starts with @ in quotes"),
            ("a: 'x'\n  b: 3", "2:3", "check the indentation"),
            ('a: "\\d"', "1:", "a backslash starts an escape"),
        ],
    )
    def test_invalid_yaml_is_reported_with_position_and_hint(self, text: str, place: str, hint: str) -> None:
        found = problem(text)
        assert found.startswith(f"suite.yaml:{place}")
        assert hint in found


class TestJson:
    def test_json_that_is_not_yaml(self) -> None:
        text = '{"e": "\\ud83d\\ude00", "t":\ttrue, "' + "k" * 2_000 + '": null, "d": "\x7f\u2028", "no": -0.5e1}'
        assert read(text, "A.JSON") == {"e": "😀", "t": True, "k" * 2_000: None, "d": "\x7f\u2028", "no": -5.0}

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"a":', "1:6: not JSON: expected a value, got the end of the file"),
            ('{"a" 1}', "1:6: not JSON: expected ':' after the key, got '1'"),
            ('{"a": 1,\n}', "2:1: not JSON: a comma before '}' is not allowed in JSON"),
            ('{"a": NaN}', "1:7: not JSON: expected a value, got 'NaN'"),
            ('{"a": -Infinity}', "1:7: not JSON: expected a value, got '-Infinity'"),
            ("{a: 1}", "1:2: not JSON: expected a key in double quotes, got 'a'"),
            ('{"a": "\\ud800"}', "1:7: not JSON: a string contains half a surrogate pair; write the character itself"),
            ('{"a": "x', "1:7: not JSON: unterminated string starting, got '\"'"),
            ('{"a": 01}', "1:8: not JSON: expected ',' or '}', got '1'"),
            ('{"a": 1}\nx', "2:1: not JSON: expected the end of the file, got 'x'"),
            ('{"a": [1,,2]}', "1:10: not JSON: expected a value, got ','"),
            ('{"a": [1}', "1:9: not JSON: expected ',' or ']', got '}'"),
            ('{"a": 1e999}', "1:7: a: '1e999' is not a finite number; leave it out, or put a string in quotes"),
            ('{"a": 1, "a": 2}', "1:10: a: the key is written twice (first in line 1, column 2); keep one"),
        ],
    )
    def test_faults_are_reported_in_terms_of_json(self, text: str, message: str) -> None:
        assert problem(text, "a.json") == f"a.json:{message}"

    def test_an_empty_file_is_refused(self) -> None:
        assert problem(" \n", "a.json") == "a.json: is empty"


SUITE = """\
name: short
dataset: [{input: q}]
target: {kind: http, url: "http://127.0.0.1:9000"}
graders: {exact: {kind: string-match}}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "suite.yaml"
    file.write_text(SUITE)
    return file


@pytest.fixture
def document(path: Path) -> SuiteDocument:
    return read_document(path)


def test_values_are_yaml_and_are_set_at_their_path(document: SuiteDocument) -> None:
    data = override(
        document,
        ["target.url=http://other:1/x?a=b", "graders.exact.case_sensitive=false", "max_samples=3", "dataset[0].id=a"],
    ).data
    assert data["target"]["url"] == "http://other:1/x?a=b"
    assert data["graders"]["exact"] == {"kind": "string-match", "case_sensitive": False}
    assert data["max_samples"] == 3
    assert data["dataset"] == [{"input": "q", "id": "a"}]
    assert document.data["dataset"] == [{"input": "q"}]


def test_the_last_setting_wins_and_an_empty_one_is_null(document: SuiteDocument) -> None:
    data = override(document, ["target.timeout=1", "target.timeout=2", "gate="]).data
    assert (data["target"]["timeout"], data["gate"]) == (2, None)


def test_overrides_change_the_digest(document: SuiteDocument) -> None:
    digests = {override(document, settings).digest for settings in ([], ["max_samples=1"], ["max_samples=2"])}
    assert len(digests) == 3


def test_an_unknown_key_is_refused_as_in_the_file(path: Path) -> None:
    with pytest.raises(DocumentError, match=r"target\.urll: unknown"):
        read_suite(path, ["target.urll=http://x"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_samples", "write key=value"),
        ("=3", "write key=value"),
        ("a..b=3", "write key=value"),
        ("name.x=3", "name is 'short', which has no keys"),
        ("dataset[4].id=3", r"dataset has no item \[4\]"),
        ("name=[", "not YAML"),
        ("target.headers.authorization=Bearer abc", "may be a secret; export it and write"),
        ("target.api_key=sk-123", "may be a secret"),
    ],
)
def test_an_invalid_setting_is_refused_with_an_example(document: SuiteDocument, setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        override(document, [setting])
    assert "sk-123" not in str(caught.value)
    assert "abc" not in str(caught.value)


def test_a_variable_may_be_set_for_a_secret(document: SuiteDocument) -> None:
    assert override(document, ["target.api_key=${KEY}"]).data["target"]["api_key"] == "${KEY}"


def test_a_secret_name_outside_the_target_is_accepted(document: SuiteDocument) -> None:
    assert override(document, ["gate.metric_key=exact"]).data["gate"] == {"metric_key": "exact"}
