"""Builds the suite of a run from a request; it is stored with the run as data.

A suite over REST names no file, no code and no variable of the server, and contains no secret itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import yaml
from msgspec import Struct

from gradeline import extractors, graders
from gradeline.engine.early_stopping import STOP_EARLY
from gradeline.errors import ConfigError
from gradeline.model import Sample, Storage, quote
from gradeline.model.secrets import contains_secret
from gradeline.service.auth import Caller
from gradeline.service.errors import Code, ServiceError
from gradeline.service.graders import ResolvedGrader, StoredGraders
from gradeline.service.run_access import DATA_TARGETS, ServiceEgress, check_graders, check_target
from gradeline.service.secrets import Secrets
from gradeline.service.settings import ServeSettings
from gradeline.service.test_cases import CaseFilter, TestCases
from gradeline.suite.case_checks import CHECKS, checks_faults, options_of, read_checks_of, with_metrics
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.columns import column_faults
from gradeline.suite.dataset import open_dataset
from gradeline.suite.declaration import SuiteFile, default_of
from gradeline.suite.letta_dialects import key_names, target_kind
from gradeline.suite.spec import TARGET_KEYS, GraderSpec
from gradeline.suite.stored import with_variables
from gradeline.suite.variants import is_file_name, unchecked_variants
from gradeline.targets.registry import is_plugin

MAX_RESULTS = 1_000_000

_ORIGIN = "x-grader"
"""The stored grader from which a suite's grader was built; omitted in files."""
_CODE_KEYS = ("setup_script", "output")
_FILE_OPTIONS = ("prompt_path", "rubric_path", "agent_file")
_TIMED = frozenset({"http", "openai", "anthropic", "gemini", "ollama", "vllm"})


class EvaluationRequest(Struct, frozen=True, kw_only=True):
    """A request to start a run."""

    name: str | None = None
    suite: dict[str, Any] | None = None
    test_case_ids: list[str] | None = None
    tag: str | None = None
    agent_endpoint_url: str | None = None
    target: dict[str, Any] | None = None
    grader_ids: list[str | dict[str, Any]] | None = None
    repeats: int | None = None
    concurrency: int | None = None
    timeout_s: float | None = None
    baseline_id: str | None = None
    stop_early: bool = False


class BuiltSuite(NamedTuple):
    """A suite as it is stored with its run, and the cases of the run."""

    document: dict[str, Any]
    samples: list[Sample]
    tag: str | None


