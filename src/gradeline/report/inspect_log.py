"""A run as a log of Inspect, an ``.eval`` archive that ``inspect view`` opens. Inspect is not needed to write it.

What Inspect has no field for is under the key `EXTRAS` of metadata, where an import of the log finds it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from math import nan, sqrt
from pathlib import Path, PurePosixPath
from shutil import copyfileobj
from tempfile import SpooledTemporaryFile
from typing import IO, Any
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec

from gradeline import __version__
from gradeline.engine.aggregate import RunReport
from gradeline.errors import Outcome
from gradeline.model import Grade, Message, Record, Response, Run, Sample, Usage
from gradeline.rest_types import utc_timestamp

HEADER = "header.json"
START = "_journal/start.json"
EXTRAS = "gradeline"
EXPORTED_FIELDS = ("id", "ground_truth", "agent_args", "rubric_vars", "extra_vars", "tags", "rubric", "cluster")
"""Fields of a case that are under `EXTRAS` where Inspect has none for them. A log is hostile input when it is imported,
so ``checks`` and ``rubric_path``, which name programs and files, are not."""
NOT_APPLICABLE = "not_applicable"
"""The reason of a score for a case that the grader leaves out."""
LIMIT = "limit"
"""The name of the event that ends the trajectory of a response that was stopped."""
_LIMIT = re.compile(r"stopped by the (?P<type>\w+) limit(?: of (?P<limit>[\d.]+))?(?:: (?P<reason>.*))?", re.DOTALL)
_LIMIT_TYPES = frozenset({"context", "time", "working", "message", "token", "turn", "cost", "operator", "custom"})

UNKNOWN = "unknown"
"""Inspect's value for an unknown stop reason."""

_VERSION = 2
_STATUS = {"completed": "success", "failed": "error", "cancelled": "cancelled", "interrupted": "cancelled"}
_STOP_REASONS = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "max_tokens",
    "max_tokens": "max_tokens",
    "model_length": "model_length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "content_filter": "content_filter",
}
_DATE = (1980, 1, 1, 0, 0, 0)
"""The time of all members, so that two exports of a run are equal."""
_MAX_NAME = 500
_SHORT = 1_000
"""Maximum characters of a text in the list of samples."""
_IN_MEMORY = 8 * 1024**2


def limit_text(kind: str, limit: float | None, reason: str | None) -> str:
    """A limit that stopped a sample, in words."""
    amount = "" if limit is None else f" of {limit:.15g}"
    return f"stopped by the {kind} limit{amount}{f': {reason}' if reason else ''}"


def write_inspect_log(path: Path, report: RunReport) -> None:
    """Write the archive; the records are read one at a time."""
    with ZipFile(path, "w", ZIP_DEFLATED) as archive, SpooledTemporaryFile(_IN_MEMORY) as summaries:
        _LogWriter(archive, report, summaries).write()


class _ScoreSums:
    """Sums of one grader's scores, for their standard error."""

    def __init__(self) -> None:
        self.scored = 0
        self.unscored = 0
        self.binary = True
        self._sum = 0.0
        self._squares = 0.0

    def add(self, grade: Grade) -> None:
        if grade.score is None:
            self.unscored += 1
            return
        self.scored += 1
        self.binary = self.binary and _letter(grade) is not None
        self._sum += grade.score
        self._squares += grade.score**2

    @property
    def standard_error(self) -> float | None:
        """The standard error as Inspect computes it; None for fewer than two scores."""
        if self.scored < 2:
            return None
        variance = (self._squares - self._sum**2 / self.scored) / (self.scored - 1)
        return sqrt(max(0.0, variance) / self.scored)


