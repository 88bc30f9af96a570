"""One-line JavaScript as rules: they hold where Node says true, and what has no exact rule is not translated."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from gradeline.graders import create, run_grader
from gradeline.importers.promptfoo_expressions import MAX_CODE, NotTranslatedError
from gradeline.importers.promptfoo_javascript import translate
from gradeline.model import GradeContext, Sample

OUTPUTS = (
    "Paris", "paris", " Paris \n", "PARIS is", "The capital is Paris.", "hello world foo bar", "a,b,c", "1", "0", "true",
    "null", "[]", "{}", '["Paris", "Rome"]', '{"name": 5}', '{"age": -36}', '```json\n{"name": "Ada"}\n```',
    '{"name": "Ada", "age": 36, "tags": ["a", "b"], "ok": true, "nested": {"x": 1.5}, "empty": null}', "é",
    "straße STRASSE", "\u00a0Paris\u00a0", "\ufeffParis", "line one\nline two\n\nline four", "x" * 200, "aaa", "a.b.c",
    "don't", 'quote " here', "back\\slash", "  ", "\n", "\u2028", "tab\tx", '{"a": {"b": [{"c": 1}]}}', '{"a": {"b": []}}',
    '{"a": {}}', '{"tags": "abc"}', '{"age": 36.0}', "NaN", '{"name": "Paris", "age": 100}', '{"nested": {"x": "Ada"}}',
)  # fmt: skip
TEXTS = ("Paris", "paris", "PARIS", "a", "o", "Ada", "é", "ß", "straße", " ", "x", r"\n", ".", "is")
CHANGED = ("output", "output.toLowerCase()", "output.toUpperCase()", "output.trim()", "String(output)",
           "output.trim().toLowerCase()")  # fmt: skip
PATTERNS = ("paris", "^a+$", "[A-Z]", ".", r"\s", r"\d+", "^$", "a|b", r"\w+", r"\bis\b", "é", "(a)(b)?", "x{2,3}",
            "^.$", r"\S+$", r"[\s,]")  # fmt: skip
SEPARATORS = ("/,/", "/[^,]/", r"/\s+/")
TYPES = ('"string"', '"number"', '"boolean"', '"object"')
VALUES = ("name", "age", "tags", "ok", "nested.x", "a.b[0].c", "empty")
NUMBERS = ("age", "a.b[0].c")
EQUAL = ("===", "!==", "==", "!=")
ORDER = ("<", "<=", ">", ">=")

RUN = """
const { codes, outputs } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const verdicts = codes.map((code) => {
  const check = new Function("output", "context", `return (${code});`);
  return outputs.map((output) => {
    try {
      return check(output, { vars: { name: "Ada" } }) === true;
    } catch {
      return false;
    }
  });
});
console.log(JSON.stringify(verdicts));
"""


class Codes:
    """Random expressions of the kinds that people write."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, depth: int = 0) -> str:
        part = self._random.random()
        if depth > 2 or part < 0.5:
            return self._condition()
        if part < 0.65:
            return f"!({self.one(depth + 1)})"
        if part < 0.7:
            return f"({self.one(depth + 1)})"
        return f"{self.one(depth + 1)} {self._pick(('&&', '||'))} {self.one(depth + 1)}"

    def _condition(self) -> str:
        pick, text, literal = self._pick, self._pick(CHANGED), self._literal()
        value = f"JSON.parse(output).{pick(VALUES)}"
        pattern = f"/{pick(PATTERNS)}/{pick(('', 'i', 'g', 'm', 's', 'u'))}"
        listed = ", ".join(self._literal() for _ in range(self._random.randrange(1, 4)))
        count = self._random.randrange(5)
        forms = (
            f"{text}.{pick(('includes', 'startsWith', 'endsWith'))}({literal})",
            f"{text} {pick(EQUAL)} {literal}",
            f"output.length {pick((*ORDER, *EQUAL))} {pick((0, 1, 5, 7.5, 200, -1))}",
            f"{pattern}.test({pick(CHANGED)})",
            f"{value} {pick(EQUAL)} {pick((5, 36, 'true', 'null', literal, 1.5))}",
            f"JSON.parse(output).{pick(NUMBERS)} {pick(ORDER)} {pick((0, 36, 1.5))}",
            f"{value}.includes({literal})",
            f"{value}.length {pick((*ORDER, *EQUAL))} {count}",
            f"output.split({pick((literal, *SEPARATORS))}).length {pick(ORDER)} {count}",
            rf"output.trim().split(/\s+/).length {pick(ORDER)} {count}",
            f"{text}.indexOf({literal}) {pick(('!== -1', '=== -1', '> -1', '>= 0', '< 0'))}",
            f"[{listed}].{pick(('some', 'every'))}(word => {text}.includes({pick(('word', 'word.toLowerCase()'))}))",
            f"[{listed}].includes({text})",
            f"typeof {value} {pick(EQUAL[:2])} {pick(TYPES)}",
            f"Array.isArray({value})",
            f"{pick(('!!', '!', ''))}output.match({pattern}){pick(('', ' !== null', ' === null'))}",
            f"(output.match({pattern}) || []).length {pick(ORDER)} {count}",
            f"{text}.includes(context.vars.name)",
        )
        return pick(forms)

    def _literal(self) -> str:
        quote = self._pick("\"'`")
        return f"{quote}{self._pick(TEXTS)}{quote}"

    def _pick(self, options: Sequence[Any]) -> Any:
        return self._random.choice(options)


