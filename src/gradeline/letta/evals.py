"""Stand-ins for the names that suite code imports from letta_evals: records, extractors and helpers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gradeline.errors import BadReplyError, NeedsIsolationError
from gradeline.extractors import extract
from gradeline.letta.messages import AgentState, field, flatten_content, from_letta, message_type, to_letta, tool_calls
from gradeline.model import GradeResult, Response, Sample, quote
from gradeline.model.grade import valid_score

LettaTrajectory = Sequence[Sequence[Any]]
"""Turns of letta messages, as letta's extractors receive them."""

GRADER_REGISTRY: dict[str, Callable[..., Any]] = {}
EXTRACTOR_REGISTRY: dict[str, Callable[..., Any]] = {}
"""Both stay empty: marked functions are collected per suite."""


class SuiteSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A suite as its setup function receives it."""

    name: str
    description: str | None = None
    dataset: str | Path | None = None
    target: Any = None
    graders: Mapping[str, Any] | None = None
    gate: Any = None
    reward: Any = None
    max_samples: int | None = None
    sample_tags: Sequence[str] | None = None
    num_runs: int | None = 1
    max_concurrent: int | None = None
    output: str | Path | None = None
    cleanup: bool = False
    setup_script: str | None = None
    sandbox: Any = None
    base_dir: Path | None = None


class SuiteSection(dict[str, Any]):
    """A section of a suite with attribute access to its keys, as in ``suite.target.kind``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the suite has no {name!r} here; it has {', '.join(self) or 'nothing'}") from None


def suite_spec(suite: Mapping[str, Any]) -> SuiteSpec:
    """The spec of a suite as read from its file, without keys that letta does not have."""
    known = {name: _section(suite[name]) for name in SuiteSpec.__struct_fields__ if name in suite}
    return SuiteSpec(**known)


def _section(value: Any) -> Any:
    if isinstance(value, Mapping):
        return SuiteSection({key: _section(item) for key, item in value.items()})
    return [_section(item) for item in value] if isinstance(value, list | tuple) else value


class LettaUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and cost of one sample."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds one sample took."""

    total: float
    target: float
    extraction: float | None = None
    per_grader: Mapping[str, float] | None = None


class TargetResult(msgspec.Struct, frozen=True, kw_only=True):
    """A target's result, with the fields of all versions of letta."""

    agent_id: str
    model_handle: str | None = None
    model_name: str | None = None
    trajectory: LettaTrajectory = ()
    agent_usage: Sequence[Mapping[str, Any]] | None = None
    agent_state: AgentState | None = None


class RewardContext(msgspec.Struct, frozen=True, kw_only=True):
    """A graded sample, the input of a reward composer."""

    sample: Sample
    grades: Mapping[str, GradeResult]
    submissions: Mapping[str, str] = {}
    trajectory: LettaTrajectory = ()
    agent_id: str | None = None
    model_handle: str | None = None
    agent_state: AgentState | None = None
    usage: LettaUsage | None = None
    timing: Timing | None = None


class RewardOutput(msgspec.Struct, frozen=True):
    """The result of a reward composer: a score in 0..1; true and false count as 1 and 0."""

    score: float
    metadata: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        score = float(self.score) if isinstance(self.score, bool) else valid_score(self.score)
        msgspec.structs.force_setattr(self, "score", score)


def trajectory_and_state(response: Response | None) -> tuple[LettaTrajectory, AgentState | None]:
    """A response as letta's extractors receive it; the state is None if the response does not report it."""
    steps = (response or Response(text="")).steps
    return to_letta(steps), None if steps.memory is None else AgentState.of(steps.memory)


def reward_context(
    sample: Sample, grades: Mapping[str, Mapping[str, Any]], submissions: Mapping[str, str], response: Response | None
) -> RewardContext:
    """A graded response as a reward composer receives it."""
    trajectory, state = trajectory_and_state(response)
    return RewardContext(
        sample=sample,
        grades={key: GradeResult(**grade) for key, grade in grades.items()},
        submissions=submissions,
        trajectory=trajectory,
        agent_state=state,
    )


def reward_of(value: object, reference: str) -> GradeResult:
    """A composer's return value (a number, a bool, ``{score, metadata}`` or RewardOutput) as a grade."""
    if isinstance(value, Mapping):
        score, metadata = value.get("score"), value.get("metadata")
    else:
        score, metadata = getattr(value, "score", value), getattr(value, "metadata", None)
    try:
        return GradeResult(float(score) if isinstance(score, bool) else valid_score(score), None, dict(metadata or {}))
    except (TypeError, ValueError) as error:
        raise BadReplyError(f"{reference} returned {quote(value)}: {error}") from None


