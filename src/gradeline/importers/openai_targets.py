"""Data sources of OpenAI's hosted evals that call a model, as chat targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gradeline.compat.openai_evals import EvalVariable, Template, whole_variable
from gradeline.errors import ConfigError
from gradeline.importers.openai_export import last_user_text
from gradeline.importers.openai_graders import sampling_options
from gradeline.importers.openai_prompts import (
    DerivedValues,
    NotMappedError,
    TemplateMessage,
    read_messages,
    read_template,
    target_prompt,
)
from gradeline.model import quote
from gradeline.targets import create

_CALLS = {"completions": "chat", "responses": "responses"}


class ChatSource(NamedTuple):
    """How a run called its model: messages of a template, or messages that each item has."""

    model: str
    api: str
    messages: list[TemplateMessage]
    item_messages: EvalVariable | None
    sampling: Mapping[str, Any]

    @property
    def question(self) -> Template | None:
        """The template of the last message of the user."""
        return next((one.content for one in reversed(self.messages) if one.role == "user"), None)

    def question_in(self, item: Mapping[str, Any]) -> str | None:
        """The last message of the user among those that the item has."""
        if self.item_messages is None:
            return None
        messages: object = item
        for step in self.item_messages.path:
            messages = messages.get(step) if isinstance(messages, Mapping) else None
        return messages if isinstance(messages, str) else last_user_text(messages)


def chat_source(run: Mapping[str, Any]) -> ChatSource | None:
    """How a run called its model, None if it called none; `NotMappedError` if it has no counterpart."""
    source = run.get("data_source")
    if not isinstance(source, Mapping) or str(source.get("type")) not in _CALLS:
        return None
    given = source.get("input_messages")
    if given is None:
        return None  # it graded stored completions or responses
    given = given if isinstance(given, Mapping) else {}
    model = source.get("model") or run.get("model")
    if not isinstance(model, str):
        raise NotMappedError("names no model")
    sampling = source.get("sampling_params")
    rest = (model, _CALLS[source["type"]])
    parameters = sampling if isinstance(sampling, Mapping) else {}
    if given.get("type") == "item_reference":
        variable = whole_variable(read_template(f"{{{{{given.get('item_reference')}}}}}"))
        if variable is None or variable.namespace != "item":
            raise NotMappedError(f"item_reference {quote(given.get('item_reference'), 60)} is not part of the item")
        return ChatSource(*rest, [], variable, parameters)
    if given.get("type") != "template":
        kind = quote(given.get("type"), 40)
        raise NotMappedError(f"has input_messages of type {kind}; write the prompt of the target")
    return ChatSource(*rest, read_messages(given.get("template")), None, parameters)


def chat_target(source: ChatSource, derived: DerivedValues) -> dict[str, Any]:
    """The target of a suite; `NotMappedError` if it would not be valid."""
    sampling = dict(source.sampling)
    extra = _formats_and_tools(sampling)
    prompt = {} if source.item_messages is not None else target_prompt(source.messages, derived)
    api = {"api": source.api} if source.api != "chat" else {}
    options = {"model": source.model, **api, **prompt, **sampling_options(sampling, "params"), **extra}
    try:
        create("openai", options)
    except ConfigError as error:
        problem = error.problems[0]
        raise NotMappedError(f"{problem.path}: {problem.message}; write the target") from None
    return {"kind": "openai", **literal(options)}


def literal(tree: Any) -> Any:
    """Data for a target in which ``${NAME}`` stays text: text of a source must not read the environment."""
    if isinstance(tree, str):
        return tree.replace("${", "$${")
    if isinstance(tree, Mapping):
        return {key: literal(value) for key, value in tree.items()}
    return [literal(value) for value in tree] if isinstance(tree, list) else tree


def _formats_and_tools(sampling: dict[str, Any]) -> dict[str, Any]:
    """The options for the format of the response and for tools, which are taken out of the sampling parameters."""
    options: dict[str, Any] = {}
    text = sampling.pop("text", None)
    given = text.get("format") if isinstance(text, Mapping) else sampling.get("response_format")
    if isinstance(given, Mapping) and given.get("type") == "json_schema":
        sampling.pop("response_format", None)
        nested = given.get("json_schema")
        options["response_schema"] = (nested if isinstance(nested, Mapping) else given).get("schema")
    elif isinstance(text, Mapping) and isinstance(given, Mapping) and given.get("type") != "text":
        sampling["text"] = text
    tools = sampling.pop("tools", None)
    if isinstance(tools, list) and tools:
        strange = next((one for one in tools if not isinstance(one, Mapping) or one.get("type") != "function"), None)
        if strange is not None:
            kind = quote(strange.get("type") if isinstance(strange, Mapping) else strange, 40)
            raise NotMappedError(f"offers a tool of type {kind}, which the model's provider runs; leave it out")
        options["tools"] = tools
    return options
