"""A run's suite as a YAML file that the command line can run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from gradeline.model import Sample
from gradeline.suite.stored import with_variables

_HIDDEN = "x-grader"
"""Where a grader came from: of no use in a file."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*[A-Za-z0-9_]|[A-Za-z_]")
_READ_OTHERWISE = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class _Dumper(yaml.SafeDumper):
    """Writes every text so that no version of YAML can take it for something else."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _WORD.fullmatch(text) and text.lower() not in _READ_OTHERWISE
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def suite_yaml(document: Mapping[str, Any], samples: Iterable[Sample]) -> str:
    """The suite with its cases in it; ``${NAME}`` stands where the service has a secret."""
    suite = {key: value for key, value in document.items() if key not in ("dataset", "target", "graders")}
    suite["target"] = with_variables(document.get("target"))
    suite["graders"] = {
        key: {name: value for name, value in entry.items() if name != _HIDDEN}
        for key, entry in document.get("graders", {}).items()
    }
    suite["dataset"] = [_row(sample) for sample in samples]
    return yaml.dump(suite, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)


def _row(sample: Sample) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(sample)
    return {key: value for key, value in data.items() if key != "schema" and value not in (None, {}, [], ())}
