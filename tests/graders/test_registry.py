"""Graders by name, by definition and from installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, Grader, GradeResult, Sample
from gradeline.errors import BadReplyError, ConfigError
from gradeline.graders import as_grader, create, default_extractor, from_definition, registry, run_grader
from gradeline.graders.base import as_result


def context(submission: str = "text", expected: str | None = "text") -> GradeContext:
    return GradeContext(Sample(0, "q", expected), submission)


class TestCreate:
    def test_an_unknown_kind_offers_the_closest(self) -> None:
        with pytest.raises(ValueError, match="no grader named 'strng-match'; did you mean 'string-match'"):
            create("strng-match")

    def test_all_faults_of_a_config_are_named(self) -> None:
        with pytest.raises(ConfigError) as caught:
            create("string-match", {"mode": "fuzy", "threshold": 2, "casesensitive": True, "x-mine": 1})
        assert [str(problem) for problem in caught.value.problems] == [
            "config.mode: expected one of exact, contains, starts_with, ends_with, fuzzy, normalized (did you mean 'fuzzy'?), got 'fuzy'",
            "config.threshold: expected float <= 1.0, got 2",
            "config.casesensitive: unknown option; did you mean 'case_sensitive'?",
        ]

    @pytest.mark.parametrize(
        ("kind", "config"),
        [
            ("true-false", {"aliases": {"true": ["x"], "false": ["X"]}}),
            ("true-false", {"case_sensitive": "yes"}),
            ("string-match", {"mode": "regex"}),
            ("string-match", {"threshold": -0.1}),
            ("string-match", {"threshold": float("nan")}),
            ("string-match", {"normalize_whitespace": 1}),
            ("string-match", "exact"),
        ],
    )
    def test_a_config_refused_by_validate_config_is_refused(self, kind: str, config: Any) -> None:
        with pytest.raises(ValueError, match=f"{kind}: config"):
            create(kind, config)


def test_a_grader_declares_what_it_grades() -> None:
    assert default_extractor("tool_calls") == "tool_calls"
    assert {default_extractor(kind) for kind in ("string_match", "trajectory", "my_own_function")} == {"last_assistant"}


class TestFromDefinition:
    @pytest.mark.parametrize(
        "definition",
        [
            {"kind": "string-match", "config": {"mode": "contains"}},
            {"type": "string-match", "config": {"mode": "contains"}},
            {"type": "string-match", "mode": "contains"},
            {"type": "string-match", "kind": "string-match", "mode": "contains", "name": "mine", "id": "x"},
            {"kind": "string_match", "mode": "contains", "config": None},
        ],
    )
    def test_all_spellings_are_one_grader(self, definition: dict[str, Any]) -> None:
        assert from_definition(definition).fingerprint == create("string-match", {"mode": "contains"}).fingerprint

    @pytest.mark.parametrize(
        ("definition", "message"),
        [
            ({"config": {}}, "needs a 'kind'"),
            ({"kind": "numeric", "type": "rouge"}, "must be one name"),
            ({"kind": 3}, "must be one name"),
            ({"kind": "numeric", "config": [1]}, r"numeric: config: expected a mapping, got \[1\]"),
            (
                {"kind": "string-match", "mode": "exact", "config": {"mode": "fuzzy"}},
                "mode: is set both inside and outside of",
            ),
            ("numeric", "expected a mapping, got 'numeric'"),
        ],
    )
    def test_every_fault_is_reported(self, definition: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            from_definition(definition)


class TestCustomGraders:
    @pytest.mark.parametrize(
        ("returned", "result"),
        [
            (GradeResult(0.3, "why"), GradeResult(0.3, "why")),
            (True, GradeResult(1.0, passed=True)),
            (False, GradeResult(0.0, passed=False)),
            (0.7, GradeResult(0.7)),
            (1, GradeResult(1.0)),
            ({"score": 0.2, "passed": True, "details": {"reason": "r"}}, GradeResult(0.2, "r", {"reason": "r"}, True)),
            ({"score": 0.2}, GradeResult(0.2)),
        ],
    )
    def test_valid_return_values_of_a_grader(self, returned: object, result: GradeResult) -> None:
        assert as_result(returned) == result

    @pytest.mark.parametrize(
        "returned", [None, "0.5", 1.5, float("nan"), {}, {"score": "x"}, {"score": 1, "details": 3}, [1]]
    )
    def test_anything_else_is_a_bad_reply(self, returned: object) -> None:
        class Returns(Grader):
            def grade(self, actual: str, expected: str) -> object:
                return returned

        with pytest.raises(BadReplyError, match="the grader returned"):
            as_result(returned)
        grade = run_grader(as_grader(Returns()), context())
        assert (grade.outcome, grade.score) == ("error", None)
        assert grade.error is not None
        assert grade.error.type == "bad_reply"

    def test_metadata_that_cannot_be_stored_is_a_bad_reply(self) -> None:
        class Returns(Grader):
            def grade(self, actual: str, expected: str) -> GradeResult:
                return GradeResult(1.0, metadata={"seen": {"a"}})

        error = run_grader(as_grader(Returns()), context()).error
        assert error is not None
        assert (error.type, error.message) == (
            "bad_reply",
            "metadata.seen: {'a'} is a set; use strings, numbers, true/false, lists and mappings",
        )

    def test_a_grader_can_take_the_whole_context(self) -> None:
        class Knows(Grader):
            def grade(self, ctx: GradeContext) -> bool:
                return ctx.sample.input == "q"

        assert run_grader(as_grader(Knows()), context()).outcome == "pass"

    def test_another_signature_is_refused_with_its_location(self) -> None:
        class Wrong(Grader):
            def grade(self, a: str, b: str, c: str) -> bool:
                return True

        with pytest.raises(ConfigError, match=r"Wrong\.grade\(.*\) -> .*: must take"):
            as_grader(Wrong())

    def test_its_config_and_its_file_decide_its_fingerprint(self) -> None:
        class Own(Grader):
            def grade(self, actual: str, expected: str) -> bool:
                return True

        class Other(Grader):
            def grade(self, actual: str, expected: str) -> bool:
                return False

        prints = [as_grader(grader, "k").fingerprint for grader in (Own(), Own({"a": 1}), Own(), Other())]
        assert prints[0] == prints[2]
        assert len(set(prints)) == 3

    def test_rationale_and_traceback_are_cleaned_for_the_store(self) -> None:
        class Dirty(Grader):
            def grade(self, actual: str, expected: str) -> GradeResult:
                if actual == "raise":
                    raise ValueError("bad \ud800\0")
                return GradeResult(1.0, "a\0\ud800")

        assert run_grader(as_grader(Dirty()), context()).rationale == "a\u2400\ufffd"
        error = run_grader(as_grader(Dirty()), context("raise")).error
        assert error is not None
        assert error.message == "bad \ufffd\u2400"


class TestPassThreshold:
    @pytest.mark.parametrize(("threshold", "outcome"), [(None, "fail"), (0.5, "pass"), (0.51, "fail")])
    def test_the_threshold_of_the_suite_overrides_that_of_the_grader(
        self, threshold: float | None, outcome: str
    ) -> None:
        rules = [{"condition": "contains", "value": "a"}, {"condition": "contains", "value": "b"}]
        grader = create("custom-rules", {"rules": rules})
        assert run_grader(grader, context("a"), pass_threshold=threshold).outcome == outcome


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs a package with entry points, as pip would lay it down."""

    def install(points: str, source: str = "", name: str = "polite_graders") -> None:
        folder = tmp_path / name
        info = folder / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{name}.py").write_text(source)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[gradeline.graders]\n{points}\n")
        monkeypatch.syspath_prepend(str(folder))

    yield install
    sys.modules.pop("polite_graders", None)


