"""Every configuration of the corpus is imported, gives a valid suite, and runs as its first line says."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gradeline.cli.commands import run_command
from gradeline.errors import ConfigError
from gradeline.importers.kinds import ImportOptions, run_import
from gradeline.suite.document import read_document

CORPUS = Path(__file__).parent / "corpus"
CONFIGS = sorted(path for path in CORPUS.iterdir() if path.is_file())
SECRET = "not-copied-secret"
_EXPECTED = re.compile(r"# import exits with (\d), (\d+) cases?(?:, run exits with (\d))?\n")
KEYS = frozenset(
    """
    description tags env metadata prompts providers targets tests defaultTest scenarios assertionTemplates derivedMetrics
    nunjucksFilters extensions outputPath sharing tracing evaluateOptions commandLineOptions
    id label raw template config transform delay path
    vars provider providerOutput assert assertScoringFunction options threshold
    prefix suffix transformVars postprocess storeOutputAs rubricPrompt factuality subset superset agree disagree
    differButFactual disableVarExpansion disableConversationVar disableDefaultAsserts runSerially repeat
    type value weight metric contextTransform
    cache maxConcurrency timeoutMs maxEvalTimeMs filterRange
    url method headers queryParams body transformResponse maxRetries
    __expected __expected1 __expected2 __prefix __suffix __description __metric __threshold __providerOutput
    __metadata:topic __metadata:tags[] __config:__expected2:threshold
    """.split()
)
"""The keys of promptfoo's configurations, and the columns of its CSV files."""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    services = ("ANTHROPIC", "AZURE", "DEEPSEEK", "GEMINI", "GROQ", "MISTRAL", "MY", "OPENAI", "OPENROUTER", "AGENT_X")
    for name in (*(f"{service}_API_KEY" for service in services), "AGENT_TOKEN", "AZURE_API_HOST"):
        monkeypatch.setenv(name, "a-value-of-the-environment")
    return tmp_path


def expected(path: Path) -> tuple[int, int, int | None]:
    """The exit code of the import, the number of cases, and the exit code of a run if it can be run here."""
    if path.suffix == ".json":
        return 0, 1, 0
    found = _EXPECTED.match(path.read_text(encoding="utf-8"))
    assert found is not None, f"the first line of {path.name}"
    return int(found[1]), int(found[2]), None if found[3] is None else int(found[3])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_becomes_a_valid_suite(project: Path, path: Path) -> None:
    code, count, run_code = expected(path)
    assert run_command(["import", str(path), "--output", "out"]) == code
    assert run_command(["validate", "out/suite.yaml"]) == 0
    assert len((project / "out" / "cases.jsonl").read_text().splitlines()) == count
    written = [one.read_text() for one in (project / "out").rglob("*") if one.is_file() and one.suffix != ".pyc"]
    assert not any(SECRET in text for text in written)
    needs_node = any("- node\n" in text for text in written)
    if run_code is not None and (not needs_node or shutil.which("node")):
        assert run_command(["run", "out/suite.yaml", "--quiet"]) == run_code


def test_the_corpus_has_every_key() -> None:
    found: set[str] = set()
    for path in CORPUS.rglob("*"):
        if path.suffix in (".yaml", ".json"):
            found.update(keys_of(read_document(path, top="any").data))
        elif path.suffix == ".csv":
            found.update(path.read_text(encoding="utf-8-sig").splitlines()[0].split(","))
    assert KEYS - found == set()
    assert len(CONFIGS) >= 60


def keys_of(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from keys_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys_of(item)


ODD: tuple[Any, ...] = (
    None, True, 7, -1.5, "", " ", "{{", "{{a.b[0]|upper}}", "file://", "file://files", "file://*", "a\0b", "x" * 5000, [], {},
    [[]], [{}], {"": None}, {"$ref": "#/prompts"}, {"file://x": 1}, "${HOME}", "é\ud83d", 10**30, float("1e300"),
)  # fmt: skip


def paths_of(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_of(item, (*path, key))


def changed(data: Mapping[str, Any], path: tuple[Any, ...], value: object) -> Any:
    data = deepcopy(dict(data))
    inside: Any = data
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return data


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_odd_values_anywhere_are_reported(project: Path, path: Path) -> None:
    chosen = random.Random(path.name)
    data = read_document(path).data
    shutil.copytree(CORPUS / "files", project / "files")
    places = list(paths_of(data))
    for number, place in enumerate(chosen.sample(places, min(6, len(places)))):
        config = changed(data, place, chosen.choice(ODD))
        file = project / f"{number}.json"
        file.write_text(json.dumps(config))
        try:
            result = run_import(file, project / f"out{number}", ImportOptions(kind="promptfoo"), no_storage)
        except ConfigError:
            continue
        suite = yaml.safe_load((result.folder / "suite.yaml").read_text())
        assert suite["target"], config
        assert suite["graders"], config


def no_storage() -> Any:
    raise AssertionError("an import of a configuration stores nothing")
