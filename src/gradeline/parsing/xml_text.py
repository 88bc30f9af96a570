"""XML in the text of an agent: whether it is well-formed, which elements it has, and fragments within prose.

Nothing is fetched and no entity is defined: a document type with an internal subset is refused, an external one is
ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple
from xml.parsers.expat import ExpatError, ParserCreate

from gradeline.parsing.isolation import needs_worker, too_costly

MAX_DEPTH = 1_000
_MAX_PARSED = 2
"""Fragments are parsed until their total length reaches this multiple of the text's length."""
_CHAR_NS = 150
"""Time of the parser with the handlers below for each character of the shortest elements."""
_SEPARATOR = " "
# possessive, and without "<" in any part, to stay linear in untrusted text
_TAG = re.compile(
    r"""<(?P<close>/?)(?P<name>[^\W\d][\w:.-]*+)(?P<rest>[^<>"']*+(?:"[^"<]*+"[^<>"']*+|'[^'<]*+'[^<>"']*+)*+)>"""
)
_ENDS = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}


class NotXmlError(ValueError):
    """The text is not well-formed XML; the message says why."""


class ElementPath(NamedTuple):
    """A path of elements from the root, such as ``root.item.0.name`` or ``root.item.@id``."""

    text: str
    steps: tuple[tuple[str, int | None], ...]
    attribute: str | None

    @classmethod
    def of(cls, text: str) -> ElementPath:
        """Parse a path; `ValueError` says what is wrong."""
        steps: list[tuple[str, int | None]] = []
        attribute = None
        for part in text.split("."):
            if not part or attribute is not None:
                raise ValueError(f"must be names separated by dots, with @attribute only at the end, got {text!r}")
            if part.isdecimal() and steps and steps[-1][1] is None:
                steps[-1] = (steps[-1][0], int(part))
            elif part.startswith("@") and len(part) > 1:
                attribute = part[1:]
            else:
                steps.append((part, None))
        if not steps:
            raise ValueError(f"must begin with the name of the root element, got {text!r}")
        return cls(text, tuple(steps), attribute)


def check_time(chars: int) -> None:
    """Raise `NeedsIsolationError` if parsing a text of this length takes too long for this process."""
    if too_costly(chars * _CHAR_NS):
        raise needs_worker(f"parsing {chars:,} characters of XML")


def missing_elements(text: str, paths: Sequence[ElementPath]) -> list[str]:
    """The paths that a document lacks; `NotXmlError` if it is not well-formed."""
    check_time(len(text))
    found = _found(text, paths)
    return [path.text for path in paths if path not in found]


def missing_in_fragments(text: str, paths: Sequence[ElementPath]) -> list[str] | None:
    """The paths that no XML fragment within the text has; None if there is no fragment."""
    check_time(len(text))
    found: set[ElementPath] = set()
    parsed = 0
    covered = -1
    seen = False
    for start, end in sorted(_fragments(text), key=lambda span: (span[0], -span[1])):
        if end <= covered or parsed > _MAX_PARSED * len(text):
            continue
        parsed += end - start
        try:
            found |= _found(text[start:end], paths)
        except NotXmlError:
            continue
        covered, seen = end, True
    return [path.text for path in paths if path not in found] if seen else None


def _found(text: str, paths: Collection[ElementPath]) -> set[ElementPath]:
    reader = _ElementFinder(paths)
    parser = ParserCreate(namespace_separator=_SEPARATOR)
    parser.namespace_prefixes = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        # utf-8 whatever the declaration names, since the text is decoded already
        parser.Parse(text.removeprefix("\ufeff").encode("utf-8", "replace"), True)
    except ExpatError as error:
        raise NotXmlError(str(error)) from None
    return reader.found


class _Open(NamedTuple):
    """An open element: the paths that lead through it, with the number of their steps so far, and its children."""

    paths: list[tuple[ElementPath, int]]
    children: dict[str, int]


_IRRELEVANT = _Open([], {})


class _ElementFinder:
    """Handlers of the parser that look for paths of elements."""

    def __init__(self, paths: Collection[ElementPath]) -> None:
        self.found: set[ElementPath] = set()
        self._open = [_Open([(path, 0) for path in paths], {})]

    def doctype(self, _name: str, _system: str | None, _public: str | None, has_internal_subset: bool) -> None:
        if has_internal_subset:
            raise NotXmlError("a document type with declarations of its own is not accepted")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if len(self._open) > MAX_DEPTH:
            raise NotXmlError(f"nested more than {MAX_DEPTH:,} levels deep")
        parent = self._open[-1]
        if not parent.paths:
            self._open.append(_IRRELEVANT)
            return
        name = _qualified(name)
        position = parent.children[name] = parent.children.get(name, -1) + 1
        paths = []
        for path, depth in parent.paths:
            step, index = path.steps[depth] if depth < len(path.steps) else (None, None)
            if step == name and index in (None, position):
                paths.append((path, depth + 1))
                if depth + 1 == len(path.steps) and (path.attribute is None or _has(attributes, path.attribute)):
                    self.found.add(path)
        self._open.append(_Open(paths, {}) if paths else _IRRELEVANT)

    def end(self, _name: str) -> None:
        self._open.pop()


def _qualified(name: str) -> str:
    """``prefix:name`` as written, of the parser's ``namespace name prefix``."""
    parts = name.split(_SEPARATOR)
    return f"{parts[2]}:{parts[1]}" if len(parts) == 3 else parts[-1]


def _has(attributes: dict[str, str], name: str) -> bool:
    return any(_qualified(attribute) == name for attribute in attributes)


def _fragments(text: str) -> Iterator[tuple[int, int]]:
    """The places of balanced elements; their content may still be malformed."""
    open_tags: list[tuple[str, int]] = []
    unended: set[str] = set()
    position = text.find("<")
    while position != -1:
        end = _after_special(text, position, unended)
        tag = _TAG.match(text, position) if end is None else None
        if tag is not None:
            end = tag.end()
            if tag["rest"].endswith("/") and not tag["close"]:
                yield position, end
            elif not tag["close"]:
                open_tags.append((tag["name"], position))
            elif open_tags and open_tags[-1][0] == tag["name"]:
                yield open_tags.pop()[1], end
            else:
                open_tags.clear()  # an element around a mismatch is not well-formed
        position = text.find("<", end or position + 1)


def _after_special(text: str, position: int, unended: set[str]) -> int | None:
    """The end of the comment, CDATA section or processing instruction that begins here, if there is one."""
    for opening, closing in _ENDS.items():
        if text.startswith(opening, position) and opening not in unended:
            end = text.find(closing, position + len(opening))
            if end != -1:
                return end + len(closing)
            unended.add(opening)
    return None
