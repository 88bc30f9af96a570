"""The run that a change is compared with, found by a name, by a commit, or by a branch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.errors import ConfigError
from gradeline.model import CodeVersion, Run, Storage, quote

_SEARCHED = 5_000
"""Maximum number of runs to search, the newest first."""
_SHORT = 10


class BaseQuery(NamedTuple):
    """The criteria for the run to compare with."""

    suite: str
    options: RunOptions
    """The options of the new run: the base must have the same selection of cases."""
    variant: str | None = None
    reference: str | None = None
    """A baseline, or another reference to a run."""
    commit: str | None = None
    """The commit that the change is based on."""
    branch: str | None = None
    """The branch that the change will be merged into."""


class BaseRun(NamedTuple):
    """The run to compare with, and how it was found."""

    run: Run | None
    reason: str
    """How it was found, or why there is none."""
    warning: str | None = None
    """Why it is not the run that was named."""


def find_base(storage: Storage, query: BaseQuery) -> BaseRun:
    """The run that the reference names; else the newest of the commit; else the newest of the branch.

    Of a commit or branch only complete runs of the same suite, variant and cases are considered.
    """
    warning = None
    if query.reference is not None:
        try:
            run = storage.find_run(query.reference, query.suite)
        except ConfigError as error:
            warning = str(error)
        else:
            return BaseRun(run, f"baseline {quote(query.reference)}{_at(run.code_version)}")
    return _search(storage, query)._replace(warning=warning)


def _search(storage: Storage, query: BaseQuery) -> BaseRun:
    of_branch: Run | None = None
    for run in _candidates(storage, query):
        version = run.code_version
        if version is None:
            continue
        if query.commit is not None and version.commit == query.commit:
            return BaseRun(run, f"the run of the base commit {query.commit[:_SHORT]}{_dirty(version)}")
        if of_branch is None and query.branch is not None and version.branch == query.branch:
            of_branch = run
            if query.commit is None:
                break
    if of_branch is not None:
        return BaseRun(of_branch, f"the newest run on {query.branch}{_at(of_branch.code_version)}")
    return BaseRun(None, _absent(query))


def _candidates(storage: Storage, query: BaseQuery) -> Iterator[Run]:
    seen, before = 0, None
    while seen < _SEARCHED and (page := storage.list_runs(before=before)):
        for run in page:
            if _matches(run, query) and _has_scores(storage, run):
                yield run
        seen, before = seen + len(page), page[-1].id


def _matches(run: Run, query: BaseQuery) -> bool:
    if (run.suite, run.variant, run.status) != (query.suite, query.variant, "completed") or run.code_version is None:
        return False
    if run.early is not None and run.early.stopped:
        return False
    try:
        options = RunDefinition.of(run).options
    except ConfigError:
        return False
    return _selection(options) == _selection(query.options)


def _selection(options: RunOptions) -> tuple[object, ...]:
    return options.limit, set(options.tags), set(options.samples)


def _has_scores(storage: Storage, run: Run) -> bool:
    graders = storage.counts(run.id).graders.values()
    return any(grader.outcomes.get("pass") or grader.outcomes.get("fail") for grader in graders)


def _at(version: CodeVersion | None) -> str:
    return "" if version is None else f", of commit {version.commit[:_SHORT]}{_dirty(version)}"


def _dirty(version: CodeVersion) -> str:
    return " with uncommitted changes" if version.dirty else ""


def _absent(query: BaseQuery) -> str:
    places = []
    if query.commit is not None:
        places.append(f"of the base commit {query.commit[:_SHORT]}")
    if query.branch is not None:
        places.append(f"on the branch {query.branch}")
    if not places:
        return "no base: name a run with --baseline, or a branch with --base-branch"
    return f"no base: the store has no complete run of the suite {quote(query.suite)} {' or '.join(places)}"