class SuiteBuilder:
    """Builds suites from requests. An invalid request is a `ServiceError`."""

    def __init__(
        self,
        settings: ServeSettings,
        storage: Storage,
        cases: TestCases,
        graders: StoredGraders,
        egress: ServiceEgress,
        secrets: Secrets,
    ) -> None:
        self._settings = settings
        self._storage = storage
        self._cases = cases
        self._graders = graders
        self._egress = egress
        self._secrets = secrets

    def build(self, request: EvaluationRequest, caller: Caller) -> BuiltSuite:
        """The suite of a request, which contains it as a whole or in parts."""
        document, tag = (
            self._from_suite(request) if request.suite is not None else (self._from_parts(request), request.tag)
        )
        rows = document.pop("dataset", None)
        samples = self._samples(document, rows) if isinstance(rows, list) else self._select_cases(request, tag)
        samples = _clustered(samples, document.get("cluster"))
        document["dataset"] = []
        document["graders"] = _with_metrics(document["graders"], samples)
        document["target"] = self._target(document.get("target"), request, caller)
        self._check_variants(document, request, caller)
        check_graders(document["graders"], self._egress, self._secrets, caller, self._settings.allow_grader)
        for key, value in (("repeats", request.repeats), ("concurrency", request.concurrency)):
            if value is not None:
                for name in key_names("suite", key):
                    document.pop(name, None)
                document[key] = value
        if document.keys().isdisjoint(key_names("suite", "concurrency")):
            usual = int(default_of(SuiteFile, "concurrency"))
            if usual > self._settings.max_concurrency:
                document["concurrency"] = self._settings.max_concurrency
        return BuiltSuite(document, samples, tag)

    def build_target(self, request: EvaluationRequest, caller: Caller) -> dict[str, Any]:
        """The target of a request, checked as that of a run."""
        return self._target(_agent_of(request), request, caller)

    def build_graders(self, entries: Sequence[str | Mapping[str, Any]], caller: Caller) -> dict[str, Any]:
        """The ``graders`` of a suite, from ids or ``{id, config?, name?}``."""
        found = {one.key: _entry(one) for one in self._graders.resolve(entries)}
        check_graders(found, self._egress, self._secrets, caller, self._settings.allow_grader)
        return found

    def _from_suite(self, request: EvaluationRequest) -> tuple[dict[str, Any], str | None]:
        document = dict(request.suite or {})
        for name in ("agent_endpoint_url", "target", "grader_ids"):
            if getattr(request, name) is not None:
                raise ServiceError(
                    Code.INVALID_INPUT, f"Field {name!r} and 'suite' exclude each other; put it into the suite"
                )
        _refuse_code(document)
        dataset = document.get("dataset")
        tag = request.tag
        if isinstance(dataset, Mapping) and set(dataset) == {"tag"} and isinstance(dataset["tag"], str):
            tag = dataset["tag"]
            del document["dataset"]
        elif dataset is not None and not isinstance(dataset, list):
            reason = f"must be a list of cases or {{tag: NAME}}, not {quote(dataset)}; files are not read over REST"
            raise ServiceError(Code.INVALID_INPUT, f"Field 'suite.dataset' {reason}")
        elif dataset is not None and (request.tag is not None or request.test_case_ids is not None):
            raise ServiceError(
                Code.INVALID_INPUT, "Field 'suite.dataset' and 'test_case_ids' or 'tag' exclude each other"
            )
        if request.name is not None or "name" not in document:
            document["name"] = request.name or "evaluation"
        return document, tag

    def _from_parts(self, request: EvaluationRequest) -> dict[str, Any]:
        target = _agent_of(request)
        if request.grader_ids is None:
            raise ServiceError(Code.MISSING_FIELD, "Field 'grader_ids' is required")
        return {
            "name": request.name or "evaluation",
            "target": target,
            "graders": {one.key: _entry(one) for one in self._graders.resolve(request.grader_ids)},
        }

    def _select_cases(self, request: EvaluationRequest, tag: str | None) -> list[Sample]:
        if request.test_case_ids is not None and tag is not None:
            raise ServiceError(Code.INVALID_INPUT, "Fields 'test_case_ids' and 'tag' exclude each other")
        if tag is not None:
            found = [case.sample() for case in self._cases.matching(CaseFilter(tag=tag)) if tag in case.tags]
            if not found:
                raise ServiceError(Code.INVALID_INPUT, f"Field 'tag': no test case has the tag {quote(tag, 80)}")
            return found
        if request.test_case_ids is None:
            raise ServiceError(Code.MISSING_FIELD, "Field 'test_case_ids' is required (or 'tag')")
        return self._cases_by_id(request.test_case_ids)

    def _cases_by_id(self, ids: Sequence[str]) -> list[Sample]:
        if not ids:
            raise ServiceError(Code.INVALID_LENGTH, "Field 'test_case_ids' must name at least one test case")
        counts = Counter(ids)
        if len(counts) < len(ids):
            duplicate = counts.most_common(1)[0][0]
            raise ServiceError(Code.DUPLICATE_ID, f"Field 'test_case_ids' contains {quote(duplicate, 60)} twice")
        found = self._cases.find(ids)
        unknown = [case for case in ids if case not in found]
        if unknown:
            message = f"Field 'test_case_ids': no test case {quote(unknown[0], 60)}"
            raise ServiceError(Code.INVALID_TEST_CASE_ID, message, details={"ids": unknown[:100]})
        return [found[case].sample() for case in ids]

    def _samples(self, document: dict[str, Any], rows: list[Any]) -> list[Sample]:
        """The cases in the suite, selected by its options."""
        tags, limit = document.pop("sample_tags", None) or (), document.pop("max_samples", None) or 0
        columns = document.pop("columns", None) or {}
        if not isinstance(columns, dict):
            raise ServiceError(Code.INVALID_INPUT, "Field 'suite.columns' must map keys of a case to columns")
        faults = list(column_faults(columns))
        if faults:
            raise config_error(ConfigError(fault.within("columns") for fault in faults), "suite")
        if not isinstance(tags, list | tuple) or not isinstance(limit, int):
            raise ServiceError(
                Code.INVALID_INPUT, "Fields 'suite.sample_tags' and 'suite.max_samples' must be a list and a number"
            )
        try:
            samples = list(open_dataset(rows, columns=columns, tags=tags, limit=limit))
        except ConfigError as error:
            raise config_error(error, "suite") from None
        for sample in samples:
            if sample.rubric_path is not None:
                raise ServiceError(
                    Code.INVALID_INPUT, f"Case {quote(sample.case_key)}: 'rubric_path' names a file; use 'rubric'"
                )
        if not samples:
            raise ServiceError(Code.INVALID_LENGTH, "Field 'suite.dataset' must contain at least one case")
        return samples

    def _target(self, target: object, request: EvaluationRequest, caller: Caller) -> dict[str, Any]:
        if not isinstance(target, dict):
            raise ServiceError(Code.INVALID_INPUT, "Field 'target' must be an object such as {kind: http, url: …}")
        self._check_target(target, request, caller)
        target = dict(target)
        if request.timeout_s is not None and target.get("timeout", request.timeout_s) != request.timeout_s:
            raise ServiceError(Code.INVALID_INPUT, "Fields 'timeout_s' and 'target.timeout' differ; keep one")
        if request.timeout_s is not None:
            target["timeout"] = request.timeout_s
        return target

    def _check_variants(self, document: dict[str, Any], request: EvaluationRequest, caller: Caller) -> None:
        """Check the target of each variant as that of a run; a prompt is a text, never a file of the server."""
        prompts = document.get("prompts")
        if isinstance(prompts, list):
            document["prompts"] = [_inline_prompt(one, f"suite.prompts[{n}]") for n, one in enumerate(prompts)]
        for name in ("variants", "prompts", "models"):
            _refuse_variables(document.get(name), f"suite.{name}")
        for variant in unchecked_variants(document):
            if variant.name is None:
                continue
            place = f"suite.variants.{variant.name}.target"
            self._check_target(variant.target, request, caller, place)
            if request.timeout_s is not None and variant.target.get("timeout") != request.timeout_s:
                message = f"Fields 'timeout_s' and {f'{place}.timeout'!r} differ; write the timeout there"
                raise ServiceError(Code.INVALID_INPUT, message)

    def _check_target(
        self, target: Mapping[str, Any], request: EvaluationRequest, caller: Caller, place: str = "target"
    ) -> None:
        """Refuse a target that the operator does not allow, or that names what is the server's."""
        kind = target_kind(target.get("kind"))
        if kind not in DATA_TARGETS | set(self._settings.allow_target):
            known = ", ".join(sorted(DATA_TARGETS | set(self._settings.allow_target)))
            message = f"Field {f'{place}.kind'!r}: {quote(kind, 40)} is not allowed here, only {known} (--allow-target)"
            raise ServiceError(Code.FORBIDDEN, message)
        if request.timeout_s is not None and kind not in _TIMED:
            raise ServiceError(Code.INVALID_INPUT, f"Field 'timeout_s': a target of kind {kind} has no timeout")
        _refuse_variables(target, place)
        self._check_replay(kind, target, place)
        if is_plugin(kind):
            self._egress.check_urls_in(target, place)
        self._check_address(
            kind, target, place, f"{place}.url" if request.agent_endpoint_url is None else "agent_endpoint_url"
        )
        check_target(target, self._secrets, caller)

    def _check_replay(self, kind: str, target: Mapping[str, Any], place: str) -> None:
        if kind != "replay":
            return
        for name in ("responses", "cached"):
            if target.get(name) is not None:
                raise ServiceError(
                    Code.INVALID_INPUT, f"Field {f'{place}.{name}'!r} names a file; name a stored run by 'run'"
                )
        if not isinstance(target.get("run"), str) or self._storage.get_run(target["run"]) is None:
            unknown = f"no evaluation {quote(target.get('run'), 60)}"
            raise ServiceError(Code.INVALID_INPUT, f"Field {f'{place}.run'!r}: {unknown}")

    def _check_address(self, kind: str, target: Mapping[str, Any], place: str, url_field: str) -> None:
        """Refuse credentials in the target itself, and addresses that must not be called."""
        field = "url" if kind == "http" else "base_url"
        shown = with_variables(target)
        for name in ("headers", "query", "api_key", field):
            if contains_secret(shown.get(name), name):
                remedy = "store it with PUT /api/secrets/NAME and write {secret: NAME} instead"
                raise ServiceError(Code.INVALID_INPUT, f"Field {f'{place}.{name}'!r} contains a secret; {remedy}")
        url = target.get(field)
        if isinstance(url, str):
            self._egress.check_url(url, url_field if kind == "http" else f"{place}.base_url")
        poll = target.get("poll")
        if isinstance(poll, Mapping) and isinstance(poll.get("url"), str) and "://" in poll["url"]:
            self._egress.check_url(poll["url"], f"{place}.poll.url")


