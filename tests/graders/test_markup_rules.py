"""Rules about XML and HTML."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.graders import create, grade
from gradeline.parsing.xml_text import MAX_DEPTH


def holds(condition: str, text: str, **options: Any) -> bool:
    result = grade("custom-rules", text, config={"rules": [{"condition": condition, **options}]})
    assert result.passed is not None
    return result.passed


@pytest.mark.parametrize(
    "text",
    [
        "<root/>",
        "  <root a='1'/>\n",
        "\ufeff<root/>",
        "<?xml version='1.0' encoding='ISO-8859-1'?><root>é 東京</root>",
        "<!-- a --><root/><!-- b -->",
        "<!DOCTYPE root><root/>",
        "<r xmlns:n='urn:x'><n:a/></r>",
        "<r>&lt;&amp;&#65;</r>",
        "<r><![CDATA[<not closed]]></r>",
    ],
)
def test_is_xml_takes_well_formed_documents(text: str) -> None:
    assert holds("is_xml", text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "text",
        "<root",
        "<a></b>",
        "<a/><b/>",
        "<a x='1' x='2'/>",
        "<p:root/>",
        "<r>&undefined;</r>",
        "before <root/>",
        "<r>\x01</r>",
        "<!DOCTYPE r [<!ENTITY a 'b'>]><r>&a;</r>",
        "<a>" * 5_000 + "</a>" * 5_000,
        "<a>\ud800</a>\x00",
    ],
)
def test_is_xml_takes_nothing_else(text: str) -> None:
    assert not holds("is_xml", text)


def test_entities_of_a_document_are_never_expanded() -> None:
    levels = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    bomb = f'<!DOCTYPE r [<!ENTITY a0 "ha">{levels}]><r>&a9;</r>'
    result = grade("custom-rules", bomb, config={"rules": [{"condition": "is_xml"}]})
    assert result.rationale is not None
    assert "saw not XML: a document type with declarations of its own is not accepted" in result.rationale


ORDERS = "<orders><order id='7'><item>pen</item><item>ink</item></order><order><note/></order></orders>"


@pytest.mark.parametrize(
    ("path", "exists"),
    [
        ("orders", True),
        ("order", False),
        ("orders.order.item", True),
        ("orders.order.note", True),
        ("orders.order.0.note", False),
        ("orders.order.1.note", True),
        ("orders.order.0.item.1", True),
        ("orders.order.0.item.2", False),
        ("orders.order.@id", True),
        ("orders.order.1.@id", False),
        ("orders.order.item.note", False),
    ],
)
def test_is_xml_requires_elements_by_path(path: str, exists: bool) -> None:
    assert holds("is_xml", ORDERS, elements=[path]) is exists
    assert holds("contains_xml", f"Here: {ORDERS} and more", elements=[path]) is exists
    assert holds("is_xml", ORDERS, elements=[path], negate=True) is not exists


def test_a_missing_element_is_named() -> None:
    rule = {"condition": "is_xml", "elements": ["orders.order", "orders.total"]}
    rationale = grade("custom-rules", ORDERS, config={"rules": [rule]}).rationale
    assert rationale == (
        "0 of 1 rules hold; failed: rules[0] is_xml with orders.order, orders.total (saw no element orders.total)"
    )


def test_an_invalid_path_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError) as caught:
        create("custom-rules", {"rules": [{"condition": "is_xml", "elements": ["a.b", "a..b", "a.@x.b"]}]})
    assert [problem.path for problem in caught.value.problems] == [
        "config.rules[0].elements[1]",
        "config.rules[0].elements[2]",
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Some <a>x</a> text", True),
        ("Some <a/> text", True),
        ("```xml\n<a><b/></a>\n```", True),
        ("<unclosed> <a>x</a>", True),
        ("<p>1 < 2 <data><x>1</x></data></p>", True),
        ("no markup, 1 < 2 > 0", False),
        ("<a></b>", False),
        ("<!-- <a/> -->", False),
        ("<!--<!--<!--" * 1_000, False),
        ("<a " * 10_000, False),
        ("<a>" * 10_000, False),
    ],
)
def test_contains_xml_finds_elements_within_text(text: str, found: bool) -> None:
    assert holds("contains_xml", text) is found


def test_fragments_count_together() -> None:
    text = "First <one><a/></one>, then <two><b/></two>."
    assert holds("contains_xml", text, elements=["one.a", "two.b"])
    assert not holds("contains_xml", text, elements=["one.a", "two.c"])


def test_a_document_up_to_the_maximum_depth_is_read() -> None:
    assert holds("is_xml", "<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH)
    assert not holds("is_xml", "<a>" * (MAX_DEPTH + 1) + "</a>" * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("<p>Hi</p>", True),
        ("<!DOCTYPE html>\n<html><body>Hi</body></html>\n", True),
        ("<my-widget>Hi</my-widget>", True),
        ("<script>if (a < b) {}</script>", True),
        ("<ul><li>one<li>two</ul>", True),
        ("<br>", True),
        ("Hi <b>there</b>", False),
        ("<b>Hi</b> there", False),
        ("<notatag>Hi</notatag>", False),
        ("<?xml version='1.0'?><p/>", False),
        ("2 < 3 and 4 > 1", False),
        ("", False),
        ("</p>", True),
        ("<p", False),
    ],
)
def test_is_html_takes_only_html(text: str, html: bool) -> None:
    assert holds("is_html", text) is html


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("Some <strong>bold</strong> word", True),
        ("a<br/>b", True),
        ("&copy; 2024", False),
        ("&copy; <x> 2024", True),
        ("a < b > c", False),
        ("Mail <ann@example.com>", False),
        ("if (a<b) { return c>d; }", False),
    ],
)
def test_contains_html_needs_signs_of_html(text: str, html: bool) -> None:
    assert holds("contains_html", text) is html


def test_a_long_document_is_graded_in_a_worker() -> None:
    text = "<r>" + "<a/>" * 150_000 + "</r>"
    assert holds("is_xml", text, elements=["r.a.149999"])
    assert holds("is_html", "<p>" + "<a></a>" * 50_000)
