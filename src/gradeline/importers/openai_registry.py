"""Evals of the registry of the repository openai/evals: their samples as cases, their classes as graders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from string import Formatter
from typing import Any, NamedTuple

from gradeline.compat.openai_evals import EvalVariable, Template, variables_of
from gradeline.errors import ConfigError, Problem
from gradeline.importers.kinds import ImportOptions, Source
from gradeline.importers.openai_code import registry_file
from gradeline.importers.openai_prompts import (
    OUTPUT_TEXT,
    NotMappedError,
    TemplateMessage,
    content_text,
    judge_prompt,
)
from gradeline.importers.output import ANSWERS, MODEL_SUITE, ImportOutput
from gradeline.importers.report import ImportReport, item_name
from gradeline.importers.rows import read_rows
from gradeline.judges.options import label_faults
from gradeline.model import clean_data, clean_text, quote
from gradeline.suite.document import read_document

MODEL = "gpt-6-luna"
"""The model of targets and judges, which the registry does not name."""
MAX_EVALS = 100
"""Maximum evals of one import; their graders apply to cases with the tag of the eval."""
_MAX_SPECS = 1_000
_MAX_FEW_SHOT = 100
_LOOKED_AT = 20
_CLASS = re.compile(r"[\w.]+:(\w+)")
_ROLES = ("system", "user", "assistant")
_IDEAL = "$metadata.ideal"

Config = dict[str, Any]
Message = dict[str, str]


class RegistryEval(NamedTuple):
    """An entry of the registry with a class, such as ``coqa-fact.dev.v0``."""

    name: str
    place: str
    kind: str
    """The name of the class, such as Match."""
    args: Mapping[str, Any]
    folder: Path | None
    """The folder that has ``data`` and ``modelgraded``; None if it is not known."""

    @property
    def prefix(self) -> str:
        """The prefix of the ids of its samples: the name without the version."""
        return ".".join(self.name.split(".")[:2])


class RegistryGrader(NamedTuple):
    """A grader for one metric of an eval, and what differs from the metric."""

    metric: str
    config: Config
    notes: Sequence[str] = ()
    function: str | None = None
    """The function of `gradeline.compat.openai_evals` that grades; the config is the rest."""
    variables: Mapping[str, EvalVariable] = {}
    """The keys of samples that its rubric shows, by the name of the placeholder."""

    @property
    def needs_ideal(self) -> bool:
        """Whether it compares with the ideal answers of a sample."""
        return self.function is not None or self.config.get("references") == _IDEAL


def matches(source: Source) -> bool:
    """Whether the source is a YAML file of the registry, or a folder with such files."""
    return any(_is_registry_file(Source(file)) for file in _eval_files(source.path)[:_LOOKED_AT])


def read(
    source: Source, options: ImportOptions, output: ImportOutput, logged: Set[str] = frozenset()
) -> Mapping[str, Config]:
    """Write a suite with the evals of the source; each has its cases and graders, which are tagged with its name.

    Returns the cases whose ids are in ``logged``: those of which there are responses, for which the suite has a target.
    """
    evals = list(_evals(source.path, output.report))
    if not evals:
        raise ConfigError(Problem("SOURCE", f"{source.path} has no eval with a class of the registry"))
    name = options.name or (evals[0].name.split(".")[0] if len(evals) == 1 else source.path.stem)
    registry = RegistryImport(evals, output, name, logged)
    registry.write()
    return registry.logged_cases


def _is_registry_file(source: Source) -> bool:
    return any(_class_of(entry) is not None for entry in source.first_row.values())


def _eval_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path] if path.suffix in (".yaml", ".yml") else []
    for folder in (path / "evals", path / "registry" / "evals", path):
        found = sorted(file for file in folder.glob("*.yaml") if file.is_file() and not file.is_symlink())
        if found:
            return found[:_MAX_SPECS]
    return []


def _class_of(entry: object) -> str | None:
    """The name of the class of an entry of the registry."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("class"), str):
        return None
    found = _CLASS.fullmatch(entry["class"].strip())
    return None if found is None else found[1]