def _inline_prompt(prompt: object, place: str) -> object:
    """The prompt as a text; `ServiceError` for one that names a file."""
    names_file = isinstance(prompt, Mapping) and prompt.get("file") is not None
    if names_file or (isinstance(prompt, str) and is_file_name(prompt)):
        reason = "names a file, and files are not read over REST; send the text itself, as {text: …}"
        raise ServiceError(Code.INVALID_INPUT, f"Field {place!r} {reason}")
    return {"text": prompt} if isinstance(prompt, str) else prompt


def _with_metrics(entries: Mapping[str, Any], samples: Iterable[Sample]) -> dict[str, Any]:
    """The graders of a suite; those of kind checks with the metrics that the cases name."""
    chosen = {key: entry for key, entry in entries.items() if entry.get("kind", entry.get("type")) == CHECKS}
    if not chosen:
        return dict(entries)
    checked = dict(entries)
    conditions = [entry.get("when") for entry in chosen.values()]
    for (key, entry), found in zip(chosen.items(), read_checks_of(samples, conditions), strict=True):
        for path, message in checks_faults(GraderSpec(key=key, kind=CHECKS, config=options_of(entry)), found):
            raise ServiceError(Code.INVALID_GRADER, f"Field 'graders.{key}.{path}': {message}")
        checked[key] = with_metrics(entry, found)
    return checked


