"""Messages of OpenAI's judges and data sources as prompts: of a model judge, and of a chat target."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from gradeline.compat.openai_evals import (
    DERIVED,
    EvalTemplateError,
    EvalVariable,
    Template,
    parse_template,
    variables_of,
)
from gradeline.model import quote

OUTPUT_TEXT = EvalVariable("sample", ("output_text",))

_BRACE = re.compile(r"([{}])")
_NOT_A_NAME = re.compile(r"\W+")
_SYSTEM = frozenset({"system", "developer"})


class NotMappedError(ValueError):
    """An item without a counterpart in gradeline; the message gives the reason and the remedy."""


class TemplateMessage(NamedTuple):
    """A message of a template."""

    role: str
    content: Template


class JudgePrompt(NamedTuple):
    """The prompt of a model judge, the variables of its cases, and the part of the sample that it judges."""

    system: str | None
    text: str
    variables: Mapping[str, EvalVariable]
    judged: EvalVariable | None
    sections: bool
    """Whether several messages became sections of one prompt."""


def read_messages(value: object) -> list[TemplateMessage]:
    """The messages of a template; `NotMappedError` for images, audio and templates that are not supported."""
    messages = [{"role": "user", "content": value}] if isinstance(value, str) else value
    if not isinstance(messages, list) or not messages:
        raise NotMappedError(f"has no messages: {quote(value, 60)}")
    return [_message(one) for one in messages]


def read_template(text: object) -> Template:
    """A template; `NotMappedError` if it is not supported."""
    if not isinstance(text, str):
        raise NotMappedError(f"{quote(text, 60)} is not a template")
    try:
        return parse_template(text)
    except EvalTemplateError as error:
        raise NotMappedError(str(error)) from None


def content_text(content: object) -> str:
    """The text of a message; `NotMappedError` if it has anything else."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(map(content_text, content))
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):
        return str(content["text"])
    kind = content.get("type") if isinstance(content, Mapping) else content
    raise NotMappedError(f"has a part of type {quote(kind, 40)}; only texts are supported")


def _message(message: object) -> TemplateMessage:
    if not isinstance(message, Mapping):
        raise NotMappedError(f"has a message that is not an object: {quote(message, 60)}")
    role = str(message.get("role") or "user")
    return TemplateMessage("system" if role in _SYSTEM else role, read_template(content_text(message.get("content"))))


def judge_prompt(messages: Sequence[TemplateMessage], answer: EvalVariable) -> JudgePrompt:
    """The messages as one prompt. ``answer`` is the variable that is the submission if no other part is used."""
    used = [variable for message in messages for variable in variables_of(message.content)]
    judged = judged_part(used, answer)
    system = None
    first = messages[0]
    if len(messages) > 1 and first.role == "system" and not variables_of(first.content):
        system, messages = "".join(map(str, first.content)), messages[1:]
    names = _names(variable for variable in used if variable != judged)
    writer = _RubricWriter({**names, **({} if judged is None else {judged: "submission"})})
    several = len(messages) > 1
    parts = [writer.section(message.role if several else None, message.content) for message in messages]
    variables = {name: variable for variable, name in names.items()}
    return JudgePrompt(system, "\n\n".join(parts), variables, judged, several)


def judged_part(used: Sequence[EvalVariable], answer: EvalVariable) -> EvalVariable | None:
    """The part of the response that is judged; `NotMappedError` if there are several."""
    parts = list(dict.fromkeys(one for one in used if one.namespace == "sample" or one == answer))
    if len(parts) > 1:
        names = ", ".join(map(str, parts))
        raise NotMappedError(f"reads several parts of the response ({names}), and a judge sees one; write a rubric")
    return parts[0] if parts else None


def _names(variables: Iterator[EvalVariable]) -> dict[EvalVariable, str]:
    names: dict[EvalVariable, str] = {}
    for variable in variables:
        if variable not in names:
            plain = _NOT_A_NAME.sub("_", "_".join(map(str, (variable.namespace, *variable.path))))
            names[variable] = plain if plain not in names.values() else f"{plain}_{len(names)}"
    return names


class _RubricWriter:
    """Writes templates in the syntax of rubrics, in which braces around a name are a placeholder and double literal.

    A closing brace without an opening one is literal as it is; that is why the writer counts.
    """

    def __init__(self, names: Mapping[EvalVariable, str]) -> None:
        self._names = names
        self._open = 0

    def section(self, title: str | None, template: Template) -> str:
        text = "".join(
            self._literal(piece) if isinstance(piece, str) else f"{{{self._names[piece]}}}" for piece in template
        )
        return text if title is None else f"# {title.capitalize()}\n\n{text}"

    def _literal(self, text: str) -> str:
        return "".join(map(self._escaped, _BRACE.split(text)))

    def _escaped(self, part: str) -> str:
        if part == "{":
            self._open += 1
            return "{{"
        if part == "}" and self._open:
            self._open -= 1
            return "}}"
        return part


def rubric_text(template: Template) -> str:
    """A template without variables in the syntax of rubrics."""
    return _RubricWriter({}).section(None, template)


class DerivedValues:
    """Templates that are rendered for each case at import, because a suite refers to values and not to templates."""

    def __init__(self) -> None:
        self.templates: dict[str, Template] = {}

    def path(self, name: str, template: Template) -> str:
        """The path of the value in the metadata of each case."""
        key = _NOT_A_NAME.sub("_", name)
        while self.templates.get(key, template) != template:
            key += "_"
        self.templates[key] = template
        return f"{DERIVED}.{key}"


def metadata_path(variable: EvalVariable) -> str | None:
    """The path of a variable of the item in the metadata of a case; None if it cannot be written with dots."""
    steps = [str(step) for step in variable.path]
    if variable.namespace != "item" or not steps or any("." in step or not step for step in steps):
        return None
    return ".".join(steps)


def target_text(template: Template, derived: DerivedValues) -> str:
    """A template of a data source in the syntax of chat targets."""
    parts = []
    for piece in template:
        if isinstance(piece, str):
            parts.append(piece)
        elif piece.namespace == "sample":
            raise NotMappedError(f"uses {piece} before there is a response; write the prompt of the target")
        else:
            plain = metadata_path(piece) if all(isinstance(step, str) for step in piece.path) else None
            parts.append(f"{{{{metadata.{plain or derived.path(str(piece), [piece])}}}}}")
    return "".join(parts)


def target_prompt(messages: Sequence[TemplateMessage], derived: DerivedValues) -> dict[str, Any]:
    """The options ``system``, ``messages`` and ``prompt`` of a chat target."""
    if messages[-1].role != "user":
        raise NotMappedError("does not end with a message of the user; write the prompt of the target")
    strange = next((one.role for one in messages if one.role not in ("system", "user", "assistant")), None)
    if strange is not None:
        raise NotMappedError(f"has a message of the role {quote(strange, 40)}; write the prompt of the target")
    texts = [(message.role, target_text(message.content, derived)) for message in messages]
    options: dict[str, Any] = {}
    if len(texts) > 1 and texts[0][0] == "system":
        options["system"] = texts.pop(0)[1]
    if len(texts) > 1:
        options["messages"] = [{"role": role, "content": text} for role, text in texts[:-1]]
    return {**options, "prompt": texts[-1][1]}
