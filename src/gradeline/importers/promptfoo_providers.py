"""The providers of a promptfoo configuration as targets."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from gradeline import targets
from gradeline.errors import ConfigError
from gradeline.importers.promptfoo_code import is_module
from gradeline.importers.promptfoo_config import (
    PromptfooConfig,
    as_list,
    is_code,
    load_value,
    positive,
    run_option,
)
from gradeline.importers.promptfoo_files import SCHEME, FileReference, FileReferenceError
from gradeline.importers.promptfoo_http import HttpReader, NoTargetError, without_secrets_in_url
from gradeline.importers.promptfoo_prompts import PromptfooPrompt, PromptPlan, unique_name
from gradeline.importers.promptfoo_templates import TemplateError
from gradeline.importers.report import ImportReport, item_name
from gradeline.model import quote
from gradeline.model.secrets import is_secret_name, secrets_in_url

FOLDER = "targets"
"""The folder of the code that targets run."""
MAX_PROVIDERS = 200
_MAX_REFERENCES = 5
_COPIED = "runs the file in the new folder, without other files that it imports; its options have no secrets"
_KEYS = frozenset(("id", "label", "config", "prompts", "transform", "delay", "env"))
_NO_TARGET = (
    "no target calls it; write the call in {place}, or, for a server with OpenAI's API, the target"
    " {{kind: openai, base_url: …, model: …}}"
)


class PromptfooProvider(NamedTuple):
    """A provider as written."""

    name: str
    id: str
    label: str | None
    config: Mapping[str, Any]
    prompts: tuple[str, ...] | None
    """The labels of the prompts that it gets; None: all."""
    transform: object
    delay: object
    environment: Mapping[str, object]
    place: str

    @property
    def shown(self) -> str:
        """The id without secrets."""
        return without_secrets_in_url(self.id)

    def gets(self, prompt: PromptfooPrompt) -> bool:
        """Whether the prompt is sent to this provider."""
        if self.prompts is None:
            return True
        return any(
            label == one or (one.endswith("*") and label.startswith(one[:-1]))
            for one in self.prompts
            for label in prompt.labels
        )


def read_providers(config: PromptfooConfig, report: ImportReport) -> list[PromptfooProvider]:
    """The providers of a configuration, with those in files that it names."""
    found: list[PromptfooProvider] = []
    names: set[str] = set()
    key = "providers" if config.data.get("providers") is not None else "targets"
    pending: list[tuple[str, object, tuple[str, ...]]] = []
    for index, written in enumerate(as_list(config.data.get(key))):
        pending.append((f"{config.name}.{key}[{index}]", written, ()))
    pending.reverse()
    while pending:
        place, entry, stack = pending.pop()
        if isinstance(entry, str) and _is_data_file(entry):
            pending += _from_file(place, entry, stack, config, report)[::-1]
            continue
        if len(found) >= MAX_PROVIDERS:
            report.not_mapped(place, "provider", f"is one of more than {MAX_PROVIDERS}; split the configuration")
            continue
        provider = _provider(place, entry, names, config, report)
        if provider is not None:
            names.add(_identifier(provider.name))
            found.append(provider)
    return found


def _is_data_file(text: str) -> bool:
    return text.startswith(SCHEME) and FileReference.of(text).suffix in (".yaml", ".yml", ".json")


def _from_file(
    place: str, text: str, stack: tuple[str, ...], config: PromptfooConfig, report: ImportReport
) -> list[tuple[str, object, tuple[str, ...]]]:
    what = item_name("provider", text)
    if text in stack or len(stack) >= _MAX_REFERENCES:
        report.not_mapped(place, what, "refers to itself, or through too many files; write the provider out")
        return []
    try:
        references = config.folder.matches(FileReference.of(text))
        values = [(one.path, config.folder.value(one)) for one in references]
    except FileReferenceError as error:
        report.not_mapped(place, what, f"is not read: {error}")
        return []
    return [
        (f"{name}[{index}]", entry, (*stack, text))
        for name, value in values
        for index, entry in enumerate(as_list(value))
    ]


def _provider(
    place: str, entry: object, names: set[str], config: PromptfooConfig, report: ImportReport
) -> PromptfooProvider | None:
    if isinstance(entry, str):
        entry = {"id": entry}
    if isinstance(entry, Mapping) and "id" not in entry and len(entry) == 1:
        ((ident, options),) = entry.items()
        entry = {**(options if isinstance(options, Mapping) else {}), "id": ident}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str) or not entry["id"].strip():
        shown = quote(_without_secrets(entry), 60)
        report.not_mapped(place, "provider", f"is {shown}; write its id, such as openai:MODEL")
        return None
    for key in entry.keys() - _KEYS:
        if key != "inputs" or entry[key]:
            report.not_mapped(place, item_name("provider", key), "is not a key of a provider")
    options = entry.get("config")
    try:
        loaded = load_value(options, config.folder)
    except FileReferenceError as error:
        report.not_mapped(place, "config", f"is not read: {error}")
        loaded = None
    label = str(entry["label"]) if entry.get("label") else None
    own = entry.get("env")
    prompts = entry.get("prompts")
    base = without_secrets_in_url((label or entry["id"]).removeprefix(SCHEME))
    name, number = unique_name(base, set(), "target"), 1
    while _identifier(name) in names:
        number += 1
        name = unique_name(f"{base[:36]}-{number}", set(), "target")
    return PromptfooProvider(
        name=name,
        id=entry["id"].strip(),
        label=label,
        config=loaded if isinstance(loaded, Mapping) else {},
        prompts=None if prompts is None else tuple(map(str, as_list(prompts))),
        transform=entry.get("transform"),
        delay=entry.get("delay"),
        environment={**config.environment, **(own if isinstance(own, Mapping) else {})},
        place=place,
    )


class Targets:
    """Makes a target of each provider with each of its prompts; ``files`` has the code that they run."""

    def __init__(self, config: PromptfooConfig, plan: PromptPlan, report: ImportReport) -> None:
        self.files: dict[str, str] = {}
        self._config = config
        self._plan = plan
        self._report = report
        self._reported: set[str] = set()
        """The providers whose options were reported."""

    def target(self, provider: PromptfooProvider, prompt: PromptfooPrompt | None) -> dict[str, object]:
        """The target that sends a prompt to a provider; one that has no counterpart is a function to be written.

        Without a prompt, a chat model that gets its prompts from the suite.
        """
        environment, self._plan.environment = self._plan.environment, provider.environment
        # the same is true of a provider's other prompts
        report = ImportReport("", "") if provider.name in self._reported else self._report
        self._reported.add(provider.name)
        builder = _Builder(provider, prompt, self._config, self._plan, report, self.files)
        try:
            found = self._checked(provider, builder.build(), report)
            builder.report_target()
        except (NoTargetError, TemplateError, FileReferenceError) as error:
            found = self._unwritten(provider, str(error))
        finally:
            self._plan.environment = environment
        return {**found, **self._pacing(provider, found)}

    def _pacing(self, provider: PromptfooProvider, target: Mapping[str, object]) -> dict[str, object]:
        options: dict[str, object] = {}
        timeout = run_option(self._config, "timeoutMs")
        if isinstance(timeout, int | float) and positive(timeout) and "timeout" not in target:
            options["timeout"] = min(86_400.0, max(0.001, timeout / 1000))
        delay = provider.delay if provider.delay is not None else run_option(self._config, "delay")
        if isinstance(delay, int | float) and positive(delay):
            options["rate"] = {"calls": 1, "per": max(0.001, delay / 1000)}
        try:
            _check({**target, **options})
        except ConfigError as error:
            self._report.not_mapped(provider.place, "delay and timeout", error.problems[0].message)
            return {}
        return options

    def _checked(
        self, provider: PromptfooProvider, target: dict[str, object], report: ImportReport
    ) -> dict[str, object]:
        """The target without options that gradeline refuses, which are reported."""
        for _ in range(10):
            try:
                _check(target)
            except ConfigError as error:
                problem = error.problems[0]
                key = re.split(r"[.\[]", problem.path)[0]
                if key not in target or key in ("kind", "url", "command", "model", "prompt", "messages", "request"):
                    raise NoTargetError(f"its target is refused ({problem}); correct it in the suite") from None
                del target[key]
                report.not_mapped(provider.place, item_name("config", key), problem.message)
            else:
                return target
        raise NoTargetError("its options are refused; write the target in the suite")

    def _unwritten(self, provider: PromptfooProvider, why: str) -> dict[str, object]:
        place = f"{FOLDER}/{_identifier(provider.name)}.py"
        why = why or _NO_TARGET.format(place=place)
        self._report.not_mapped(provider.place, item_name("provider", provider.shown), why)
        message = json.dumps(f"the provider {provider.shown} of promptfoo was not translated: write the call here")
        self.files[place] = (
            f'"""The call of an agent, to be written."""\n\n\ndef answer(input, sample):\n'
            f"    raise NotImplementedError({message})\n"
        )
        return {"kind": "python", "function": f"{place}:answer"}


def _check(target: Mapping[str, object]) -> None:
    """`ConfigError` for a target that a suite must not have; variables have a value."""
    data = _with_values(target)
    kind = str(data.pop("kind"))
    data.pop("models", None)
    targets.registry.get(kind)(data)


def _with_values(value: object) -> Any:
    if isinstance(value, str):
        return re.sub(r"(?<!\$)\$\{\w+\}", "http://localhost" if value.startswith("${") else "value", value)
    if isinstance(value, Mapping):
        return {key: _with_values(item) for key, item in value.items()}
    return [_with_values(item) for item in value] if isinstance(value, list) else value


def _identifier(name: str) -> str:
    plain = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    return plain if plain[:1].isalpha() else f"target_{plain}"


class _Compatible(NamedTuple):
    """A provider with OpenAI's API."""

    base_url: str
    key: str | None