def _evals(path: Path, report: ImportReport) -> Iterator[RegistryEval]:
    """The evals of the files; one that cannot be read, or is one too many, is reported."""
    count = 0
    for file in _eval_files(path):
        try:
            document = read_document(file)
        except ConfigError as error:
            report.not_mapped(file.name, "file", error.problems[0].message)
            continue
        folder = _registry_folder(file.parent)
        for name, entry in document.data.items():
            kind = _class_of(entry)
            if kind is None:
                continue
            count += 1
            place = f"{file.name}:{document.position((name,)).line}"
            args = entry.get("args")
            if count > MAX_EVALS:
                why = f"at most {MAX_EVALS} evals are imported together; import its file on its own"
                report.not_mapped(place, "eval", why)
            else:
                yield RegistryEval(str(name), place, kind, args if isinstance(args, Mapping) else {}, folder)


def _registry_folder(folder: Path) -> Path:
    """The folder of the registry for a file in it: the parent of ``evals``, or the folder of the file."""
    return folder.parent if folder.name == "evals" else folder


class RegistryImport:
    """The import of evals into one suite."""

    def __init__(self, evals: Sequence[RegistryEval], output: ImportOutput, name: str, logged: Set[str]) -> None:
        self.logged_cases: dict[str, Config] = {}
        self._logged = logged
        self._evals = evals
        self._output = output
        self._report = output.report
        self._name = name
        self._graders: dict[str, Config] = {}
        self._shapes: dict[tuple[str, ...], None] = {}
        self._prefixes: set[str] = set()
        self._cases = 0

    def write(self) -> None:
        """Write cases, graders and the suite."""
        for spec in self._evals:
            self._add(spec)
        if not self._cases:
            raise ConfigError(Problem("SOURCE", f"no samples were found; {self._first_reason()}"))
        if not self._graders:
            self._report.not_mapped("suite.yaml", "graders", "none was mapped; write suite.yaml with your own")
            return
        suite = {"name": self._name, "target": self._target(), "graders": self._graders}
        if self.logged_cases:
            self._output.write_suite(suite, MODEL_SUITE)
            suite["target"] = {"kind": "replay", "responses": ANSWERS}
        self._output.write_suite(suite)

    def _first_reason(self) -> str:
        return next(
            (f"{item.places[0]}: {item.note}" for item in self._report.items if item.note), "the files are empty"
        )

    def _add(self, spec: RegistryEval) -> None:
        what = item_name(f"eval {spec.kind}", spec.name)
        try:
            graders = list(registry_graders(spec))
        except NotMappedError as error:
            self._report.not_mapped(spec.place, what, str(error))
            graders = []
        try:
            samples = _samples(spec, "samples_jsonl")
            few_shot = _few_shot(spec, self._report)
        except NotMappedError as error:
            self._report.not_mapped(spec.place, what, str(error))
            return
        prefix = spec.name if spec.prefix in self._prefixes else spec.prefix
        self._prefixes.add(prefix)
        for number, row in enumerate(read_rows(samples, self._report)):
            try:
                case = registry_case(f"{prefix}.{number}", spec, row.data, graders, few_shot)
            except NotMappedError as error:
                self._report.not_mapped(row.place, "sample", str(error))
                continue
            prompt = case["metadata"].get("prompt", ())
            self._shapes[tuple(message["role"] for message in prompt)] = None
            self._cases += 1
            case["metadata"] = numbered_messages(case["metadata"])
            self._output.add_case(case)
            if case["id"] in self._logged:
                self.logged_cases[case["id"]] = case
            self._report.mapped(row.place, "sample", "case")
        for grader in graders:
            self._add_grader(spec, grader, what)

    def _add_grader(self, spec: RegistryEval, grader: RegistryGrader, what: str) -> None:
        config = write_grader(grader, self._output)
        several = len(self._evals) > 1
        if several:
            config["when"] = {"tag": spec.name}
        self._graders[f"{spec.name}: {grader.metric}" if several else grader.metric] = config
        became = f"grader {grader.config['kind']}"
        if grader.notes:
            self._report.approximated(spec.place, what, became, "; ".join(grader.notes))
        else:
            self._report.mapped(spec.place, what, became)

    def _target(self) -> Config:
        """A model that gets the messages of the samples, if all have the same roles; else only the last message."""
        target: Config = {"kind": "openai", "model": MODEL, "temperature": 0}
        note = f"the registry names no model; choose the model of the target instead of {MODEL}"
        shape = next(iter(self._shapes)) if len(self._shapes) == 1 else ()
        first, rest = (1, shape[1:]) if shape[:1] == ("system",) else (0, shape)
        if first:
            target["system"] = "{{metadata.message_1}}"
        if rest:
            target["messages"] = [
                {"role": role, "content": f"{{{{metadata.message_{number}}}}}"}
                for number, role in enumerate(rest, first + 1)
            ]
        if len(self._shapes) > 1:
            note += "; the samples have prompts of several forms, and only their last message is sent"
        self._report.approximated("registry", "completion function", f"target {MODEL}", note)
        return target


