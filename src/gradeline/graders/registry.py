"""Registry of graders, and creation by kind or definition."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

from gradeline.errors import ConfigError, Problem
from gradeline.graders.base import DEFAULT_EXTRACTOR, DeclaredGrader, Grader, as_grader
from gradeline.model import GraderProtocol, quote
from gradeline.model.registry import Registry

BUILTINS = {
    "true-false": "gradeline.graders.text_match:TrueFalseGrader",
    "string-match": "gradeline.graders.text_match:StringMatchGrader",
    "custom-rules": "gradeline.graders.rules:RulesGrader",
    "exact_match": "gradeline.letta.graders:ExactMatchGrader",
    "contains": "gradeline.letta.graders:ContainsGrader",
    "regex_match": "gradeline.letta.graders:RegexMatchGrader",
    "ascii_printable_only": "gradeline.letta.graders:AsciiPrintableOnlyGrader",
    "numeric": "gradeline.graders.numeric:NumericGrader",
    "json_match": "gradeline.graders.json_data:JsonMatchGrader",
    "json_schema": "gradeline.graders.json_data:JsonSchemaGrader",
    "similarity": "gradeline.graders.text_match:SimilarityGrader",
    "rouge": "gradeline.graders.text_overlap:RougeGrader",
    "bleu": "gradeline.graders.text_overlap:BleuGrader",
    "gleu": "gradeline.graders.text_overlap:GleuGrader",
    "token_f1": "gradeline.graders.text_overlap:TokenF1Grader",
    "tool_calls": "gradeline.graders.tool_calls:ToolCallsGrader",
    "trajectory": "gradeline.graders.trajectory:TrajectoryGrader",
    "retrieval": "gradeline.graders.retrieval:RetrievalGrader",
    "latency": "gradeline.graders.limits:LatencyGrader",
    "cost": "gradeline.graders.limits:CostGrader",
    "finish_reason": "gradeline.graders.finish_reason:FinishReasonGrader",
    "checks_metric": "gradeline.graders.checks:ChecksMetricGrader",
    "formula": "gradeline.graders.formula:FormulaGrader",
    # Judges are a higher layer, imported when used.
    "checks": "gradeline.judges.checks:ChecksGrader",
    "model_judge": "gradeline.judges.model_judge:ModelJudge",
    "panel": "gradeline.judges.panel:PanelGrader",
    "pairwise": "gradeline.judges.pairwise:PairwiseGrader",
    "baseline": "gradeline.judges.baseline_judge:BaselineJudge",
    "embedding": "gradeline.judges.embedding:EmbeddingGrader",
    "letta_judge": "gradeline.letta.judge:LettaJudge",
    "command": "gradeline.external.command:CommandGrader",
    "http": "gradeline.external.http:HttpGrader",
}

ALIASES = {
    "custom-json": "custom-rules",
    "rubric": "model_judge",
    "string_match": "string-match",
    "true_false": "true-false",
}
"""Other spellings of a kind, accepted but never written."""

GROUP = "gradeline.graders"

_ENVELOPE = frozenset({"type", "kind", "config", "id", "name", "description"})
"""Keys of a definition that are not options."""


def _describe(name: str, declaration: type[Grader]) -> dict[str, Any]:
    if issubclass(declaration, DeclaredGrader):
        return declaration.describe()
    doc = cleandoc(declaration.__doc__ or "")
    return {
        "id": name,
        "name": declaration.__name__,
        "description": doc.split("\n\n")[0].replace("\n", " "),
        "type": name,
        "config_schema": {"type": "object"},
        "version": getattr(declaration, "version", 1),
        "fingerprint": as_grader(declaration({}), name).fingerprint,
        "scoring_guide": getattr(declaration, "scoring_guide", ""),
        "caveats": list(getattr(declaration, "caveats", ())),
        "default_extractor": declaration.default_extractor,
    }


registry: Registry[Grader] = Registry("grader", Grader, BUILTINS, GROUP, _describe)


def create(kind: str, config: Mapping[str, Any] | None = None) -> GraderProtocol:
    """Create a grader.

    Raises `ConfigError` (a `ValueError`) with the path of every problem in the config.
    """
    declaration = registry.get(ALIASES.get(kind, kind))
    if not issubclass(declaration, DeclaredGrader):
        return as_grader(declaration(config or {}), kind)
    declaration.check(config)
    return declaration.class_for(config or {})(config=config)


def default_extractor(kind: str) -> str:
    """The default extractor of a kind of grader; for code and unknown kinds the last message."""
    name = ALIASES.get(kind, kind)
    return registry.get(name).default_extractor if name in registry else DEFAULT_EXTRACTOR


def from_definition(definition: Mapping[str, Any]) -> GraderProtocol:
    """Create a grader from its stored form ``{"kind" or "type": ..., "config": {...}}``; options may also be flat."""
    if not isinstance(definition, Mapping):
        raise ConfigError(Problem("definition", f"expected a mapping, got {quote(definition)}"))
    kinds = [definition[key] for key in ("kind", "type") if key in definition]
    if not kinds:
        raise ConfigError(Problem("definition", f"needs a 'kind' (or 'type'), got {quote(dict(definition))}"))
    if len(set(map(str, kinds))) > 1 or not isinstance(kinds[0], str):
        raise ConfigError(Problem("kind", f"must be one name, got {quote(kinds)}"))
    config = definition.get("config")
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(Problem("config", f"expected a mapping, got {quote(config)}"), kinds[0])
    config = dict(config or {})
    for key, value in definition.items():
        if key in _ENVELOPE:
            continue
        if key in config:
            raise ConfigError(Problem(key, "is set both inside and outside of 'config'; keep one of them"), kinds[0])
        config[key] = value
    return create(kinds[0], config)
