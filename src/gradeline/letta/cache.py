"""Result directories of letta-evals as stored responses, to grade them without calling the agents again.

Its releases wrote three layouts:

- since 0.17: ``suite.json`` with the samples, one result per line in ``<model>.jsonl`` or ``<model>/run_N.jsonl``;
- 0.3 to 0.16: ``results.jsonl`` or ``run_N/results.jsonl`` with the results of all models, each with its sample;
- 0.2: one such file, with a header and a summary among its lines.

``summary.json`` is not needed: an interrupted run has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.letta.results import Input, LettaResult, read_result
from gradeline.model import Response, Sample, canonical_json, quote
from gradeline.targets.replay import MAX_PROBLEMS, entries, line_at

DEFAULT_MODEL = "default"
"""Name of the model if the results name none."""

_Index = dict[str, dict[str, list["_ResultPosition"]]]

_RUN = re.compile(r"run_([0-9]+)")


def segment(model: str) -> str:
    """A model's name as letta uses it in file names."""
    return re.sub(r"[/\\:]", "-", model)


def models_in(path: Path) -> list[str]:
    """The models with results in a directory; `ConfigError` if it is not one of letta-evals."""
    with _readable(path):
        layout = _layout(path)
        return list(_index(layout, _SuiteFile.read(layout.suite), check=False))


class LettaCache:
    """One model's results in a directory. Memory holds only the positions of the results in the files."""

    def __init__(self, path: Path, model: str | None = None) -> None:
        """``model`` may be omitted if the directory has only one. Raises `ConfigError`."""
        self._path = path
        with _readable(path):
            layout = _layout(path)
            self._suite = layout.suite
            models = _index(layout, _SuiteFile.read(layout.suite), check=True)
        self.model = _chosen(models, model, path)
        self._positions = models[self.model]
        # older releases identified samples by row number, even if the dataset had IDs
        self._by_input = _by_input(self._positions) if layout.suite is None else {}

    @staticmethod
    def digest(path: Path) -> str:
        """A digest of every file that is read; independent of the directory's path."""
        digest = sha256()
        with _readable(path):
            layout = _layout(path)
            files = [file.path for file in layout.files] + ([] if layout.suite is None else [layout.suite])
            for file in files:
                name = "" if file == path else file.relative_to(layout.home).as_posix()
                digest.update(canonical_json([name, file.stat().st_size]))
                with file.open("rb") as content:
                    while piece := content.read(1 << 20):
                        digest.update(piece)
        return digest.hexdigest()

    def count(self, sample: Sample) -> int:
        """Number of stored answers to the sample: one per run of the suite."""
        return len(self._found(sample))

    def response(self, sample: Sample, number: int) -> Response:
        """A stored answer by number; `OSError` or `ValueError` if the file has changed."""
        position = self._found(sample)[number]
        return _result_at(position).response()

    def problems_with(self, sample: Sample) -> list[Problem]:
        """Problems if the stored answers belong to another question."""
        stored = self._positions.get(sample.case_key)
        if not stored or self._found(sample):
            return []
        asked = self._asked(sample.case_key, stored[0])
        question = "another question" if asked is None else quote(asked)
        message = (
            f"the input of the dataset is {quote(sample.input)}, but {self._path} has the response to {question}; "
            "use the dataset of that run, or call the agent again"
        )
        return [Problem("input", message)]

    def _found(self, sample: Sample) -> Sequence[_ResultPosition]:
        asked = _digest(sample.input)
        stored = self._positions.get(sample.case_key, ())
        return [position for position in stored if position.asked in (None, asked)] or self._by_input.get(asked, ())

    def _asked(self, case: str, position: _ResultPosition) -> Input | None:
        try:
            if self._suite is not None:
                return next((one.input for one in _SuiteFile.read(self._suite).samples if str(one.id) == case), None)
            return _result_at(position).asked
        except (OSError, ValueError):
            return None


def _chosen(models: Iterable[str], requested: str | None, path: Path) -> str:
    names = list(models)
    shown = ", ".join(names)
    if requested is None:
        if len(names) > 1:
            raise _refused(f"{path} holds the results of several models; name one of them: {shown}", "model")
        return names[0]
    for name in names:
        if requested in (name, segment(name)):
            return name
    close = closest_match(requested, names)
    hint = f"did you mean {close!r}?" if close else f"it has {shown}"
    raise _refused(f"{path} has no results of {quote(requested)}; {hint}", "model")


