"""The keyword arguments of `run_suite`, declared once and checked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from gradeline.engine.definition import RunBudget, RunOptions
from gradeline.engine.orchestrate import RunRequest
from gradeline.errors import ConfigError, DataError, Problem, closest_match
from gradeline.model import Grade, Response, Run, Storage, clean_data, quote, read_struct
from gradeline.suite.declaration import BudgetSpec

if TYPE_CHECKING:
    from gradeline.api.results import RunResult

Overrides = Mapping[str, object] | Sequence[str]
"""Values that override the suite's: ``{"gate.value": 0.9}``, or strings such as ``"gate.value=0.9"``."""

_COMMAND_LINE = {
    "--stop-early": "stop_early",
    "--set": "overrides",
    "--grader": "graders",
    "--sample": "samples",
    "--model": "models",
    "--variant": "variants",
}
_MINIMUM = {"limit": 0, "repeats": 1, "concurrency": 1}


class CaseProgress(NamedTuple):
    """A finished (case, repeat), and the progress of the run."""

    run: Run
    done: int
    total: int | None
    """None if the dataset is too large to be counted first."""
    case: str
    repeat: int
    response: Response | None
    """None if the response was stored already."""
    grades: dict[str, Grade]


class RunSuiteOptions(TypedDict, total=False):
    """Which cases of a suite are run, and how. The names are those of ``gradeline run``."""

    dataset: object
    """Cases in place of the suite's: a data frame of Polars, pandas or Arrow, a list of mappings or of `Sample`, or
    one or several paths, relative to the suite's folder."""
    store: str | Path | Storage | None
    """A path, a URL or an open store; by default what the command line uses."""
    limit: int | None
    """Only the first cases, up to this number."""
    samples: Iterable[str | int]
    """Only these cases, by id."""
    tags: Iterable[str]
    """The cases that have all of these tags."""
    graders: Iterable[str]
    """Only these graders."""
    models: Iterable[str]
    """One run for each, as a group."""
    variants: Iterable[str]
    """Only these variants of the suite, by name, or by the name of a prompt or a model."""
    repeats: int | None
    concurrency: int | None
    overrides: Overrides
    budget: float | Mapping[str, float] | None
    """Maximum cost, or ``{"cost": 5, "calls": 1000}``."""
    assume_price: str | Sequence[str] | Mapping[str, str]
    """US dollars per million input and output tokens: ``"0.15/0.60"``, or by model ``{"my-model": "0.15/0.60"}``."""
    seed: int | None
    name: str | None
    """The run's name; by default the suite's."""
    baseline: str | RunResult | None
    """A run that this one must not be worse than, for its gate to pass."""
    stop_early: bool
    """Run the cases in random order, and stop once the comparison with the baseline is decided."""
    fail_fast: bool
    """Stop at the first case that does not pass."""
    cached: str | Path | None
    """A folder of letta-evals result files whose responses are graded instead of calling the agent."""
    on_progress: Callable[[CaseProgress], None] | None
    """Called for each finished case, in the thread of the run; an exception ends the run."""
    folder: str | Path | None
    """Base folder of relative paths in a suite that is a mapping (default: the current folder)."""


def check_names(call: str, options: Mapping[str, object]) -> None:
    """`TypeError` for an unknown option, as Python raises it."""
    for name in options:
        if name not in RunSuiteOptions.__annotations__:
            near = closest_match(name, RunSuiteOptions.__annotations__)
            hint = f"; did you mean {near!r}?" if near else f"; it takes {', '.join(RunSuiteOptions.__annotations__)}"
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}{hint}")