COMPATIBLE_PROVIDERS: Mapping[str, _Compatible] = {
    "cerebras": _Compatible("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY"),
    "deepseek": _Compatible("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": _Compatible("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "github": _Compatible("https://models.github.ai/inference", "GITHUB_TOKEN"),
    "groq": _Compatible("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "localai": _Compatible("http://localhost:8080/v1", None),
    "mistral": _Compatible("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "openrouter": _Compatible("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "perplexity": _Compatible("https://api.perplexity.ai", "PERPLEXITY_API_KEY"),
    "togetherai": _Compatible("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "xai": _Compatible("https://api.x.ai/v1", "XAI_API_KEY"),
}
"""The first part of a provider's id, for servers with OpenAI's API."""
CHAT_PROVIDERS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google": "gemini",
    "palm": "gemini",
    "vertex": "gemini",
    "ollama": "ollama",
    "vllm": "vllm",
}
"""The first part of a provider's id, and gradeline's name of it."""
CHAT_APIS = frozenset(("chat", "responses", "messages"))
"""The second part of the id of a chat model, before the model."""
NOT_CHAT = frozenset(
    """
    agents assistant chatkit claude-agent-sdk codex codex-app-server codex-sdk completion embedding embeddings image
    live moderation realtime speech transcription video
    """.split()  # noqa: SIM905
)
"""The second part of an id that names no chat model."""
_OPTIONS = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_tokens": "max_tokens",
    "maxOutputTokens": "max_tokens",
    "num_predict": "max_tokens",
    "seed": "seed",
    "stream": "stream",
    "temperature": "temperature",
    "instructions": "system",
    "system": "system",
    "systemInstruction": "system",
    "systemPrompt": "system",
}
_PARAMS = frozenset(
    """
    frequency_penalty include logit_bias metadata parallel_tool_calls presence_penalty reasoning reasoning_effort
    service_tier stop stop_sequences stopSequences store thinking tool_choice toolChoice top_k top_p topK topP
    truncation user verbosity num_ctx repeat_penalty mirostat effort safetySettings generationConfig
    """.split()  # noqa: SIM905
)
_NO_EFFECT = frozenset(("apiKeyRequired", "showThinking", "omitDefaults", "basePath", "label", "id", "useLogprobs"))


class _Builder:
    """Builds the target of one provider with one prompt."""

    def __init__(
        self,
        provider: PromptfooProvider,
        prompt: PromptfooPrompt | None,
        config: PromptfooConfig,
        plan: PromptPlan,
        report: ImportReport,
        code: dict[str, str],
    ) -> None:
        self._provider = provider
        self._prompt = prompt
        self._source = config
        self._plan = plan
        self._report = report
        self._code = code
        self._config = {**provider.config, **(prompt.config if prompt else {})}
        self._what = item_name("provider", provider.shown)
        self._became = self._differs = ""

    def build(self) -> dict[str, object]:
        ident = self._provider.id
        head, _, rest = ident.partition(":")
        if ident == "echo":
            target = self._echo()
        elif re.match(r"https?(://|$)", ident):
            target = self._http(self._config)
        elif head == "webhook":
            target = self._webhook(rest)
        elif head == "exec":
            target = self._program(rest)
        elif head == "python" or ident.startswith(SCHEME) or is_code(FileReference.of(ident)):
            target = self._file(FileReference.of(ident.removeprefix("python:")))
        elif head in ("azure", "azureopenai"):
            target = self._azure(rest)
        elif head in CHAT_PROVIDERS or head in COMPATIBLE_PROVIDERS:
            target = self._chat(head, rest)
        else:
            raise NoTargetError
        transform = self._provider.transform
        if transform is not None and target["kind"] != "http":
            note = "is code; take the part that is graded with an extractor, such as {extractor: json}"
            self._report.not_mapped(self._provider.place, "transform of a provider", note)
        return target

    def _mapped(self, became: str, differs: str = "") -> None:
        self._became, self._differs = became, differs

    def report_target(self) -> None:
        """Report what the provider became; call it when the target was checked."""
        if self._differs:
            self._report.approximated(self._provider.place, self._what, self._became, self._differs)
        else:
            self._report.mapped(self._provider.place, self._what, self._became)

    def _dropped(self, key: str, why: str) -> None:
        self._report.not_mapped(self._provider.place, item_name("config", key), why)

    def _text(self, value: object, own: Mapping[str, str] | None = None) -> str:
        return self._plan.placeholders(value if isinstance(value, str) else json.dumps(value), own or {})

    def _chat(self, head: str, rest: str) -> dict[str, object]:
        first, _, after = rest.partition(":")
        if first in NOT_CHAT:
            raise NoTargetError
        api, model = (first, after) if first in CHAT_APIS else ("chat", rest)
        model = model or str(self._config.get("model") or self._config.get("modelName") or "")
        if not model:
            raise NoTargetError("it names no model; write the target in the suite")
        if head in ("palm", "vertex") and not model.startswith(("gemini", "gemma")):
            raise NoTargetError
        target: dict[str, object] = {"kind": CHAT_PROVIDERS.get(head, "openai"), "model": self._text(model)}
        if target["kind"] == "openai" and api == "responses":
            target["api"] = "responses"
        if (compatible := COMPATIBLE_PROVIDERS.get(head)) is not None:
            target["base_url"] = compatible.base_url
            if compatible.key is not None:
                target["api_key"] = f"${{{compatible.key}}}"
        self._chat_options(target, head)
        if self._prompt is not None:
            target |= self._plan.chat_keys(self._prompt)
        differs = "calls the Gemini API with its key, not Vertex AI" if head in ("vertex", "palm") else ""
        self._mapped(f"target {target['kind']}", differs)
        return target

    def _azure(self, rest: str) -> dict[str, object]:
        """A deployment of Azure, by the API that has OpenAI's form."""
        host = self._config.get("apiHost") or self._config.get("apiBaseUrl") or "{{env.AZURE_API_HOST}}"
        base = self._text(host).removeprefix("https://").rstrip("/").removesuffix("/openai")
        model = self._config.get("deploymentId")
        own = ("apiHost", "apiBaseUrl", "apiVersion", "deploymentId", "deployment_id")
        self._config = {key: value for key, value in self._config.items() if key not in own}
        found = self._chat("openai", f"{rest.partition(':')[0]}:{model}" if isinstance(model, str) else rest)
        self._mapped("target openai", "calls Azure by its v1 API, in which the name of the deployment is the model")
        return {**found, "base_url": f"https://{base}/openai/v1", "api_key": found.get("api_key", "${AZURE_API_KEY}")}

    def _chat_options(self, target: dict[str, object], head: str) -> None:
        params: dict[str, object] = {}
        for key, written in self._config.items():
            try:
                value = load_value(written, self._source.folder)
                if not self._chat_option(target, params, key, value, head):
                    if key in _PARAMS:
                        params[key] = _without_secrets(value)
                    elif key not in _NO_EFFECT and value not in (None, [], {}, False):
                        why = "is not translated; if it is a parameter of the request, write it under params"
                        self._dropped(key, why)
            except (FileReferenceError, TemplateError) as error:
                self._dropped(key, f"{error}; write it in the target")
        if params:
            target["params"] = params

    def _chat_option(
        self, target: dict[str, object], params: dict[str, object], key: str, value: object, head: str
    ) -> bool:
        """Read an option; False if it is not one of those with a key of the target."""
        if key in _OPTIONS:
            target[_OPTIONS[key]] = self._text(value) if isinstance(value, str) else value
        elif key in ("apiBaseUrl", "apiHost", "baseUrl"):
            text = self._text(value)
            target["base_url"] = text if key != "apiHost" else f"https://{text}{'/v1' if head == 'openai' else ''}"
            if "api_key" not in target and CHAT_PROVIDERS.get(head) in ("openai", "anthropic", "gemini"):
                target["api_key"] = f"${{{'GEMINI' if head == 'google' else head.upper()}_API_KEY}}"
        elif key == "apiKeyEnvar":
            target["api_key"] = f"${{{value}}}"
        elif key == "apiKey":
            azure = self._provider.id.startswith("azure")
            target["api_key"] = self._secret(f"{'AZURE' if azure else head.upper()}_API_KEY", value, key)
        elif key == "headers" and isinstance(value, Mapping):
            self._add_headers(target, {str(name): self._header(str(name), one) for name, one in value.items()})
        elif key == "organization":
            self._add_headers(target, {"OpenAI-Organization": self._text(value)})
        elif key in ("tools", "functions") and isinstance(value, list):
            target["tools"] = value
        elif key in ("response_format", "responseSchema", "response_schema"):
            self._response_format(target, params, value)
        elif key == "passthrough" and isinstance(value, Mapping):
            params.update(_without_secrets(value))
        elif key == "maxRetries" and isinstance(value, int):
            target["retries"] = min(100, max(0, value))
        else:
            return False
        return True

    @staticmethod
    def _add_headers(target: dict[str, object], headers: Mapping[str, str]) -> None:
        known = target.get("headers")
        target["headers"] = {**(known if isinstance(known, Mapping) else {}), **headers}

    def _response_format(self, target: dict[str, object], params: dict[str, object], value: object) -> None:
        if not isinstance(value, Mapping):
            self._dropped("response_format", f"is {quote(value, 40)}, and should be a mapping")
            return
        inner = value.get("json_schema", value)
        schema = inner.get("schema") if isinstance(inner, Mapping) else None
        schema = load_value(schema, self._source.folder)
        if value.get("type") in ("json_object", "text"):
            params["response_format"] = dict(value)
        elif isinstance(schema, Mapping):
            target["response_schema"] = dict(schema)
        else:
            target["response_schema"] = dict(value)

    def _secret(self, name: str, value: object, what: str) -> str:
        """A secret as a variable of the environment; one that is written out is never copied."""
        text = self._text(value) if isinstance(value, str) else ""
        if "${" in text.replace("$${", ""):
            return text
        name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_").upper()
        differs = f"a secret is not copied: set it as {name} in the environment or in .env"
        self._report.approximated(self._provider.place, item_name("secret", what), f"${{{name}}}", differs)
        return f"${{{name}}}"

    def _own_secret(self, name: str, value: object, what: str) -> str:
        return self._secret(f"{self._provider.name}_{name}", value, what)

    def _header(self, name: str, value: object) -> str:
        if not is_secret_name(name):
            return self._text(value)
        text = value if isinstance(value, str) else json.dumps(value)
        scheme = re.match(r"(Bearer|Basic|Token)\s+", text)
        secret = self._own_secret(name, text, name)
        return secret if not scheme or secret.startswith(scheme[0]) else f"{scheme[0]}{secret}"

    def _needed(self) -> PromptfooPrompt:
        if self._prompt is None:
            raise NoTargetError("it has no prompt; write the target in the suite")
        return self._prompt

    def _echo(self) -> dict[str, object]:
        name = f"{FOLDER}/echo.py"
        function, key = self._function()
        made = f"\n\ndef {function}(input, sample):\n    return {_prompt_of(key)}\n"
        text = self._code.get(name) or '"""Agents that return their prompt."""\n'
        self._code[name] = text if f"def {function}(" in text else text + made
        self._mapped("target python")
        return {"kind": "python", "function": f"{name}:{function}", "isolation": "none"}

    def _function(self) -> tuple[str, str | None]:
        """The name of a function for the prompt, and the prompt's key in the metadata of a case."""
        key = self._plan.key(self._needed())
        return ("answer" if key is None else f"answer_{_identifier(key)}", key)

    def _file(self, reference: FileReference) -> dict[str, object]:
        if reference.suffix in (".js", ".cjs", ".mjs"):
            return self._node(reference)
        if reference.suffix != ".py":
            raise NoTargetError("its file is not Python or JavaScript; write a target of kind command")
        place = f"{FOLDER}/{_identifier(self._provider.name)}.py"
        user = f"files/{self._user_file(reference)}"
        function, key = self._function()
        made = f"\n\ndef {function}(input, sample):\n    return respond({_prompt_of(key)}, sample)\n"
        if place not in self._code:
            settings = {
                "path": user,
                "function": reference.function or "call_api",
                "options": {"id": self._provider.id, "config": _without_secrets(self._config)},
            }
            self._code[place] = _runtime("provider.py.txt").replace("'SETTINGS'", repr(settings))
        if f"def {function}(" not in self._code[place]:
            self._code[place] += made
        self._mapped("target python", _COPIED)
        return {"kind": "python", "function": f"{place}:{function}"}

    def _user_file(self, reference: FileReference) -> str:
        """Copy a file of the user into the folder; returns its name there."""
        text = self._source.folder.text(reference)
        name = self._source.folder.path(reference).relative_to(self._source.folder.root).as_posix()
        self._code[f"{FOLDER}/files/{name}"] = text
        return name

    def _node(self, reference: FileReference) -> dict[str, object]:
        place = f"{FOLDER}/{_identifier(self._provider.name)}.mjs"
        text = self._source.folder.text(reference)
        name = self._user_file(reference)
        suffix = ".mjs" if reference.suffix == ".mjs" or is_module(text) else ".cjs"
        kept = f"{name.removesuffix(Path(name).suffix)}{suffix}"
        self._code[f"{FOLDER}/files/{kept}"] = self._code.pop(f"{FOLDER}/files/{name}")
        options = {"id": self._provider.id, "label": self._provider.label, "config": _without_secrets(self._config)}
        settings = {"path": f"./files/{kept}", "options": options, "function": reference.function}
        self._code[place] = _runtime("provider.mjs").replace('"SETTINGS"', json.dumps(settings))
        self._mapped("target command with Node", _COPIED)
        return {
            "kind": "command",
            "command": ["node", place, self._plan.text(self._needed()), "{{metadata.vars}}"],
            "input": "argument",
            "output": "json",
            "response": {"output": "output", "error": "error", "usage": "usage"},
        }

    def _program(self, line: str) -> dict[str, object]:
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise NoTargetError(f"its command is not read: {error}; write a target of kind command") from None
        if not words:
            raise NoTargetError("it names no program; write a target of kind command")
        words = [word.replace("${", "$${") for word in words]
        prompt = self._plan.text(self._needed())
        options = json.dumps({"config": _without_secrets(self._config)}).replace("${", "$${").replace("{{", "{ {")
        self._mapped("target command", "its context has only the variables of the test; it runs in the new folder")
        context = '{"vars": {{metadata.vars}}}'
        return {"kind": "command", "command": [*words, prompt, options, context], "input": "argument"}

    def _webhook(self, url: str) -> dict[str, object]:
        config = _without_secrets(self._config)
        body: dict[str, object] = {"prompt": "{{prompt}}", **({"config": config} if config else {})}
        return self._http({"url": url, "body": body, "transformResponse": "json.output"})

    def _http(self, config: Mapping[str, Any]) -> dict[str, object]:
        one = self._provider
        reader = HttpReader(one.id, one.place, one.transform, config, self._plan, self._needed(), self._report)
        target = reader.target(self._header, self._own_secret)
        self._mapped("target http", reader.differs)
        return target


def _prompt_of(key: str | None) -> str:
    return "input" if key is None else f'sample.metadata["prompts"]["{key}"]'


def _without_secrets(value: object, name: str = "") -> Any:
    """Options without the values whose names denote secrets."""
    if isinstance(value, Mapping):
        return {str(key): _without_secrets(item, str(key)) for key, item in value.items() if not _is_secret(key, item)}
    return [_without_secrets(item, name) for item in value] if isinstance(value, list) else value


def _is_secret(name: object, value: object) -> bool:
    return isinstance(value, str) and (is_secret_name(str(name)) or bool(secrets_in_url(value)))


@cache
def _runtime(name: str) -> str:
    return files("gradeline.importers").joinpath("promptfoo_runtime", name).read_text(encoding="utf-8")


def prompts_of(provider: PromptfooProvider, prompts: Sequence[PromptfooPrompt]) -> list[PromptfooPrompt]:
    """The prompts that a provider gets."""
    return [prompt for prompt in prompts if provider.gets(prompt)]


def is_chat(target: Mapping[str, object]) -> bool:
    """True for a target that takes a prompt."""
    return "prompt" in targets.registry.get(str(target["kind"])).option_names()
