"""The suite file reference, from the declarations that read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import cleandoc
from typing import Any

from gradeline import targets
from gradeline.model.config import config_schema
from gradeline.suite.declaration import REWARDS, BudgetSpec, CaseEntry, GraderEntry, PriceSpec, SuiteFile, TargetEntry
from gradeline.suite.letta_dialects import IGNORED, aliases_of
from gradeline.suite.schema import declared_keys
from gradeline.verdict import gate_schema
from gradeline.verdict.gate import BaseGate

from .tables import GENERATED, cell, code, default_in_words, options, page, table, type_in_words

_SECTIONS = {
    "dataset": "case",
    "target": "target",
    "graders": "grader",
    "gate": "gate",
    "reward": "reward",
    "budget": "budget",
    "prices": "price",
}


def suite_file() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Suite file", "")
    yield f"{GENERATED} [Write a suite](suites.md) shows the keys in use."
    yield ""
    yield "A suite is YAML or JSON. Keys that begin with `x-` are for your own use; other unknown keys are refused."
    yield "`gradeline schema` prints it as a JSON Schema, with which an editor completes and checks a suite."
    yield ""
    yield from _keys(declared_keys(SuiteFile, "suite"), _SECTIONS)
    yield from (f"Accepted, but without effect: {', '.join(map(code, IGNORED))}.", "")
    yield from ("## Case", "", "A row of a dataset. Other keys go into the `metadata`.", "")
    yield from _keys(declared_keys(CaseEntry, "case"))
    yield from _targets()
    yield from ("## Grader", "")
    yield "A grader takes the options of its kind, listed in [Graders and extractors](reference.md), and these:"
    yield ""
    yield from _keys(declared_keys(GraderEntry))
    yield from _gates()
    yield from ("## Reward", "")
    for name, reward in REWARDS.items():
        yield from (f"### {name}", "", _summary(reward), "")
        yield from options(config_schema(reward))
    for name, section in (("Budget", BudgetSpec), ("Price", PriceSpec)):
        yield from (f"## {name}", "", _summary(section), "")
        yield from options(config_schema(section))


def _keys(schema: Mapping[str, Any], sections: Mapping[str, str] | None = None) -> Iterator[str]:
    sections = sections or {}
    yield from table(
        ("key", "type", "default", "description"),
        (
            (
                code(name),
                f"[{sections[name]}](#{sections[name]})" if name in sections else cell(type_in_words(option)),
                default_in_words(option, name in schema["required"]),
                cell(option["description"]),
            )
            for name, option in schema["properties"].items()
        ),
    )


def _targets() -> Iterator[str]:
    kinds = targets.registry.list()
    schemas = [kind["config_schema"] for kind in kinds]
    first = schemas[0]["properties"]
    common = {
        name: option
        for name, option in first.items()
        if all(name in schema["properties"] for schema in schemas)
        and sum(schema["properties"][name] == option for schema in schemas) > 1
    }
    parts = _parts(schemas)
    yield from (
        "## Target",
        "",
        "The agent under test. `${NAME}` in any of its values is read from the environment,",
    )
    yield from ("or from `.env` in the suite's folder. Every target takes:", "")
    yield from _keys(declared_keys(TargetEntry, "target"))
    yield from options({"properties": common}, parts=parts)
    for kind in kinds:
        schema = kind["config_schema"]
        same = [name for name, option in common.items() if schema["properties"][name] == option]
        yield from (f"### {kind['id']}", "", cell(kind["description"]), "")
        yield from options(schema, same, parts)
    for name, part in parts.items():
        yield from (f"### {name}", "", part["description"], "")
        yield from options(part)


def _parts(schemas: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The nested mappings of targets, by option name."""
    found = {}
    for schema in schemas:
        for name, option in schema["properties"].items():
            for choice in option.get("anyOf", [option]):
                if "$ref" in choice:
                    found[name] = schema["$defs"][choice["$ref"].removeprefix("#/$defs/")]
    return found


def _gates() -> Iterator[str]:
    settings = BaseGate.__struct_encode_fields__
    kinds = [schema for schema in gate_schema()["$defs"].values() if "properties" in schema]
    yield from ("## Gate", "", "A gate without a `kind` is `simple`. Every gate takes:", "")
    yield from options({"properties": {name: kinds[0]["properties"][name] for name in settings}})
    for schema in kinds:
        name = schema["properties"]["kind"]["enum"][0]
        yield from (f"### {name}", "", cell(schema["description"].split("\n\n")[0]), "")
        yield from options(schema, settings)
        if name == "simple":
            names = ", ".join(f"{code(alias.spelling)} for {code(alias.key)}" for alias in aliases_of("gate"))
            yield from (f"letta-evals' names are also accepted: {names}.", "")


def _summary(declaration: type) -> str:
    return cleandoc(declaration.__doc__ or "").split("\n\n")[0].replace("\n", " ")
