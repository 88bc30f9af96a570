"""Prints the OpenAPI document from which the UI types are generated: `python ui/describe.py > ui/openapi.json`."""

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
    """The current OpenAPI document of the service."""
    with TemporaryDirectory() as folder:
        service = build_service(ServeSettings(store=str(Path(folder) / "empty.sqlite")))
        try:
            return openapi_of(create_app(service))
        finally:
            service.stop()


def document_text() -> str:
    """The document as JSON, without examples, which are most of it and do not affect types."""
    return json.dumps(_without_examples(document()), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _without_examples(value: Any, is_properties: bool = False) -> Any:
    """``is_properties``: the keys are property names, not OpenAPI keywords."""
    if isinstance(value, list):
        return [_without_examples(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = value if is_properties else {key: item for key, item in value.items() if key not in ("example", "examples")}
    return {key: _without_examples(item, key == "properties" and not is_properties) for key, item in kept.items()}


if __name__ == "__main__":
    sys.stdout.write(document_text())
