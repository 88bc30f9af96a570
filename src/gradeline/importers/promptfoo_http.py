"""promptfoo's HTTP provider as a target: its request as data, and the path of the text in the response."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gradeline.importers.promptfoo_config import positive
from gradeline.importers.promptfoo_expressions import (
    Binary,
    Literal,
    Member,
    Name,
    Node,
    NotTranslatedError,
    parse_expression,
)
from gradeline.importers.promptfoo_files import SCHEME
from gradeline.importers.promptfoo_prompts import PromptfooPrompt, PromptPlan
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import quote
from gradeline.model.secrets import is_secret_name
from gradeline.parsing.json_text import NotJsonError, parse_json


class NoTargetError(Exception):
    """A provider without a counterpart; the message is the reason, and may be empty."""


_ARROW = re.compile(
    r"(?:async\s++)?+\(?+\s*+(?P<first>\w++)?+(?:\s*+,\s*+\w++)*+\s*+\)?+\s*+=>(?P<body>.++)", re.DOTALL
)
_QUERY_SECRET = re.compile(r"(?P<mark>[?&])(?P<name>[^=&#?{}]{1,100})=(?P<value>[^&#]*+)")
_READ_HTTP = frozenset(
    """
    url method headers body queryParams transformResponse responseParser maxRetries timeoutMs
    """.split()  # noqa: SIM905
)


class HttpReader:
    """Reads the options of promptfoo's HTTP provider."""

    def __init__(
        self,
        ident: str,
        place: str,
        transform: object,
        config: Mapping[str, Any],
        plan: PromptPlan,
        prompt: PromptfooPrompt,
        report: ImportReport,
    ) -> None:
        self._id = ident
        self._place = place
        self._transform = transform
        self._config = config
        self._plan = plan
        self._prompt = prompt
        self._report = report
        self._secret: Callable[[str, object, str], str] = lambda name, *_: f"${{{name}}}"
        self.differs = ""

    def target(
        self, header: Callable[[str, object], str], secret: Callable[[str, object, str], str]
    ) -> dict[str, object]:
        config = self._config
        for key in config.keys() - _READ_HTTP:
            self._report.not_mapped(self._place, item_name("config", key), _HTTP_NOTES.get(key, _HTTP_NOTE))
        if not isinstance(config.get("url") or self._id, str):
            raise NoTargetError(f"its url is {quote(config.get('url'), 60)}; write the target in the suite")
        url = str(config.get("url") or self._id)
        body = config.get("body")
        method = str(config.get("method") or ("POST" if body is not None else "GET")).upper()
        url = _QUERY_SECRET.sub(lambda found: self._query_secret(found, secret), self._filled(url))
        target: dict[str, object] = {"kind": "http", "url": url, "method": method}
        headers = config.get("headers")
        if isinstance(headers, Mapping):
            target["headers"] = {str(name): header(str(name), value) for name, value in headers.items()}
        if isinstance(config.get("queryParams"), Mapping):
            self._add_query(target, config["queryParams"], secret)
        if body is not None:
            self._secret = secret
            target["request"] = self._body(body)
        elif method not in ("GET", "HEAD", "DELETE", "OPTIONS"):
            target["request"] = {}
        output = self._response()
        if output is not None:
            target["response"] = output
        if isinstance(config.get("maxRetries"), int):
            target["retries"] = min(100, max(0, config["maxRetries"]))
        if positive(config.get("timeoutMs")):
            target["timeout"] = min(86_400.0, config["timeoutMs"] / 1000)
        return target

    def _filled(self, text: str) -> str:
        return self._plan.placeholders(text, {"prompt": self._plan.text(self._prompt)})

    def _add_query(
        self, target: dict[str, object], written: Mapping[str, object], secret: Callable[[str, object, str], str]
    ) -> None:
        """Query parameters: with placeholders in the URL, others under their names."""
        plain: dict[str, str] = {}
        for name, value in written.items():
            text = secret(name, value, name) if is_secret_name(name) else self._filled(_text_of(value))
            if "{{" in text:
                target["url"] = f"{target['url']}{'&' if '?' in str(target['url']) else '?'}{name}={text}"
            else:
                plain[name] = text
        if plain:
            target["query"] = plain

    def _body(self, body: object) -> object:
        if isinstance(body, str):
            try:
                return self._tree(parse_json(body))
            except NotJsonError:
                return self._filled(body)
        return self._tree(body)

    def _tree(self, value: object, depth: int = 0) -> object:
        if depth > 50:
            raise NoTargetError("its body is nested more than 50 levels deep; write the target in the suite")
        if isinstance(value, Mapping):
            return {self._filled(str(key)): self._entry(str(key), item, depth) for key, item in value.items()}
        if isinstance(value, list):
            return [self._tree(item, depth + 1) for item in value]
        if not isinstance(value, str):
            return value
        if re.fullmatch(r"\{\{-?\s*prompt\s*-?\}\}", value.strip()):
            return self._plan.messages(self._prompt) or self._plan.text(self._prompt)
        dumped = re.fullmatch(r"\{\{\s*(\w+)\s*\|\s*(?:dump|tojson)\s*(?:\|\s*safe\s*)?\}\}", value.strip())
        return self._filled(f"{{{{{dumped[1]}}}}}" if dumped else value)

    def _entry(self, key: str, value: object, depth: int) -> object:
        """A value of a mapping; one that is written out under the name of a secret is not copied."""
        if isinstance(value, str) and "{{" not in value and is_secret_name(key):
            return self._secret(key, value, key)
        return self._tree(value, depth + 1)

    @staticmethod
    def _query_secret(found: re.Match[str], secret: Callable[[str, object, str], str]) -> str:
        name, value = found["name"], found["value"]
        if "{{" in value or "${" in value or not is_secret_name(name):
            return found[0]
        return f"{found['mark']}{name}={secret(name, value, name)}"

    def _response(self) -> dict[str, object] | None:
        """The paths of the response; None for those that a target has by default."""
        keys = (self._config.get("transformResponse"), self._config.get("responseParser"), self._transform)
        written = next((value for value in keys if value), None)
        if written is None:
            self.differs = "the text of the response is found under its usual names; promptfoo takes the whole body"
            return None
        try:
            if not isinstance(written, str):
                raise NotTranslatedError(quote(written, 40))
            path = response_path(written)
        except NotTranslatedError as error:
            note = f"is code with {error}; write the JMESPath of the text in response.output"
            self._report.not_mapped(self._place, "transformResponse", note)
            return None
        if path is None:
            self.differs = "of a response that is JSON, the text is found under its usual names"
            return None
        return {"output": path}


