"""Templates with tags of Nunjucks are rendered as data."""

from __future__ import annotations

import pytest

from gradeline.importers.promptfoo_tags import parse_page, render_page
from gradeline.importers.promptfoo_templates import TemplateError

VALUES = {
    "name": "Ada",
    "n": 3,
    "text": "10",
    "no": False,
    "empty": [],
    "list": ["a", "b"],
    "pairs": [["x", 1], ["y", 2]],
    "map": {"k": "v", "l": 2},
    "turns": [{"role": "user", "text": "hi"}, {"role": "bot", "text": "ho"}],
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain {{name}} {# no #}", "plain Ada "),
        ("{% if name %}yes{% endif %}", "yes"),
        ("{% if missing %}yes{% else %}no{% endif %}", "no"),
        ("{% if no %}1{% elif n == 3 %}2{% else %}3{% endif %}", "2"),
        ("{% if n > 2 and not no %}x{% endif %}", "x"),
        ("{% if text > 9 %}number{% endif %}{% if text > '9' %}text{% endif %}", "number"),
        ("{% if n == '3' or (missing and name) %}x{% endif %}", "x"),
        ("{% if n === 3.0 %}x{% endif %}{% if no == false %}y{% endif %}", "xy"),
        ("{% if 'a' in list %}x{% endif %}{% if 'z' not in name %}y{% endif %}", "xy"),
        ("{% if 'k' in map %}x{% endif %}{% if list in map %}y{% endif %}", "x"),
        ("{% if missing is defined %}x{% endif %}{% if name is not undefined %}y{% endif %}", "y"),
        ("{% if empty %}lists are true{% endif %}", "lists are true"),
        ("{% if list | length == 2 %}two{% endif %}", "two"),
        ("{% for one in list %}{{loop.index}}{{one}}{% if not loop.last %}, {% endif %}{% endfor %}", "1a, 2b"),
        ("{% for key, value in map %}{{key}}={{value}};{% endfor %}", "k=v;l=2;"),
        ("{% for a, b in pairs %}{{a}}{{b}} {% endfor %}", "x1 y2 "),
        ("{% for one in missing %}x{% else %}none{% endfor %}", "none"),
        ("{% for turn in turns %}{{turn.role}}: {{turn.text | upper}}\n{% endfor %}", "user: HI\nbot: HO\n"),
        ("{% set greeting = 'Hi' %}{{greeting}} {{name}}", "Hi Ada"),
        ("a {%- if name -%} b {%- endif -%} c", "abc"),
        ("{% raw %}{% if x %}{{y}}{% endraw %}{% if name %}!{% endif %}", "{% if x %}{{y}}!"),
        ("{% for a in list %}{% for b in list %}{{a}}{{b}} {% endfor %}{% endfor %}", "aa ab ba bb "),
    ],
)
def test_tags_are_rendered(template: str, text: str) -> None:
    assert render_page(parse_page(template), VALUES) == text


@pytest.mark.parametrize(
    "template",
    [
        "{% include 'x' %}",
        "{% macro f() %}{% endmacro %}",
        "{% if %}{% endif %}",
        "{% if a %}",
        "{% endif %}",
        "{% else %}",
        "{% if a == %}x{% endif %}",
        "{% if f(a) %}x{% endif %}",
        "{% if a b %}x{% endif %}",
        "{% if (a %}x{% endif %}",
        "{% for x %}{% endfor %}",
        "{% for x in a + b %}{% endfor %}",
        "{% set x %}y{% endset %}",
        "{% raw %}",
        "{% if a",
        "{{ a",
        "{% if a %}" * 30 + "{% endif %}" * 30,
        "{% if " + "(" * 50 + "a" + ")" * 50 + " %}{% endif %}",
        "{% if a %}{% else %}{% else %}{% endif %}",
        "{% if a %}{% else %}{% elif b %}{% endif %}",
        "x" * 1_000_001,
    ],
)
def test_other_tags_are_refused(template: str) -> None:
    with pytest.raises(TemplateError):
        parse_page(template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for a in name %}x{% endfor %}", "has a loop over 'Ada', which is not a list"),
        ("{% for a in map %}x{% endfor %}", "has a loop over a mapping without two names"),
        ("{% for a, b in list %}x{% endfor %}", "items that are not pairs"),
        ("{% for a in many %}{% for b in many %}x{% endfor %}{% endfor %}", "more than 100,000 rounds"),
        ("{% for a in many %}{{long}}{% endfor %}", "more than 5,000,000 characters"),
    ],
)
def test_values_that_a_template_cannot_use(template: str, message: str) -> None:
    values = {**VALUES, "many": ["x"] * 1000, "long": "x" * 100_000}
    with pytest.raises(TemplateError, match=message):
        render_page(parse_page(template), values)


@pytest.mark.parametrize("piece", ["{#", "{%", "{{", "{% if a ", "{% raw %}", "{%-", "{% if a -%} ", "{% if (", "a|b"])
def test_hostile_templates_end(piece: str) -> None:
    text = (piece * (900_000 // len(piece)))[:900_000]
    for template in (text, f"{{% if {text[:5000]} %}}x{{% endif %}}"):
        try:
            page = parse_page(template)
        except TemplateError:
            continue
        assert page.nodes