def write_grader(grader: RegistryGrader, output: ImportOutput) -> Config:
    """The grader for the suite; its code is written if it needs any."""
    if grader.function is None:
        return dict(grader.config)
    path = f"graders/{grader.function}.py"
    if path not in output.written:
        output.write_file(path, registry_file(grader.function))
    return {**grader.config, "function": f"{path}:imported_grade"}


def numbered_messages(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a case, with the messages before the last one as values that a target can refer to."""
    data = {key: value for key, value in metadata.items() if key != "prompt"}
    for number, message in enumerate(metadata.get("prompt", ()), 1):
        data[f"message_{number}"] = message["content"]
    return data


def registry_case(
    identifier: str,
    spec: RegistryEval,
    sample: Mapping[str, Any],
    graders: Sequence[RegistryGrader] = (),
    few_shot: Sequence[Message] = (),
) -> dict[str, Any]:
    """The case of a sample; ``metadata.prompt`` has the messages before the last one. `NotMappedError` if invalid."""
    messages = _messages(sample.get("input"))
    ideals = ideal_texts(sample.get("ideal"))
    if not ideals and any(grader.needs_ideal for grader in graders):
        raise NotMappedError("has no ideal; add the expected answer to the sample")
    before = [*messages[:-1], *few_shot]
    own = {str(key): value for key, value in sample.items() if key not in ("input", "ideal")}
    metadata = clean_data({**own, **({"ideal": ideals} if ideals else {}), **({"prompt": before} if before else {})})
    case: dict[str, Any] = {"id": identifier, "input": clean_text(messages[-1]["content"]).text}
    if len(ideals) == 1:
        case["ground_truth"] = ideals[0]
    case |= {"tags": [spec.name], "metadata": metadata}
    shown = {name: variable for grader in graders for name, variable in grader.variables.items()}
    if shown:
        texts = {**own, "input": _prompt_text(messages), "ideal": ideals[0] if len(ideals) == 1 else ideals}
        missing = [str(variable.path[0]) for variable in shown.values() if variable.path[0] not in texts]
        if missing:
            raise NotMappedError(f"has no {missing[0]}, which the prompt of the judge shows; add it to the sample")
        case["rubric_vars"] = {name: _text(texts[str(variable.path[0])]) for name, variable in shown.items()}
    return case


def ideal_texts(ideal: object) -> list[str]:
    """The ideal answers of a sample as texts."""
    if ideal is None:
        return []
    return [clean_text(_text(one)).text for one in (ideal if isinstance(ideal, list) else [ideal])]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _messages(value: object) -> list[Message]:
    """The messages of a sample's input, of which the last one is sent; `NotMappedError` for anything else."""
    if isinstance(value, str) and value:
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise NotMappedError(f"has no input: {quote(value, 60)}")
    messages = []
    for message in value:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in _ROLES:
            raise NotMappedError(f"has a message that is not of the system, user or assistant: {quote(message, 60)}")
        messages.append({"role": str(role), "content": clean_text(content_text(message.get("content"))).text})
    return messages


def _prompt_text(messages: Sequence[Message]) -> str:
    """A prompt as one text, as judges see it: a single message unchanged, several with their roles."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in messages)


def _few_shot(spec: RegistryEval, report: ImportReport) -> list[Message]:
    """The messages of the examples that come before the last message of each sample."""
    wanted = spec.args.get("num_few_shot")
    if not isinstance(wanted, int) or wanted <= 0:
        return []
    rows = islice(read_rows(_samples(spec, "few_shot_jsonl"), report), min(wanted, _MAX_FEW_SHOT))
    return [message for row in rows for message in _messages(row.data.get("sample"))]


def _samples(spec: RegistryEval, argument: str) -> Path:
    """The file that an argument names, in the registry's data; `NotMappedError` for any other place."""
    named = spec.args.get(argument)
    if not isinstance(named, str) or not named or "\0" in named:
        raise NotMappedError(f"names no {argument}")
    if "://" in named:
        raise NotMappedError(f"{argument} {quote(named, 80)} is an address; download it into the registry's data")
    if spec.folder is None:
        raise NotMappedError("its folder is not known")
    for folder in (spec.folder / "data", spec.folder):
        place = folder / named
        with suppress(OSError):
            if place.is_file():
                if not place.resolve().is_relative_to(spec.folder.resolve()):
                    raise NotMappedError(f"{argument} {quote(named, 80)} is outside the registry's folder")
                _require_content(place, named)
                return place
    raise NotMappedError(f"{argument} {quote(named, 80)} is not in the registry's data; download the data")


def _require_content(path: Path, named: str) -> None:
    with path.open("rb") as file:
        if file.read(40).startswith(b"version https://git-lfs"):
            raise NotMappedError(f"{quote(named, 80)} is a pointer of Git LFS; run git lfs pull --include={path.name}")


def registry_graders(spec: RegistryEval) -> Iterator[RegistryGrader]:
    """The graders for the metrics of an eval; `NotMappedError` for a class that has no counterpart."""
    match spec.kind:
        case "Match":
            yield RegistryGrader("accuracy", _string_match("starts_with", case_sensitive=True))
        case "Includes":
            yield RegistryGrader(
                "accuracy", _string_match("contains", case_sensitive=spec.args.get("ignore_case") is not True)
            )
        case "FuzzyMatch":
            yield RegistryGrader("accuracy", {"kind": "tool"}, function="match_normalized")
            yield RegistryGrader("f1_score", {"kind": "token_f1", "references": _IDEAL})
        case "JsonMatch":
            yield RegistryGrader("accuracy", {"kind": "tool"}, function="match_json")
        case "JsonValidator":
            yield RegistryGrader("accuracy", {"kind": "custom-rules", "rules": [{"condition": "is_json"}]})
        case "ModelBasedClassify":
            yield _judge(spec)
        case kind:
            raise NotMappedError(f"class {quote(kind, 60)} has no counterpart; write a custom grader")


def _string_match(mode: str, *, case_sensitive: bool) -> Config:
    return {"kind": "string-match", "mode": mode, "case_sensitive": case_sensitive, "references": _IDEAL}


def _judge(spec: RegistryEval) -> RegistryGrader:
    """The judge of a model-graded eval; ``{completion}`` of its prompt is the submission."""
    graded = _modelgraded_spec(spec)
    outputs = graded.get("input_outputs")
    if not isinstance(outputs, Mapping) or len(outputs) != 1:
        raise NotMappedError(f"judges several completions: {quote(outputs, 60)}; write a rubric")
    completion = str(next(iter(outputs.values())))
    messages = [
        TemplateMessage(role, _template(text, completion, _constants(spec, graded)))
        for role, text in _prompt_messages(graded.get("prompt"))
    ]
    prompt = judge_prompt(messages, OUTPUT_TEXT)
    notes = [
        f"the registry names no judge; choose a model instead of {MODEL}",
        "the submission is fenced as data, and the form of the reply is gradeline's",
        "a reply without a choice is an error and not the lowest score",
    ]
    if prompt.sections:
        notes.append("its messages are sections of one prompt")
    config: Config = {"kind": "model_judge", "provider": "openai", "model": MODEL, "prompt": prompt.text}
    if prompt.system is not None:
        config["system_prompt"] = prompt.system
    if prompt.variables:
        config["rubric_vars"] = list(prompt.variables)
    if str(graded.get("eval_type") or spec.args.get("eval_type")).startswith("cot"):
        config["reasoning"] = True
    config["reply"] = {"choices": _choices(graded, notes)}
    return RegistryGrader("score", config, notes, variables=prompt.variables)


def _modelgraded_spec(spec: RegistryEval) -> Mapping[str, Any]:
    name = str(spec.args.get("modelgraded_spec", spec.args.get("modelgraded_spec_file")))
    if spec.folder is None:
        raise NotMappedError("the log does not have the prompt of the judge; import the eval's file of the registry")
    files = {path.stem: path for path in islice(sorted((spec.folder / "modelgraded").glob("*.yaml")), _MAX_SPECS)}
    for stem in [name, *files]:
        path = files.get(stem)
        if path is None or path.is_symlink():
            continue
        with suppress(ConfigError):
            data = read_document(path).data
            if isinstance(data.get(name), Mapping):
                return dict(data[name])
            if stem == name and "prompt" in data:
                return dict(data)
    raise NotMappedError(f"modelgraded_spec {quote(name, 60)} is not in the registry's folder modelgraded")


def _prompt_messages(prompt: object) -> list[tuple[str, str]]:
    given = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [(message["role"], message["content"]) for message in _messages(given)]


def _constants(spec: RegistryEval, graded: Mapping[str, Any]) -> dict[str, str]:
    """The texts that the eval inserts into the prompt. With several texts for a name the sample chooses nothing."""
    found: dict[str, str] = {}
    for source in (graded.get("args"), spec.args.get("modelgraded_spec_args")):
        for name, value in source.items() if isinstance(source, Mapping) else ():
            texts = list(value.values()) if isinstance(value, Mapping) else [value]
            found.pop(str(name), None)
            if len(texts) == 1:
                found[str(name)] = str(texts[0])
    return found


def _template(text: str, completion: str, constants: Mapping[str, str]) -> Template:
    """A prompt in the syntax of Python's formats; its values are only looked up by name, never computed."""
    pieces: list[str | EvalVariable] = []
    try:
        parts = list(Formatter().parse(text))
    except ValueError as error:
        raise NotMappedError(f"its prompt is not a valid format: {error}") from None
    for literal, name, spec, conversion in parts:
        pieces.append(literal)
        if name is None:
            continue
        if spec or conversion or not name.isidentifier():
            raise NotMappedError(f"its prompt has the placeholder {quote(name, 40)}; only plain names are supported")
        if name == completion:
            pieces.append(OUTPUT_TEXT)
        else:
            pieces.append(constants.get(name) or EvalVariable("item", (name,)))
    template = [piece for piece in pieces if piece != ""]
    if not variables_of(template):
        raise NotMappedError("its prompt shows neither the sample nor the completion; write a rubric")
    return template


def _choices(graded: Mapping[str, Any], notes: list[str]) -> dict[str, float]:
    """The choices with their scores from 0 to 1."""
    strings, scores = graded.get("choice_strings"), graded.get("choice_scores")
    labels = [str(one) for one in strings] if isinstance(strings, str | list) else []
    if isinstance(strings, str) and strings.startswith("from_n"):
        raise NotMappedError("chooses among several completions; use a pairwise judge")
    if not labels:
        raise NotMappedError(f"has no choice_strings: {quote(strings, 60)}")
    if scores is None:
        raise NotMappedError(f"its choices {', '.join(labels[:10])} have no choice_scores; add a score for each")
    given = {label: label for label in labels} if scores == "from_strings" else scores
    try:
        values = {str(label): float(score) for label, score in given.items() if str(label) in labels}
    except (AttributeError, OverflowError, TypeError, ValueError):
        raise NotMappedError(f"choice_scores {quote(scores, 60)} are not numbers") from None
    if set(values) != set(labels):
        raise NotMappedError(f"choice_scores {quote(scores, 60)} do not have all choices {quote(labels, 60)}")
    low, high = min(0.0, *values.values()), max(1.0, *values.values())
    if (low, high) != (0.0, 1.0):
        low = min(values.values())
        values = {label: (score - low) / (high - low) for label, score in values.items()}
        notes.append(f"scores from {low:g} to {high:g} become 0 to 1")
    choices = {label: values[label] for label in labels}
    fault = next(iter(label_faults(choices)), None)
    if fault is not None:
        raise NotMappedError(f"{fault.path}: {fault.message}")
    return choices
