"""The prompts of a promptfoo configuration, and how they become prompts of a target.

A variable in a prompt becomes a placeholder: the input of the case for one of them, its metadata for the others. What
a placeholder cannot say (filters, items of lists) is rendered when the cases are written, into their metadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gradeline.errors import ConfigError
from gradeline.importers.promptfoo_config import PromptfooConfig, as_list, is_code
from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError
from gradeline.importers.promptfoo_tags import TagTemplate, parse_page, render_page
from gradeline.importers.promptfoo_templates import TemplateError, Variable, parse_template
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import read_csv_rows, read_rows
from gradeline.model import quote
from gradeline.model.secrets import is_secret_name
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.suite.document import parse_document

VARS = "vars"
"""The key of a case's metadata with the variables of its test."""
RENDERED = "prompts"
"""The key of a case's metadata with prompts that are rendered for it."""
MAX_PROMPTS = 200
_FILES = frozenset((".txt", ".md", ".j2", ".json", ".jsonl", ".yaml", ".yml", ".csv", ".prompt", ".markdown"))
_SEPARATOR = re.compile(r"^---[ \t]*$", re.MULTILINE)
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
QUESTIONS = ("input", "question", "query", "message", "user_input", "prompt", "text", "topic", "task")
"""Names of variables that are usually the question."""
_MAX_NAME = 44
"""So that the name of a prompt with that of a provider is a name of a variant."""


def is_variable(name: str) -> bool:
    """Whether a name can be written in a template."""
    return re.fullmatch(r"[A-Za-z_$][\w$]*", name) is not None


class ChatPart(NamedTuple):
    """A message of a prompt."""

    role: str
    content: str


class PromptfooPrompt(NamedTuple):
    """A prompt: a text, or messages."""

    name: str
    content: str | tuple[ChatPart, ...]
    labels: tuple[str, ...]
    """What providers and tests call it."""
    place: str
    config: Mapping[str, object] = {}

    @property
    def texts(self) -> Sequence[str]:
        """Its templates."""
        return [self.content] if isinstance(self.content, str) else [part.content for part in self.content]

    @property
    def text(self) -> str:
        """The prompt as the text for a provider that is not a chat model."""
        if isinstance(self.content, str):
            return self.content
        return json.dumps([part._asdict() for part in self.content], ensure_ascii=False)

    def variables(self) -> Iterator[Variable]:
        for text in self.texts:
            yield from parse_page(text).variables


def unique_name(base: str, taken: Mapping[str, object] | set[str], fallback: str) -> str:
    """A short name of letters, digits, dots and dashes that is not taken yet."""
    plain = re.sub(r"[^\w.-]+", "-", base, flags=re.ASCII).strip("-._").lower()[:_MAX_NAME].strip("-._") or fallback
    name, number = plain, 1
    while name in taken:
        number += 1
        name = f"{plain}-{number}"
    return name


class _Raw(NamedTuple):
    text: str
    label: str | None
    place: str
    labels: tuple[str, ...] = ()
    config: Mapping[str, object] = {}
    is_json: bool = False


def read_prompts(config: PromptfooConfig, report: ImportReport) -> list[PromptfooPrompt]:
    """The prompts that are imported; others are reported."""
    found: list[PromptfooPrompt] = []
    names: set[str] = set()
    for raw in _PromptReader(config, report).all():
        what = item_name("prompt", raw.label or raw.text)
        if len(found) >= MAX_PROMPTS:
            report.not_mapped(raw.place, "prompt", f"is one of more than {MAX_PROMPTS}; split the configuration")
            continue
        try:
            content = _content(raw)
            for text in [content] if isinstance(content, str) else [part.content for part in content]:
                _check(parse_page(text))
        except (TemplateError, ValueError) as error:
            report.not_mapped(raw.place, what, f"{error}; write it with plain variables")
            continue
        name = unique_name((raw.label or "").replace(".", "-"), names, f"prompt-{len(found) + 1}")
        names.add(name)
        labels = tuple(filter(None, (raw.label, raw.text, *raw.labels, name)))
        found.append(PromptfooPrompt(name, content, labels, raw.place, raw.config))
        report.mapped(raw.place, "prompt", "messages" if isinstance(content, tuple) else "prompt")
    return found