class _LogWriter:
    """Writes the members: samples while the records are read, then what is known after them."""

    def __init__(self, archive: ZipFile, report: RunReport, summaries: IO[bytes]) -> None:
        self._archive = archive
        self._report = report
        self._run = report.run
        self._model = model_name(report.run)
        self._summaries = summaries
        self._cases: dict[str, int | str] = {}
        self._sums = {name: _ScoreSums() for name in report.run.graders}
        self._samples = 0
        self._completed = 0
        self._usage: dict[str, float] = {}

    def write(self) -> None:
        for record in self._report.records():
            self._add(record)
        spec, plan = self._spec(), {"name": "plan", "steps": []}
        self._write(START, {"version": _VERSION, "eval": spec, "plan": plan})
        self._write_summaries()
        header = {
            "version": _VERSION,
            "status": _STATUS.get(self._run.status, "started"),
            "eval": spec,
            "plan": plan,
            "results": self._results(),
            "stats": {
                "started_at": self._run.started_at or "",
                "completed_at": self._run.completed_at or "",
                "model_usage": {self._model: self._usage} if self._usage else {},
            },
        }
        if self._run.error_message is not None:
            header["error"] = _error(self._run.error_message, None)
        self._write(HEADER, header)

    def _add(self, record: Record) -> None:
        sample = sample_data(record, self._model)
        self._cases.setdefault(record.case, sample["id"])
        for name, sums in self._sums.items():
            if (grade := record.grades.get(name)) is not None:
                sums.add(grade)
        for key, value in sample["model_usage"].get(self._model, {}).items():
            self._usage[key] = self._usage.get(key, 0) + value
        self._write(f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)
        self._summaries.write(b"," if self._samples else b"[")
        self._summaries.write(_encoded(_summary(sample)))
        self._samples += 1
        self._completed += record.response.error is None

    def _write(self, name: str, data: object) -> None:
        self._archive.writestr(ZipInfo(name, _DATE), _encoded(data), ZIP_DEFLATED)

    def _write_summaries(self) -> None:
        self._summaries.write(b"]" if self._samples else b"[]")
        self._summaries.seek(0)
        member = ZipInfo("summaries.json", _DATE)
        member.compress_type = ZIP_DEFLATED
        with self._archive.open(member, "w", force_zip64=True) as file:
            copyfileobj(self._summaries, file)

    def _spec(self) -> dict[str, Any]:
        run = self._run
        digest = hashlib.sha256(run.id.encode()).hexdigest()
        version = run.code_version
        spec: dict[str, Any] = {
            "eval_id": digest[:22],
            "run_id": run.id,
            "created": run.started_at or utc_timestamp(0),
            "task": run.suite,
            "task_id": f"{run.suite}@{run.suite_digest[:16]}" if run.suite_digest else run.suite,
            "task_version": 0,
            "dataset": {"samples": len(self._cases), "sample_ids": [*self._cases.values()], "shuffled": False},
            "model": self._model,
            "config": {"epochs": run.repeats, "epochs_reducer": ["mean"]},
            "scorers": [
                {"name": name, "options": {"kind": grader.kind, "fingerprint": grader.fingerprint}}
                for name, grader in run.graders.items()
            ],
            "packages": {"gradeline": __version__},
            "tags": ["gradeline"],
            "metadata": {"gradeline_run": run.id, "name": run.name, "variant": run.variant},
        }
        if version is not None:
            spec["revision"] = {"type": "git", "origin": "", "commit": version.commit, "dirty": version.dirty}
        return spec

    def _results(self) -> dict[str, Any]:
        scores = [
            {
                "name": name,
                "scorer": name,
                "reducer": "mean" if self._run.repeats > 1 else None,
                "scored_samples": sums.scored,
                "unscored_samples": sums.unscored,
                "metrics": {key: {"name": key, "value": value} for key, value in self._metrics(name, sums)},
            }
            for name, sums in self._sums.items()
        ]
        return {
            "total_samples": self._run.total or self._samples,
            "completed_samples": self._completed,
            "scores": scores,
        }

    def _metrics(self, name: str, sums: _ScoreSums) -> Iterator[tuple[str, float]]:
        column = self._report.summary.graders[name]
        if column.mean is None:
            return
        yield ("accuracy" if sums.binary else "mean"), column.mean
        # scores of one case are not independent, so repeats have no such standard error
        if self._run.repeats == 1 and (error := sums.standard_error) is not None:
            yield "stderr", error
        if not sums.binary and column.pass_rate is not None:
            yield "pass_rate", column.pass_rate


def model_name(run: Run) -> str:
    """The model of the log: the kind of target and what it calls, such as ``openai/gpt-5`` or ``http/agent``."""
    target = run.target
    model = target.get("model")
    if target.get("imported") == "inspect" and isinstance(model, str):
        return model
    name = model if isinstance(model, str) else run.variant or "agent"
    return f"{target.get('kind', 'gradeline')}/{name}"