def run_request(options: RunSuiteOptions) -> RunRequest:
    """The options as a request without a suite; `ConfigError` names all invalid options."""
    problems: list[Problem] = []
    values: Mapping[str, Any] = options
    for name, least in _MINIMUM.items():
        problems += _integer(name, values.get(name), least)
    problems += _integer("seed", values.get("seed"))
    texts = {
        name: tuple(_strings(name, values.get(name), problems))
        for name in ("samples", "tags", "graders", "models", "variants")
    }
    own = _read("overrides", override_strings, options.get("overrides") or (), problems)
    budget = _read("budget", _budget, options.get("budget"), problems)
    prices = _read("assume_price", _price_strings, options.get("assume_price") or (), problems)
    if problems:
        raise ConfigError(problems)
    cached = options.get("cached")
    run_options = RunOptions(
        limit=options.get("limit"),
        tags=texts["tags"],
        samples=texts["samples"],
        graders=texts["graders"],
        models=texts["models"],
        variants=texts["variants"],
        repeats=options.get("repeats"),
        concurrency=options.get("concurrency"),
        cached=None if cached is None else str(Path(cached).resolve()),
        overrides=own or (),
        budget=budget,
        prices=prices,
    )
    baseline = options.get("baseline")
    return RunRequest(
        Path(),
        run_options,
        options.get("name"),
        options.get("seed"),
        baseline=baseline if baseline is None or isinstance(baseline, str) else baseline.run.id,
        stop_early=options.get("stop_early", False),
        fail_fast=options.get("fail_fast", False),
    )


def override_strings(overrides: Overrides) -> tuple[str, ...]:
    """Overrides as ``--set`` takes them."""
    if isinstance(overrides, str):
        return (overrides,)
    if not isinstance(overrides, Mapping):
        return tuple(overrides)
    try:
        return tuple(f"{key}={json.dumps(clean_data(value), ensure_ascii=False)}" for key, value in overrides.items())
    except DataError as error:
        raise ConfigError(Problem("overrides", str(error))) from None


def with_python_names(error: ConfigError) -> ConfigError:
    """The error with the Python names of command-line options."""
    if not any(problem.path in _COMMAND_LINE for problem in error.problems):
        return error
    return ConfigError(
        problem._replace(path=_COMMAND_LINE.get(problem.path, problem.path)) for problem in error.problems
    )


def _read(name: str, reader: Callable[[Any], Any], value: object, problems: list[Problem]) -> Any:
    try:
        return reader(value)
    except ConfigError as error:
        problems += [problem if problem.path.startswith(name) else problem.within(name) for problem in error.problems]
        return None


def _integer(name: str, value: object, least: int | None = None) -> Iterator[Problem]:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        yield Problem(name, f"expected an integer{bound}, got {quote(value)}")


def _strings(name: str, value: object, problems: list[Problem]) -> Iterator[str]:
    """Strings of a list, or one string."""
    if value is None:
        return
    items = [value] if isinstance(value, str | int) else value
    if not isinstance(items, Iterable):
        problems.append(Problem(name, f"expected strings, got {quote(value)}"))
        return
    for item in items:
        if isinstance(item, str) or (name == "samples" and isinstance(item, int) and not isinstance(item, bool)):
            yield str(item)
        else:
            problems.append(Problem(name, f"expected strings, got {quote(item)}"))


def _price_strings(value: object) -> tuple[str, ...]:
    """Prices as ``--assume-price`` takes them."""
    from gradeline.adapters.costs import assumed_prices  # few runs are given prices

    given = [f"{model}={price}" for model, price in value.items()] if isinstance(value, Mapping) else value
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else [None]
    if not all(isinstance(text, str) for text in texts):
        reason = f'expected a price such as "0.15/0.60", or prices by model, got {quote(value)}'
        raise ConfigError(Problem("assume_price", reason))
    try:
        assumed_prices(map(str, texts))
    except ConfigError as error:
        raise ConfigError([problem._replace(path="assume_price") for problem in error.problems]) from None
    return tuple(map(str, texts))


def _budget(value: object) -> RunBudget | None:
    if value is None:
        return None
    given = value if isinstance(value, Mapping) else {"cost": value}
    reading = read_struct(BudgetSpec, given, "budget")
    if reading.options is None or reading.problems or reading.unknown:
        raise ConfigError([*reading.problems, *reading.unknown])
    return RunBudget(reading.options.calls, reading.options.cost)