def _check(page: TagTemplate) -> None:
    for variable in page.variables:
        if variable.name == "_conversation":
            raise TemplateError("reads _conversation, the turns before it; write a case whose input lists the turns")


class _PromptReader:
    def __init__(self, config: PromptfooConfig, report: ImportReport) -> None:
        self._config = config
        self._report = report

    def all(self) -> Iterator[_Raw]:
        written = self._config.data.get("prompts")
        place = f"{self._config.name}.prompts"
        if isinstance(written, Mapping):
            for index, (path, label) in enumerate(written.items()):
                yield from self._files(f"{place}[{index}]", str(path), str(label), {})
        elif written is None or written == []:
            yield _Raw("{{prompt}}", None, place)
        else:
            for index, entry in enumerate(as_list(written)):
                yield from self._entry(f"{place}[{index}]", entry)

    def _entry(self, place: str, entry: object) -> Iterator[_Raw]:
        if isinstance(entry, str):
            if _is_file(entry):
                yield from self._files(place, entry, None, {})
            else:
                yield _Raw(entry, None, place)
        elif isinstance(entry, Mapping):
            label = entry.get("label") or entry.get("display")
            text = next((entry[key] for key in ("raw", "template", "id", "label") if entry.get(key)), None)
            config = entry.get("config")
            labels = tuple(str(entry[key]) for key in ("id", "label") if entry.get(key))
            options = config if isinstance(config, Mapping) else {}
            if not isinstance(text, str):
                self._report.not_mapped(place, "prompt", f"has no text: {quote(dict(entry), 60)}; write raw: …")
            elif _is_file(text):
                for raw in self._files(place, text, None if label is None else str(label), options):
                    yield raw._replace(labels=(*raw.labels, *labels))
            else:
                yield _Raw(text, None if label is None else str(label), place, labels, options)
        else:
            self._report.not_mapped(place, "prompt", f"is {quote(entry, 60)}; write a text or file://…")

    def _files(self, place: str, text: str, label: str | None, config: Mapping[str, object]) -> Iterator[_Raw]:
        what = item_name("prompt", text)
        try:
            reference = FileReference.of(text)
            for one in self._config.folder.matches(reference):
                if is_code(one) or one.path.startswith("exec:"):
                    remedy = "write the text that it makes, or test the program as a target of kind command"
                    self._report.not_mapped(place, what, f"is code, which an import never executes; {remedy}")
                    continue
                for raw in self._file(one, place):
                    yield raw._replace(label=label or raw.label, labels=(text, one.path, *raw.labels), config=config)
        except FileReferenceError as error:
            self._report.not_mapped(place, what, f"is not read: {error}")
        except ConfigError as error:
            self._report.not_mapped(place, what, f"is not read: {error.problems[0].message}")

    def _file(self, reference: FileReference, place: str) -> Iterator[_Raw]:
        folder, stem = self._config.folder, reference.path.rpartition("/")[2].rpartition(".")[0]
        if reference.suffix == ".csv":
            for number, row in enumerate(read_csv_rows(folder.path(reference)), 1):
                text = row.data.get("prompt") or next(iter(row.data.values()), "")
                if text:
                    yield _Raw(str(text), str(row.data.get("label") or f"{stem}-{number}"), place)
        elif reference.suffix == ".jsonl":
            for number, row in enumerate(read_rows(folder.path(reference), self._report), 1):
                yield _Raw(json.dumps(dict(row.data)), f"{stem}-{number}", place, is_json=True)
        elif reference.suffix in (".yaml", ".yml"):
            data = parse_document(folder.text(reference).encode(), reference.path, top="any").data
            if isinstance(data, str):
                yield _Raw(data, stem, place)
            else:
                yield _Raw(json.dumps(data, ensure_ascii=False), stem, place, is_json=True)
        else:
            text = folder.text(reference)
            parts = _SEPARATOR.split(text) if reference.suffix == ".txt" else [text]
            plain = [part.strip() for part in parts if part.strip()]
            for number, part in enumerate(plain, 1):
                label = stem if len(plain) == 1 else f"{stem}-{number}"
                yield _Raw(part, label, place, is_json=reference.suffix == ".json")
            if not plain:
                raise FileReferenceError(f"{quote(reference.path, 60)} is empty")