SOURCE = '''
from typing import Annotated
from gradeline import Grader, GradeResult
from gradeline.graders import DeclaredGrader
from gradeline.model import Config, described

class Polite(Grader):
    """Says please."""
    scoring_guide = "1.0 with a please."
    def grade(self, actual, expected):
        return self.config.get("word", "please") in actual

class ShortConfig(Config, frozen=True):
    most: Annotated[int, described("The most characters.", ge=1)] = 5

class Short(DeclaredGrader[ShortConfig]):
    """Is short."""
    kind = "short"
    name = "Short"
    scoring_guide = "1.0 when short."
    def result(self, ctx):
        return GradeResult(1.0 if len(ctx.submission) <= self.options.most else 0.0)
'''


class TestEntryPoints:
    def test_a_package_adds_graders_of_both_kinds(self, package: Any) -> None:
        package("polite = polite_graders:Polite\nshort = polite_graders:Short", SOURCE)
        assert "polite" in registry
        assert create("polite", {"word": "cheers"}).grade(context("cheers!")).passed is True
        assert create("short", {"most": 3}).grade(context("four")).passed is False
        with pytest.raises(ConfigError, match=r"short: config\.most: expected int >= 1, got 0"):
            create("short", {"most": 0})
        added = {entry["id"]: entry for entry in registry.list()[-2:]}
        assert added["polite"]["description"] == "Says please."
        assert added["polite"]["scoring_guide"] == "1.0 with a please."
        assert added["short"]["config_schema"]["properties"]["most"]["minimum"] == 1

    @pytest.mark.parametrize(
        ("points", "message"),
        [
            ("polite = polite_graders:Missing", "cannot be loaded: AttributeError"),
            ("polite = no_such_package:Polite", "cannot be loaded: ModuleNotFoundError"),
            ("polite = polite_graders:SOURCE", "is not a subclass of gradeline.graders.base.Grader"),
            ("brief = polite_graders:Short", "is of kind 'short'; name the entry point after it"),
        ],
    )
    def test_a_faulty_entry_point_is_named(self, package: Any, points: str, message: str) -> None:
        package(points, SOURCE + "\nSOURCE = 1\n")
        with pytest.raises(ConfigError, match=message):
            create(points.split(" ")[0])

    def test_a_plugin_with_a_built_ins_name_is_refused_where_the_name_is_used(self, package: Any) -> None:
        package("numeric = polite_graders:Polite\npolite = polite_graders:Polite", SOURCE)
        message = (
            "grader 'numeric': is the name of 2 graders: the built-in grader of gradeline,"
            " polite_graders:Polite of polite-graders 1.0; uninstall or rename one"
        )
        for use in (lambda: create("numeric"), registry.list):
            with pytest.raises(ConfigError) as caught:
                use()
            assert str(caught.value) == message
        assert create("polite").grade(context("please")).passed is True
        assert create("exact_match").kind == "exact_match"

    def test_two_plugins_of_one_name_are_refused_with_both_packages(self, package: Any) -> None:
        package("polite = polite_graders:Polite", SOURCE)
        package("polite = rude_graders:Rude", name="rude_graders")
        with pytest.raises(ConfigError) as caught:
            create("polite")
        assert {owner in str(caught.value) for owner in ("polite-graders 1.0", "rude-graders 1.0")} == {True}

    def test_a_name_shows_its_source(self, package: Any) -> None:
        package("polite = polite_graders:Polite", SOURCE)
        origins = [registry.origin(name) for name in ("numeric", "polite")]
        assert origins == ["built-in grader", "grader of polite-graders 1.0"]
