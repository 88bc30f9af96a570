"""The pytest plugin: an evaluation as a test, with its records in the store.

Every pytest with gradeline installed loads this module, so it imports almost nothing of gradeline until it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Unpack

import pytest

if TYPE_CHECKING:
    from gradeline.api import RunResult, RunSuiteOptions, Suite
    from gradeline.api.results import OpenStore
    from gradeline.model import Record, Sample, Storage

Undecided = Literal["fail", "pass"]

_MARKERS = (
    "gradeline(suite, undecided='fail', **options): run this suite, with the options of gradeline.run_suite, and fail "
    "the test with the verdict's reasons where it does not pass.",
    "gradeline_cases(dataset, limit=0, tags=()): call the test once for each case of the dataset, as its `sample`.",
)
_PROPERTY = "gradeline_run"
_SHOWN_CASES = 5
_UNDECIDED = 3
_WORDS = {1: "fail", 3: "undecided", 4: "nothing could be graded", 130: "interrupted"}
"""The exit codes as text."""

_store_key: pytest.StashKey[OpenStore] = pytest.StashKey()
_result_key: pytest.StashKey[RunResult] = pytest.StashKey()


class Evaluator:
    """Runs suites for one test. Relative paths begin at the test's file."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __call__(
        self, suite: str | Path | Suite | Mapping[str, Any], /, **options: Unpack[RunSuiteOptions]
    ) -> RunResult:
        """As `gradeline.run_suite`, in the store of the session. It asserts nothing: check the result."""
        from gradeline import run_suite

        folder = self._item.path.parent
        if isinstance(suite, Mapping):
            options.setdefault("folder", folder)
        elif isinstance(suite, str | Path):
            suite = folder / suite
        if options.get("store") is None:
            options["store"] = _session_store(self._item.config)
        result = run_suite(suite, **options)
        for one in result.runs:
            # part of the test report, so that it also works with xdist and in JUnit XML
            self._item.user_properties.append((_PROPERTY, f"{one.run.id} {one.verdict.result:9} {one.run.name}"))
        return result


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gradeline", "evaluation of agents")
    where = (
        "store of the runs: a path, sqlite:///path, postgresql://host/database or memory://"
        " (default: as the gradeline command)"
    )
    group.addoption("--gradeline-store", metavar="URL", help=where)
    parser.addini("gradeline_store", f"{where}.", default=None)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    _install_letta_names()  # a conftest.py may import them


def pytest_configure(config: pytest.Config) -> None:
    for line in _MARKERS:
        config.addinivalue_line("markers", line)
    _install_letta_names()  # if a conftest.py loaded this plugin, the hook above was not called


def _install_letta_names() -> None:
    """Let tests import letta-evals packages, as its suites do, if these are not installed."""
    from gradeline import compat

    compat.install()


def pytest_unconfigure(config: pytest.Config) -> None:
    store = config.stash.get(_store_key, None)
    if store is not None:
        store.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("gradeline_cases")
    if marker is not None:
        samples = _cases(metafunc.definition.path.parent, *marker.args, **marker.kwargs)
        metafunc.parametrize("sample", samples, ids=[sample.case_key for sample in samples])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gradeline")
    if marker is None:
        return
    result = item.stash.get(_result_key, None) or _run_marked(item, marker)
    undecided: Undecided = marker.kwargs.get("undecided", "fail")
    wrong = [text for one in result.runs for text in _failure(one, undecided)]
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    lines = dict.fromkeys(
        f"{value}  {report.nodeid}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
        for name, value in report.user_properties
        if name == _PROPERTY
    )
    if lines:
        terminalreporter.section("gradeline runs")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def evaluate(request: pytest.FixtureRequest) -> Evaluator:
    """Runs a suite: ``result = evaluate("suite.yaml", limit=5)``."""
    return Evaluator(request.node)


@pytest.fixture
def gradeline_run(request: pytest.FixtureRequest) -> RunResult:
    """The result of the suite that the test's ``gradeline`` marker names."""
    item: pytest.Item = request.node
    marker = item.get_closest_marker("gradeline")
    if marker is None:
        pytest.fail("gradeline_run needs a suite: put @pytest.mark.gradeline('suite.yaml') above the test", False)
    result = item.stash[_result_key] = _run_marked(item, marker)
    return result


def _run_marked(item: pytest.Item, marker: pytest.Mark) -> RunResult:
    from gradeline.errors import GradelineError

    options = dict(marker.kwargs)
    suite = marker.args[0] if len(marker.args) == 1 else options.pop("suite", None)
    if suite is None or len(marker.args) > 1:
        _refuse("write @pytest.mark.gradeline('suite.yaml', limit=5): one suite, then options by name")
    if options.pop("undecided", "fail") not in ("fail", "pass"):
        _refuse(f"undecided must be 'fail' or 'pass', got {marker.kwargs['undecided']!r}")
    try:
        return Evaluator(item)(suite, **options)
    except (GradelineError, TypeError) as error:
        _refuse(str(error))


def _refuse(message: str) -> NoReturn:
    pytest.fail(f"gradeline: {message}", pytrace=False)


def _wanted_store(config: pytest.Config) -> str | None:
    wanted: str | None = config.getoption("--gradeline-store") or config.getini("gradeline_store") or None
    return wanted


def _session_store(config: pytest.Config) -> Storage:
    from gradeline.api.results import OpenStore

    if _store_key not in config.stash:
        config.stash[_store_key] = OpenStore(_wanted_store(config))
    return config.stash[_store_key].storage


def _cases(folder: Path, dataset: str | Path, limit: int = 0, tags: tuple[str, ...] = ()) -> list[Sample]:
    from gradeline.errors import GradelineError
    from gradeline.suite.dataset import open_dataset
    from gradeline.suite.dataset_source import DatasetNameError, read_source

    try:
        source = read_source(str(dataset), folder)
        return list(open_dataset(source, limit=limit, tags=tags, folder=folder))
    except (GradelineError, DatasetNameError) as error:
        _refuse(str(error))


def _failure(result: RunResult, undecided: Undecided) -> Iterator[str]:
    """The reasons why a run does not pass, as lines."""
    if result.passed or (result.exit_code == _UNDECIDED and undecided == "pass"):
        return
    run, verdict = result.run, result.verdict
    yield f"{run.name!r} did not pass: {_WORDS.get(result.exit_code, verdict.result)}"
    yield from (f"  {reason}" for reason in verdict.reasons)
    yield from islice((line for record in result.records() for line in _not_passed(record)), _SHOWN_CASES)
    yield f"run {run.id}: gradeline show {run.id}"


def _not_passed(record: Record) -> Iterator[str]:
    """Text of agents and graders is quoted: it may be anything."""
    from gradeline.model import quote

    case = f"  case {quote(record.case)}"
    error = record.response.error
    if error is not None:
        yield f"{case}: the call failed: {error.type}: {quote(error.message)}"
        return
    for key, grade in record.grades.items():
        if grade.passed is False:
            yield f"{case}: {key} {grade.score:g}: {quote(grade.rationale)}"
        elif grade.error is not None:
            yield f"{case}: {key} error: {grade.error.type}: {quote(grade.error.message)}"
