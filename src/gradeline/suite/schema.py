"""The JSON Schema of suite files, made from their keys and from the declarations.

The schema is of draft 2020-12 and keeps to keywords that mean the same in draft 7, which is what most
editors know. It takes whatever the reader takes; what only a look at the disk or at other parts of the
suite can tell (a missing file, the name of a grader) is the reader's alone to refuse.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from inspect import cleandoc
from typing import Any, NamedTuple

from gradeline import extractors, graders, targets
from gradeline.graders.registry import ALIASES
from gradeline.model.config import config_schema
from gradeline.suite.keys import (
    AGENT_JUDGE,
    AGENT_JUDGE_KEYS,
    CASE_KEYS,
    GRADER_KEYS,
    REWARDS,
    RUBRIC,
    SUITE_KEYS,
    TARGET_KEYS,
    TEXT,
    Key,
    Schema,
    default_of,
    defined,
)
from gradeline.suite.spec import BudgetSpec, GraderSpec, PriceSpec
from gradeline.targets.registry import ALIASES as TARGET_ALIASES
from gradeline.verdict import gate_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
OWN: Schema = {"^x-": {}}
"""Keys that are the user's own."""


def suite_schema() -> Schema:
    """The JSON Schema of suite files, with every grader, extractor and target that is installed."""
    definitions = _Definitions()
    definitions.add("case", _case())
    definitions.add("target", _target(definitions))
    definitions.add("grader", _grader(definitions))
    definitions.add("gate", _gate(definitions))
    definitions.add("reward", _by_kind(definitions, "reward", _rewards()))
    for name, spec in (("budget", BudgetSpec), ("price", PriceSpec)):
        definitions.add(name, {"description": _summary(spec.__doc__), **config_schema(spec)})
    return {
        "$schema": DIALECT,
        "title": "gradeline suite",
        "description": "What an agent is asked, and how its answers are graded.",
        **_mapping(SUITE_KEYS),
        "patternProperties": OWN,
        "additionalProperties": False,
        "$defs": definitions.finished(),
    }


