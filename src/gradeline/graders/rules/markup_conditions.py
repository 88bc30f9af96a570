"""Conditions on XML and HTML in a text."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec

from gradeline.errors import Problem
from gradeline.graders.rules.base import Check, PlainRule, Rule, Subject
from gradeline.model import described
from gradeline.parsing.html_text import contains_html, is_html
from gradeline.parsing.xml_text import ElementPath, NotXmlError, missing_elements, missing_in_fragments

_MAX_PATHS = 100


class _XmlRule(Rule, frozen=True):
    elements: Annotated[
        Annotated[tuple[str, ...], msgspec.Meta(max_length=_MAX_PATHS)],
        described(
            "Paths of elements that must exist, such as order.item.0.name or order.@id (default: none).",
            expected=f"a list of at most {_MAX_PATHS} paths",
        ),
    ] = ()

    def faults(self) -> Iterator[Problem]:
        for index, path in enumerate(self.elements):
            try:
                ElementPath.of(path)
            except ValueError as error:
                yield Problem(f"elements[{index}]", str(error))

    @property
    def label(self) -> str:
        tag = str(self.__struct_config__.tag)
        return f"{tag} with {', '.join(self.elements)}" if self.elements else tag

    def compile(self, path: str) -> Check:  # noqa: ARG002
        return partial(self._holds, [ElementPath.of(path) for path in self.elements])

    def _holds(self, paths: list[ElementPath], subject: Subject) -> bool:
        try:
            return self.missing(subject.text, paths) == []
        except NotXmlError:
            return False

    def seen(self, subject: Subject) -> str:
        try:
            missing = self.missing(subject.text, [ElementPath.of(path) for path in self.elements])
        except NotXmlError as error:
            return f"not XML: {error}"
        if missing is None:
            return f"no XML in {subject.shown}"
        return f"no element {', '.join(missing)}" if missing else subject.shown

    def missing(self, text: str, paths: list[ElementPath]) -> list[str] | None:
        """The paths without an element; None if there is no XML."""
        raise NotImplementedError


class IsXml(_XmlRule, frozen=True, tag="is_xml"):
    """The text is well-formed XML, with the elements; declarations of entities are not accepted, nothing is fetched."""

    def missing(self, text: str, paths: list[ElementPath]) -> list[str] | None:
        return missing_elements(text, paths)


class ContainsXml(_XmlRule, frozen=True, tag="contains_xml"):
    """The text contains XML elements that are well-formed; together they have the elements."""

    def missing(self, text: str, paths: list[ElementPath]) -> list[str] | None:
        return missing_in_fragments(text, paths)


class IsHtml(PlainRule, frozen=True, tag="is_html"):
    """The text is HTML and nothing else: an element of HTML or a custom element, and no text outside of elements."""

    def holds(self, subject: Subject) -> bool:
        return is_html(subject.text)


class ContainsHtml(PlainRule, frozen=True, tag="contains_html"):
    """The text contains HTML: a common element, a pair of tags, or two of a tag, an attribute, a comment, an entity."""

    def holds(self, subject: Subject) -> bool:
        return contains_html(subject.text)
