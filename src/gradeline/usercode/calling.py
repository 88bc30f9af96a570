"""How a target's function is called, and what it may give back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from gradeline.errors import BadReplyError
from gradeline.model import Response, Sample, clean_text, quote
from gradeline.model.text import is_clean


def call_target(function: Callable[..., Any], sample: Sample, text: str, model: str | None = None) -> Any:
    """Call it with the input; a parameter named ``sample`` gets the whole sample, one named ``model`` the model."""
    first, wants_model = _wants(function)
    asked = sample if first == "sample" else text
    return function(asked, model=model) if wants_model else function(asked)


@lru_cache(maxsize=64)
def _wants(function: Callable[..., Any]) -> tuple[str | None, bool]:
    first, *others = inspect.signature(function).parameters or (None,)
    return first, "model" in others


def as_response(value: object, reference: str) -> Response:
    """What a target's function gave back: a text, or a whole response."""
    if isinstance(value, Response):
        return value
    if isinstance(value, str) and is_clean(value):
        return Response(text=value)
    if value is None or isinstance(value, str):
        text, changed = clean_text(value or "")
        return Response(text=text, cleaned=changed)
    raise BadReplyError(f"{reference} returned {quote(value)} ({type(value).__name__}); return the answer's text (str)")