def _clustered(samples: list[Sample], cluster: object) -> list[Sample]:
    """The cases with their clusters; an invalid path of clusters is reported with the suite."""
    path = ClusterPath(cluster.strip()) if isinstance(cluster, str) else None
    if path is None or path.fault is not None:
        return samples
    try:
        return list(path.with_clusters(samples))
    except ConfigError as error:
        raise config_error(error, "suite") from None


def _agent_of(request: EvaluationRequest) -> dict[str, Any]:
    """The target of a request, from ``target`` or ``agent_endpoint_url``."""
    if (request.agent_endpoint_url is None) is (request.target is None):
        if request.target is not None:
            raise ServiceError(Code.INVALID_INPUT, "Fields 'agent_endpoint_url' and 'target' exclude each other")
        raise ServiceError(Code.MISSING_FIELD, "Field 'agent_endpoint_url' is required (or 'target')")
    return request.target or {"kind": "http", "url": request.agent_endpoint_url}


def _entry(one: ResolvedGrader) -> dict[str, Any]:
    origin = {key: value for key, value in one.definition.items() if key != "config"}
    if one.function is not None:
        return {"kind": "tool", "function": one.function, _ORIGIN: origin}
    return {"kind": one.kind, "config": one.config, _ORIGIN: origin}


def _refuse_code(document: Mapping[str, Any]) -> None:
    """Refuse a suite that would read a file or run code of the server."""
    for key in _CODE_KEYS:
        if document.get(key) is not None:
            raise ServiceError(Code.INVALID_INPUT, f"Field 'suite.{key}' names a file, which cannot be used over REST")
    reward = document.get("reward")
    if isinstance(reward, Mapping) and reward.get("kind") == "custom":
        raise ServiceError(Code.INVALID_INPUT, "Field 'suite.reward': custom code cannot be used over REST")
    entries = document.get("graders")
    if not isinstance(entries, Mapping) or not entries:
        raise ServiceError(Code.INVALID_GRADER, "Field 'suite.graders' must contain at least one grader")
    for key, entry in entries.items():
        for message in _code_in_grader(entry):
            raise ServiceError(Code.INVALID_GRADER, f"Field 'suite.graders.{key}': {message}")


