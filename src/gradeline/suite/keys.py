"""The keys that a suite file may have, with what an editor and an error message say of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args
from urllib.parse import quote as percent_encoded

import msgspec

from gradeline.model import Config, described
from gradeline.suite.spec import GraderSpec, Suite
from gradeline.usercode.process_control import SIZE_SCHEMA

Schema = dict[str, Any]


class Key(NamedTuple):
    """A key of a suite, or of an entry in it."""

    description: str
    schema: Schema
    required: bool = False
    used: bool = True
    """False: a key of letta that changes nothing here."""
    same_as: str | None = None
    """The key that this is another name of; only one of the two may have a value."""


class MetricReward(Config, frozen=True, kw_only=True):
    """One grader's score is the reward."""

    kind: Annotated[Literal["metric"], described("Which reward it is.")]
    metric_key: Annotated[str, described("The grader.")]


class CustomReward(Config, frozen=True, kw_only=True):
    """A function of the suite composes the reward from all grades of a case."""

    kind: Annotated[Literal["custom"], described("Which reward it is.")]
    function: Annotated[str, described("file.py:name of a function marked @reward_composer.")]


REWARDS: Mapping[str, type[Config]] = {"metric": MetricReward, "custom": CustomReward}

TEXT: Schema = {"type": "string", "minLength": 1}
_TEXT_OR_NOTHING: Schema = {"type": ["string", "null"], "minLength": 1}
_TEXTS: Schema = {"type": ["array", "null"], "items": {"type": "string"}}
_MODELS: Schema = {"type": ["array", "null"], "items": TEXT, "uniqueItems": True}
_SWITCH: Schema = {"type": ["boolean", "null"]}
_TREE: Schema = {"type": ["object", "null"]}
_WORD: Schema = {"type": ["string", "number", "boolean"]}
_ASKED: Schema = {
    "anyOf": [
        {**_WORD, "minLength": 1},
        {"type": "array", "items": {**_WORD, "minLength": 1}, "minItems": 1},
        {"type": "null"},
    ]
}
_IDENTITY: Schema = {"type": ["string", "integer", "null"], "minLength": 1}
_RUBRIC: Schema = {"type": ["string", "null"]}


