"""HTML in the text of an agent: whether the text is HTML, and whether it contains any."""

from __future__ import annotations

import re
from collections import Counter

from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import compile_trusted_pattern

_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_RAW = {"script", "style", "textarea", "title"}
"""Elements whose content is text."""
_ELEMENTS = _VOID | _RAW | {
    "a", "abbr", "acronym", "address", "article", "aside", "audio", "b", "bdi", "bdo", "big", "blink", "blockquote",
    "body", "button", "canvas", "caption", "center", "cite", "code", "colgroup", "data", "datalist", "dd", "del",
    "details", "dfn", "dialog", "dir", "div", "dl", "dt", "em", "fieldset", "figcaption", "figure", "font", "footer",
    "form", "frame", "frameset", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hgroup", "html", "i", "iframe",
    "ins", "kbd", "label", "legend", "li", "main", "map", "mark", "marquee", "math", "menu", "meter", "nav", "noscript",
    "object", "ol", "optgroup", "option", "output", "p", "param", "picture", "pre", "progress", "q", "rp", "rt", "ruby",
    "s", "samp", "search", "section", "select", "slot", "small", "span", "strike", "strong", "sub", "summary", "sup",
    "svg", "table", "tbody", "td", "template", "tfoot", "th", "thead", "time", "tr", "tt", "u", "ul", "var", "video",
}  # fmt: skip
# possessive, to stay linear in untrusted text
_TAG = re.compile(
    r"""<(?P<close>/?)(?P<name>[a-zA-Z][^\s/<>]*+)(?P<rest>[^<>"']*+(?:"[^"]*+"[^<>"']*+|'[^']*+'[^<>"']*+)*+)>"""
)
_CUSTOM = re.compile(r"[a-z][a-z0-9._]*-[a-z0-9._-]*")

_SIGNS = (
    (2, r"(?i)<!doctype\s+html"),
    (1, r"<[a-zA-Z][a-zA-Z0-9-]*(?:\s[^<>]*)?>"),
    (1, r"</[a-zA-Z][a-zA-Z0-9-]*\s*>"),
    (1, r"<[a-zA-Z][a-zA-Z0-9-]*(?:\s[^<>]*)?/>"),
    (2, r"(?i)<(?:html|head|body|div|span|p|a|img|h[1-6]|ul|ol|li|table|tr|td|th|form|input|button|script|style|link"
        r"|meta|br|hr)(?:\s[^<>]*)?/?>"),
    (1, r"&(?:[a-zA-Z][a-zA-Z0-9]*|#[0-9]+|#[xX][0-9a-fA-F]+);"),
    (1, r"(?s)<!--.*?-->"),
    (1, r"""<[^<>]*\s[a-zA-Z-]+\s*=\s*(?:"[^"]*"|'[^']*')"""),
)  # fmt: skip
"""Signs of HTML with their weights."""
_ENOUGH = 2
_CHAR_NS = 300
"""Time of `is_html` for each character of the shortest tags."""


def contains_html(text: str) -> bool:
    """Whether the text has enough signs of HTML.

    A tag of a common element, a pair of tags or a document type is enough; so are two of: a tag, an entity, a comment,
    an attribute.
    """
    return sum(weight for weight, sign in _SIGNS if compile_trusted_pattern(sign).search(text)) >= _ENOUGH


def is_html(text: str) -> bool:
    """Whether the text is HTML and nothing else.

    It has an element of HTML or a custom element, and no text outside of elements.
    """
    if too_costly(len(text) * _CHAR_NS):
        raise needs_worker(f"parsing {len(text):,} characters of HTML")
    if text.lstrip().startswith("<?xml"):
        return False
    known = False
    open_tags = _OpenTags()
    position = 0
    while position < len(text):
        start = text.find("<", position)
        content = text[position:] if start == -1 else text[position:start]
        if not open_tags and content.strip():
            return False
        if start == -1:
            break
        declared = _declaration_end(text, start)
        if declared is not None:
            position = declared
            continue
        tag = _TAG.match(text, start)
        if tag is None:
            if not open_tags:
                return False
            position = start + 1
            continue
        name = tag["name"].lower()
        known = known or name in _ELEMENTS or _CUSTOM.fullmatch(name) is not None
        position = tag.end()
        if tag["close"]:
            open_tags.close(name)
        elif name in _RAW:
            position = _raw_end(text, position, name)
        elif name not in _VOID:
            open_tags.open(name)
    return known


class _OpenTags:
    """The open elements, outermost first."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._counts: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._names)

    def open(self, name: str) -> None:
        self._names.append(name)
        self._counts[name] += 1

    def close(self, name: str) -> None:
        """Close an element and those within it that are still open; ignore the end of one that is not open."""
        while self._counts[name]:
            last = self._names.pop()
            self._counts[last] -= 1
            if last == name:
                break


def _declaration_end(text: str, start: int) -> int | None:
    """The end of the comment or document type that begins here; None if there is none."""
    if text.startswith("<!--", start):
        end = text.find("-->", start + 4)
        return len(text) if end == -1 else end + 3
    if text.startswith("<!", start):
        end = text.find(">", start)
        return len(text) if end == -1 else end + 1
    return None


def _raw_end(text: str, position: int, name: str) -> int:
    end = re.compile(rf"</{name}\s*>", re.IGNORECASE).search(text, position)
    return len(text) if end is None else end.end()
