"""An import hook that creates stand-in modules; their names are resolved with `TABLES` when they are first used."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any

DISTRIBUTIONS: Mapping[str, str | None] = MappingProxyType(
    {"letta_evals": "letta-evals", "letta_client": "'letta-client>=1,<2'", "llm_connect": None}
)
"""The packages with stand-ins, and the argument of ``pip install`` for the real ones; None: not on a package index."""


def _resolve(reference: str) -> Any:
    """Import ``module:attribute``."""
    home, _, attribute = reference.partition(":")
    return getattr(import_module(home), attribute)


def _from(home: str, names: str) -> dict[str, str]:
    """Import strings by name; ``Usage=LettaUsage`` makes ``LettaUsage`` of the module available as ``Usage``."""
    pairs = (name.partition("=") for name in names.split())
    return {name: f"{home}:{attribute or name}" for name, _, attribute in pairs}


_MARKS = _from("gradeline.usercode.decorators", "grader extractor agent_factory suite_setup reward_composer")
_MODEL = _from("gradeline.model", "Sample GradeResult")
_EVALS = "gradeline.letta.evals"
_MESSAGES = "gradeline.letta.messages"

_RECORDS = _from(_EVALS, "SuiteSpec RewardOutput RewardContext TargetResult Usage=LettaUsage Timing")
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
    "ToolReturnMessage ApprovalRequestMessage ApprovalResponseMessage SummaryMessage EventMessage "
    "ToolCall=LettaToolCall TextContent",
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


ARGUMENTS: Mapping[str, str] = MappingProxyType(
    _from(_EVALS, "trajectory_and_state reward_context reward_of suite_spec")
)
"""The functions that build the arguments of user code for letta-evals, and read its results."""


def argument_function(name: str) -> Any:
    """A function of `ARGUMENTS`, imported on first use."""
    return _resolve(ARGUMENTS[name])


class StandInModule(ModuleType):
    """A module whose attributes are the names of its table and its submodules, each imported on first use."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in TABLES:
            return import_module(f"{self.__name__}.{name}")
        if name not in TABLES[self.__name__]:
            raise AttributeError(_missing(self.__name__, name), name=name, obj=self)
        value: object = _resolve(TABLES[self.__name__][name])
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_names(self.__name__)})


class StandInFinder(MetaPathFinder, Loader):
    """Finds the modules of `TABLES`. It is the last finder, so it is used only for packages that are not installed."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        package, _, inner = fullname.partition(".")
        if package not in DISTRIBUTIONS:
            return None
        if inner and not isinstance(sys.modules.get(package), StandInModule):
            return None
        if fullname in TABLES:
            # All are packages: "from m import unknown" then calls this finder, which has a better message than
            # the interpreter's "cannot import name (unknown location)".
            return ModuleSpec(fullname, self, origin="gradeline.compat", is_package=True)
        parent, _, name = fullname.rpartition(".")
        # An error that names fullname would be swallowed by "from m import unknown".
        raise ModuleNotFoundError(_missing(parent, name), name=package)

    def create_module(self, spec: ModuleSpec) -> StandInModule:
        return StandInModule(spec.name, f"gradeline's stand-in for {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__all__"] = list(TABLES[module.__name__])


def install() -> None:
    """Make the stand-ins importable in this process; installed packages have priority."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())


def uninstall() -> None:
    """Undo `install` and remove the stand-in modules; names that were imported from them stay usable."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, StandInFinder)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, StandInModule)]:
        del sys.modules[name]


def _names(module: str) -> list[str]:
    inner = (name.rpartition(".") for name in TABLES)
    return [*TABLES[module], *(name for parent, _, name in inner if parent == module)]


def _missing(module: str, name: str) -> str:
    from gradeline.errors import closest_match  # only when something is missing

    package = module.partition(".")[0]
    known = [other for other in _names(module) if other != name] if module in TABLES else []
    close = closest_match(name, known)
    hint = f"; did you mean {close!r}?" if close else "."
    source = DISTRIBUTIONS[package]
    remedy = f"The real package has everything: pip install {source}" if source else "The real package may have it."
    return f"gradeline's stand-in for {package} has no {module}.{name}{hint} {remedy}"
