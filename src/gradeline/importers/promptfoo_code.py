"""promptfoo's assertions that are code: files for Node, Ruby and Python that run it as graders.

The code is carried over as it is written; an import never executes it.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib.resources import files
from keyword import iskeyword
from posixpath import normpath
from warnings import catch_warnings

from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError
from gradeline.importers.promptfoo_rules import texts_of
from gradeline.importers.promptfoo_types import (
    ABOVE_ZERO,
    FILE,
    Assertion,
    CodeFile,
    NoCounterpartError,
    Scope,
    SuiteGrader,
    negated_least,
)
from gradeline.model import quote

RUNTIME = "graders/promptfoo.mjs"
RUBY_RUNTIME = "graders/promptfoo.rb"
_USER = "graders/promptfoo_files"
"""Folder of the user's own files, which generated files import."""
_MAX_CODE = 200_000
_MAX_LINE = 5_000
"""Characters of a line in which the last statement is looked for."""
_STATEMENT = re.compile(r"(?:return|if|for|while|switch|throw|try)\b")
_DECLARATION = re.compile(r"(?:const|let|var)\s")
_SEPARATOR = re.compile(r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|`(?:[^`\\]|\\.)*+`|[(\[{]|[)\]}]|;""", re.DOTALL)
"""Texts, brackets and semicolons."""
_CONTEXT = "context has vars, prompt, config, test and providerResponse; an output that is JSON is passed as text"
_NUMBERS = "a number outside 0 to 1 passes or fails, and scores 1 or 0"


def javascript(assertion: Assertion, scope: Scope) -> SuiteGrader:
    """JavaScript in the value or in a file, run by Node."""
    text = _code(assertion)
    if text.startswith(SCHEME):
        return _module_grader(FileReference.of(text), scope, assertion)
    return _function_grader(_body(text), assertion)


def _function_grader(
    body: str, assertion: Assertion, *helpers: str, differs: str = f"{_CONTEXT}; {_NUMBERS}"
) -> SuiteGrader:
    """A grader of kind command that runs the body of a function with Node."""
    lines = [f'import {{ {", ".join(("grade", *helpers))} }} from "./promptfoo.mjs";', ""]
    if "require(" in body:
        lines = ['import { createRequire } from "node:module";', *lines]
        lines += ["const require = createRequire(import.meta.url);", ""]
    lines += ["grade(async (output, context) => {", body, "});", ""]
    return _node_grader("\n".join(lines), {}, assertion, differs)


def _module_grader(reference: FileReference, scope: Scope, assertion: Assertion) -> SuiteGrader:
    """A grader that calls a function of the user's module."""
    suffixes = {".js": None, ".cjs": ".cjs", ".mjs": ".mjs"}
    if reference.suffix not in suffixes:
        raise NoCounterpartError(
            f"names {quote(reference.path, 60)}, which Node does not run; compile it to .mjs first"
        )
    text = _file(reference, scope)
    name = user_file(reference, suffixes[reference.suffix] or (".mjs" if is_module(text) else ".cjs"))
    lines = [
        'import { exported, grade } from "./promptfoo.mjs";',
        f"import * as user from {json.dumps('./' + name.removeprefix('graders/'))};",
        "",
        f"grade(exported(user, {json.dumps(reference.function)}));",
        "",
    ]
    differs = f"{_CONTEXT}; {_NUMBERS}; files that it imports are not copied"
    return _node_grader("\n".join(lines), {name: text}, assertion, differs)


def _node_grader(program: str, others: Mapping[str, str], assertion: Assertion, differs: str) -> SuiteGrader:
    config = {"kind": "command", "command": ["node", FILE], "protocol": "jsonl", **_options(assertion)}
    code_file = CodeFile(".mjs", program, {RUNTIME: _runtime("promptfoo.mjs"), **others})
    return SuiteGrader(config, "grader command with Node", None, differs, True, code_file, True)


def _code(assertion: Assertion) -> str:
    text = assertion.text()
    if not text.strip():
        raise NoCounterpartError("has no code")
    if len(text) > _MAX_CODE:
        raise NoCounterpartError(f"has {len(text):,} characters of code, more than {_MAX_CODE:,}; put it into a file")
    return text


def _options(assertion: Assertion) -> dict[str, object]:
    """The options of a grader of kind command: a score passes where promptfoo's number does."""
    least = ABOVE_ZERO if assertion.threshold is None else assertion.threshold
    if assertion.negated:
        least = negated_least(least)
    least = min(1.0, max(0.0, least))
    parameters: dict[str, object] = {"config": dict(assertion.config), "pass_threshold": least}
    if assertion.threshold is not None:
        parameters["threshold"] = assertion.threshold
    if assertion.negated:
        parameters["negate"] = True
    return {"parameters": parameters, "pass_threshold": least}


def _body(code: str) -> str:
    """The body of a function. What is on one line is returned: all of it, or what follows its declarations."""
    plain = code.strip()
    if "\n" in plain or _STATEMENT.match(plain):
        return code.rstrip("\n")
    plain = plain.rstrip("; ")
    if not _DECLARATION.match(plain):
        return f"return {plain};"
    end = _last_separator(plain) if len(plain) <= _MAX_LINE else -1
    return f"{plain[:end]};\nreturn {plain[end + 1 :].strip()};" if end > 0 else plain


def _last_separator(code: str) -> int:
    """Where the last statement of a line begins: the place of a semicolon outside of texts and brackets, or -1."""
    found, depth = -1, 0
    for part in _SEPARATOR.finditer(code):
        if part[0] == ";" and depth == 0:
            found = part.start()
        elif part[0] in "([{":
            depth += 1
        elif part[0] in ")]}":
            depth -= 1
    return found


def is_module(text: str) -> bool:
    """Whether JavaScript is a module, and not for ``require``."""
    return re.search(r"^[ \t]*+(?:export|import)\b(?!\s*+\()", text, re.MULTILINE) is not None


def user_file(reference: FileReference, suffix: str | None = None) -> str:
    """The name of a file of the user in the written folder."""
    path = re.sub(r"[^\w./-]", "_", normpath(reference.path), flags=re.ASCII)
    steps = [step for step in path.split("/") if step not in ("", ".", "..")]
    stem, dot, old = steps[-1].rpartition(".")
    steps[-1] = f"{stem or old}{suffix or dot + old}"
    return "/".join([_USER, *steps])


def _file(reference: FileReference, scope: Scope) -> str:
    try:
        text = scope.folder.text(reference)
    except FileReferenceError as error:
        raise NoCounterpartError(f"names a file that is not read: {error}") from None
    if len(text) > _MAX_CODE:
        raise NoCounterpartError(f"names a file of {len(text):,} characters, more than {_MAX_CODE:,}; split it")
    return text


def python(assertion: Assertion, scope: Scope) -> SuiteGrader:
    """Python in the value or in a file, run as a custom grader."""
    text = _code(assertion)
    function = "get_assert"
    if text.startswith(SCHEME):
        reference = FileReference.of(text)
        if reference.suffix != ".py":
            raise NoCounterpartError(f"names {quote(reference.path, 60)}, which is not a Python file")
        code, function = _file(reference, scope), reference.function or function
        if not function.isidentifier() or iskeyword(function):
            raise NoCounterpartError(f"names the function {quote(function, 60)}, which is not a name of Python")
    else:
        code = _python_function(text)
    _require_python(code)
    settings = {"config": dict(assertion.config), "threshold": assertion.threshold, "negate": assertion.negated}
    tail = _runtime("grader.py.txt").replace("FUNCTION", function).replace("'SETTINGS'", repr(json.dumps(settings)))
    config: dict[str, object] = {"kind": "tool", "function": f"{FILE}:promptfoo_grade"}
    differs = f"{_CONTEXT.replace(' and providerResponse', '').replace('config, test', 'config and test')}; {_NUMBERS}"
    code_file = CodeFile(".py", f"{code.rstrip()}\n\n\n{tail}")
    return SuiteGrader(config, "custom grader in Python", None, differs, True, code_file, True)


def _require_python(code: str) -> None:
    """`NoCounterpartError` for code that is not Python, with which no run could start."""
    try:
        with catch_warnings(action="ignore"):
            ast.parse(code)
    except SyntaxError as error:
        raise NoCounterpartError(f"is not Python: {error.msg}, line {error.lineno}; fix it") from None
    except (ValueError, MemoryError, RecursionError):
        raise NoCounterpartError("is not Python that can be read; simplify it") from None


def _python_function(code: str) -> str:
    plain = code.strip()
    body = textwrap.dedent(code).strip("\n") if "\n" in plain else f"return (\n    {plain}\n)"
    return f"import json\n\n\ndef get_assert(output, context):\n{textwrap.indent(body, '    ')}"


def ruby(assertion: Assertion, scope: Scope) -> SuiteGrader:
    """Ruby in the value or in a file, run by Ruby."""
    text = _code(assertion)
    function = "get_assert"
    if text.startswith(SCHEME):
        reference = FileReference.of(text)
        code, function = _file(reference, scope), reference.function or function
    else:
        plain = text.strip()
        code = f"def get_assert(output, context)\n{textwrap.indent(plain, '  ')}\nend"
    if not re.fullmatch(r"[a-z_]\w*[?!]?", function, re.ASCII):
        raise NoCounterpartError(f"names the function {quote(function, 60)}, which is not a name of Ruby")
    config = {"kind": "command", "command": ["ruby", FILE], "protocol": "jsonl", **_options(assertion)}
    program = f'{code}\n\nrequire_relative "promptfoo"\ngrade {{ |output, context| {function}(output, context) }}\n'
    code_file = CodeFile(".rb", program, {RUBY_RUNTIME: _runtime("promptfoo.rb")})
    return SuiteGrader(config, "grader command with Ruby", None, f"{_CONTEXT}; {_NUMBERS}", True, code_file, True)


def webhook(assertion: Assertion, scope: Scope) -> SuiteGrader:  # noqa: ARG001
    """A server that grades."""
    url = assertion.text()
    if not re.match(r"https?://", url):
        raise NoCounterpartError(f"needs a URL as its value, got {quote(url, 60)}")
    differs = (
        "the server gets {sample, submission, response, config} and returns {score} or {passed}; promptfoo sends"
        " {output, context} and reads {pass, score}"
    )
    config: dict[str, object] = {"kind": "http", "url": url, "timeout": 5}
    if assertion.config:
        config["parameters"] = dict(assertion.config)
    return SuiteGrader(config, "grader http", differs=differs)


@cache
def _runtime(name: str) -> str:
    return files("gradeline.importers").joinpath("promptfoo_runtime", name).read_text(encoding="utf-8")


def _listed_check(method: str, assertion: Assertion, *, lowered: bool) -> str:
    """Whether the output contains some or every text of a list."""
    texts = [text.lower() if lowered else text for text in texts_of(assertion) if text]
    output = "String(output).toLowerCase()" if lowered else "String(output)"
    return f"{_js(texts)}.{method}((text) => {output}.includes(text))"


_HELPERS = ("same",)

CHECKS_IN_NODE: Mapping[str, Callable[[Assertion], str]] = {
    **{
        kind: partial(_listed_check, method, lowered=kind.startswith("i"))
        for kind, method in (
            ("contains-all", "every"),
            ("contains-any", "some"),
            ("icontains-all", "every"),
            ("icontains-any", "some"),
        )
    },
    "contains": lambda one: f"String(output).includes({_js(one.text())})",
    "icontains": lambda one: f"String(output).toLowerCase().includes({_js(one.text().lower())})",
    "starts-with": lambda one: f"String(output).startsWith({_js(one.text())})",
    "regex": lambda one: f"new RegExp({_js(one.text())}).test(String(output))",
    "equals": lambda one: f"same(output, {_js(one.value)})",
    "javascript": lambda one: f"await (async () => {{\n{_body(one.text())}\n}})()",
}
"""The types that Node checks where a rule cannot: after a ``transform``, and for patterns that RE2 does not have."""


def in_node(assertion: Assertion) -> SuiteGrader:
    """A check that Node makes, of the output after its ``transform``."""
    check = CHECKS_IN_NODE.get(assertion.type)
    if check is None:
        raise NoCounterpartError(
            "has a transform before a check that Node does not make; apply it in the agent's response"
        )
    steps = [f"  output = await (async () => {{\n{_body(code)}\n  }})();" for code in assertion.transforms]
    program = "\n".join([*steps, f"  return {check(assertion)};"])
    if steps or assertion.type == "javascript":
        return _function_grader(program, assertion, *_HELPERS)
    return _function_grader(program, assertion, *_HELPERS, differs="")


def _js(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
