"""Result directories of letta-evals: what its agents answered, to be graded without asking them again.

Its releases wrote three layouts:

- from 0.17 on ``suite.json`` with the samples, and a result a line in ``<model>.jsonl`` or ``<model>/run_N.jsonl``;
- from 0.3 to 0.16 ``results.jsonl`` or ``run_N/results.jsonl``, where each result of any model holds its sample;
- in 0.2 one such file, with a header and a summary among its lines.

``summary.json`` is not needed: a run that was interrupted has none.
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
"""The model's name where none was named."""

_Index = dict[str, dict[str, list["_Place"]]]

_RUN = re.compile(r"run_([0-9]+)")


def segment(model: str) -> str:
    """A model's name as letta writes it in the names of files."""
    return re.sub(r"[/\\:]", "-", model)


def models_in(path: Path) -> list[str]:
    """The models whose results a directory holds; `ConfigError` for one that is none of letta's."""
    with _readable(path):
        layout = _layout(path)
        return list(_index(layout, _SuiteFile.read(layout.suite), check=False))


class LettaCache:
    """One model's results in a directory. Only the places of the results are kept in memory."""

    def __init__(self, path: Path, model: str | None = None) -> None:
        """Without a name the only model of the directory is taken. Raises `ConfigError`."""
        self._path = path
        with _readable(path):
            layout = _layout(path)
            self._suite = layout.suite
            models = _index(layout, _SuiteFile.read(layout.suite), check=True)
        self.model = _chosen(models, model, path)
        self._places = models[self.model]
        # the older releases named samples by their row, whatever ids the dataset had
        self._by_input = _by_input(self._places) if layout.suite is None else {}

    @staticmethod
    def digest(path: Path) -> str:
        """A digest of every file that is read; it does not depend on where the directory is."""
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
        """How many answers to the sample are stored: one for each run of the suite."""
        return len(self._found(sample))

    def response(self, sample: Sample, number: int) -> Response:
        """One of them; `OSError` or `ValueError` where the file has changed since."""
        place = self._found(sample)[number]
        return _result_at(place).response()

    def problems_with(self, sample: Sample) -> list[Problem]:
        """Says where the stored answers are answers to another question."""
        stored = self._places.get(sample.case_key)
        if not stored or self._found(sample):
            return []
        asked = self._asked(sample.case_key, stored[0])
        question = "another question" if asked is None else quote(asked)
        message = (
            f"the dataset asks {quote(sample.input)}, but {self._path} holds the answer to {question}; "
            "take the dataset that it was made with, or ask the agent anew"
        )
        return [Problem("input", message)]

    def _found(self, sample: Sample) -> Sequence[_Place]:
        asked = _digest(sample.input)
        stored = self._places.get(sample.case_key, ())
        return [place for place in stored if place.asked in (None, asked)] or self._by_input.get(asked, ())

    def _asked(self, case: str, place: _Place) -> Input | None:
        try:
            if self._suite is not None:
                return next((one.input for one in _SuiteFile.read(self._suite).samples if str(one.id) == case), None)
            return _result_at(place).asked
        except (OSError, ValueError):
            return None


def _chosen(models: Iterable[str], wanted: str | None, path: Path) -> str:
    names = list(models)
    shown = ", ".join(names)
    if wanted is None:
        if len(names) > 1:
            raise _refused(f"{path} holds the results of several models; name one of them: {shown}", "model")
        return names[0]
    for name in names:
        if wanted in (name, segment(name)):
            return name
    close = closest_match(wanted, names)
    hint = f"did you mean {close!r}?" if close else f"it has {shown}"
    raise _refused(f"{path} has no results of {quote(wanted)}; {hint}", "model")


def _refused(message: str, option: str = "cached") -> ConfigError:
    return ConfigError(Problem(option, message), "replay")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Tells what the system refuses as a fault of the config."""
    try:
        yield
    except OSError as error:
        raise _refused(f"{error.filename or path} cannot be read: {error.strerror}") from None


class _File(NamedTuple):
    path: Path
    model: str | None
    """As the file's name has it; None where results of all models stand together."""


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
        raise _refused(f"{path} holds no results of letta-evals: there is no .jsonl file where one should be")
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
    alone = folder / "results.jsonl"
    if alone.is_file():
        return [alone]
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


class _Asked(msgspec.Struct):
    id: int | str
    input: Input | None = None


class _Models(msgspec.Struct):
    model_handles: list[object] | None = None
    model_configs: list[object] | None = None


class _Config(msgspec.Struct):
    target: _Models | None = None


class _SuiteFile(msgspec.Struct):
    """What is needed of ``suite.json``."""

    samples: list[_Asked] = []
    config: _Config | None = None

    @classmethod
    def read(cls, path: Path | None) -> _SuiteFile:
        if path is None:
            return cls()
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (ValueError, RecursionError) as error:
            raise ConfigError(Problem(str(path), f"is no suite.json of letta-evals: {error}"), "replay") from None

    def models(self) -> dict[str, str]:
        """The models by their names in files."""
        target = (self.config and self.config.target) or _Models()
        names = [*(target.model_configs or ()), *(target.model_handles or ())]
        return {segment(name): name for name in names if isinstance(name, str)}


class _Place(NamedTuple):
    """Where a result stands; ``asked`` is the digest of its input, None where no file has it."""

    file: Path
    offset: int
    asked: bytes | None


def _result_at(place: _Place) -> LettaResult:
    result = read_result(line_at(place.file, place.offset))
    if result is None:
        raise ValueError(f"{place.file} has changed")
    return result


def _digest(asked: Input) -> bytes:
    return sha256(canonical_json(asked)).digest()[:16]


def _index(layout: _Layout, suite: _SuiteFile, *, check: bool) -> _Index:
    """The places of all results by model and case.

    ``check`` reads the answers too, so that every fault is found now.
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
        found: dict[str | None, dict[str, _Place]] = {}
        for offset, result in entries(file.path, read, problems):
            if result is not None:
                digest = asked.get(result.case) if result.asked is None else _digest(result.asked)
                # where a case stands in a file again the last is valid, as in letta
                found.setdefault(result.model, {})[result.case] = _Place(file.path, offset, digest)
        for told, name in _names(found, file, suite.models()).items():
            cases = index.setdefault(name, {})
            for case, place in found[told].items():
                cases.setdefault(case, []).append(place)
    if problems:
        raise ConfigError(problems[:MAX_PROBLEMS], "replay")
    if not index:
        raise _refused(f"{layout.home} holds no results: {layout.files[0].path.name} is empty")
    return index


def _names(told: Iterable[str | None], file: _File, known: Mapping[str, str]) -> dict[str | None, str]:
    """The models' full names by what the results in a file tell; the file's own name has them only in part.

    Not every result tells its model: those that failed early do not, nor do those of the releases before 0.21.
    """
    full = [model for model in told if model is not None and file.model in (None, segment(model))]
    rough = file.model or DEFAULT_MODEL
    other = known.get(rough) or (full[0] if len(full) == 1 else rough)
    return {model: model if model is not None and model in full else other for model in told}


def _by_input(places: Mapping[str, list[_Place]]) -> dict[bytes, list[_Place]]:
    """The answers by their question, where only one case asked it."""
    found: dict[bytes, list[_Place]] = {}
    for stored in places.values():
        for digest in {place.asked for place in stored if place.asked is not None}:
            found[digest] = [] if digest in found else [place for place in stored if place.asked == digest]
    return found