def last_assistant(trajectory: LettaTrajectory, config: Mapping[str, Any] | None = None) -> str:
    """The last assistant message; "" if there is none."""
    return _extract("last_assistant", trajectory, config)


def first_assistant(trajectory: LettaTrajectory, config: Mapping[str, Any] | None = None) -> str:
    """The first assistant message; "" if there is none."""
    return _extract("first_assistant", trajectory, config)


def all_assistant(trajectory: LettaTrajectory, config: Mapping[str, Any] | None = None) -> str:
    """All assistant messages, joined by ``separator``."""
    return _extract("all_assistant", trajectory, config, "separator")


def last_turn(trajectory: LettaTrajectory, config: Mapping[str, Any] | None = None) -> str:
    """The assistant messages of the last turn, joined by ``separator``."""
    return _extract("last_turn", trajectory, config, "separator")


def pattern(trajectory: LettaTrajectory, config: Mapping[str, Any]) -> str:
    """The match of ``pattern`` in the last assistant message that has one."""
    try:
        return _extract("pattern", trajectory, config, "pattern", "group", "search_all")
    except NeedsIsolationError:
        # The caller is suite code, which may hang anyway and runs in a worker with a deadline.
        return _pattern_by_re(trajectory, config)


def after_marker(trajectory: LettaTrajectory, config: Mapping[str, Any]) -> str:
    """The text after ``marker`` in the last assistant message that contains it, stripped."""
    return _extract("after_marker", trajectory, config, "marker", "include_marker")


def tool_arguments(trajectory: LettaTrajectory, config: Mapping[str, Any]) -> str:
    """The arguments of the first call of ``tool_name``; "{}" if it was never called."""
    return _extract("tool_arguments", trajectory, config, "tool_name")


def tool_output(trajectory: LettaTrajectory, config: Mapping[str, Any]) -> str:
    """The return value of the first call of ``tool_name``; "" if there is none."""
    return _extract("tool_output", trajectory, config, "tool_name")


def memory_block(trajectory: LettaTrajectory, config: Mapping[str, Any], agent_state: Any = None) -> str:
    """The value of the block ``block_label`` in the agent's state; an error if the state is missing."""
    return _extract("memory_block", trajectory, config, "block_label", agent_state=agent_state)


def get_assistant_messages(trajectory: LettaTrajectory) -> list[Any]:
    """All assistant messages, in order."""
    return [message for turn in trajectory for message in turn if message_type(message) == "assistant_message"]


def get_tool_calls(trajectory: LettaTrajectory) -> list[tuple[Any, Any]]:
    """Each message that calls a tool, paired with its return message; calls without a return are omitted.

    The return is the first later message of the turn with the call's ID, or just the first one if the call has no ID.
    """
    pairs = []
    for turn in trajectory:
        for index, message in enumerate(turn):
            if message_type(message) == "tool_call_message":
                ids = [made for call in tool_calls(message) if (made := field(call, "tool_call_id"))]
                found = next((later for later in turn[index + 1 :] if _returns(later, ids)), None)
                if found is not None:
                    pairs.append((message, found))
    return pairs


def get_messages_by_type(trajectory: LettaTrajectory, message_type: type) -> list[Any]:
    """All messages of a class, in order."""
    return [message for turn in trajectory for message in turn if isinstance(message, message_type)]


def get_last_turn_messages(trajectory: LettaTrajectory, message_type: type | None = None) -> list[Any]:
    """The last turn's messages of a class (default: its assistant messages)."""
    last = trajectory[-1:]
    return get_assistant_messages(last) if message_type is None else get_messages_by_type(last, message_type)


def _extract(
    kind: str, trajectory: LettaTrajectory, config: Mapping[str, Any] | None, *options: str, agent_state: Any = None
) -> str:
    # Suite code passes on its own extractor's config, and letta ignores unknown keys.
    known = {name: config[name] for name in options if name in config} if config else {}
    return extract(kind, Response(text="", trajectory=from_letta(trajectory, agent_state)), known)


def _pattern_by_re(trajectory: LettaTrajectory, config: Mapping[str, Any]) -> str:
    compiled = re.compile(config["pattern"])
    group = config.get("group", 0)
    for message in reversed(get_assistant_messages(trajectory)):
        text = flatten_content(field(message, "content"))
        if config.get("search_all"):
            found = compiled.findall(text)
            if found:
                return " ".join(hit[group] if isinstance(hit, tuple) else hit for hit in found)
        elif match := compiled.search(text):
            return match.group(group) or ""
    return ""


def _returns(message: Any, ids: list[str]) -> bool:
    if message_type(message) != "tool_return_message":
        return False
    return not ids or field(message, "tool_call_id") in ids
