"""Which names the stand-ins have, and where each comes from: module -> {name: "module:attribute"}."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DISTRIBUTIONS: Mapping[str, str | None] = MappingProxyType(
    {"letta_evals": "letta-evals", "letta_client": "'letta-client>=1,<2'", "llm_connect": None}
)
"""The packages that have stand-ins, with the argument of ``pip install`` for the real ones; None: in no known index."""


def _from(home: str, names: str) -> dict[str, str]:
    return {name: f"{home}:{name}" for name in names.split()}


_MARKS = _from("gradeline.usercode.marks", "grader extractor agent_factory suite_setup reward_composer")
_MODEL = _from("gradeline.model", "Sample GradeResult")
_EVALS = "gradeline.compat.letta_evals"
_MESSAGES = "gradeline.compat.letta_messages"

_RECORDS = _from(_EVALS, "SuiteSpec RewardOutput RewardContext TargetResult Usage Timing")
_UNION = _from(_MESSAGES, "LettaMessageUnion")
_STATE = _from(_MESSAGES, "AgentState")
_BUILTIN = _from(
    _EVALS,
    "last_assistant first_assistant all_assistant last_turn pattern after_marker "
    "tool_arguments tool_output memory_block",
)
_TYPES = _from(
    _MESSAGES,
    "SystemMessage UserMessage AssistantMessage ReasoningMessage HiddenReasoningMessage ToolCallMessage "
    "ToolReturnMessage ApprovalRequestMessage ApprovalResponseMessage SummaryMessage EventMessage ToolCall TextContent",
)
_PARAMS = _from(_MESSAGES, "CreateBlockParam MessageCreateParam")
_TOOL = _from(_MESSAGES, "BaseTool")
_GRADING = {
    **_from("gradeline.judges", "GradingResult Judge BaselineGrader"),
    **_from("gradeline.judges", "ExactMatchJudge EmbeddingSimilarityJudge LLMJudge PairedGrader"),
    **_from("gradeline.adapters", "LLMAdapter EmbeddingAdapter LLMResponse RunConfig BudgetTracker"),
    **_from("gradeline.ledger", "QualityLedger"),
}

TABLES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "letta_evals": {**_MODEL, **_RECORDS, **_MARKS, **_UNION, **_STATE},
        "letta_evals.decorators": {**_MARKS, **_from(_EVALS, "GRADER_REGISTRY EXTRACTOR_REGISTRY")},
        "letta_evals.models": {**_MODEL, **_RECORDS, **_UNION, **_STATE},
        "letta_evals.types": _UNION,
        "letta_evals.extractors": _BUILTIN,
        "letta_evals.extractors.builtin": _BUILTIN,
        "letta_evals.extractors.utils": _from(
            _EVALS,
            "flatten_content get_assistant_messages get_tool_calls get_messages_by_type get_last_turn_messages",
        ),
        "letta_client": {
            **_from(_MESSAGES, "AsyncLetta Letta CreateBlock MessageCreate"),
            **_TYPES,
            **_UNION,
            **_STATE,
        },
        "letta_client.client": _TOOL,
        "letta_client.types": {**_TYPES, **_UNION, **_STATE, **_PARAMS},
        "letta_client.types.agents": {**_TYPES, **_UNION, "Message": f"{_MESSAGES}:LettaMessageUnion"},
        "letta_client.types.tool": _TOOL,
        "llm_connect": _GRADING,
        "llm_connect.grading": _GRADING,
    }
)
