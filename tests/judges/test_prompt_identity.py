"""What a calibration knows of a judge's prompt: a digest, and the id of a shipped rubric."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.judges.base import JudgeGrader
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.pairwise import PairwiseGrader
from gradeline.judges.panel import PanelGrader

MODELS = {"judges": [{"model": "a"}, {"model": "b"}]}
KINDS: list[tuple[type[JudgeGrader[Any]], dict[str, Any]]] = [
    (ModelJudge, {"model": "a"}),
    (PanelGrader, MODELS),
    (PairwiseGrader, {"model": "a", "baseline": "old"}),
]


@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_the_digest_changes_with_the_prompt_and_not_with_the_model(
    kind: type[JudgeGrader[Any]], options: dict[str, Any]
) -> None:
    judge = kind(None, options | {"prompt": "Is it right?"})
    other = kind(None, options | {"prompt": "Is it kind?"})
    assert judge.prompt_hash
    assert judge.prompt_hash != other.prompt_hash
    assert judge.rubric_version == ""
    asked = kind(None, options | {"prompt": "Is it right?", "system_prompt": "Be strict."})
    assert asked.prompt_hash != judge.prompt_hash
    if "model" in options:
        assert kind(None, options | {"prompt": "Is it right?", "model": "b"}).prompt_hash == judge.prompt_hash


@pytest.mark.parametrize(("kind", "options"), KINDS[:2])
def test_a_shipped_rubric_has_its_version(kind: type[JudgeGrader[Any]], options: dict[str, Any]) -> None:
    pinned, newest = (kind(None, options | {"rubric": rubric}) for rubric in ("factuality@1", "factuality"))
    assert pinned.rubric_version == "factuality@1"
    assert newest.rubric_version.startswith("factuality@")