_HTTP_NOTE = "is not translated; see the options of the target http"
_HTTP_NOTES: Mapping[str, str] = {
    "request": "is a raw request; write url, method, headers and request",
    "transformRequest": "is code; write the request as data",
    "requestTransform": "is code; write the request as data",
    "sessionParser": "is code; write session: {read: JMESPATH, send: KEY}",
    "validateStatus": "is code; a status from 400 on is a failed call",
    "auth": "is not translated; write the header Authorization with ${NAME}",
    "signatureAuth": "is not supported; test a proxy that signs",
    "tls": "is not translated; set SSL_CERT_FILE",
    "useHttps": "is not translated; write the scheme in url",
}


def _text_of(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def without_secrets_in_url(text: str) -> str:
    """A text that may be a URL, without the values of its query whose names denote secrets."""
    return _QUERY_SECRET.sub(lambda found: found[0] if not is_secret_name(found["name"]) else _masked(found), text)


def _masked(found: re.Match[str]) -> str:
    return f"{found['mark']}{found['name']}=***"


def response_path(code: str) -> str | None:
    """The JMESPath of a ``transformResponse`` such as ``json.choices[0].message.content``; None for the whole text.

    `NotTranslatedError` for code that is not a path.
    """
    if code.startswith(SCHEME):
        raise NotTranslatedError("a file, which an import never executes")
    plain, first = code.strip().rstrip("; "), "json"
    if (arrow := _ARROW.fullmatch(plain)) is not None and "=>" not in arrow["body"]:
        plain, first = arrow["body"].strip(), arrow["first"] or "json"
    block = plain[1:-1].strip() if plain.startswith("{") and plain.endswith("}") else plain
    if re.match(r"return\s", block):
        plain = block.removeprefix("return").strip().rstrip("; ")
    if plain.startswith("{"):
        raise NotTranslatedError("an object")
    plain = plain.replace("?.[", "[").replace("?.", ".").replace("??", "||")
    path = _path(parse_expression(plain), first)
    return None if path == "" else path


def _path(node: Node, root: str) -> str:
    """The JMESPath of an expression; empty for the text of the response."""
    match node:
        case Name(name) if name == root or name == "json":
            return "@"
        case Name("text") | Name("context"):
            return ""
        case Member(Name("context"), "response"):
            return "@"
        case Member(inner, step):
            before = _path(inner, root)
            if not before:
                raise NotTranslatedError("a part of the text")
            return _joined(before, step)
        case Binary("||", left, right):
            sides = [_path(left, root), _path(right, root)]
            if not all(sides):
                raise NotTranslatedError("the text as an alternative")
            return " || ".join(sides)
        case Literal(str(value)):
            return f"`{json.dumps(value)}`"
    raise NotTranslatedError("more than a path")


def _joined(path: str, step: str | int) -> str:
    if "||" in path:
        raise NotTranslatedError("a part of an alternative")
    if isinstance(step, int):
        return f"[{step}]" if path == "@" else f"{path}[{step}]"
    name = step if re.fullmatch(r"[A-Za-z_]\w*", step, re.ASCII) else json.dumps(step)
    return name if path == "@" else f"{path}.{name}"
