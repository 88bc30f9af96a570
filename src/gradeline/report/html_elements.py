"""HTML that cannot be broken out of: what is not known to be HTML is escaped, everywhere."""

from __future__ import annotations

from html import escape

from gradeline.report.visible import visible

_VOID = frozenset({"br", "circle", "col", "line", "meta", "path", "rect"})


class Html(str):
    """A text that is HTML already. Made here and by `element` alone."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | bool | None) -> Html:
    """An element. A child that is not `Html` is text; so is every attribute. None and False leave one out.

    ``class_`` is written for ``class``, ``stroke_width`` for ``stroke-width``.
    """
    head = f"<{name}{''.join(_attribute(key, value) for key, value in attributes.items())}>"
    if name in _VOID and not children:
        # elements of SVG must be closed
        return Html(head if name in ("br", "col", "meta") else f"{head[:-1]}/>")
    return Html(f"{head}{together(*children)}</{name}>")


def together(*children: str) -> Html:
    """Several pieces in a row."""
    return Html("".join(child if isinstance(child, Html) else safe(child) for child in children))


def safe(text: str) -> Html:
    """Text from outside: markup is escaped, control and direction characters are shown by name."""
    return Html(escape(visible(text), quote=True))


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{safe(value)}"'
