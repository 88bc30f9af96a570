"""The suite file, declared once: every key with its type, default, bounds and description.

The reader, the JSON Schema, the reference in the docs and `default_of` derive from these structs. The options of each
kind of grader, extractor, target and gate are declared with that kind, and letta-evals' spellings in `letta_dialects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import Problem
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.model import Config, described, quote
from gradeline.model.run import TurnRule
from gradeline.suite.case_condition import CONDITION
from gradeline.usercode.process_control import SIZE_SCHEMA
from gradeline.verdict.evidence import AgentErrors

# Meta(pattern=...) corrupts the memory of msgspec 0.22, so the schema has the pattern and `_Section` checks it
Text = Annotated[str, Meta(min_length=1, extra_json_schema={"pattern": r"\S"})]
TEXT = "a string that is not empty"
STRINGS = "a list of strings"
MAPPING = "a mapping"
_SWITCH = "true or false"


def _count(least: int) -> str:
    return f"a whole number, at least {least}"


class _Section(Config, frozen=True, kw_only=True):
    """A part of a suite file; its strings are not blank."""

    def faults(self) -> Iterator[Problem]:
        for key, name in zip(self.__struct_encode_fields__, self.__struct_fields__, strict=True):
            value = getattr(self, name)
            if isinstance(value, str) and value.isspace():
                yield Problem(key, f"expected {TEXT}, got {quote(value)}")

    def value_of(self, key: str) -> Any:
        """The value of a key; null is the same as nothing."""
        value = getattr(self, key)
        return default_of(type(self), key) if value is None else value


class MetricReward(_Section, frozen=True, kw_only=True, tag_field="kind", tag="metric"):
    """The reward is the score of one grader."""

    metric_key: Annotated[str, described("The grader.", expected="the name of a grader")]


class CustomReward(_Section, frozen=True, kw_only=True, tag_field="kind", tag="custom"):
    """A function of the suite computes the reward from all grades of a case."""

    function: Annotated[Text, described("file.py:name of a function marked @reward_composer.", expected=TEXT)]


REWARD = "{kind: metric, metric_key: …} or {kind: custom, function: …}"
REWARDS: Mapping[str, type[MetricReward | CustomReward]] = {"metric": MetricReward, "custom": CustomReward}


class BudgetSpec(Config, frozen=True):
    """What a run may spend before it is stopped."""

    cost: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        described("Maximum cost of the agent's calls and its judges, in US dollars.", expected="a number above 0"),
    ] = None
    calls: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Maximum number of calls of the agent.", expected=_count(1))
    ] = None


class PriceSpec(Config, frozen=True):
    """The price of a model, in US dollars per million tokens."""

    input: Annotated[float, described("Input tokens.", ge=0)]
    output: Annotated[float, described("Output tokens, reasoning included.", ge=0)]
    cached_input: Annotated[
        Annotated[float, Meta(ge=0)] | None, described("Input tokens read from the cache (default: as input).")
    ] = None
    cache_write: Annotated[
        Annotated[float, Meta(ge=0)] | None, described("Input tokens written to the cache (default: as input).")
    ] = None


MAX_NAME = 100
"""Maximum characters of the name of a variant or a prompt."""
VARIANT_KEY = r"^target(\.|$)"
"""What a variant may set: graders, cases and gate are those of the suite, so that its runs are comparable."""


class VariantEntry(_Section, frozen=True, kw_only=True):
    """One configuration of the target: a run of its own."""

    name: Annotated[
        Text,
        described(
            "Name of the variant, unique in the suite.",
            max_length=MAX_NAME,
            expected=f"{TEXT}, at most {MAX_NAME} characters",
        ),
    ]
    set: Annotated[
        dict[str, Any] | None,
        described(
            "Values of the target by their path, such as target.prompt; target alone replaces the whole target.",
            expected="a mapping such as {target.model: …}",
        ),
    ] = None

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        schema["properties"]["set"] |= {"propertyNames": {"pattern": VARIANT_KEY}}
        return schema


class PromptEntry(_Section, frozen=True, kw_only=True):
    """A prompt of a chat target, from a file or written here."""

    name: Annotated[
        Annotated[Text, Meta(max_length=MAX_NAME)] | None,
        described(
            "Name of the prompt in names of variants (default: its file's name).",
            expected=f"{TEXT}, at most {MAX_NAME} characters",
        ),
    ] = None
    file: Annotated[Text | None, described("File with the prompt, relative to the suite.", expected=TEXT)] = None
    text: Annotated[Text | None, described("The prompt itself.", expected=TEXT)] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        if (self.file is None) is (self.text is None):
            yield Problem("file", "is required, or text; keep one of them")


Models = Annotated[
    list[Annotated[str, Meta(min_length=1)]] | None,
    described(
        "Models to run: one run each, all in one group.",
        expected="a list of names",
        extra_json_schema={"uniqueItems": True},
    ),
]


class SuiteFile(_Section, frozen=True, kw_only=True):
    """The top level of a suite file."""

    json_schema: Annotated[
        Text | UnsetType, described("JSON Schema that an editor checks this file with.", expected=TEXT)
    ] = msgspec.field(name="$schema", default=UNSET)
    name: Annotated[Text, described("Name of the suite, and by default of its runs.", expected=TEXT)]
    description: Annotated[Text | None, described("What the suite is for.", expected=TEXT)] = None
    dataset: Annotated[
        Text | list[Any],
        described(
            "The cases: a .jsonl, .csv, .json, .yaml or .parquet file (also .jsonl.gz, .csv.gz and .json.gz), a pattern"
            " such as cases/*.jsonl, hf://datasets/OWNER/NAME/CONFIG/SPLIT, a list of these, or a list of cases. Paths"
            " are relative to the suite's folder.",
            expected="a path, a list of paths or a list of cases",
        ),
    ]
    columns: Annotated[
        dict[str, Any] | None,
        described(
            "The column of each key of a case, by name or as JMESPath, such as {input: question, ground_truth: answer,"
            " metadata: {lang: language}}.",
            expected="a mapping such as {input: question, ground_truth: answer}",
        ),
    ] = None
    target: Annotated[
        dict[str, Any],
        described("The agent under test.", expected="the agent under test, such as {kind: http, url: …}"),
    ]
    variants: Annotated[
        Annotated[list[Any], Meta(min_length=1)] | None,
        described(
            "Configurations of the target, one run each, all in one group: {name: …, set: {target.prompt: …}}.",
            expected="a list of variants such as {name: short, set: {target.prompt: …}}",
        ),
    ] = None
    prompts: Annotated[
        Annotated[list[Any], Meta(min_length=1)] | None,
        described(
            "Prompts of a chat target, one run each with each of the models: files relative to the suite's folder, or"
            " texts. A text with {{input}} is the target's `prompt`, any other its `system` prompt.",
            expected="a list of files and texts",
        ),
    ] = None
    models: Models = None
    graders: Annotated[
        dict[str, Any],
        described(
            "The graders of a response, each under a name of your choice.",
            min_length=1,
            expected="a mapping with at least one grader",
        ),
    ]
    gate: Annotated[
        dict[str, Any] | None,
        described(
            "The rule a run must satisfy to pass; it decides the exit code (default: a run only has to be graded).",
            expected="a gate such as {metric_key: …, op: gte, value: 0.8}",
        ),
    ] = None
    reward: Annotated[
        MetricReward | CustomReward | None,
        described(
            "The one score of a case, computed from its grades.",
            expected=REWARD,
        ),
    ] = None
    setup_script: Annotated[
        Text | None, described("file.py:name of a function that is called once before the first case.", expected=TEXT)
    ] = None
    max_samples: Annotated[
        Annotated[int, Meta(ge=0)] | None, described("Run only the first N cases (0: all).", expected=_count(0))
    ] = 0
    sample_tags: Annotated[
        list[str] | None, described("Run only the cases that have all of these tags.", expected=STRINGS)
    ] = None
    repeats: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Number of calls of the agent per case.", expected=_count(1))
    ] = 1
    concurrency: Annotated[
        Annotated[int, Meta(ge=1)] | None, described("Maximum number of calls in flight.", expected=_count(1))
    ] = 15
    output: Annotated[
        Text | None,
        described("Folder that the results are also written to, in letta-evals' layout.", expected=TEXT),
    ] = None
    coverage_floor: Annotated[
        float,
        described(
            "Share of cases that must have a score; below it a run that would pass is undecided.",
            ge=0,
            le=1,
            expected="a number from 0 to 1",
        ),
    ] = 0.95
    agent_errors: Annotated[
        AgentErrors, described("What a failed call of the agent counts as in a gate: no score (exclude), or 0 (fail).")
    ] = "exclude"
    primary: Annotated[
        Text | list[str] | None,
        described(
            "The graders that decide a comparison; the others can only veto it by a significant loss. By default"
            " those of the gate, else the first.",
            expected="a list of graders",
        ),
    ] = None
    cluster: Annotated[
        Text | None,
        described(
            "Field of a case that names its cluster, such as metadata.document: cases in one cluster are not"
            " independent.",
            expected=TEXT,
        ),
    ] = None
    require_calibrated: Annotated[
        bool | None, described("A gate on a judge that is not calibrated is undecided.", expected=_SWITCH)
    ] = False
    corrected: Annotated[
        bool | None,
        described(
            "Gates decide on judges' values corrected by labels, and are undecided without labels; false: on the"
            " judges' own values (default: a comparison uses labels where both runs have them).",
            expected=_SWITCH,
        ),
    ] = None
    budget: Annotated[BudgetSpec | None, described("What a run may spend before it is stopped.")] = None
    prices: Annotated[
        dict[str, PriceSpec] | None,
        described(
            "Prices of models, by the name of the model, in US dollars per million tokens.",
            expected="a mapping such as {gpt-6-luna: {input: 0.10, output: 0.50}} in US dollars per million tokens",
        ),
    ] = None
    cache: Annotated[
        bool | None, described("Store the agent's responses and reuse them for equal calls.", expected=_SWITCH)
    ] = False
    seed: Annotated[
        int | None, described("Seed of random choices; stored with the run.", expected="a whole number")
    ] = None
    cleanup: Annotated[
        bool | None, described("Delete the Letta agents that were created for the cases.", expected=_SWITCH)
    ] = False


class TargetEntry(_Section, frozen=True, kw_only=True):
    """The keys of every target; its kind has its own options."""

    kind: Annotated[str, described("How the agent is called.", expected="the kind of a target")]
    models: Models = None


class GraderEntry(_Section, frozen=True, kw_only=True):
    """The keys of every grader; its kind has its own options."""

    kind: Annotated[
        str | UnsetType,
        described("Which grader it is; tool for the one that `function` names.", expected="the kind of a grader"),
    ] = UNSET
    type: Annotated[str | UnsetType, described("Another name of `kind`.", expected="the kind of a grader")] = UNSET
    config: Annotated[
        dict[str, Any] | None,
        described("The grader's options; they can also be written next to `kind`.", expected=MAPPING),
    ] = None
    function: Annotated[
        Text | None,
        described("For kind tool: a function of your own or a built-in grader.", expected="the name of a grader"),
    ] = None
    extractor: Annotated[
        Text,
        described(
            "Picks the graded text out of the response (default: the last message; for tool_calls, its calls).",
            expected="the name of an extractor",
        ),
    ] = DEFAULT_EXTRACTOR
    extractor_config: Annotated[dict[str, Any] | None, described("The extractor's options.", expected=MAPPING)] = None
    when: Annotated[
        dict[str, Any] | Text | None,
        described(
            "The cases that the grader applies to (default: all): {tag: NAME}, {metadata.KEY: VALUE}, where a list of"
            " values means any of them, or a JMESPath over the case. Others are not applicable: they have no grade and"
            " do not count in the coverage.",
            expected=CONDITION,
        ),
    ] = None
    expected: Annotated[
        Text | None,
        described(
            "The value of the case to grade against (default: its ground_truth), such as $metadata.answer or"
            " $ground_truth.total; data other than text is written as JSON.",
            expected="a reference such as $metadata.answer",
        ),
    ] = None
    pass_threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        described(
            "The lowest score with which a case passes (default: the grader decides).", expected="a number from 0 to 1"
        ),
    ] = None
    noise: Annotated[
        Annotated[float, Meta(ge=0, lt=1)] | None,
        described(
            "In comparisons, a smaller change of a case's score counts as the same, such as 0.01. Scores and means do"
            " not change.",
            expected="a number from 0 to below 1, such as 0.01",
        ),
    ] = 0.0
    turns: Annotated[
        TurnRule | None,
        described(
            "When a conversation graded turn by turn passes: every turn passes (all), or the mean of the turns reaches"
            " pass_threshold, 0.5 without one (mean).",
            expected="all or mean",
        ),
    ] = "all"
    timeout: Annotated[
        float,
        described(
            "Seconds per case for a custom grader; seconds per call for a judge (default 120; for an agent as judge"
            " 300).",
            gt=0,
            le=86_400,
            expected="a number of seconds",
        ),
    ] = 5.0
    memory: Annotated[
        int | str | None,
        described("Memory limit of a custom grader's process, such as 512MB, 4GiB or none (default 2GiB)."),
    ] = None
    display_name: Annotated[Text | None, described("Name to display.", expected=TEXT)] = None

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        schema["properties"]["memory"] |= {**SIZE_SCHEMA, "default": "2GiB"}
        return schema


Scalar = str | int | float | bool
_FilledText = Annotated[str, Meta(min_length=1)] | int | float | bool
_STRING_OR_LIST = "a string or a list of strings"


class CaseEntry(Config, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A row of a dataset, or a case in the suite file. Other keys become metadata."""

    input: Annotated[
        _FilledText | Annotated[list[_FilledText], Meta(min_length=1)] | None,
        described("The user's message; a list has one message per turn.", expected=_STRING_OR_LIST),
    ] = None
    ground_truth: Annotated[
        Scalar | list[Scalar] | None,
        described("The expected response; a list has one per turn.", expected=_STRING_OR_LIST),
    ] = None
    id: Annotated[
        Annotated[str, Meta(min_length=1)] | int | None,
        described(
            "Name of the case, unique in its dataset (default: a digest of its content).",
            expected="a string or a whole number",
        ),
    ] = None
    tags: Annotated[list[str] | None, described("Tags, selected by `sample_tags` and `--tag`.", expected=STRINGS)] = (
        None
    )
    cluster: Annotated[
        Scalar | None,
        described(
            "What the case shares with others, such as a document; overrides the suite's `cluster`.",
            expected="a string, a number, true or false",
        ),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None, described("Further data for graders and templates.", expected=MAPPING)
    ] = None
    agent_args: Annotated[
        dict[str, Any] | None, described("Data for agent factories of letta-evals.", expected=MAPPING)
    ] = None
    rubric_vars: Annotated[
        dict[str, Any] | None, described("Values of placeholders in a rubric.", expected=MAPPING)
    ] = None
    extra_vars: Annotated[dict[str, Any] | None, described("Further values of letta-evals.", expected=MAPPING)] = None
    checks: Annotated[
        list[Any] | None,
        described(
            "Checks for this case only, for a grader of kind checks: rules as in custom-rules, or {judge: criterion};"
            " each may have a weight, required, negate and a metric.",
            expected="a list of checks such as {condition: contains, value: Paris} or {judge: is polite}",
        ),
    ] = None
    rubric: Annotated[str | None, described("Rubric for this case only.", expected="a string")] = None
    rubric_path: Annotated[str | None, described("File with the rubric for this case only.", expected="a string")] = (
        None
    )

    def faults(self) -> Iterator[Problem]:
        if isinstance(self.ground_truth, list) and self.input is not None:
            if not isinstance(self.input, list):
                yield Problem("ground_truth", "is a list, so input must be a list with the same number of turns")
            elif len(self.input) != len(self.ground_truth):
                turns = f"{len(self.input)} turn" + ("s" if len(self.input) != 1 else "")
                yield Problem("ground_truth", f"has {len(self.ground_truth)} items for {turns} of input")
        if self.checks is not None:
            from gradeline.graders.checks import checks_of_case  # loads all rules, and few datasets have checks

            yield from checks_of_case(self.checks)[1]
            if not self.checks:
                yield Problem("checks", "is empty: write at least one check, or leave it out")
        if self.rubric and self.rubric_path:
            yield Problem("rubric_path", "conflicts with rubric; keep one of them")


@cache
def keys_of(entry: type[msgspec.Struct]) -> tuple[str, ...]:
    """The declared keys, as written in a file."""
    return entry.__struct_encode_fields__


def default_of(entry: type[msgspec.Struct], key: str) -> Any:
    """The value of a key that is not written."""
    return _defaults(entry)[key]


@cache
def _defaults(entry: type[msgspec.Struct]) -> Mapping[str, Any]:
    return {field.encode_name: field.default for field in msgspec.structs.fields(entry)}