def sample_data(record: Record, model: str) -> dict[str, Any]:
    """A record as a sample of the log."""
    case, response = record.sample, record.response
    text = response.text or ""
    stop_reason = _STOP_REASONS.get(response.stop_reason or "", UNKNOWN)
    usage = _usage(response.usage)
    seconds = None if response.latency_ms is None else response.latency_ms / 1000
    answer = {"role": "assistant", "content": text}
    output = {
        "model": model,
        "choices": [{"message": answer, "stop_reason": stop_reason}] if text or response.error is None else [],
        "completion": text,
        "usage": usage,
        "time": seconds,
    }
    data: dict[str, Any] = {
        "id": _safe_id(case.id),
        "epoch": record.repeat + 1,
        "input": case.input if isinstance(case.input, str) else [*map(_user, case.input)],
        "target": case.ground_truth or "",
        "messages": [*_messages(case, response)],
        "output": output,
        "scores": {
            name: score_data(grade, record.submissions.get(name))
            for name, grade in record.grades.items()
            if grade.outcome is not Outcome.SKIPPED
        },
        "metadata": _metadata(case, response, stop_reason, usage),
        "model_usage": {} if usage is None else {model: usage},
        "total_time": seconds,
        "working_time": seconds,
        "error": None if response.error is None else _error(response.error.message, response.error.traceback),
        "limit": _limit(response),
    }
    return {key: value for key, value in data.items() if value is not None}


def _safe_id(ident: int | str) -> int | str:
    """The id of a sample, which is a part of a name in the archive; a digest for one that would lead out of it."""
    text = str(ident)
    name = f"samples/{text}_epoch_1.json".replace("\\", "/")
    if ".." not in PurePosixPath(name).parts and 0 < len(text.encode()) <= _MAX_NAME and "\0" not in text:
        return ident
    return f"case-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _metadata(case: Sample, response: Response, stop_reason: str, usage: object) -> dict[str, Any]:
    extras: dict[str, Any] = {}
    fields = msgspec.to_builtins(case)
    default = msgspec.to_builtins(Sample(case.id, case.input, case.ground_truth or None))
    for key in EXPORTED_FIELDS:
        if fields.get(key) != default.get(key):
            extras[key] = fields[key]
    if isinstance(case.ground_truth, list):
        extras["ground_truth"] = case.ground_truth
    if _safe_id(case.id) != case.id:
        extras["id"] = case.id
    if response.trajectory is None or not response.trajectory.tools_known:
        extras["tools_known"] = False
    if response.stop_reason is not None and response.stop_reason != stop_reason:
        extras["stop_reason"] = response.stop_reason
    if response.usage is not None and usage is None:
        extras["usage"] = msgspec.to_builtins(response.usage)
    if response.error is not None:
        error = response.error
        extras["error"] = {"status": response.status, "type": error.type, "fault": error.fault}
    return {**case.metadata, EXTRAS: extras} if extras else dict(case.metadata)


