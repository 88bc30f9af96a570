"""The public names of ``gradeline.judges``, and its import time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import gradeline.judges
from gradeline import judges
from gradeline.errors import GRADE_POLICY
from gradeline.judges import ReplyError


def test_the_public_names() -> None:
    assert judges.__all__ == [
        "BaselineGrader",
        "EmbeddingSimilarityJudge",
        "EmptyReply",
        "ExactMatchJudge",
        "GradingResult",
        "InvalidReply",
        "Judge",
        "LLMJudge",
        "PairedGrader",
        "RefusedReply",
        "ReplyError",
        "SideFailed",
        "TruncatedReply",
    ]
    assert [name for name in judges.__all__ if getattr(judges, name).__name__ != name] == []
    assert set(judges.__all__) <= set(dir(judges))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'gradeline\.judges' has no attribute 'Jury'"):
        _ = gradeline.judges.Jury  # type: ignore[attr-defined]


@pytest.mark.parametrize("bias", ["length", "format", "position", "self-preference"])
@pytest.mark.parametrize("place", [judges, judges.LLMJudge])
def test_the_four_biases_are_in_the_docs_of_judges(place: object, bias: str) -> None:
    assert bias in (place.__doc__ or "").lower()


def test_importing_it_loads_nothing_heavy() -> None:
    script = (
        "import sys, json; before = set(sys.modules); import gradeline.judges\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    ours = {name for name in json.loads(done.stdout) if name.startswith("gradeline")}
    assert ours == {"gradeline", "gradeline.judges", "gradeline.lazy_exports"}


def test_every_reply_error_has_a_policy() -> None:
    assert {kind.type for kind in ReplyError.__subclasses__()} <= set(GRADE_POLICY)
