"""Configurations of promptfoo as suites; results of promptfoo are read by `promptfoo_results`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from msgspec.json import encode

from gradeline.errors import ConfigError, Problem
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.output import ANSWERS, ImportOutput
from gradeline.importers.promptfoo_assertions import AssertionMapper
from gradeline.importers.promptfoo_cases import CaseMaker, TestScan
from gradeline.importers.promptfoo_config import (
    NAMES,
    PromptfooConfig,
    config_file,
    is_config,
    read_config,
    suite_keys,
)
from gradeline.importers.promptfoo_prompts import PromptfooPrompt, PromptPlan, is_variable, read_prompts
from gradeline.importers.promptfoo_providers import (
    PromptfooProvider,
    Targets,
    is_chat,
    prompts_of,
    read_providers,
)
from gradeline.importers.promptfoo_results import is_results, read_results
from gradeline.importers.promptfoo_tests import CaseNames, TestReader
from gradeline.importers.report import ImportReport, State
from gradeline.model import Response, clean_text
from gradeline.suite.declaration import MAX_NAME

MAX_VARIANTS = 1_000
"""Maximum targets of an imported suite."""
MAX_SUITE = 5_000_000
"""Maximum characters of these targets."""


def matches(source: Source) -> bool:
    """A configuration or results of promptfoo, or a folder with a configuration."""
    if source.path.is_dir():
        return any(name in NAMES or re.fullmatch(r"promptfooconfig\.\w+", name) for name in source.names)
    if source.path.name.startswith("promptfooconfig.") or is_results(source):
        return True
    return is_config(source.first_row)


def read(source: Source, options: ImportOptions, output: ImportOutput) -> None:
    """Write the suite of a configuration, or store the runs of results."""
    if not source.path.is_dir() and is_results(source):
        read_results(source, options, output)
        return
    path = config_file(source.path)
    config = read_config(path, output.report)
    _ConfigImport(config, path, options, output).write()


class _Combination(NamedTuple):
    """A prompt with a provider, and the target that they are."""

    name: str
    prompt: PromptfooPrompt | None
    provider: PromptfooProvider
    target: dict[str, object]


class _ConfigImport:
    """Reads the tests of a configuration twice: for what they have in common, then to write their cases."""

    def __init__(self, config: PromptfooConfig, path: Path, options: ImportOptions, output: ImportOutput) -> None:
        self._config = config
        self._output = output
        self._report = output.report
        self._name = options.name or _suite_name(config, path)

    def write(self) -> None:
        config, report = self._config, self._report
        keys = suite_keys(config, report)
        scan = TestScan(TestReader(config, ImportReport("", "")).tests())
        prompts = read_prompts(config, report) or [_question(scan)]
        plan = scan.plan(prompts, config.environment)
        replayed = bool(scan.outputs) and scan.outputs == scan.count
        made = self._targets(prompts, plan, replayed=replayed)
        mapper = AssertionMapper(report, config.folder.root)
        data = made.has_schema
        templates = config.data.get("assertionTemplates")
        maker = CaseMaker(prompts, plan, scan, mapper, templates, report, outputs_data=data)
        self._write_cases(maker, replayed=replayed)
        for name, text in {**made.files, **maker.files}.items():
            self._output.write_file(name, clean_text(text).text)
        self._output.write_suite({"name": self._name, **keys, **made.keys, **maker.graders()})

    def _write_cases(self, maker: CaseMaker, *, replayed: bool) -> None:
        names = CaseNames()
        count = 0
        for test in TestReader(self._config, self._report).tests():
            case = maker.case(test, names.name(test))
            if case is None:
                continue
            self._output.add_case(case)
            count += 1
            if test.output is None:
                continue
            if replayed:
                self._report.mapped(test.place, "providerOutput", ANSWERS)
                self._output.add_answer(case["id"], Response(text=_output_text(test.output)))
            else:
                note = "replaces the provider for some tests only; replay them in a suite of their own"
                self._report.not_mapped(test.place, "providerOutput", note)
        if not count:
            raise ConfigError(Problem(self._config.name, f"has no test that can be imported{self._reasons()}"))

    def _reasons(self) -> str:
        """The first items that were left out, for an import that has no result."""
        items = [item for item in self._report.items if item.state is State.NOT_MAPPED]
        return "".join(f"; {item.places[0]}: {item.what} {item.note}" for item in items[:5])

    def _targets(self, prompts: Sequence[PromptfooPrompt], plan: PromptPlan, *, replayed: bool) -> _TargetKeys:
        providers = read_providers(self._config, self._report)
        if replayed:
            return _TargetKeys({"target": {"kind": "replay", "responses": ANSWERS}}, {})
        place = f"{self._config.name}.providers"
        unknown = PromptfooProvider("agent", "agent", None, {}, None, None, None, {}, place)
        providers = providers or [unknown]
        targets = Targets(self._config, plan, self._report)
        combinations: list[_Combination] = []
        size = 0
        for one in islice(self._combinations(providers, prompts, targets), MAX_VARIANTS):
            size += len(encode(one.target))
            if size > MAX_SUITE:
                break
            combinations.append(one)
        wanted = sum(len(prompts_of(provider, prompts)) for provider in providers)
        if wanted > len(combinations):
            note = f"are {wanted:,} combinations, of which {len(combinations):,} are imported; split the configuration"
            self._report.not_mapped(self._config.name, "prompts and providers", note)
        combinations = combinations or list(self._combinations([unknown], prompts[:1], targets))
        has_schema = all("response_schema" in one.target for one in combinations)
        return _TargetKeys(self._keys(combinations, prompts, providers, plan), targets.files, has_schema)

    def _combinations(
        self, providers: Sequence[PromptfooProvider], prompts: Sequence[PromptfooPrompt], targets: Targets
    ) -> Iterator[_Combination]:
        for provider in providers:
            own = prompts_of(provider, prompts)
            if not own:
                self._report.not_mapped(provider.place, "prompts of a provider", "name no prompt; see its labels")
            for prompt in own:
                parts = [prompt.name] if len(prompts) > 1 else []
                parts += [provider.name] if len(providers) > 1 or not parts else []
                yield _Combination("@".join(parts)[:MAX_NAME], prompt, provider, targets.target(provider, prompt))

    def _keys(
        self,
        combinations: Sequence[_Combination],
        prompts: Sequence[PromptfooPrompt],
        providers: Sequence[PromptfooProvider],
        plan: PromptPlan,
    ) -> dict[str, object]:
        """The keys ``target``, ``variants``, ``prompts`` and ``models`` of the suite."""
        first = combinations[0].target
        if len(combinations) == 1:
            return {"target": first}
        whole = len(combinations) == len(prompts) * len(providers)
        texts = {prompt.name: plan.text(prompt) for prompt in prompts}
        if whole and len(prompts) > 1 and self._has_prompts(combinations, prompts, texts):
            bare = {one.provider.name: _without(one.target, "prompt") for one in combinations}
            entries = [{"name": name, "text": text} for name, text in texts.items()]
            return {**_variants(bare), "prompts": entries}
        return _variants({one.name: one.target for one in combinations})

    @staticmethod
    def _has_prompts(
        combinations: Sequence[_Combination], prompts: Sequence[PromptfooPrompt], texts: Mapping[str, str]
    ) -> bool:
        """Whether the suite can list the prompts: chat models take them, and each asks the input."""
        plain = all(isinstance(prompt.content, str) and not prompt.config for prompt in prompts)
        asks = all("{{input}}" in text for text in texts.values())
        return plain and asks and all(is_chat(one.target) for one in combinations)


class _TargetKeys(NamedTuple):
    """The keys of the suite for its targets, and the code that these run."""

    keys: dict[str, object]
    files: Mapping[str, str]
    has_schema: bool = False
    """Whether every target has a schema of its response."""


def _without(target: Mapping[str, object], key: str) -> dict[str, object]:
    return {name: value for name, value in target.items() if name != key}


def _variants(named: Mapping[str, dict[str, object]]) -> dict[str, object]:
    """One target, or several as models or variants."""
    (first, *others) = named.values()
    if not others:
        return {"target": first}
    models = [target.get("model") for target in named.values()]
    same = all(_without(target, "model") == _without(first, "model") for target in others)
    if same and all(models) and len(set(map(str, models))) == len(models):
        return {"target": _without(first, "model"), "models": models}
    return {
        "target": first,
        "variants": [{"name": name, "set": {"target": target}} for name, target in named.items()],
    }


def _question(scan: TestScan) -> PromptfooPrompt:
    """A prompt for a configuration without one that is imported: a variable of its tests."""
    name = scan.question or next((name for name in scan.texts if is_variable(name)), "prompt")
    return PromptfooPrompt("prompt-1", f"{{{{{name}}}}}", ("prompt-1",), "prompts")


def _suite_name(config: PromptfooConfig, path: Path) -> str:
    """The description if it is short, else the name of the folder or file."""
    description = " ".join(str(config.data.get("description") or "").split())
    plain = path.name.removesuffix(path.suffix)
    folder = path.resolve().parent.name
    name = description if len(description) <= 60 else folder if plain == "promptfooconfig" else plain
    return clean_text(name or (folder if plain == "promptfooconfig" else plain) or "promptfoo").text


def _output_text(output: object) -> str:
    """A recorded output as text; JSON in a CSV file stays as it is."""
    if isinstance(output, str):
        return clean_text(output).text
    from gradeline.extractors.base import compact_json

    return clean_text(compact_json(output)).text
