"""Code in promptfoo's assertions: it is written next to the suite, never executed by the import, and runs as a grader."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gradeline.importers.report import State
from gradeline.model import Response
from promptfoo_tests import PromptfooTests

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
needs_ruby = pytest.mark.skipif(shutil.which("ruby") is None, reason="Ruby is not installed")


@pytest.fixture
def tests(tmp_path: Path) -> PromptfooTests:
    return PromptfooTests(tmp_path)


def javascript(value: str, **more: object) -> dict[str, object]:
    return {"type": "javascript", "value": value, **more}


def python(value: str, **more: object) -> dict[str, object]:
    return {"type": "python", "value": value, **more}


@needs_node
def test_javascript_returns_a_boolean_a_number_or_a_verdict(tests: PromptfooTests) -> None:
    graded = "return { pass: output.length === 3, score: 0.25, reason: 'counted' };"
    tests.add("number", "abc", javascript("output.length / 10"))
    tests.add("zero", "abc", javascript("output.length - 3"))
    tests.add("from the threshold", "abc", javascript("output.length / 10", threshold=0.3))
    tests.add("below the threshold", "abc", javascript("output.length / 10", threshold=0.31))
    tests.add("verdict", "abc", javascript(graded))
    tests.add("failed verdict", "abcd", javascript(graded))
    tests.add("not a number", "abc", {"type": "not-javascript", "value": "output.length / 10"})
    tests.add("too large", "abc", javascript("output.length * 10"))
    tests.add(
        "body", "abc", javascript("const found = output.match(/b/);\nif (found) {\n  return true;\n}\nreturn false;")
    )
    tests.add("declaration", "abc", javascript("const n = output.length; n === 3"))
    tests.add("text in a declaration", "a;b", javascript("const s = output; s === 'a;b'"))
    tests.add("loop in a declaration", "abc", javascript("let n = 0; for (const c of output) { n++; }; n === 3"))
    tests.add("comment", "abc", javascript("output === 'abc'; // as it was"))
    tests.add("main module", "abc", javascript("process.mainModule.require('path').basename('a/abc') === output"))
    tests.add("awaited", "abc", javascript("return await Promise.resolve(output === 'abc');"))
    tests.add("required", "abc", javascript("require('node:path').basename('a/abc') === output"))
    tests.add("not a verdict", "abc", javascript("output.match(/b/)"))
    assert {name: verdict[:2] for name, verdict in tests.verdicts().items()} == {
        "number": (True, 0.3),
        "zero": (False, 0.0),
        "from the threshold": (True, 0.3),
        "below the threshold": (False, 0.3),
        "verdict": (True, 0.25),
        "failed verdict": (False, 0.0),
        "not a number": (False, 0.7),
        "too large": (True, 1.0),
        "body": (True, 1.0),
        "declaration": (True, 1.0),
        "text in a declaration": (True, 1.0),
        "loop in a declaration": (True, 1.0),
        "comment": (True, 1.0),
        "main module": (True, 1.0),
        "awaited": (True, 1.0),
        "required": (True, 1.0),
        "not a verdict": (None, None),
    }


@needs_node
def test_a_transform_is_applied_before_the_check(tests: PromptfooTests) -> None:
    answer = {"transform": "JSON.parse(output).answer"}
    output = '{"answer": "Paris, in France"}'
    tests.add("contains", output, {"type": "contains", "value": "answer", **answer})
    tests.add("all", output, {"type": "icontains-all", "value": "PARIS,FRANCE", **answer})
    tests.add("any", output, {"type": "contains-any", "value": ["Rome", "answer"], **answer})
    tests.add("not", output, {"type": "not-starts-with", "value": "Paris", **answer})
    tests.add("regex", output, {"type": "regex", "value": "^Paris", **answer})
    tests.add("code", output, javascript("output.length === 16", **answer))
    tests.add(
        "variable",
        output,
        {"type": "equals", "value": "Rome", "transform": "context.vars.city"},
        variables={"city": "Rome"},
    )
    tests.add("two", output, {"type": "equals", "value": "P", "transform": ["JSON.parse(output)", "output.answer[0]"]})
    tests.add("json", output, {"type": "is-json", "value": {"required": ["answer"]}, "transform": "JSON.parse(output)"})
    tests.add("tool", Response(text="", latency_ms=1), {"type": "latency", "threshold": 5, **answer})
    tests.map({"type": "is-xml", **answer})
    tests.map({"type": "equals", "value": "x", "transform": "file://change.js"})
    assert {name: verdict.passed for name, verdict in tests.verdicts().items()} == {
        "contains": False, "all": True, "any": False, "not": False, "regex": True, "code": True, "variable": True,
        "two": True, "json": True, "tool": True,
    }  # fmt: skip
    assert tests.notes(State.NOT_MAPPED) == [
        "has a transform before a check that Node does not make; apply it in the agent's response",
        "has a transform in a file; write its code into the transform",
    ]


@needs_node
def test_javascript_files_are_copied_and_their_functions_called(tests: PromptfooTests) -> None:
    (tests.folder / "checks").mkdir()
    (tests.folder / "checks/common.js").write_text(
        "module.exports = (output, context) => output === context.vars.name;"
    )
    (tests.folder / "checks/module.js").write_text("export function long(output) { return output.length > 2; }")
    (tests.folder / "default.mjs").write_text("export default async (output, { config }) => output === config.word;")
    tests.add("common", "abc", javascript("file://checks/common.js"), variables={"name": "abc"})
    tests.add("module", "abc", javascript("file://checks/module.js:long"))
    tests.add("default", "abc", javascript("file://default.mjs", config={"word": "abd"}))
    tests.add("absent", "abc", javascript("file://checks/module.js:short"))
    verdicts = tests.verdicts()
    assert [verdicts[name].passed for name in ("common", "module", "default", "absent")] == [True, True, False, None]
    assert "the file exports no function short" in verdicts["absent"].why
    assert (tests.folder / "graders/promptfoo_files/checks/common.cjs").is_file()


def test_python_returns_a_boolean_a_number_or_a_verdict(tests: PromptfooTests) -> None:
    (tests.folder / "check.py").write_text(
        "def get_assert(output, context):\n"
        "    return {'pass': output == context['vars']['name'], 'score': 0.5, 'reason': context['prompt']}\n"
        "def long(output, context):\n"
        "    return len(output) > context['config']['least']\n"
    )
    tests.add("expression", "abc", python("len(output) == 3 and output.startswith('a')"))
    tests.add("number", "abc", python("len(output) / 10", threshold=0.5))
    tests.add("lines", "abc", python("import os\nif output:\n    return json.loads('true')\nreturn bool(os.sep)"))
    tests.add("text", "abc", python("str(output == 'abc')"))
    tests.add("json", "abc", python("json.dumps({'pass': True, 'score': 0.5})"))
    tests.add("not", "abc", {"type": "not-python", "value": "len(output) / 10"})
    tests.add("file", "abc", python("file://check.py"), variables={"name": "abc"})
    tests.add("function", "abc", python("file://check.py:long", config={"least": 3}))
    tests.add("throws", "abc", python("output.nothing"))
    tests.add("not a verdict", "abc", python("[output]"))
    assert {name: verdict[:2] for name, verdict in tests.verdicts().items()} == {
        "expression": (True, 1.0),
        "number": (False, 0.3),
        "lines": (True, 1.0),
        "text": (True, 1.0),
        "json": (True, 0.5),
        "not": (False, 0.7),
        "file": (True, 0.5),
        "function": (False, 0.0),
        "throws": (None, None),
        "not a verdict": (None, None),
    }


@needs_ruby
def test_ruby_returns_a_boolean_a_number_or_a_verdict(tests: PromptfooTests) -> None:
    tests.add(
        "expression", "abc", {"type": "ruby", "value": "output.length == context['vars']['n']"}, variables={"n": 3}
    )
    tests.add("number", "abc", {"type": "ruby", "value": "output.length / 10.0", "threshold": 0.5})
    tests.add("verdict", "abc", {"type": "ruby", "value": "{ pass: true, score: 0.5, reason: 'x' }"})
    tests.add("not", "abc", {"type": "not-ruby", "value": "true"})
    verdicts = tests.verdicts()
    assert [verdict[:2] for verdict in verdicts.values()] == [(True, 1.0), (False, 0.3), (True, 0.5), (False, 0.0)]


def test_code_is_carried_over_as_it_is_and_not_executed(tests: PromptfooTests) -> None:
    marker = tests.folder / "executed"
    tests.map(
        python(f"open({str(marker)!r}, 'w') and True"), javascript(f"require('fs').writeFileSync('{marker}', '')")
    )
    tests.map({"type": "ruby", "value": f"`touch {marker}`"}, python("import os\nos.abort()"))
    tests.map(javascript("`${output}` + \"{{'{{'}}\" === '*/'"), javascript("}); process.exit(0); ("))
    assert not marker.exists()
    assert set(tests.mapper.files) == {
        "graders/python.py", "graders/javascript.mjs", "graders/promptfoo.mjs", "graders/ruby.rb",
        "graders/promptfoo.rb", "graders/python_2.py", "graders/javascript_2.mjs", "graders/javascript_3.mjs",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("assertion", "note"),
    [
        (javascript("file://check.ts"), "names 'check.ts', which Node does not run; compile it to .mjs first"),
        (javascript("file://none.js"), "names a file that is not read: there is no file 'none.js'"),
        (javascript("file:///etc/passwd.js"), "names a file that is not read: '/etc/passwd.js' is outside the folder"),
        (python("file://../check.py"), "names a file that is not read: '../check.py' is outside the folder"),
        (python("file://link.py"), "names a file that is not read: 'link.py' is outside the folder"),
        (python("file://check.js"), "names 'check.js', which is not a Python file"),
        (python("file://latin.py"), "names a file that is not read: 'latin.py' is not UTF-8; save it as UTF-8"),
        (python("file://huge.py"), "names a file that is not read: 'huge.py' is larger than 2 MB"),
        (python("file://check.py:a.b"), "names the function 'a.b', which is not a name of Python"),
        (javascript("x" * 200_001), "has 200,001 characters of code, more than 200,000; put it into a file"),
        (javascript(""), "has no code"),
        (python("return return"), "is not Python: invalid syntax, line 6; fix it"),
        (python("(" * 150_000), "is not Python"),
        ({"type": "webhook", "value": "localhost:80"}, "needs a URL as its value, got 'localhost:80'"),
        ({"type": "ruby", "value": "file://check.rb"}, "names a file that is not read: there is no file 'check.rb'"),
    ],
)
def test_code_that_cannot_run_is_reported(tests: PromptfooTests, assertion: dict[str, object], note: str) -> None:
    (tests.folder / "latin.py").write_bytes(b"# \xe9")
    (tests.folder / "huge.py").write_bytes(b"#" * 2_000_001)
    (tests.folder / "check.py").write_text("def check(output, context): return True")
    (tests.folder / "link.py").symlink_to("/etc/hostname")
    tests.map(assertion)
    found = tests.notes(State.NOT_MAPPED)
    assert len(found) == 1
    assert found[0].startswith(note)
    assert not tests.mapper.files