def _count(field: str, least: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": least, "default": default_of(Suite, field)}


def default_of(holder: type[msgspec.Struct], name: str) -> Any:
    """What a field is when nothing is given."""
    return _field(holder, name).default


def _field(holder: type[msgspec.Struct], name: str) -> msgspec.structs.FieldInfo:
    return _fields(holder)[name]


@cache
def _fields(holder: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(holder)}


def defined(name: str, *steps: str) -> Schema:
    """A reference to a definition of the schema, or to a part of it."""
    path = "/".join(part.replace("~", "~0").replace("/", "~1") for part in (name, *steps))
    return {"$ref": f"#/$defs/{percent_encoded(path, safe='/~')}"}


SUITE_KEYS: Mapping[str, Key] = {
    "$schema": Key("The JSON Schema that an editor checks this file with.", TEXT),
    "name": Key("What the suite, and by default each run of it, is called.", TEXT, required=True),
    "description": Key("What the suite is for.", _TEXT_OR_NOTHING),
    "dataset": Key(
        "The cases: a .jsonl, .csv, .json or .yaml file beside the suite, or a list of cases.",
        {"anyOf": [TEXT, {"type": "array", "items": defined("case"), "minItems": 1}]},
        required=True,
    ),
    "target": Key("The agent that is asked.", defined("target"), required=True),
    "graders": Key(
        "What grades an answer, each grader under a name of your choice.",
        {"type": "object", "additionalProperties": defined("grader"), "minProperties": 1},
        required=True,
    ),
    "gate": Key(
        "What a run must reach to pass; it decides the exit code. Without one a run only has to be graded.",
        {"anyOf": [defined("gate"), {"type": "null"}]},
    ),
    "reward": Key("What a case is worth in the end.", {"anyOf": [defined("reward"), {"type": "null"}]}),
    "setup_script": Key("file.py:name of a function that is called once before the first case.", _TEXT_OR_NOTHING),
    "max_samples": Key("Run the first so many cases alone; 0 is all of them.", _count("limit", 0)),
    "sample_tags": Key("Run the cases that have all of these tags.", _TEXTS),
    "num_runs": Key("How often each case is asked.", _count("repeats", 1)),
    "repeats": Key("How often each case is asked.", _count("repeats", 1), same_as="num_runs"),
    "max_concurrent": Key("How many calls are in flight at once.", _count("concurrency", 1)),
    "concurrency": Key("How many calls are in flight at once.", _count("concurrency", 1), same_as="max_concurrent"),
    "output": Key("A folder that the results are also written to, in letta's layout.", _TEXT_OR_NOTHING),
    "coverage_floor": Key(
        "The share of cases that must have a score; below it a run does not pass, it is undecided.",
        {"type": "number", "minimum": 0, "maximum": 1, "default": default_of(Suite, "coverage_floor")},
    ),
    "agent_errors": Key(
        "What a failed call of the agent counts as in the gate: no score (exclude), or 0 (fail).",
        {"enum": list(get_args(_field(Suite, "agent_errors").type)), "default": default_of(Suite, "agent_errors")},
    ),
    "primary": Key(
        "The graders that decide a comparison; the others can only veto it by a significant loss. By default those of"
        " the gate, else the first.",
        {"anyOf": [TEXT, _TEXTS]},
    ),
    "cluster": Key(
        "Where a case names its cluster, such as metadata.document: cases that share one are not independent.",
        _TEXT_OR_NOTHING,
    ),
    "require_calibrated": Key("A gate on a judge that is not calibrated is undecided.", _SWITCH),
    "budget": Key("What a run may spend.", {"anyOf": [defined("budget"), {"type": "null"}]}),
    "prices": Key(
        "What models cost, in US dollars per million tokens, by the name of the model.",
        {"type": ["object", "null"], "additionalProperties": defined("price")},
    ),
    "cache": Key("Keep the agent's answers, and use those that an equal call has given before.", _SWITCH),
    "seed": Key("Kept with the run; decides what is drawn at random.", {"type": ["integer", "null"]}),
    "cleanup": Key("Delete the Letta agents that were made for the cases.", _SWITCH),
    "sandbox": Key("A key of letta, without effect here: a suite runs on this machine.", _TREE, used=False),
}
"""What may stand at the top of a suite, beside keys that begin with ``x-``."""

TARGET_KEYS: Mapping[str, Key] = {
    "kind": Key("How the agent is asked.", {}, required=True),
    "models": Key("The models to ask: each makes a run of its own, all in one group.", _MODELS),
    "model_handles": Key("The models to ask, as letta names the key.", _MODELS, same_as="models"),
}
"""What every target may have beside the options of its kind."""

GRADER_KEYS: Mapping[str, Key] = {
    "kind": Key("Which grader it is; tool for the one that `function` names.", defined("kind-of-grader")),
    "type": Key("Another name of `kind`.", defined("kind-of-grader")),
    "config": Key("The grader's options; they may as well stand beside it.", _TREE),
    "function": Key("For kind tool: which grader it is.", {"anyOf": [defined("function-of-grader"), {"type": "null"}]}),
    "extractor": Key(
        "What takes the graded text out of the answer; by default the agent's last message, for tool_calls its calls.",
        defined("extractor"),
    ),
    "extractor_config": Key("The extractor's options.", _TREE),
    "pass_threshold": Key(
        "The score from which a case passes; by default the grader says.",
        {"type": ["number", "null"], "minimum": 0, "maximum": 1},
    ),
    "noise": Key(
        "Where runs are compared, a smaller change of a case's score counts as same, such as 0.01. It changes neither"
        " scores nor means.",
        {"type": ["number", "null"], "minimum": 0, "exclusiveMaximum": 1, "default": default_of(GraderSpec, "noise")},
    ),
    "turns": Key(
        "When a conversation passes that is graded turn by turn: every turn passes (all), or the mean of the turns "
        "reaches pass_threshold, 0.5 without one (mean).",
        {"enum": [*get_args(_field(GraderSpec, "turns").type), None], "default": default_of(GraderSpec, "turns")},
    ),
    "timeout": Key(
        "Seconds that a custom grader may take for one case; of a judge, 120 by default (of an agent 300), for a call.",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400, "default": default_of(GraderSpec, "timeout")},
    ),
    "memory": Key(
        "Memory that the process of a custom grader may take, such as 512MB, 4GiB or none (default 2GiB).",
        {**SIZE_SCHEMA, "default": "2GiB"},
    ),
    "display_name": Key("A name for people to read.", _TEXT_OR_NOTHING),
}
"""What every grader may have beside the options of its kind."""

AGENT_JUDGE = "letta_judge"
AGENT_JUDGE_KEYS = ("agent_file", "agent_id", "judge_tool_name")
"""Options of agents as judges, which make one of kind: rubric, as letta's documentation writes it."""
RUBRIC = "rubric"

CASE_KEYS: Mapping[str, Key] = {
    "input": Key("What the agent is asked; a list is one message a turn.", _ASKED),
    "prompt": Key("Another name of `input`.", _ASKED),
    "ground_truth": Key(
        "What is expected; a list has one for each turn.",
        {"type": [*_WORD["type"], "array", "null"], "items": _WORD},
    ),
    "id": Key("The case's name in its suite; by default its number, from 0.", _IDENTITY),
    "sample_id": Key("Another name of `id`.", _IDENTITY),
    "tags": Key("What `sample_tags` and `--tag` choose by.", _TEXTS),
    "cluster": Key(
        "What the case shares with others, such as a document; it wins over the suite's `cluster`.",
        {"type": [*_WORD["type"], "null"]},
    ),
    "metadata": Key("What graders and templates may read beside.", _TREE),
    "agent_args": Key("What letta's agent factories read.", _TREE),
    "rubric_vars": Key("What a rubric's placeholders stand for.", _TREE),
    "extra_vars": Key("Further values, as letta names them.", _TREE),
    "rubric": Key("A rubric for this case alone.", _RUBRIC),
    "rubric_path": Key("The file of a rubric for this case alone.", _RUBRIC),
}
"""What a case that stands in the suite itself may have; what is not named here becomes metadata."""