def _code_in_grader(entry: object) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield f"must be an object such as {{kind: exact_match}}, not {quote(entry)}"
        return
    function = entry.get("function")
    if function is not None and function not in graders.registry:
        yield "code cannot be sent over REST; use a grader of --graders-dir by its id"
    extractor = entry.get("extractor")
    if "extractor" in entry and (not isinstance(extractor, str) or extractor not in extractors.registry):
        yield f"no extractor {quote(extractor, 60)}"
    for option in _options_in(entry):
        yield f"{option!r} names a file; over REST send the text itself"


def _options_in(tree: object) -> Iterator[str]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key in _FILE_OPTIONS and value is not None:
                yield str(key)
            yield from _options_in(value)
    elif isinstance(tree, list):
        for item in tree:
            yield from _options_in(item)


def _refuse_variables(tree: object, place: str) -> None:
    """Refuse ``${NAME}``, which would be a variable of the server."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            _refuse_variables(value, f"{place}.{key}")
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            _refuse_variables(value, f"{place}[{number}]")
    elif isinstance(tree, str) and "${" in tree:
        reason = "variables are not read over REST; store a secret and write {secret: NAME}"
        raise ServiceError(Code.INVALID_INPUT, f"Field {place!r}: {reason}")


def config_error(error: ConfigError, lead: str = "") -> ServiceError:
    """An error with all faults of a suite or its options; the first fault determines the code.

    Options of the command line are replaced by the corresponding fields of a request.
    """
    placed = getattr(error, "suite_problems", None)
    faults = [(each.path, each.message) for each in placed] if placed else [tuple(each) for each in error.problems]
    errors = [_field_error(path, message, lead) for path, message in faults]
    first, _ = faults[0]
    code = Code.INVALID_INPUT
    if first.startswith("graders"):
        code = Code.INVALID_GRADER
    elif first in ("target.url", "target.base_url"):
        code = Code.INVALID_URL
    field, message = errors[0].values()
    return ServiceError(code, f"Field {field!r}: {message}" if field else message, details={"errors": errors[:50]})


def _field_error(path: str, message: str, lead: str) -> dict[str, str]:
    if path != STOP_EARLY:
        return {"field": f"{lead}.{path}".strip("."), "message": message}
    for option, field in (("--baseline RUN", "'baseline_id'"), (STOP_EARLY, "'stop_early'")):
        message = message.replace(option, field)
    return {"field": "stop_early", "message": message}


_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_ -]*[A-Za-z0-9_]|[A-Za-z_]")
_NOT_STRINGS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class _Dumper(yaml.SafeDumper):
    """Writes strings so that no version of YAML reads them as another type."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _WORD.fullmatch(text) and text.lower() not in _NOT_STRINGS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _text)


def suite_yaml(document: Mapping[str, Any], samples: Iterable[Sample]) -> str:
    """The suite with its cases as YAML, with ``${NAME}`` for each secret."""
    suite = {key: value for key, value in document.items() if key not in ("dataset", *TARGET_KEYS, "graders")}
    suite |= {key: with_variables(document[key]) for key in TARGET_KEYS if key in document}
    suite["graders"] = {
        key: {name: value for name, value in entry.items() if name != _ORIGIN}
        for key, entry in document.get("graders", {}).items()
    }
    suite["dataset"] = [_row(sample) for sample in samples]
    return yaml.dump(suite, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)


def _row(sample: Sample) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(sample)
    return {key: value for key, value in data.items() if key != "schema" and value not in (None, {}, [], ())}
