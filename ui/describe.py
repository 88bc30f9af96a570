"""Prints the OpenAPI document that the UI's types are made of: `python ui/describe.py > ui/openapi.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gradeline.service.app import create_app
from gradeline.service.openapi import openapi_of
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings


def document() -> dict[str, Any]:
    """The description of the API as it is now."""
    with TemporaryDirectory() as folder:
        service = build_service(ServeSettings(store=str(Path(folder) / "empty.sqlite")))
        try:
            return openapi_of(create_app(service))
        finally:
            service.stop()


def written() -> str:
    """The same as the file holds it: without examples, which say nothing of types and are most of it."""
    return json.dumps(_without_examples(document()), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _without_examples(value: Any, named: bool = False) -> Any:
    """``named``: the keys are names of properties, not words of the format."""
    if isinstance(value, list):
        return [_without_examples(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = value if named else {key: item for key, item in value.items() if key not in ("example", "examples")}
    return {key: _without_examples(item, key == "properties" and not named) for key, item in kept.items()}


if __name__ == "__main__":
    sys.stdout.write(written())