def _is_file(text: str) -> bool:
    if text.startswith((SCHEME, "exec:")):
        return True
    if "\n" in text or "{{" in text or " " in text.strip():
        return False
    reference = FileReference.of(text)
    return reference.suffix in _FILES or (is_code(reference) and "/" in text)


def _content(raw: _Raw) -> str | tuple[ChatPart, ...]:
    """The text, or the messages if it is JSON that lists some; `ValueError` for messages without text."""
    if not raw.is_json and not raw.text.lstrip().startswith("["):
        return raw.text
    try:
        data = parse_json(raw.text)
    except NotJsonError:
        if raw.is_json or '"role"' in raw.text:
            raise ValueError("lists messages only after its variables were inserted") from None
        return raw.text
    if isinstance(data, Mapping) and isinstance(data.get("messages"), list):
        data = data["messages"]
    if not isinstance(data, list) or not data or not all(isinstance(one, Mapping) and "role" in one for one in data):
        return raw.text
    return tuple(_message(one) for one in data)


def _message(written: Mapping[str, object]) -> ChatPart:
    role = _ROLES.get(str(written["role"]))
    if role is None:
        raise ValueError(f"has a message of the role {quote(written['role'], 30)}, not of system, user or assistant")
    content = written.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else None for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("has a message with parts that are not text, such as images")
        content = "\n".join(map(str, texts))
    if not isinstance(content, str):
        raise ValueError(f"has a message without text: {quote(dict(written), 60)}")
    return ChatPart(role, content)


def input_variable(prompts: Sequence[PromptfooPrompt], candidates: Mapping[str, int], cases: int) -> str | None:
    """The variable that becomes the input of the cases; None if no one is a text in all of them.

    ``candidates`` counts the cases in which each variable is a text.
    """
    used: dict[str, None] = {}
    for prompt in prompts:
        for variable in prompt.variables():
            if not variable.path and not variable.filters:
                used[variable.name] = None
    everywhere = [name for name in used if candidates.get(name) == cases and cases]
    return next((name for name in QUESTIONS if name in everywhere), everywhere[0] if everywhere else None)


