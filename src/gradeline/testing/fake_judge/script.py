"""A fake judge from a script file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gradeline.testing.fake_judge.behaviours import read_behaviour
from gradeline.testing.fake_judge.server import FakeJudge, Rule
from gradeline.testing.fake_judge.truth import read_truths


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``{"seed": 7, "behaviour": {…}, "items": {"17-a": 0.8}, "rules": [{"item": "17-*", "behaviour": "fenced"}]}``"""

    seed: int = 0
    behaviour: str | dict[str, object] = {}
    """A name, or fields."""
    items: dict[str, object] = {}
    rules: tuple[Rule, ...] = ()


def from_script(path: Path, port: int = 0, seed: int | None = None) -> FakeJudge:
    """The judge that a file describes; `ValueError` names the file and what is wrong with it."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
        return FakeJudge(
            read_behaviour(script.behaviour),
            seed=script.seed if seed is None else seed,
            items=read_truths(script.items),
            rules=script.rules,
            port=port,
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