def _usage(usage: Usage | None) -> dict[str, float] | None:
    """Inspect counts cached input tokens separately, and has no unknown counts."""
    if usage is None or usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached = usage.cached_tokens
    found: dict[str, float] = {
        "input_tokens": max(0, usage.input_tokens - (cached or 0)),
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
    if cached is not None:
        found["input_tokens_cache_read"] = min(cached, usage.input_tokens)
    if usage.cost is not None:
        found["total_cost"] = usage.cost
    return found


def _error(message: str, traceback: str | None) -> dict[str, str]:
    return {"message": message, "traceback": traceback or "", "traceback_ansi": traceback or ""}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _messages(case: Sample, response: Response) -> Iterator[dict[str, Any]]:
    """The conversation. A trajectory may be without the user's messages, which are then those of the case."""
    asked = [case.input] if isinstance(case.input, str) else case.input
    turns = response.steps.turns if response.trajectory is not None or response.text else ()
    named = any(message.role == "user" for turn in turns for message in turn)
    for number, turn in enumerate(turns):
        if not named and number < len(asked):
            yield _user(asked[number])
        yield from _turn_messages(turn)
    if not named:
        yield from map(_user, asked[len(turns) :])


def _turn_messages(turn: tuple[Message, ...]) -> Iterator[dict[str, Any]]:
    """The messages of a turn; reasoning is a part of the message that it leads to."""
    thoughts: list[str] = []
    for message in turn:
        if message.role == "reasoning":
            thoughts.append(message.content)
            continue
        if thoughts and message.role != "assistant":
            yield _assistant(Message("assistant"), thoughts)
            thoughts = []
        if message.role == "assistant":
            yield _assistant(message, thoughts)
            thoughts = []
        elif message.role == "tool":
            yield _tool_result(message)
        elif message.role != "event":
            yield {"role": message.role, "content": message.content}
    if thoughts:
        yield _assistant(Message("assistant"), thoughts)


def _assistant(message: Message, thoughts: list[str]) -> dict[str, Any]:
    content: Any = message.content
    if thoughts:
        parts: list[dict[str, str]] = [{"type": "reasoning", "reasoning": thought} for thought in thoughts]
        content = [*parts, {"type": "text", "text": message.content}] if message.content else parts
    data: dict[str, Any] = {"role": "assistant", "content": content}
    if message.tool_calls:
        data["tool_calls"] = [
            _call(call.name, call.parsed(), call.arguments, call.id or f"call_{number}")
            for number, call in enumerate(message.tool_calls, 1)
        ]
    return data


def _call(name: str, arguments: Mapping[str, Any] | None, text: str, ident: str) -> dict[str, Any]:
    """A tool call; arguments that are not an object are a parse error in Inspect."""
    data = {"id": ident, "function": name, "arguments": arguments or {}, "type": "function"}
    return data if arguments is not None else {**data, "parse_error": text}


def _tool_result(message: Message) -> dict[str, Any]:
    data = {
        "role": "tool",
        "content": message.content,
        "tool_call_id": message.tool_call_id,
        "function": message.name,
        "error": {"type": "unknown", "message": message.content} if message.is_error else None,
    }
    return {key: value for key, value in data.items() if value is not None}


def _limit(response: Response) -> dict[str, Any] | None:
    """The limit that an imported response was stopped by."""
    events = [] if response.trajectory is None else [*response.trajectory.messages("event")]
    found = _LIMIT.fullmatch(events[-1].content) if events and events[-1].name == LIMIT else None
    if found is None or found["type"] not in _LIMIT_TYPES:
        return None
    return {"type": found["type"], "limit": float(found["limit"] or 0), "reason": found["reason"]}


def score_data(grade: Grade, submission: str | None) -> dict[str, Any]:
    """A grade as a score: C or I for a plain 1 or 0, else the number; NaN without a score."""
    metadata = dict(grade.metadata)
    data: dict[str, Any] = {"value": nan, "answer": submission, "explanation": grade.rationale, "metadata": metadata}
    if grade.score is not None:
        letter = _letter(grade)
        data["value"] = letter or grade.score
        if letter is None:
            metadata[EXTRAS] = {"passed": grade.passed}
    elif grade.error is not None:
        data |= {"reason": grade.error.type, "explanation": grade.error.message}
    else:
        data["reason"] = NOT_APPLICABLE
    return {key: value for key, value in data.items() if value is not None and value != {}}


def _letter(grade: Grade) -> str | None:
    """C or I for a score that has no other meaning."""
    if grade.score == 1.0 and grade.passed:
        return "C"
    return "I" if grade.score == 0.0 and not grade.passed else None


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What a list of samples shows, without long texts."""
    kept = ("id", "epoch", "model_usage", "total_time", "working_time")
    scores = {
        name: {key: _short(score[key]) for key in ("value", "answer") if key in score}
        for name, score in sample["scores"].items()
    }
    found = {key: sample[key] for key in kept if key in sample}
    error, limit = sample.get("error"), sample.get("limit")
    shown = (
        sample["input"] if isinstance(sample["input"], str) else "\n".join(one["content"] for one in sample["input"])
    )
    optional = {
        "error": None if error is None else _short(error["message"]),
        "limit": None if limit is None else limit["type"],
    }
    return {
        **found,
        "input": _short(shown),
        "target": _short(sample["target"]) if isinstance(sample["target"], str) else [*map(_short, sample["target"])],
        "scores": scores,
        "metadata": {},
        "message_count": len(sample["messages"]),
        "completed": error is None,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _short(value: Any) -> Any:
    return value[:_SHORT] if isinstance(value, str) else value


def _encoded(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