class PromptPlan:
    """Translates prompts into templates of gradeline, and knows what the cases must have for them."""

    def __init__(
        self, input_name: str | None, *, renders_input: bool, affixes: bool, environment: Mapping[str, object]
    ) -> None:
        self.input_name = input_name
        self.renders_input = renders_input
        """Whether the input of a case is the rendered prompt."""
        self.affixes = affixes
        """Whether tests have a prefix or suffix of the prompt."""
        self.environment = environment
        self.names: dict[str, None] = {}
        """The variables that every case must have."""
        self.rendered: dict[str, str] = {}
        """The templates that are rendered for every case, by their key in its metadata."""
        self.whole: set[str] = set()
        """The keys of those that are a whole prompt, with the prefix and suffix of the test."""

    def text(self, prompt: PromptfooPrompt) -> str:
        """The prompt as one text with placeholders."""
        if isinstance(prompt.content, str):
            if self.renders_input:
                return "{{input}}"
            if self._is_translated(prompt.content):
                translated = self.placeholders(prompt.content, {})
                return f"{{{{metadata.prefix}}}}{translated}{{{{metadata.suffix}}}}" if self.affixes else translated
        return self._whole(prompt)

    def key(self, prompt: PromptfooPrompt) -> str | None:
        """The key of the rendered prompt in the metadata of the cases; None if the input is the prompt."""
        if self.text(prompt) == "{{input}}":
            return None
        self._whole(prompt)
        return prompt.name

    def messages(self, prompt: PromptfooPrompt) -> list[dict[str, object]] | None:
        """The messages with placeholders; None for a prompt that is a text."""
        if isinstance(prompt.content, str):
            return None
        last = _question(prompt.content) if self.renders_input else None
        return [
            {"role": part.role, "content": "{{input}}" if number == last else self._message(part, prompt, number)}
            for number, part in enumerate(prompt.content)
        ]

    def chat_keys(self, prompt: PromptfooPrompt) -> dict[str, object]:
        """The keys of a chat target; `TemplateError` if the messages do not end with a question."""
        messages = self.messages(prompt)
        if messages is None:
            text = self.text(prompt)
            return {} if text == "{{input}}" else {"prompt": text}
        if any(one["role"] == "user" and "{{input}}" in str(one["content"]) for one in messages):
            return {"messages": messages}
        if messages[-1]["role"] != "user":
            raise TemplateError("does not end with a message of the user; write the target in the suite")
        question = str(messages.pop()["content"])
        if "{{" not in question:
            question = self._reference(prompt.texts[-1], f"{prompt.name}-question")
        return {"prompt": question, **({"messages": messages} if messages else {})}

    def input_template(self, prompt: PromptfooPrompt) -> str:
        """What is rendered as the input where that is the prompt."""
        if isinstance(prompt.content, str):
            return prompt.content
        last = _question(prompt.content)
        return prompt.text if last is None else prompt.content[last].content

    def placeholders(self, text: str, own: Mapping[str, str]) -> str:
        """A text of a target with placeholders; ``own`` replaces variables, and ``env.X`` becomes ``${X}``.

        `TemplateError` for what has no placeholder.
        """
        return "".join(self._part(part, own) for part in parse_template(text).parts)

    def _is_translated(self, text: str) -> bool:
        """Whether placeholders can express the template."""
        try:
            return "{{" in self.placeholders(text, {})
        except TemplateError:
            return False

    def _message(self, part: ChatPart, prompt: PromptfooPrompt, number: int) -> str:
        try:
            return self.placeholders(part.content, {})
        except TemplateError:
            return self._reference(part.content, f"{prompt.name}-{number + 1}")

    def _whole(self, prompt: PromptfooPrompt) -> str:
        self.whole.add(prompt.name)
        return self._reference(prompt.text, prompt.name)

    def _reference(self, text: str, key: str) -> str:
        self.rendered[key] = text
        return f"{{{{metadata.{RENDERED}.{key}}}}}"

    def _part(self, part: str | Variable, own: Mapping[str, str]) -> str:
        if isinstance(part, str):
            if "{{" in part:
                raise TemplateError("has braces that are not a variable")
            return part.replace("${", "$${")
        if part.is_environment:
            return self._environment(part)
        if part.name in own and not part.path:
            return own[part.name]
        if part.filters or not all(isinstance(step, str) and step != "length" for step in part.path):
            raise TemplateError(f"has {quote(part.name, 40)} with a filter or an index")
        if part.name == self.input_name and not part.path:
            return "{{input}}"
        if not part.path:
            self.names[part.name] = None
        else:
            raise TemplateError(f"has a key of {quote(part.name, 40)}, which not every case has")
        return f"{{{{metadata.{VARS}.{part.name}}}}}"

    def _environment(self, variable: Variable) -> str:
        name = str(variable.path[0])
        value = self.environment.get(name)
        plain = isinstance(value, str | int | float) and not is_secret_name(name) and "{{" not in str(value)
        if plain and not variable.filters:
            return str(value).replace("${", "$${")
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise TemplateError(f"reads {quote(name, 40)} of the environment, which is not a name of a variable")
        return f"${{{name}}}"


def _question(content: Sequence[ChatPart]) -> int | None:
    """The index of the last message of the user."""
    return max((number for number, part in enumerate(content) if part.role == "user"), default=None)


def rendered_prompt(text: str, variables: Mapping[str, object], environment: Mapping[str, object]) -> str:
    """A template with the values of a case; variables of the environment are those that the configuration sets."""
    shown = {name: value for name, value in environment.items() if not is_secret_name(str(name))}
    page = parse_page(text)
    if any(part.is_environment and part.path[0] not in shown for part in page.variables):
        return render_page(page, variables)
    return render_page(page, {**variables, "env": shown})
