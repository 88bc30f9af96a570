"""The JSON Schema of suite files, derived from the declarations of suites, graders, extractors, targets and gates.

It is of draft 2020-12 and uses only keywords that mean the same in draft 7, which most editors implement. It accepts
whatever the reader accepts; faults that depend on files or on other parts of the suite (a missing file, the name of a
grader) are found by the reader only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from typing import Any, NamedTuple
from urllib.parse import quote as percent_encoded

from gradeline import extractors, graders, targets
from gradeline.graders.registry import ALIASES
from gradeline.model import Config
from gradeline.model.config import config_schema
from gradeline.suite.declaration import (
    REWARDS,
    BudgetSpec,
    CaseEntry,
    GraderEntry,
    PriceSpec,
    PromptEntry,
    SuiteFile,
    TargetEntry,
    VariantEntry,
    default_of,
    keys_of,
)
from gradeline.suite.letta_dialects import (
    AGENT_JUDGE,
    AGENT_JUDGE_OPTIONS,
    IGNORED,
    RUBRIC,
    TARGET_KINDS,
    Alias,
    Section,
    aliases_of,
    key_names,
)
from gradeline.verdict import gate_schema

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN: Schema = {"^x-": {}}
"""Keys for the user's own use."""
_TEXT: Schema = {"type": "string", "pattern": r"\S"}
_NULL: Schema = {"type": "null"}
_MAPPING: Schema = {"type": ["object", "null"]}
_FILLED: Schema = {"not": _NULL}


def suite_schema() -> Schema:
    """The JSON Schema of suite files, with every grader, extractor and target that is installed."""
    definitions = _Definitions()
    definitions.add("case", _case())
    definitions.add("target", _target(definitions))
    definitions.add("grader", _grader(definitions))
    definitions.add("gate", _gate(definitions))
    rewards = [_Kind(name, _summary(reward.__doc__), config_schema(reward)) for name, reward in REWARDS.items()]
    definitions.add("reward", _by_kind(definitions, "reward", rewards))
    for name, spec in (
        ("budget", BudgetSpec),
        ("price", PriceSpec),
        ("variant", VariantEntry),
        ("prompt", PromptEntry),
    ):
        definitions.add(name, {"description": _summary(spec.__doc__), **config_schema(spec)})
    schema = declared_keys(SuiteFile, "suite")
    cases = {"type": "array", "items": defined("case"), "minItems": 1}
    parts: dict[str, Schema] = {
        "dataset": {"anyOf": [_TEXT, cases]},
        "target": defined("target"),
        "graders": {"type": "object", "additionalProperties": defined("grader"), "minProperties": 1},
        **{name: {"anyOf": [defined(name), _NULL]} for name in ("gate", "reward", "budget")},
        "variants": {"type": ["array", "null"], "items": defined("variant"), "minItems": 1},
        "prompts": {"type": ["array", "null"], "items": {"anyOf": [_TEXT, defined("prompt")]}, "minItems": 1},
        "prices": {"type": ["object", "null"], "additionalProperties": defined("price")},
    }
    for name, part in parts.items():
        schema["properties"][name] = {"description": schema["properties"][name]["description"], **part}
    schema["allOf"] = [*schema.get("allOf", ()), _models_once()]
    for name in IGNORED:
        schema["properties"][name] = {"description": "A key of letta-evals, without effect here.", **_MAPPING}
    return {
        "$schema": DIALECT,
        "title": "gradeline suite",
        "description": "The cases, the agent under test, and how its responses are graded.",
        **schema,
        "patternProperties": OWN,
        "additionalProperties": False,
        "$defs": definitions.finished(),
    }