def schema_text() -> str:
    """The schema as a file holds it: a line for each key and each definition.

    It is ASCII, so that no terminal and no shell can spoil it.
    """
    parts = []
    for key, value in suite_schema().items():
        if key in ("properties", "$defs"):
            lines = [f" {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items()]
            parts.append(f"{json.dumps(key)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _mapping(keys: Mapping[str, Key]) -> Schema:
    """A mapping with these keys; it is left open."""
    schema: Schema = {
        "type": "object",
        "properties": {name: {"description": key.description, **key.schema} for name, key in keys.items()},
        "required": [name for name, key in keys.items() if key.required],
    }
    pairs = [(name, key.same_as) for name, key in keys.items() if key.same_as is not None]
    if pairs:
        schema["allOf"] = [
            {"if": _has(other, {"not": {"type": "null"}}), "then": {"properties": {name: {"type": "null"}}}}
            for name, other in pairs
        ]
    return schema


def _has(name: str, schema: Schema) -> Schema:
    """Holds of a mapping that has the key, with such a value."""
    return {"properties": {name: schema}, "required": [name]}


def _closed(names: Iterable[str], options: Schema) -> Schema:
    """A schema that takes these keys too, and without looking at them; what is open stays so."""
    if "properties" not in options:
        return options
    # an editor proposes nothing for `true`, so each key is offered once: where it is described
    return {**options, "properties": {**dict.fromkeys(names, True), **options["properties"]}}


class _Kind(NamedTuple):
    name: str
    description: str
    options: Schema


def _kinds(listing: Iterable[Mapping[str, Any]]) -> list[_Kind]:
    return [_Kind(entry["id"], entry["description"], entry["config_schema"]) for entry in listing]


def _rewards() -> list[_Kind]:
    return [_Kind(name, _summary(config.__doc__), config_schema(config)) for name, config in REWARDS.items()]


def _summary(doc: str | None) -> str:
    return cleandoc(doc or "").split("\n\n")[0].replace("\n", " ")


def _names(kinds: Iterable[_Kind]) -> list[Schema]:
    return [{"const": kind.name, "description": kind.description} for kind in kinds]


def _by_kind(
    definitions: _Definitions,
    noun: str,
    kinds: list[_Kind],
    keys: Mapping[str, Key] | None = None,
    default: str | None = None,
) -> Schema:
    """A mapping whose ``kind`` decides which options it takes."""
    keys = keys or {"kind": Key(f"Which {noun} it is.", {}, required=default is None)}
    schema = _mapping(keys)
    schema["properties"]["kind"]["anyOf"] = _names(kinds) if default is None else [*_names(kinds), {"type": "null"}]
    schema.setdefault("allOf", [])
    for kind in kinds:
        own = definitions.add(f"{noun}-{kind.name}", _closed(keys, kind.options))
        chosen = (
            {"properties": {"kind": {"enum": [kind.name, None]}}}
            if kind.name == default
            else _has("kind", {"const": kind.name})
        )
        schema["allOf"].append({"if": chosen, "then": own})
    return schema


def _target(definitions: _Definitions) -> Schema:
    kinds = [kind._replace(options=_with_variables(kind.options)) for kind in _kinds(targets.registry.list())]
    known = {kind.name: kind for kind in kinds}
    for alias, name in TARGET_ALIASES.items():
        kinds.append(known[name]._replace(name=alias, description=f"Another name of {name}."))
    schema = _by_kind(definitions, "target", kinds, TARGET_KEYS)
    for models in ("models", "model_handles"):
        several = _has(models, {"type": "array", "minItems": 1})
        schema["allOf"].append({"if": several, "then": {"properties": {"model": {"type": "null"}}}})
    return schema


def _gate(definitions: _Definitions) -> Schema:
    """Gates by their kind; one without is simple, and null is the same as nothing."""
    kinds = []
    for definition in gate_schema()["$defs"].values():
        if "properties" in definition:
            needed = [name for name in definition["required"] if name != "kind"]
            options = {
                name: option if name in needed else _or_nothing(option)
                for name, option in definition["properties"].items()
                if name != "kind"
            }
            kinds.append(
                _Kind(
                    definition["properties"]["kind"]["enum"][0],
                    _summary(definition["description"]),
                    # the conditions of a gate are gates again
                    _moved({**definition, "properties": options, "required": needed}, {"Gate": "gate"}),
                )
            )
    return _by_kind(definitions, "gate", kinds, default="simple")


def _or_nothing(option: Schema) -> Schema:
    if {"type": "null"} in option.get("anyOf", ()):
        return option
    bare = {key: value for key, value in option.items() if key != "description"}
    return {"description": option["description"], "anyOf": [bare, {"type": "null"}]}


def _with_variables(schema: Any) -> Any:
    """The schema of a target's options, where ``${NAME}`` may stand for any text."""
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
    own = {**TEXT, "description": "A custom grader: file.py:name, module:name, or its bare name."}
    definitions.add("kind-of-grader", {"anyOf": _names([*kinds, tool, *aliases])})
    definitions.add("function-of-grader", {"anyOf": [*_names(kinds), own]})
    schema = _mapping(GRADER_KEYS)
    schema["anyOf"] = [{"required": ["kind"]}, {"required": ["type"]}]
    schema["allOf"] = [
        *_tool([kind.name for kind in kinds]),
        *(_options_of_grader(definitions, names, options) for names, options in _same_options(kinds)),
        *_extractors(definitions),
    ]
    return schema


def _same_options(kinds: Iterable[_Kind]) -> list[tuple[list[str], Schema]]:
    """The kinds that take the same options, together: a third of them takes none."""
    found: dict[str, tuple[list[str], Schema]] = {}
    for kind in kinds:
        found.setdefault(json.dumps(kind.options), ([], kind.options))[0].append(kind.name)
    return list(found.values())


def _is_kind(names: list[str], function: Schema | None = None) -> list[Schema]:
    """What holds of a grader of such a kind: ``type`` counts where there is no ``kind``."""
    kind: Schema = {"enum": names}
    named = {} if function is None else {"function": function}
    return [
        {"properties": {"kind": kind, **named}, "required": ["kind", *named]},
        {"properties": {"kind": False, "type": kind, **named}, "required": ["type", *named]},
    ]


def _tool(builtins: list[str]) -> Iterator[Schema]:
    yield {
        "if": {"anyOf": _is_kind(["tool"])},
        "then": {"properties": {"function": TEXT}, "required": ["function"]},
        "else": {"properties": {"function": {"type": "null"}}},
    }
    nothing = {"type": ["object", "null"], "maxProperties": 0}
    yield {
        "if": {"anyOf": _is_kind(["tool"], {"not": {"enum": builtins}})},
        "then": {
            "properties": {**dict.fromkeys(GRADER_KEYS, True), "config": nothing},
            "patternProperties": OWN,
            "additionalProperties": False,
        },
    }


def _options_of_grader(definitions: _Definitions, names: list[str], options: Schema) -> Schema:
    """The options of a kind, which may stand beside the grader's keys or inside ``config``, but not in both."""
    required = options.get("required", [])
    inside = definitions.add(f"grader-{names[0]}", {**options, "type": ["object", "null"], "required": []})
    beside = [name for name in options.get("properties", {}) if name not in GRADER_KEYS]
    rules = [
        {"if": {"required": [name]}, "then": {"properties": {"config": {"properties": {name: False}}}}}
        for name in beside
    ]
    for name in required:
        in_config = _has("config", {"type": "object", "required": [name]})
        rules.append({"anyOf": [{"required": [name]}, in_config] if name in beside else [in_config]})
    entry: Schema = {
        "properties": {
            **dict.fromkeys(GRADER_KEYS, True),
            **{name: defined(f"grader-{names[0]}", "properties", name) for name in beside},
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
    """What holds of kind: rubric where it means one of these: an agent judges where one is named."""
    given = [_has(key, {"not": {"type": "null"}}) for key in AGENT_JUDGE_KEYS]
    by_agent: Schema = {"anyOf": [*given, _has("config", {"type": "object", "anyOf": given})]}
    if AGENT_JUDGE in names:
        yield {"allOf": [{"anyOf": _is_kind([RUBRIC])}, by_agent]}
    if ALIASES[RUBRIC] in names:
        yield {"allOf": [{"anyOf": _is_kind([RUBRIC])}, {"not": by_agent}]}


def _extractors(definitions: _Definitions) -> Iterator[Schema]:
    kinds = _kinds(extractors.registry.list())
    own = {**TEXT, "description": "A custom extractor: file.py:name, module:name, or its bare name."}
    default = default_of(GraderSpec, "extractor")
    definitions.add("extractor", {"default": default, "anyOf": [*_names(kinds), own]})
    for names, options in _same_options(kinds):
        needed = bool(options.get("required"))
        config = definitions.add(
            f"extractor-{names[0]}", options if needed else {**options, "type": ["object", "null"]}
        )
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
    asked = {"not": {"type": "null"}}
    return {
        "description": "A case; keys that are not known go into its metadata.",
        **_mapping(CASE_KEYS),
        "anyOf": [_has("input", asked), _has("prompt", asked)],
    }


class _Definitions:
    """The definitions of the schema, each under its own name."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}

    def add(self, name: str, schema: Schema) -> Schema:
        """Keep a schema, together with the definitions it brings along; gives the reference to it.

        What several declarations bring is kept once; where two mean different things by one name, the
        later keep theirs under a longer one.
        """
        brought: dict[str, Schema] = schema.get("$defs", {})
        moved = {key: _moved(value, {}) for key, value in brought.items()}
        names: dict[str, str] = {}
        if any(self.found.get(key, value) != value for key, value in moved.items()):
            names = {key: f"{name}-{key}" for key in brought}
            moved = {names[key]: _moved(value, names) for key, value in brought.items()}
        self.found |= moved
        self.found[name] = _moved({key: value for key, value in schema.items() if key != "$defs"}, names)
        return defined(name)

    def finished(self) -> dict[str, Schema]:
        """All definitions; an option that several have is described in the first and referred to in the others."""
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
        """A choice among mappings as one that is decided by their tag: an editor then knows which is meant."""
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
    """The schema with its references led to the new names, without the titles that say a class's name."""
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
