"""Testing criteria of OpenAI's hosted evals as graders of a suite."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from gradeline.compat.openai_evals import OPERATIONS, EvalVariable, Template, variables_of, whole_variable
from gradeline.errors import ConfigError
from gradeline.graders import create
from gradeline.graders.case_values import is_reference
from gradeline.importers.grades import imported_grader
from gradeline.importers.openai_code import (
    CALL_GRADE,
    CHECK,
    ScoreRange,
    check_file,
    imported_packages,
    multi_formula,
    python_file,
)
from gradeline.importers.openai_export import MAX_GRADERS, plain_name
from gradeline.importers.openai_prompts import (
    OUTPUT_TEXT,
    DerivedValues,
    NotMappedError,
    judge_prompt,
    metadata_path,
    read_messages,
    read_template,
)
from gradeline.importers.report import ImportReport, item_name
from gradeline.judges.options import label_faults
from gradeline.model import RunGrader, quote

SOURCE = "openai-evals"
_MAX_NAME = 80
_MAX_DEPTH = 5
_SPACES = re.compile(r"[\W_]+")
_TOOL_NAME = re.compile(r"\[(\d+)\]\.function\.name")
_CONDITIONS = {"eq": "equals", "ne": "not_equals", "like": "contains", "ilike": "contains"}
_METRICS: Mapping[str, dict[str, Any]] = {
    "fuzzy_match": {"kind": "similarity"},
    "bleu": {"kind": "bleu"},
    "gleu": {"kind": "gleu"},
    "rouge_l": {"kind": "rouge"},
    **{f"rouge_{size}": {"kind": "rouge", "variant": size} for size in range(1, 6)},
    "cosine": {"kind": "embedding", "provider": "openai", "model": "text-embedding-3-large"},
}
_ONE_WAY = frozenset({"bleu"})
"""Metrics that change if input and reference are exchanged."""
_METRIC_NOTES = {
    "fuzzy_match": "is rapidfuzz's ratio; the source does not document which of rapidfuzz's scores it uses",
    "cosine": "calls OpenAI's embeddings and needs OPENAI_API_KEY; kind embedding has a local provider too",
}
_WORDS_NOTE = "the source does not document how it splits words and smooths; regrade a run to see the difference"
_SAMPLING = {
    "temperature": "temperature",
    "seed": "seed",
    "max_completions_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_tokens": "max_tokens",
}
_RATING = r"\[\[\s*([-+]?\d+(?:\.\d+)?)\s*\]\]"
_SAME = "grader"

_KINDS = frozenset({"string_check", "text_similarity", "score_model", "label_model", "python", "multi"})
_SUITE_KEYS = frozenset({"kind", "extractor", "extractor_config", "expected", "pass_threshold"})
"""Keys of a grader in a suite that are not options of its kind."""

Config = dict[str, Any]


class ImportedCriterion(NamedTuple):
    """A grader of the source: its name in the suite and in stored runs, and the range of its recorded scores."""

    name: str
    grader: RunGrader
    range: ScoreRange


class _Criterion(NamedTuple):
    """A grader to translate; ``notes`` are the differences."""

    name: str
    data: Mapping[str, Any]
    place: str
    depth: int
    notes: list[str]


class GraderTranslator:
    """Translates testing criteria, and collects what the cases must have for them.

    ``answer`` is the variable with the text that is graded: the model's output, or a part of the item where the source
    graded answers that are in its items.
    """

    def __init__(self, report: ImportReport, answer: EvalVariable = OUTPUT_TEXT) -> None:
        self.graders: dict[str, Config] = {}
        """The graders of the suite."""
        self.code: dict[str, str] = {}
        """The files that they need, by path."""
        self.variables: dict[str, EvalVariable] = {}
        """The variables of rubrics that each case must have."""
        self.derived = DerivedValues()
        self.references: list[EvalVariable] = []
        """The variables of expected values, in order."""
        self._report = report
        self._answer = answer
        self._criteria: dict[str, ImportedCriterion] = {}
        self._names: set[str] = set()

    def add(self, criterion: object, place: str, *notes: str) -> None:
        """Translate a criterion and report what became of it; ``notes`` are the differences."""
        if not isinstance(criterion, Mapping):
            self._report.not_mapped(place, "grader", f"is not an object: {quote(criterion, 60)}")
            return
        if len(self._names) >= 2 * MAX_GRADERS:
            self._report.not_mapped(place, "grader", f"an eval has at most {MAX_GRADERS} graders here")
            return
        name = self._new_name(criterion.get("name") or criterion.get("type"))
        known = ImportedCriterion(name, imported_grader(SOURCE, name, _definition(criterion)), _range_of(criterion))
        for alias in (criterion.get("name"), criterion.get("id"), name):
            if isinstance(alias, str):
                self._criteria.setdefault(alias, known)
        self._translate(_Criterion(name, criterion, place, 0, [*notes]))

    def is_defined(self, recorded: str) -> bool:
        """Whether the grader of a recorded grade was added."""
        return recorded in self._criteria or plain_name(recorded) in self._criteria

    def criterion(self, recorded: str) -> ImportedCriterion:
        """The grader of a recorded grade; one that was not defined is known by its name only."""
        for alias in (recorded, plain_name(recorded)):
            if alias in self._criteria:
                return self._criteria[alias]
        name = self._new_name(plain_name(recorded))
        self._criteria[recorded] = found = ImportedCriterion(name, imported_grader(SOURCE, name), ScoreRange())
        return found

    def _translate(self, item: _Criterion) -> bool:
        kind = str(item.data.get("type"))
        known = kind if kind in _KINDS else "of unknown type"
        what = item_name(f"grader {known}", item.name)
        try:
            config = self._config(item)
            _require_valid(config)
        except NotMappedError as error:
            self._report.not_mapped(item.place, what, str(error))
            return False
        self.graders[item.name] = config
        became = f"grader {config['kind']}"
        if item.notes:
            self._report.approximated(item.place, what, became, "; ".join(item.notes))
        else:
            self._report.mapped(item.place, what, became)
        return True

    def _config(self, item: _Criterion) -> Config:
        if len(self.graders) >= MAX_GRADERS or item.depth > _MAX_DEPTH:
            raise NotMappedError(f"more than {MAX_GRADERS} graders, or nested more than {_MAX_DEPTH} levels deep")
        match item.data.get("type"):
            case "string_check":
                return self._string_check(item)
            case "text_similarity":
                return self._text_similarity(item)
            case "score_model":
                return self._score_model(item)
            case "label_model":
                return self._label_model(item)
            case "python":
                return self._python(item)
            case "multi":
                return self._multi(item)
            case kind:
                raise NotMappedError(f"type {quote(kind, 40)} has no counterpart; write a custom grader")

    def _string_check(self, item: _Criterion) -> Config:
        operation = item.data.get("operation")
        if operation not in OPERATIONS:
            raise NotMappedError(f"operation {quote(operation, 40)} is none of {', '.join(OPERATIONS)}")
        left, right = read_template(item.data.get("input")), read_template(item.data.get("reference"))
        if self._subject(left) is None and operation in ("eq", "ne") and self._subject(right) is not None:
            left, right = right, left
        if operation == "ne":
            item.notes.append("an empty response scores 0 here")
        subject = self._subject(left)
        value = None if subject is None else self._value(item.name, right)
        if subject is None or value is None or (not value and operation != "eq"):
            return self._string_code(item)
        rule: Config = {"condition": _CONDITIONS[operation], "value": value}
        if subject.get("extractor") == "tool_calls":
            path = self._tool_name(left)
            if path is None or operation not in ("eq", "ne"):
                return self._string_code(item)
            rule = {"condition": "json", "path": path, "operator": _CONDITIONS[operation], "value": value}
        elif operation != "ilike":
            rule["case_sensitive"] = True
        if subject.get("extractor") == "json":
            item.notes.append("JSON is also found in a code fence or within prose")
        return {"kind": "custom-rules", "rules": [rule], **subject}

    def _string_code(self, item: _Criterion) -> Config:
        item.notes.append("is a function in Python, since its templates have no grader of their own")
        texts = [str(item.data[key]) for key in ("operation", "input", "reference")]
        return self._write_code(item.name, CHECK, check_file(*texts))

    def _text_similarity(self, item: _Criterion) -> Config:
        metric = str(item.data.get("evaluation_metric"))
        if metric == "meteor":
            raise NotMappedError("METEOR needs WordNet; use rouge, gleu or token_f1, or a custom grader with nltk")
        if metric not in _METRICS:
            raise NotMappedError(f"metric {quote(metric, 40)} has no counterpart; use similarity, rouge, bleu or gleu")
        left, right = read_template(item.data.get("input")), read_template(item.data.get("reference"))
        if self._subject(left) is None and metric not in _ONE_WAY:
            left, right = right, left
        subject = self._subject(left)
        is_text = subject is not None and subject.get("extractor") != "tool_calls"
        if subject is None or not is_text or any(one.namespace == "sample" for one in variables_of(right)):
            raise NotMappedError("compares other texts than response and case; write a custom grader")
        item.notes.append(_METRIC_NOTES.get(metric, _WORDS_NOTE))
        return {
            **_METRICS[metric],
            **subject,
            "expected": f"$metadata.{self._path(item.name, right)}",
            **self._threshold(item, ScoreRange()),
        }

    def _score_model(self, item: _Criterion) -> Config:
        scores = _range_of(item.data, strict=True)
        config = self._judge(item)
        if scores != ScoreRange():
            middle = round((scores.low + scores.high) / 2)
            config["prompt"] += (
                f"\n\nEnd your reply with the score, a number from {scores.low:g} to {scores.high:g},"
                f" in double brackets, such as [[{middle}]]."
            )
            config["reply"] = {"pattern": _RATING, "min": scores.low, "max": scores.high}
            item.notes.append(f"scores from {scores.low:g} to {scores.high:g} become 0 to 1")
        return {**config, **self._threshold(item, scores)}

    def _label_model(self, item: _Criterion) -> Config:
        labels, passing = item.data.get("labels"), item.data.get("passing_labels")
        if not isinstance(labels, list) or not isinstance(passing, list) or not all(map(_is_text, [*labels, *passing])):
            raise NotMappedError("has no labels and passing_labels")
        choices = {label: float(label in passing) for label in labels}
        fault = next(iter(label_faults(choices)), None)
        if fault is not None:
            raise NotMappedError(f"labels: {fault.message}; write a rubric with other labels")
        return {**self._judge(item), "reply": {"choices": choices}}

    def _judge(self, item: _Criterion) -> Config:
        model = item.data.get("model")
        if not isinstance(model, str) or not model:
            raise NotMappedError("names no model")
        prompt = judge_prompt(read_messages(item.data.get("input")), self._answer)
        self.variables.update(prompt.variables)
        item.notes.append("the submission is fenced as data, and the form of the reply is gradeline's")
        if prompt.judged is None:
            item.notes.append("the prompt does not show the response, which is appended")
        if prompt.sections:
            item.notes.append("its messages are sections of one prompt")
        config: Config = {"kind": "model_judge", "provider": "openai", "model": model, "prompt": prompt.text}
        if prompt.system is not None:
            config["system_prompt"] = prompt.system
        if prompt.variables:
            config["rubric_vars"] = list(prompt.variables)
        judged = None if prompt.judged is None else self._subject([prompt.judged])
        if prompt.judged is not None and judged is None:
            raise NotMappedError(f"shows {prompt.judged}, which no extractor picks; write an extractor")
        return {**config, **(judged or {}), **sampling_options(item.data.get("sampling_params"), "model_params")}

    def _python(self, item: _Criterion) -> Config:
        text = python_file(item.data.get("source"))
        packages = imported_packages(item.data["source"])
        item.notes.append("runs in a worker process here, with your packages and with network access")
        if packages:
            item.notes.append(f"imports {', '.join(packages)}, which must be installed")
        return {**self._write_code(item.name, CALL_GRADE, text), **self._threshold(item, ScoreRange())}

    def _multi(self, item: _Criterion) -> Config:
        children = item.data.get("graders")
        if isinstance(children, list):
            children = {str(one.get("name")): one for one in children if isinstance(one, Mapping)}
        if not isinstance(children, Mapping) or not all(isinstance(one, Mapping) for one in children.values()):
            raise NotMappedError("has no graders")
        columns: dict[str, str] = {}
        for key, child in children.items():
            columns[key] = self._new_name(f"{item.name}: {key}")
            part = _Criterion(columns[key], child, f"{item.place}.graders.{key}", item.depth + 1, [])
            if not self._translate(part):
                raise NotMappedError(f"its grader {quote(key, 40)} was not mapped")
        ranges = {key: _range_of(child) for key, child in children.items()}
        item.notes.append("each of its graders is a column of its own")
        return {"kind": "formula", "formula": multi_formula(item.data.get("calculate_output"), columns, ranges)}

    def _threshold(self, item: _Criterion, scores: ScoreRange) -> Config:
        threshold = item.data.get("pass_threshold")
        if threshold is None:
            item.notes.append("has no pass_threshold and passes from the middle of its scores")
            return {"pass_threshold": 0.5}
        if isinstance(threshold, bool) or not isinstance(threshold, int | float):
            raise NotMappedError(f"pass_threshold {quote(threshold, 40)} is not a number")
        share = scores.share(threshold)
        if not 0 <= share <= 1:
            reason = f"pass_threshold {threshold:g} is not from {scores.low:g} to {scores.high:g}"
            raise NotMappedError(f"{reason}; correct it in the export")
        return {"pass_threshold": share}

    def _subject(self, template: Template) -> Config | None:
        """The extractor of the text that a template refers to; None if it is not part of the response."""
        variable = whole_variable(template)
        if variable in (self._answer, OUTPUT_TEXT):
            return {}
        if variable is None or variable.namespace != "sample":
            return None
        if variable.path[:1] == ("output_json",):
            return {"extractor": "json", "extractor_config": {"path": _jmespath(variable.path[1:])}}
        if variable.path == ("output_tools",) or self._tool_name(template) is not None:
            return {"extractor": "tool_calls"}
        return None

    def _tool_name(self, template: Template) -> str | None:
        """The JMESPath of the name of a tool call that a template refers to."""
        variable = whole_variable(template)
        found = None if variable is None else _TOOL_NAME.fullmatch(str(variable).removeprefix("sample.output_tools"))
        return None if found is None else f"[{found[1]}].name"

    def _value(self, name: str, template: Template) -> str | None:
        """A text to compare with: literal, or a reference to the case; None if it is from the response."""
        if any(variable.namespace == "sample" for variable in variables_of(template)):
            return None
        if variables_of(template):
            return f"$metadata.{self._path(name, template)}"
        literal = "".join(map(str, template))
        return None if is_reference(literal) else literal

    def _path(self, name: str, template: Template) -> str:
        variable = whole_variable(template)
        self.references += variables_of(template)
        plain = None if variable is None else metadata_path(variable)
        return plain or self.derived.path(name, template)

    def _write_code(self, name: str, function: str, text: str) -> Config:
        stem = _SPACES.sub("_", name.lower()).strip("_")[:40]
        stem = stem if stem.isascii() and stem and not stem[0].isdigit() else f"grader_{len(self.code) + 1}"
        while f"graders/{stem}.py" in self.code:
            stem += "_2"
        self.code[f"graders/{stem}.py"] = text
        return {"kind": "tool", "function": f"graders/{stem}.py:{function}"}

    def _new_name(self, wanted: object) -> str:
        plain = " ".join("".join(c if c.isprintable() else " " for c in str(wanted)).split())[:_MAX_NAME] or _SAME
        name, number = plain, 1
        while name in self._names:
            number += 1
            name = f"{plain} ({number})"
        self._names.add(name)
        return name


def _require_valid(config: Config) -> None:
    """`NotMappedError` for options that the grader would refuse, such as a temperature of 9."""
    if config["kind"] == "tool":
        return
    options = {key: value for key, value in config.items() if key not in _SUITE_KEYS}
    try:
        create(config["kind"], options)
    except ConfigError as error:
        problem = error.problems[0]
        raise NotMappedError(f"{problem.path}: {problem.message}; correct it in the export") from None


def sampling_options(params: object, other: str) -> Config:
    """Sampling parameters as options of a model; those without an option of their own go under ``other``."""
    given = {str(key): value for key, value in params.items() if value is not None} if isinstance(params, dict) else {}
    options: Config = {_SAMPLING[key]: value for key, value in given.items() if key in _SAMPLING}
    if options.get("max_tokens") == 0:
        del options["max_tokens"]
    rest = {key: value for key, value in given.items() if key not in _SAMPLING}
    return {**options, **({other: rest} if rest else {})}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _definition(criterion: Mapping[str, Any]) -> str:
    """What makes two graders the same: all but their names and ids."""
    own = {key: value for key, value in criterion.items() if key not in ("id", "name")}
    return json.dumps(own, sort_keys=True, default=str)


def _range_of(criterion: Mapping[str, Any], *, strict: bool = False) -> ScoreRange:
    """The range of a grader's scores; with ``strict`` a `NotMappedError` for an invalid one."""
    given = criterion.get("range")
    if given is None or criterion.get("type") != "score_model":
        return ScoreRange()
    numbers = [one for one in given if isinstance(one, int | float)] if isinstance(given, list) else []
    if len(numbers) == 2 and all(map(isfinite, numbers)) and numbers[0] < numbers[1]:
        return ScoreRange(float(numbers[0]), float(numbers[1]))
    if strict:
        raise NotMappedError(f"range {quote(given, 40)} is not a lower and an upper number; correct it in the export")
    return ScoreRange()


def _jmespath(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{json.dumps(step)}" for step in path)
    return "".join(steps).lstrip(".") or "@"
