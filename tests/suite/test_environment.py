from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.document import parse_document
from gradeline.suite.environment import DotEnv, Substitution, read_dotenv, read_environment, substitute


def fill(text: str, environment: dict[str, str]) -> Substitution:
    document = parse_document(text.encode(), "suite.yaml")
    return substitute(document.data["target"], environment, document.position, ("target",))


def problem(value: str, environment: dict[str, str] | None = None) -> str:
    found = fill(f"target:\n  headers:\n    - '{value}'", environment or {})
    assert found.tree == {"headers": [value]}
    assert len(found.problems) == 1
    return str(found.problems[0])


class TestSubstitution:
    def test_variables_are_replaced_and_returned_as_secrets(self) -> None:
        text = "target:\n  url: http://${HOST}/x\n  headers: {auth: ['Bearer ${KEY}${KEY}', 3, true, null]}"
        assert fill(text, {"HOST": "h", "KEY": "k-1", "OTHER": "o"}) == Substitution(
            {"url": "http://h/x", "headers": {"auth": ["Bearer k-1k-1", 3, True, None]}}, {"h", "k-1"}, []
        )

    @pytest.mark.parametrize(
        ("written", "read"),
        [
            ("$${X}", "${X}"),
            ("$X $ $$ {X}", "$X $ $$ {X}"),
            ("a$${X}${X}", "a${X}v"),
            ("$$${X}", "$${X}"),
            ("$${", "${"),
        ],
    )
    def test_two_dollars_escape_a_variable(self, written: str, read: str) -> None:
        assert fill(f"target: '{written}'", {"X": "v"}).tree == read

    def test_what_was_filled_in_is_not_read_again(self) -> None:
        assert fill("target: ${X}", {"X": "${Y}", "Y": "no"}).tree == "${Y}"

    def test_keys_and_the_tree_itself_do_not_change(self) -> None:
        tree: dict[str, Any] = {"${X}": "${X}"}
        assert substitute(tree, {"X": "v"}, parse_document(b"a: 1", "s").position).tree == {"${X}": "v"}
        assert tree == {"${X}": "${X}"}

    def test_an_empty_variable_is_set_and_not_a_secret(self) -> None:
        assert fill("target: a${X}", {"X": ""}) == Substitution("a", set(), [])

    def test_an_undefined_variable_is_reported_with_its_position(self) -> None:
        assert problem("${MY_KEY}") == (
            "suite.yaml:3:7: target.headers[0]: the variable MY_KEY is not set; "
            "export it, or write it into .env in the suite's folder"
        )
        assert problem("${MY_KEY}", {"MY_KEYS": "x"}).endswith("not set; did you mean MY_KEYS?")

    @pytest.mark.parametrize("written", ["${X:-default}", "${}", "${ X }", "${1X}", "${a-b}"])
    def test_only_names_are_valid_variables(self, written: str) -> None:
        assert f"{written!r} is not a valid variable; write ${{NAME}}" in problem(written, {"X": "v"})

    def test_an_open_reference_is_refused(self) -> None:
        assert "'${' without '}'" in problem("${X", {"X": "v"})

    def test_a_value_that_is_not_utf8_is_refused(self) -> None:
        assert problem("${X}", {"X": "\udcff"}).endswith("the value of X is not UTF-8")

    def test_all_faults_are_reported(self) -> None:
        assert len(fill("target: ['${A} ${B}', '${C}']", {}).problems) == 3


class TestDotEnv:
    @pytest.mark.parametrize(
        ("line", "value"),
        [
            ("KEY=value", "value"),
            ("export KEY=value", "value"),
            ("  KEY = some value  ", "some value"),
            ("KEY=value # a comment", "value"),
            ("KEY=a#b", "a#b"),
            ("KEY=", ""),
            ("KEY= # nothing", ""),
            ("KEY='a # \"b\\n' # c", 'a # "b\\n'),
            ('KEY="a\\n\\"b\\" \\$ \\x"', 'a\n"b" $ \\x'),
            ('KEY="two\nlines"', "two\nlines"),
            ("KEY=a=b", "a=b"),
            ("KEY=one\nKEY=two", "two"),
            ("\ufeffKEY=value\r", "value"),
        ],
    )
    def test_a_line_is_a_variable(self, tmp_path: Path, line: str, value: str) -> None:
        (tmp_path / ".env").write_text(f"{line}\n# a comment\n\nLAST=x", newline="")
        assert read_dotenv(tmp_path) == DotEnv({"KEY": value, "LAST": "x"}, [])

    def test_other_lines_are_named_without_their_text(self, tmp_path: Path) -> None:
        (tmp_path / ".env").write_text("A=1\n  hunter2\n1B=x\nC='open\nD=2")
        found = read_dotenv(tmp_path)
        assert found.values == {"A": "1", "D": "2"}
        assert [(problem.line, problem.column) for problem in found.problems] == [(2, 3), (3, 1), (4, 1)]
        assert "hunter2" not in str(found.problems)

    def test_a_folder_without_one_has_none(self, tmp_path: Path) -> None:
        assert read_dotenv(tmp_path) == DotEnv({}, [])
        assert read_dotenv(tmp_path / "absent") == DotEnv({}, [])

    def test_a_file_that_is_not_utf8_is_a_fault(self, tmp_path: Path) -> None:
        (tmp_path / ".env").write_bytes(b"A=\xff")
        assert "is not UTF-8" in read_dotenv(tmp_path).problems[0].message

    def test_exported_variables_win(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / ".env").write_text("A=file\nGRADELINE_B=file")
        assert read_environment(tmp_path, {"A": "exported"}).values == {"A": "exported", "GRADELINE_B": "file"}
        monkeypatch.setenv("GRADELINE_B", "exported")
        assert read_environment(tmp_path).values["GRADELINE_B"] == "exported"