def schema_text() -> str:
    """The schema as the text of a file: one line per key and definition, ASCII so that any terminal can print it."""
    parts = []
    for key, value in suite_schema().items():
        if key in ("properties", "$defs"):
            lines = [f" {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items()]
            parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def declared_keys(entry: type[Config], section: Section | None = None) -> Schema:
    """An open mapping with the declared keys and their aliases."""
    declared = config_schema(entry)
    properties = {
        key: {word: value for word, value in option.items() if (word, value) != ("default", None)}
        for key, option in declared["properties"].items()
    }
    schema: Schema = {"type": "object", "properties": properties, "required": declared.get("required", [])}
    return _with_aliases(schema, section) if section else schema


def _with_aliases(schema: Schema, section: Section) -> Schema:
    """The schema with letta-evals' names next to the keys; only one of the two may have a value."""
    properties: dict[str, Schema] = {}
    conflicts = []
    for key, option in schema["properties"].items():
        properties[key] = option
        for alias in aliases_of(section):
            if alias.key == key:
                properties[alias.spelling] = _alias(alias, option)
                null = {"properties": {alias.spelling: _NULL}}
                conflicts.append({"if": _has(key, _FILLED), "then": null})
    return {**schema, "properties": properties, "allOf": conflicts} if conflicts else schema


def _alias(alias: Alias, option: Schema) -> Schema:
    described = {"description": f"letta-evals' name of `{alias.key}`."}
    if alias.values:
        return {**described, "anyOf": [{"enum": list(alias.values)}, _NULL]}
    return {**option, **described}


def defined(name: str, *steps: str) -> Schema:
    """A reference to a definition of the schema, or to a part of it."""
    path = "/".join(part.replace("~", "~0").replace("/", "~1") for part in (name, *steps))
    return {"$ref": f"#/$defs/{percent_encoded(path, safe='/~')}"}


def _has(name: str, schema: Schema) -> Schema:
    """Matches a mapping that has the key with such a value."""
    return {"properties": {name: schema}, "required": [name]}


def _closed(names: Iterable[str], options: Schema) -> Schema:
    """The schema, with these keys accepted too; an open schema stays open."""
    if "properties" not in options:
        return options
    # an editor proposes nothing for `true`, so it offers each key once: where it is described
    return {**options, "properties": {**dict.fromkeys(names, True), **options["properties"]}}


class _Kind(NamedTuple):
    name: str
    description: str
    options: Schema


def _kinds(listing: Iterable[Mapping[str, Any]]) -> list[_Kind]:
    return [_Kind(entry["id"], entry["description"], entry["config_schema"]) for entry in listing]


def _summary(doc: str | None) -> str:
    return cleandoc(doc or "").split("\n\n")[0].replace("\n", " ")


def _names(kinds: Iterable[_Kind]) -> list[Schema]:
    return [{"const": kind.name, "description": kind.description} for kind in kinds]


def _by_kind(
    definitions: _Definitions, noun: str, kinds: list[_Kind], schema: Schema | None = None, default: str | None = None
) -> Schema:
    """A mapping whose ``kind`` decides which options it has."""
    if schema is None:
        kind_key = {"kind": {"description": f"Which {noun} it is."}}
        schema = {"type": "object", "properties": kind_key, "required": [] if default else ["kind"]}
    names = _names(kinds) if default is None else [*_names(kinds), _NULL]
    schema["properties"]["kind"] = {"description": schema["properties"]["kind"]["description"], "anyOf": names}
    rules = schema.setdefault("allOf", [])
    for kind in kinds:
        own = definitions.add(f"{noun}-{kind.name}", _closed(schema["properties"], kind.options))
        chosen = (
            {"properties": {"kind": {"enum": [kind.name, None]}}}
            if kind.name == default
            else _has("kind", {"const": kind.name})
        )
        rules.append({"if": chosen, "then": own})
    return schema


def _target(definitions: _Definitions) -> Schema:
    kinds = [kind._replace(options=_with_variables(kind.options)) for kind in _kinds(targets.registry.list())]
    known = {kind.name: kind for kind in kinds}
    for alias, name in TARGET_KINDS.items():
        kinds.append(known[name]._replace(name=alias, description=f"Another name of {name}."))
    schema = _by_kind(definitions, "target", kinds, declared_keys(TargetEntry, "target"))
    for models in key_names("target", "models"):
        several = _has(models, {"type": "array", "minItems": 1})
        schema["allOf"].append({"if": several, "then": {"properties": {"model": _NULL}}})
    return schema


def _models_once() -> Schema:
    """Models next to the target exclude those in the target."""
    empty: Schema = {"anyOf": [_NULL, {"type": "array", "maxItems": 0}]}
    inside = {**dict.fromkeys(key_names("target", "models"), empty), "model": _NULL}
    several = _has("models", {"type": "array", "minItems": 1})
    return {"if": several, "then": {"properties": {"target": {"properties": inside}}}}


def _gate(definitions: _Definitions) -> Schema:
    """Gates by their kind; without one a gate is simple. Null is the same as nothing."""
    kinds = []
    for definition in gate_schema()["$defs"].values():
        if "properties" in definition:
            needed = [name for name in definition["required"] if name != "kind"]
            options = {
                name: option if name in needed else _or_nothing(option)
                for name, option in definition["properties"].items()
                if name != "kind"
            }
            name = definition["properties"]["kind"]["enum"][0]
            # the conditions of a gate are gates again
            schema = _moved({**definition, "properties": options, "required": needed}, {"Gate": "gate"})
            if name == "simple":
                schema = _with_aliases(schema, "gate")
            kinds.append(_Kind(name, _summary(definition["description"]), schema))
    return _by_kind(definitions, "gate", kinds, default="simple")


def _or_nothing(option: Schema) -> Schema:
    if {"type": "null"} in option.get("anyOf", ()):
        return option
    bare = {key: value for key, value in option.items() if key != "description"}
    return {"description": option["description"], "anyOf": [bare, {"type": "null"}]}


def _with_variables(schema: Any) -> Any:
    """The schema of a target's options, in which ``${NAME}`` may replace any string."""
    if isinstance(schema, list):
        return [_with_variables(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if isinstance(schema.get("enum"), list):
        rest = {key: value for key, value in schema.items() if key != "enum"}
        return {**rest, "anyOf": [{"enum": schema["enum"]}, {"type": "string", "pattern": r"\$\{"}]}
    return {key: _with_variables(value) for key, value in schema.items()}


def _grader(definitions: _Definitions) -> Schema:
    kinds = _kinds(graders.registry.list())
    tool = _Kind("tool", "The grader that `function` names, of your own code or built in.", {})
    aliases = [_Kind(alias, f"Another name of {kind}.", {}) for alias, kind in ALIASES.items()]
    own = {**_TEXT, "description": "A custom grader: file.py:name, module:name, or its bare name."}
    definitions.add("kind-of-grader", {"anyOf": _names([*kinds, tool, *aliases])})
    definitions.add("function-of-grader", {"anyOf": [*_names(kinds), own]})
    schema = declared_keys(GraderEntry)
    references = {
        **dict.fromkeys(("kind", "type"), defined("kind-of-grader")),
        "function": {"anyOf": [defined("function-of-grader"), _NULL]},
        "extractor": defined("extractor"),
    }
    for key, reference in references.items():
        schema["properties"][key] = {"description": schema["properties"][key]["description"], **reference}
    schema["anyOf"] = [{"required": ["kind"]}, {"required": ["type"]}]
    schema["allOf"] = [
        *_tool([kind.name for kind in kinds]),
        *(_options_of_grader(definitions, names, options) for names, options in _same_options(kinds)),
        *_extractors(definitions),
    ]
    return schema


def _same_options(kinds: Iterable[_Kind]) -> list[tuple[list[str], Schema]]:
    """The kinds by their options: a third of them has none."""
    found: dict[str, tuple[list[str], Schema]] = {}
    for kind in kinds:
        found.setdefault(json.dumps(kind.options), ([], kind.options))[0].append(kind.name)
    return list(found.values())


def _is_kind(names: list[str], function: Schema | None = None) -> list[Schema]:
    """Matches a grader of such a kind: ``type`` counts without a ``kind``."""
    kind: Schema = {"enum": names}
    named = {} if function is None else {"function": function}
    return [
        {"properties": {"kind": kind, **named}, "required": ["kind", *named]},
        {"properties": {"kind": False, "type": kind, **named}, "required": ["type", *named]},
    ]


def _tool(builtins: list[str]) -> Iterator[Schema]:
    yield {
        "if": {"anyOf": _is_kind(["tool"])},
        "then": {"properties": {"function": _TEXT}, "required": ["function"]},
        "else": {"properties": {"function": _NULL}},
    }
    nothing = {**_MAPPING, "maxProperties": 0}
    yield {
        "if": {"anyOf": _is_kind(["tool"], {"not": {"enum": builtins}})},
        "then": {
            "properties": {**dict.fromkeys(keys_of(GraderEntry), True), "config": nothing},
            "patternProperties": OWN,
            "additionalProperties": False,
        },
    }


def _options_of_grader(definitions: _Definitions, names: list[str], options: Schema) -> Schema:
    """The options of a kind, written next to the grader's keys or inside ``config``, but not both."""
    required = options.get("required", [])
    inside = definitions.add(f"grader-{names[0]}", {**options, "type": ["object", "null"], "required": []})
    flat = [name for name in options.get("properties", {}) if name not in keys_of(GraderEntry)]
    rules = [
        {"if": {"required": [name]}, "then": {"properties": {"config": {"properties": {name: False}}}}} for name in flat
    ]
    for name in required:
        in_config = _has("config", {"type": "object", "required": [name]})
        rules.append({"anyOf": [{"required": [name]}, in_config] if name in flat else [in_config]})
    entry: Schema = {
        "properties": {
            **dict.fromkeys(keys_of(GraderEntry), True),
            **{name: defined(f"grader-{names[0]}", "properties", name) for name in flat},
            "config": inside,
        }
    }
    if "properties" in options:
        entry |= {"patternProperties": OWN, "additionalProperties": False}
    if rules:
        entry["allOf"] = rules
    spelt = [*names, *(alias for alias, kind in ALIASES.items() if kind in names and alias != RUBRIC)]
    meant = [*_is_kind(spelt), *_is_kind(["tool"], {"enum": names}), *_rubrics(names)]
    return {"if": {"anyOf": meant}, "then": entry}


def _rubrics(names: list[str]) -> Iterator[Schema]:
    """Matches kind: rubric where it means one of these: with an option of agents as judges, an agent judges."""
    named = [_has(key, _FILLED) for key in AGENT_JUDGE_OPTIONS]
    by_agent: Schema = {"anyOf": [*named, _has("config", {"type": "object", "anyOf": named})]}
    if AGENT_JUDGE in names:
        yield {"allOf": [{"anyOf": _is_kind([RUBRIC])}, by_agent]}
    if ALIASES[RUBRIC] in names:
        yield {"allOf": [{"anyOf": _is_kind([RUBRIC])}, {"not": by_agent}]}


def _extractors(definitions: _Definitions) -> Iterator[Schema]:
    kinds = _kinds(extractors.registry.list())
    own = {**_TEXT, "description": "A custom extractor: file.py:name, module:name, or its bare name."}
    default = default_of(GraderEntry, "extractor")
    definitions.add("extractor", {"default": default, "anyOf": [*_names(kinds), own]})
    for names, options in _same_options(kinds):
        needed = bool(options.get("required"))
        config = definitions.add(f"extractor-{names[0]}", options if needed else {**options, **_MAPPING})
        yield {
            "if": {
                "properties": {"extractor": {"enum": names}},
                "required": [] if default in names else ["extractor"],
            },
            "then": {
                "properties": {"extractor_config": config},
                "required": ["extractor_config"] if needed else [],
            },
        }


def _case() -> Schema:
    schema = declared_keys(CaseEntry, "case")
    del schema["allOf"]  # a case may have both names: the second is metadata
    return {
        "description": "A case; unknown keys become metadata.",
        **schema,
        "anyOf": [_has(name, _FILLED) for name in key_names("case", "input")],
    }


class _Definitions:
    """The definitions of the schema by name."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}

    def add(self, name: str, schema: Schema) -> Schema:
        """Add a schema and its own definitions; returns the reference to it.

        Equal definitions of several schemas are added once; a different one of the same name gets a longer name.
        """
        own: dict[str, Schema] = schema.get("$defs", {})
        moved = {key: _moved(value, {}) for key, value in own.items()}
        names: dict[str, str] = {}
        if any(self.found.get(key, value) != value for key, value in moved.items()):
            names = {key: f"{name}-{key}" for key in own}
            moved = {names[key]: _moved(value, names) for key, value in own.items()}
        self.found |= moved
        self.found[name] = _moved({key: value for key, value in schema.items() if key != "$defs"}, names)
        return defined(name)

    def finished(self) -> dict[str, Schema]:
        """All definitions; an option that several have is defined in the first and referenced by the others."""
        places: dict[str, Schema] = {}

        def once(option: Any, here: Schema) -> Any:
            if not isinstance(option, dict) or "description" not in option:
                return option
            first = places.setdefault(json.dumps(option), here)
            return option if first == here else first

        shared = {}
        for name, definition in self.found.items():
            shared[name] = self._by_tag(definition)
            if "properties" in definition:
                options = definition["properties"].items()
                kept = {key: once(option, defined(name, "properties", key)) for key, option in options}
                shared[name] = {**definition, "properties": kept}
        return shared

    def _by_tag(self, definition: Schema) -> Schema:
        """A union of mappings as a choice by their tag, so that an editor knows which one is meant."""
        choices = [(choice, self._options(choice)) for choice in definition.get("anyOf", ())]
        tags = {name for _, options in choices for name, option in options.items() if _is_tag(option)}
        if len(tags) != 1:
            return definition
        tag = tags.pop()
        rules = []
        values = []
        for choice, options in choices:
            if tag in options:
                value = options[tag]["enum"][0]
                values.append({"const": value, "description": self._named(choice)["description"]})
                rules.append({"if": _has(tag, {"const": value}), "then": choice})
        without = [choice for choice, options in choices if tag not in options]
        return {
            "type": "object",
            "properties": {tag: {"description": f"Which {tag} it is.", "anyOf": values}},
            "allOf": [*rules, {"if": {"required": [tag]}, "else": {"anyOf": without} if without else False}],
        }

    def _options(self, choice: Schema) -> dict[str, Any]:
        options: dict[str, Any] = self._named(choice).get("properties", {})
        return options

    def _named(self, choice: Schema) -> Schema:
        return self.found.get(str(choice.get("$ref", "")).removeprefix("#/$defs/"), {})


def _is_tag(option: object) -> bool:
    return isinstance(option, dict) and option.keys() == {"enum"} and len(option["enum"]) == 1


def _moved(schema: Any, names: Mapping[str, str]) -> Any:
    """The schema with renamed references and without titles, which are class names."""
    if isinstance(schema, list | tuple):
        return [_moved(item, names) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, names) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        old = reference.removeprefix("#/$defs/")
        if old in names:
            moved |= defined(names[old])
    return moved