def _refused(message: str, option: str = "cached") -> ConfigError:
    return ConfigError(Problem(option, message), "replay")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn `OSError` into `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise _refused(f"{error.filename or path} cannot be read: {error.strerror}") from None


class _File(NamedTuple):
    path: Path
    model: str | None
    """The model by the file's name; None if the file holds the results of all models."""


class _Layout(NamedTuple):
    home: Path
    files: list[_File]
    suite: Path | None = None


def _layout(path: Path) -> _Layout:
    if path.is_file():
        suite = path.parent / "suite.json"
        if suite.is_file():
            return _Layout(path.parent, [_File(path, path.stem)], suite)
        return _Layout(path.parent, [_File(path, None)])
    if not path.is_dir():
        raise _refused(f"{path} does not exist; name a folder of letta-evals' results")
    suite = path / "suite.json"
    if suite.is_file():
        layout = _Layout(path, list(_model_files(path)), suite)
    else:
        layout = _Layout(path, [_File(file, None) for file in _older_files(path)])
    if not layout.files:
        raise _refused(f"{path} holds no results of letta-evals: it has no .jsonl file in the expected place")
    return layout


def _model_files(folder: Path) -> Iterator[_File]:
    repeated = {
        home.name: runs for home in sorted(folder.iterdir()) if home.is_dir() and (runs := _runs(home, ".jsonl"))
    }
    for model, runs in repeated.items():
        yield from (_File(run, model) for run in runs)
    # letta itself looks for the folder first
    yield from (_File(file, file.stem) for file in sorted(folder.glob("*.jsonl")) if file.stem not in repeated)


def _older_files(folder: Path) -> list[Path]:
    single = folder / "results.jsonl"
    if single.is_file():
        return [single]
    runs = [file for run in _runs(folder, "") if (file := run / "results.jsonl").is_file()]
    if runs:
        return runs
    files = sorted(folder.glob("*.jsonl"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:5]) + (", …" if len(files) > 5 else "")
        raise _refused(f"{folder} has no suite.json and several files of results; name one of them: {names}")
    return files


def _runs(folder: Path, ending: str) -> list[Path]:
    """The entries ``run_N``, by number."""
    numbered = []
    for entry in folder.iterdir():
        match = _RUN.fullmatch(entry.name.removesuffix(ending))
        if match is not None and entry.name.endswith(ending):
            numbered.append((int(match[1]), entry))
    return [entry for _, entry in sorted(numbered)]


class _SampleInput(msgspec.Struct):
    id: int | str
    input: Input | None = None


class _Models(msgspec.Struct):
    model_handles: list[object] | None = None
    model_configs: list[object] | None = None


class _Config(msgspec.Struct):
    target: _Models | None = None


class _SuiteFile(msgspec.Struct):
    """The parts of ``suite.json`` that are needed."""

    samples: list[_SampleInput] = []
    config: _Config | None = None

    @classmethod
    def read(cls, path: Path | None) -> _SuiteFile:
        if path is None:
            return cls()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (ValueError, RecursionError) as error:
            raise ConfigError(Problem(str(path), f"is not a suite.json of letta-evals: {error}"), "replay") from None

    def models(self) -> dict[str, str]:
        """The full names of the models, by their names in files."""
        target = (self.config and self.config.target) or _Models()
        names = [*(target.model_configs or ()), *(target.model_handles or ())]
        return {segment(name): name for name in names if isinstance(name, str)}


class _ResultPosition(NamedTuple):
    """The position of a result; ``asked`` is the digest of its input, None if no file has it."""

    file: Path
    offset: int
    asked: bytes | None


def _result_at(position: _ResultPosition) -> LettaResult:
    result = read_result(line_at(position.file, position.offset))
    if result is None:
        raise ValueError(f"{position.file} has changed")
    return result


def _digest(asked: Input) -> bytes:
    return sha256(canonical_json(asked)).digest()[:16]


def _index(layout: _Layout, suite: _SuiteFile, *, check: bool) -> _Index:
    """The positions of all results, by model and case.

    ``check`` also reads the answers, so that every error is found now.
    """
    asked = {str(one.id): _digest(one.input) for one in suite.samples if one.input is not None}
    index: _Index = {}
    problems: list[Problem] = []

    def read(line: bytes) -> LettaResult | None:
        result = read_result(line)
        if check and result is not None:
            result.response()
        return result

    for file in layout.files:
        found: dict[str | None, dict[str, _ResultPosition]] = {}
        for offset, result in entries(file.path, read, problems):
            if result is not None:
                digest = asked.get(result.case) if result.asked is None else _digest(result.asked)
                # of several results of a case in one file the last is valid, as in letta
                found.setdefault(result.model, {})[result.case] = _ResultPosition(file.path, offset, digest)
        for model, name in _names(found, file, suite.models()).items():
            cases = index.setdefault(name, {})
            for case, position in found[model].items():
                cases.setdefault(case, []).append(position)
    if problems:
        raise ConfigError(problems[:MAX_PROBLEMS], "replay")
    if not index:
        raise _refused(f"{layout.home} holds no results: {layout.files[0].path.name} is empty")
    return index


def _names(models: Iterable[str | None], file: _File, known: Mapping[str, str]) -> dict[str | None, str]:
    """The full name of each model in a file's results; file names only have an escaped form.

    Not every result names its model: early failures do not, nor do releases before 0.21.
    """
    full = [model for model in models if model is not None and file.model in (None, segment(model))]
    escaped = file.model or DEFAULT_MODEL
    other = known.get(escaped) or (full[0] if len(full) == 1 else escaped)
    return {model: model if model is not None and model in full else other for model in models}


def _by_input(positions: Mapping[str, list[_ResultPosition]]) -> dict[bytes, list[_ResultPosition]]:
    """The answers by their question, if only one case asked it."""
    found: dict[bytes, list[_ResultPosition]] = {}
    for stored in positions.values():
        for digest in {position.asked for position in stored if position.asked is not None}:
            found[digest] = [] if digest in found else [one for one in stored if one.asked == digest]
    return found