def rules_of(codes: Sequence[str]) -> dict[str, dict[str, object]]:
    found = {}
    for code in codes:
        try:
            found[code] = translate(code, {"name": "Ada"})
        except NotTranslatedError:
            continue
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
def test_rules_decide_as_node_does() -> None:
    codes = Codes(seed=3)
    rules = rules_of([codes.one() for _ in range(1_500)])
    assert len(rules) > 500
    asked = json.dumps({"codes": list(rules), "outputs": OUTPUTS})
    answer = subprocess.run(["node", "-e", RUN], input=asked, capture_output=True, text=True, check=True)
    wrong = []
    for (code, rule), verdicts in zip(rules.items(), json.loads(answer.stdout), strict=True):
        grader = create("custom-rules", {"rules": [rule]})
        for output, verdict in zip(OUTPUTS, verdicts, strict=True):
            grade = run_grader(grader, GradeContext(Sample("case", "?"), output))
            if grade.passed is not verdict:
                wrong.append(f"{code} on {output!r}: Node says {verdict}, the rule {grade.passed}: {rule}")
                break
    assert not wrong, f"{len(wrong)} of {len(rules)}\n" + "\n".join(wrong[:10])


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("output.includes('Paris')", {"condition": "contains", "value": "Paris", "case_sensitive": True}),
        ("return !output.includes('x');", {"condition": "contains", "value": "x", "case_sensitive": True, "negate": True}),
        ("output.length < 200", {"condition": "length_max", "value": 199}),
        ("output.length <= context.config.most", {"condition": "length_max", "value": 20}),
        ("output.toLowerCase().includes(context.vars.word)",
         {"condition": "contains", "value": "paris", "case_sensitive": False}),
        ("output.trim().split(/\\s+/).length <= 50",
         {"condition": "word_count_max", "value": 50, "words": "whitespace"}),
        ("JSON.parse(output).user.name === 'Ada'",
         {"all": [{"condition": "is_json", "fenced": False},
                  {"condition": "json", "path": '"user"."name"', "operator": "equals", "value": "Ada"}]}),
    ],
)  # fmt: skip
def test_common_lines_become_short_rules(code: str, rule: dict[str, object]) -> None:
    assert translate(code, {"word": "paris"}, {"most": 20}) == rule


@pytest.mark.parametrize(
    "code",
    [
        "",
        "output",
        "output.length",
        "output.length * 10 > 5",
        "output.match(/a/)",  # a list, which promptfoo takes for no verdict
        "JSON.parse(output).a === 1 || output === 'x'",  # throws where the rule would hold
        "JSON.parse(output).a == '5'",
        "output.includes('')",
        "output.includes('$expected')",  # a reference in a rule
        "output.includes(context.vars.nothing)",
        "context.vars.word.includes(output)",
        "/(?<=a)b/.test(output)",
        "process.exit(1)",
        "(() => { while (true) {} })()",
        "output.includes('a'); output.includes('b')",
        "output.includes(`${output}`)",
        "'x'" * 2_000,
        "(" * 200 + "output" + ")" * 200,
        "!" * 5_000 + "output",
        "output" + ".trim()" * 500 + " === 'x'",
        " && ".join(["output.includes('a')"] * 300),
        "output.includes('\\u{110000}')",
        "output.includes('\0",
        "x" * (MAX_CODE + 1),
    ],
)
def test_what_has_no_exact_rule_is_left_to_node(code: str) -> None:
    with pytest.raises(NotTranslatedError):
        translate(code, {"word": "paris"})
