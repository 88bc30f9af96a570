"""Route files and files of outcomes: every fault at once, with its line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from gradeline.errors import ConfigError
from gradeline.suite.problems import DocumentError
from gradeline.trust.outcomes import read_outcomes
from gradeline.trust.route_file import FamilyFinder, FamilyRule, read_route, route_schema

GOOD = """\
route: support
suite: answers
grader: quality
baseline: {name: big, model: gpt-big, api_key_env: OPENAI_API_KEY}
candidates:
  - {name: small, model: gpt-small, cost: 0.001, price: {input: 0.1, output: 0.4}}
family: {body: metadata.task}
lambda: 2
x-note: mine
"""


def read(folder: Path, text: str) -> list[str]:
    path = folder / "route.yaml"
    path.write_text(text)
    with pytest.raises(DocumentError) as caught:
        read_route(path)
    return [str(one).replace(str(path), "route.yaml") for one in caught.value.suite_problems]


def test_a_route_is_read_with_its_defaults(tmp_path: Path) -> None:
    path = tmp_path / "route.yaml"
    path.write_text(GOOD)
    found = read_route(path)
    assert [arm.name for arm in found.arms] == ["big", "small"]
    assert found.candidates[0].price is not None
    assert (found.rules.cost_weight, found.rules.exploration, found.rules.minimum_samples) == (2.0, 0.05, 30)
    assert (found.alpha, found.max_age_days, found.require_probes) == (0.1, 90.0, True)


def test_every_fault_is_reported_with_its_line(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "route: my route\nsuite: s\ngrader: g\n"
        "baseline: {name: big, model: x, modle: x, base_url: ftp://x}\n"
        "candidates:\n  - {name: big, model: m, api_key_env: sk-not-a-name-123, cost: -1}\n"
        "family: {header: a, fixed: b}\nlambda: lots\nexploration: 2\nalfa: 0.1\n",
    )
    text = "\n".join(found)
    for expected in (
        "route.yaml:4:",
        "baseline.modle: unknown option; did you mean 'model'?",
        "baseline.base_url",
        "candidates[0].cost",
        "candidates[0].api_key_env: expected the name of an environment variable",
        "family: write exactly one of header, body and fixed",
        "lambda: expected a number from 0, got 'lots'",
        "exploration: expected a number from 0 to 1, got 2",
        "alfa: unknown option; did you mean 'alpha'?",
    ):
        assert expected in text
    assert "sk-not-a-name" not in text


def test_names_and_paths_are_checked(tmp_path: Path) -> None:
    assert (
        "candidates[0].name: 'big' is the name of another arm"
        in read(tmp_path, GOOD.replace("name: small", "name: big"))[0]
    )
    assert "family.body: 'a[' is not a valid JMESPath" in read(tmp_path, GOOD.replace("metadata.task", "'a['"))[0]
    open_url = GOOD.replace("model: gpt-big", "model: gpt-big, base_url: 'http://models.example/v1'")
    assert "baseline.base_url: would send the API key unencrypted; use https" in read(tmp_path, open_url)[0]
    assert "route: expected a name of letters" in read(tmp_path, GOOD.replace("route: support", "route: a b"))[0]


@pytest.mark.parametrize(
    ("rule", "family"),
    [
        (FamilyRule(fixed="f"), "f"),
        (FamilyRule(header="X-Task"), "billing"),
        (FamilyRule(header="missing"), ""),
        (FamilyRule(body="metadata.task"), "7"),
        (FamilyRule(body="metadata"), ""),
        (FamilyRule(body="length(metadata.task)"), ""),
    ],
)
def test_the_family_of_a_request_is_found_or_empty(rule: FamilyRule, family: str) -> None:
    from multidict import CIMultiDict

    headers = CIMultiDict({"x-task": " billing "})
    assert FamilyFinder(rule).find(headers, {"metadata": {"task": 7}}) == family


def test_hostile_families_are_cut_and_cleaned() -> None:
    found = FamilyFinder(FamilyRule(header="h")).find({"h": "a\0b" + "x" * 1000}, {})
    assert len(found) == 100
    assert "\0" not in found


def test_the_schema_accepts_what_the_reader_accepts() -> None:
    schema = jsonschema_rs.validator_for(route_schema())
    assert schema.is_valid(yaml.safe_load(GOOD))
    for wrong in ("route: 3", "lambda: -1", "alfa: 1", "baseline: {name: a}", "candidates: []"):
        assert not schema.is_valid({**yaml.safe_load(GOOD), **yaml.safe_load(wrong)}), wrong


def test_outcomes_are_read_from_csv_and_json_lines(tmp_path: Path) -> None:
    (tmp_path / "o.csv").write_text("id,passed,source\na,pass,\nb,false,judge:f1\n")
    rows = [{"id": "a", "score": 0.25}, {"id": "b", "passed": True}]
    (tmp_path / "o.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert [one[:3] for one in read_outcomes(tmp_path / "o.csv")] == [("a", 1.0, "label"), ("b", 0.0, "judge:f1")]
    assert [one[:3] for one in read_outcomes(tmp_path / "o.jsonl")] == [("a", 0.25, "label"), ("b", 1.0, "label")]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("o.csv", "request,passed\na,pass\n", "unknown column 'request'; no column id"),
        ("o.csv", "id\na\n", "no column passed or score"),
        ("o.csv", "id,passed\na,pass,extra\n", "o.csv:2: has 3 cells"),
        ("o.csv", "id,passed\na,maybe\n,pass\n", "o.csv:2: passed: expected pass, fail, true or false, got 'maybe'"),
        ("o.csv", "id,score\na,1.5\nb,nan\n", "o.csv:3: score: expected a number from 0 to 1, got 'nan'"),
        ("o.csv", "id,passed\na,pass\na,fail\n", "o.csv:3: request 'a' has another outcome"),
        ("o.jsonl", '{"id": "a", "passed": true, "score": 1}', "write either passed or score"),
        ("o.jsonl", "[1]", "expected an object"),
        ("o.jsonl", "{", "not a JSON object"),
        ("o.jsonl", '{"id": "a", "score": true}', "score: expected a number"),
        ("o.jsonl", '{"id": "a", "score": 1, "source": "me"}', "source: expected label or judge:FINGERPRINT"),
    ],
)
def test_wrong_outcomes_are_refused_with_their_line(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_outcomes(tmp_path / name)
    assert words in str(caught.value)
