"""Creating and using extractors by name."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from typing import Any

import jsonschema_rs
import pytest

from gradeline.errors import ConfigError, Problem, UnknownNameError
from gradeline.extractors import DeclaredExtractor, create, extract, registry
from gradeline.model import Extractor, Response
from gradeline.model.registry import NoOptions

CONTRACT = [
    "last_assistant",
    "first_assistant",
    "all_assistant",
    "last_turn",
    "pattern",
    "after_marker",
    "tool_arguments",
    "tool_output",
    "memory_block",
    "json",
    "tool_calls",
    "full_trajectory",
]
REQUIRED: dict[str, dict[str, Any]] = {
    "pattern": {"pattern": "a"},
    "after_marker": {"marker": "A:"},
    "tool_arguments": {"tool_name": "f"},
    "tool_output": {"tool_name": "f"},
    "memory_block": {"block_label": "human"},
}


class Shouting(DeclaredExtractor[NoOptions]):
    """Takes the answer in capitals."""

    kind = "shouting"
    name = "Shouting"

    def extract(self, response: Response) -> str:
        return (response.text or "").upper()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("shouting", f"{__name__}:Shouting", "gradeline.extractors")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Shouting)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr("gradeline.model.registry._installed_groups", lambda path: frozenset({point.group}))


def test_every_documented_extractor_is_listed() -> None:
    assert [entry["id"] for entry in registry.list()] == CONTRACT


def test_an_entry_is_complete() -> None:
    [entry] = [entry for entry in registry.list() if entry["id"] == "after_marker"]
    fingerprint = entry.pop("fingerprint")
    assert len(fingerprint) == 32
    assert entry == {
        "id": "after_marker",
        "name": "After a marker",
        "description": "Takes the text after a marker in the last assistant message that contains it, stripped.",
        "type": "after_marker",
        "version": 1,
        "config_schema": {
            "type": "object",
            "properties": {
                "marker": {"type": "string", "description": "Text to search for, case-sensitive."},
                "include_marker": {
                    "type": "boolean",
                    "description": "Include the marker (default false).",
                    "default": False,
                },
            },
            "required": ["marker"],
            "additionalProperties": False,
            "patternProperties": {"^x-": {}},
        },
    }


@pytest.mark.parametrize("entry", registry.list(), ids=lambda entry: str(entry["id"]))
def test_a_listed_schema_describes_what_create_accepts(entry: dict[str, Any]) -> None:
    kind, schema = entry["id"], entry["config_schema"]
    jsonschema_rs.meta.validate(schema)
    config = REQUIRED.get(kind, {})
    assert schema["required"] == list(config)
    assert all(option["description"] for option in schema["properties"].values())
    schema_says = jsonschema_rs.validator_for(schema)
    assert schema_says.is_valid(config)
    assert not schema_says.is_valid({**config, "unheard_of": 1})
    assert create(kind, config).kind == kind


@pytest.mark.parametrize("kind", CONTRACT)
def test_an_extractor_implements_the_protocol_of_the_engine(kind: str) -> None:
    assert isinstance(create(kind, REQUIRED.get(kind)), Extractor)


@pytest.mark.parametrize("kind", CONTRACT)
def test_an_extractor_has_the_name_and_description_of_its_class(kind: str) -> None:
    declaration = registry.get(kind)
    version = 2 if kind in ("tool_arguments", "tool_output", "tool_calls", "full_trajectory") else 1
    assert (declaration.kind, declaration.noun, declaration.version) == (kind, "extractor", version)
    assert declaration.describe()["description"].endswith((".", "]."))


def test_an_unknown_kind_offers_the_closest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        create("last_asistant")
    assert str(caught.value) == "no extractor named 'last_asistant'; did you mean 'last_assistant'?"


def test_an_unknown_kind_without_a_close_match_lists_all() -> None:
    with pytest.raises(UnknownNameError) as caught:
        create("xyzzy")
    assert str(caught.value) == f"no extractor named 'xyzzy'; use one of {', '.join(sorted(CONTRACT))}"


def test_unknown_and_invalid_options_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        create("after_marker", {"include_marker": "yes", "markr": "A:", "zzz": 1})
    assert caught.value.problems == (
        Problem("config.marker", "is required"),
        Problem("config.include_marker", "expected bool, got 'yes'"),
        Problem("config.markr", "unknown option; did you mean 'marker'?"),
        Problem("config.zzz", "unknown option; use one of marker, include_marker"),
    )


def test_an_extractor_without_options_accepts_none() -> None:
    with pytest.raises(ConfigError) as caught:
        create("last_assistant", {"separator": ""})
    assert str(caught.value) == "last_assistant: config.separator: unknown option; no options are supported"


def test_options_that_begin_with_x_are_ignored() -> None:
    assert extract("last_assistant", "Paris", {"x-note": "for Ann"}) == "Paris"


def test_a_config_that_is_not_a_mapping_is_refused() -> None:
    config: Any = ["A:"]
    with pytest.raises(ConfigError, match=r"config: expected a mapping, got \['A:'\]"):
        create("all_assistant", config)


def test_a_class_refuses_the_same_config_as_create() -> None:
    with pytest.raises(ConfigError, match="unknown option"):
        registry.get("all_assistant")({"seperator": ", "})


def test_an_explicit_default_does_not_change_the_fingerprint() -> None:
    plain, spelt, other = (
        create("all_assistant", config).fingerprint for config in ({}, {"separator": "\n"}, {"separator": ""})
    )
    assert plain == spelt != other


def test_extract_accepts_a_response_or_a_string() -> None:
    assert extract("last_assistant", Response(text="Paris")) == "Paris"
    assert extract("all_assistant", "Paris", {"separator": ", "}) == "Paris"


def test_an_extractor_can_be_shared_by_threads() -> None:
    extractor = create("json", {"path": "a[*].b | [0]"})
    responses = [Response(text=f'{{"a": [{{"b": {n}}}]}}') for n in range(500)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(extractor.extract, responses)) == [str(n) for n in range(500)]


@pytest.mark.usefixtures("plugin")
def test_an_installed_extractor_is_listed_and_created_like_a_built_in() -> None:
    assert [entry["id"] for entry in registry.list()] == [*CONTRACT, "shouting"]
    assert extract("shouting", "Paris") == "PARIS"


def test_a_class_without_extract_is_reported() -> None:
    class Empty(DeclaredExtractor[NoOptions]):
        kind = "empty"
        name = "Empty"

    declaration: Any = Empty
    with pytest.raises(NotImplementedError, match=r"Empty must override extract\(\)"):
        declaration().extract(Response(text="Paris"))


def test_no_large_module_is_imported_early() -> None:
    script = (
        "import sys; from gradeline.extractors import extract, registry; registry.list(); extract('last_assistant', 'a'); "
        "print([name for name in ('jmespath', 're2', 'jsonschema_rs', 'rapidfuzz') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
