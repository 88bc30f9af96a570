"""The diagrams of the design notes as SVG: boxes on a grid, and arrows between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 216, 62
_STEP_X, _STEP_Y = 312, 122
_MARGIN = 20
_FILLS = {"plain": "#e8f3f2", "store": "#fdf1d8", "outside": "#f1eef7"}
_STYLE = "font: 14px system-ui, sans-serif; fill: #14302e"


class Box(NamedTuple):
    """A box at a place of the grid. The first line of its text is bold; ``kind`` is its colour."""

    column: float
    row: float
    text: str
    kind: str = "plain"


class Arrow(NamedTuple):
    """An arrow from one box to another, by their names."""

    start: str
    end: str
    label: str = ""


class Diagram(NamedTuple):
    """Boxes by name, and arrows."""

    title: str
    boxes: Mapping[str, Box]
    arrows: Sequence[Arrow]


def svg(diagram: Diagram) -> str:
    """The diagram on a light background, so that it can be read on a page of either colour scheme."""
    columns = max(box.column for box in diagram.boxes.values())
    rows = max(box.row for box in diagram.boxes.values())
    width = round(columns * _STEP_X + _WIDTH + 2 * _MARGIN)
    height = round(rows * _STEP_Y + _HEIGHT + 2 * _MARGIN)
    return "\n".join(_lines(diagram, width, height)) + "\n"


def _lines(diagram: Diagram, width: int, height: int) -> Iterator[str]:
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" style="{_STYLE}">'
    yield f"<title>{escape(diagram.title)}</title>"
    yield '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    yield '<path d="M0 0 8 4 0 8z" fill="#3d6663"/></marker></defs>'
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#fbfdfd"/>'
    for arrow in diagram.arrows:
        yield from _arrow(diagram.boxes[arrow.start], diagram.boxes[arrow.end], arrow.label)
    for box in diagram.boxes.values():
        yield from _box(box)
    yield "</svg>"


def _box(box: Box) -> Iterator[str]:
    x, y = _MARGIN + box.column * _STEP_X, _MARGIN + box.row * _STEP_Y
    fill = _FILLS[box.kind]
    yield f'<rect x="{x:g}" y="{y:g}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="{fill}" stroke="#3d6663"/>'
    lines = box.text.split("\n")
    first = y + _HEIGHT / 2 - 9 * (len(lines) - 1) + 5
    for number, line in enumerate(lines):
        weight = "" if number else ' font-weight="600"'
        place = f'x="{x + _WIDTH / 2:g}" y="{first + 18 * number:g}" text-anchor="middle"'
        yield f"<text {place}{weight}>{escape(line)}</text>"


def _arrow(start: Box, end: Box, label: str) -> Iterator[str]:
    (x1, y1), (x2, y2) = _border(start, end), _border(end, start)
    yield f'<path d="M{x1:g} {y1:g} {x2:g} {y2:g}" stroke="#3d6663" fill="none" marker-end="url(#head)"/>'
    x, y = (x1 + x2) / 2, (y1 + y2) / 2
    lines = label.split("\n") if label else []
    vertical = abs(x1 - x2) < abs(y1 - y2)
    for number, line in enumerate(lines):
        if vertical:
            place = f'x="{x + 8:g}" y="{y + 4.5 + 15 * (number - (len(lines) - 1) / 2):g}"'
        else:
            place = f'x="{x:g}" y="{y - 6 - 15 * (len(lines) - 1 - number):g}" text-anchor="middle"'
        yield f'<text {place} font-size="12.5" fill="#44605e">{escape(line)}</text>'


def _border(box: Box, other: Box) -> tuple[float, float]:
    """Where an arrow to the other box leaves this one: the middle of the side that faces it."""
    x, y = _MARGIN + box.column * _STEP_X, _MARGIN + box.row * _STEP_Y
    across, down = other.column - box.column, other.row - box.row
    if abs(across) >= abs(down):
        return x + (_WIDTH if across > 0 else 0), y + _HEIGHT / 2
    return x + _WIDTH / 2, y + (_HEIGHT if down > 0 else 0)


RUN_PIPELINE = Diagram(
    "A run, from the suite to the report",
    {
        "suite": Box(0, 0, "suite\nread, validated"),
        "prepared": Box(1, 0, "prepared run\ncode loaded, target open"),
        "plan": Box(2, 0, "plan\nreuse, regrade or rerun"),
        "target": Box(2, 1, "target\na slot, a rate, a deadline", "outside"),
        "grading": Box(1, 1, "grading\nextractor, grader, judge"),
        "response": Box(2, 2, "responses\ncommitted first", "store"),
        "grades": Box(1, 2, "grades\nthen committed", "store"),
        "report": Box(0, 2, "report\nsummary, verdict, exit code"),
    },
    (
        Arrow("suite", "prepared"),
        Arrow("prepared", "plan"),
        Arrow("plan", "target", "rerun"),
        Arrow("plan", "grading", "regrade"),
        Arrow("target", "response"),
        Arrow("response", "grading"),
        Arrow("grading", "grades"),
        Arrow("grades", "report"),
    ),
)

STORE = Diagram(
    "How rows reach the disk",
    {
        "tasks": Box(0, 0, "tasks of a run\nput responses, grades"),
        "writer": Box(1, 0, "writer\none queue, batches of 500"),
        "transaction": Box(2, 0, "one transaction\nrows, counters, hook"),
        "hook": Box(2, 1, "commit hook\nclaim, events of the service"),
        "database": Box(3, 0, "SQLite or PostgreSQL\nsynced at each commit", "store"),
        "readers": Box(3, 1, "readers\npages by key, snapshots"),
    },
    (
        Arrow("tasks", "writer", "wait for\nthe commit"),
        Arrow("writer", "transaction", "next batch"),
        Arrow("hook", "transaction"),
        Arrow("transaction", "database", "commit"),
        Arrow("database", "readers"),
    ),
)

CLAIMS = Diagram(
    "How a run is claimed, held and taken over",
    {
        "cli": Box(0, 0, "command line\nProcessLock"),
        "owner": Box(1, 0, "runs\nowner: host:pid:start", "store"),
        "heartbeats": Box(2, 0, "run_heartbeats\nevery 10 s", "store"),
        "reader": Box(3, 0, "any reader\nrunning or interrupted?"),
        "server": Box(0, 1, "server\nClaimedRun"),
        "jobs": Box(1, 1, "jobs\nstate, token, beat", "store"),
        "writes": Box(2, 1, "each transaction\nrefused with an old token"),
        "other": Box(1, 2, "another server\nsees no new beat"),
    },
    (
        Arrow("cli", "owner", "compare\nand set"),
        Arrow("owner", "heartbeats"),
        Arrow("heartbeats", "reader", "interrupted\nafter 60 s"),
        Arrow("server", "jobs", "claim:\ntoken + 1"),
        Arrow("jobs", "writes", "fencing"),
        Arrow("other", "jobs", "take over: token + 1"),
    ),
)

WORKER_POOL = Diagram(
    "The pool, its workers, and what ends a call",
    {
        "engine": Box(0, 0, "engine\nawait run(job)"),
        "pool": Box(1, 0, "WorkerPool\nqueue, deadlines"),
        "worker": Box(2, 0, "worker process\nits own session", "outside"),
        "code": Box(3, 0, "user code\nstdout to a file", "outside"),
        "page": Box(2, 1, "shared page\nbatch, job, task, since"),
        "spare": Box(1, 1, "spare worker\ncode already loaded", "outside"),
    },
    (
        Arrow("engine", "pool", "jobs"),
        Arrow("pool", "worker", "msgpack\nframes"),
        Arrow("worker", "code", "one call\nat a time"),
        Arrow("worker", "page", "before each call"),
        Arrow("page", "pool", "read every 20 ms"),
        Arrow("spare", "pool", "takes the place of\na killed worker"),
    ),
)

TRANSPORT = Diagram(
    "A call of the HTTP client",
    {
        "caller": Box(0, 0, "target, judge, plugin\nHttpRequest"),
        "deadline": Box(1, 0, "one deadline\nattempts, pauses, redirects"),
        "hop": Box(2, 0, "a hop\nsecrets inserted"),
        "resolver": Box(3, 0, "resolver\nall addresses of a name"),
        "policy": Box(3, 1, "egress policy\ncheck(host, address, port)"),
        "socket": Box(2, 1, "socket\nnew, or idle and polled", "outside"),
        "body": Box(1, 1, "body\nsize limit, inflate, mask"),
        "response": Box(0, 1, "HttpResponse\nor CallError with a type"),
    },
    (
        Arrow("caller", "deadline"),
        Arrow("deadline", "hop", "send"),
        Arrow("hop", "resolver"),
        Arrow("resolver", "policy", "each address"),
        Arrow("policy", "socket", "again, literals\ntoo"),
        Arrow("socket", "body", "2xx"),
        Arrow("body", "response"),
    ),
)

REQUEST_PATH = Diagram(
    "A request to the service",
    {
        "protocol": Box(0, 0, "HttpProtocol\nconnections, head, 400"),
        "headers": Box(1, 0, "headers, access log\nrequest id"),
        "drain": Box(2, 0, "drain, concurrency\n503, 429"),
        "auth": Box(3, 0, "AuthMiddleware\nhost, key, origin, scope"),
        "body": Box(3, 1, "BodyLimitMiddleware\nbytes and time"),
        "route": Box(2, 1, "route\nvalidate, then one call"),
        "transaction": Box(1, 1, "transaction\nchange, audit, event", "store"),
        "runner": Box(0, 1, "Runner\nclaims, executes runs"),
    },
    (
        Arrow("protocol", "headers"),
        Arrow("headers", "drain"),
        Arrow("drain", "auth"),
        Arrow("auth", "body", "admitted"),
        Arrow("body", "route"),
        Arrow("route", "transaction", "in a thread"),
        Arrow("transaction", "runner", "queue"),
    ),
)

VERDICTS = Diagram(
    "From stored rows to a verdict and a decision",
    {
        "columns": Box(0, 0, "columns of a run\nscores by grader", "store"),
        "baseline": Box(0, 1, "columns of the baseline\npaired by case", "store"),
        "paired": Box(1, 1, "PairedScores\nclusters, noise, look"),
        "test": Box(2, 1, "test and interval\nMcNemar, sign flip, t"),
        "decision": Box(3, 1, "decision\nbetter … undecided"),
        "evidence": Box(1, 0, "ScoreColumn\ncases, failed calls"),
        "gate": Box(2, 0, "gate\nbound, coverage, interval"),
        "verdict": Box(3, 0, "verdict\npass, fail, undecided"),
    },
    (
        Arrow("columns", "evidence"),
        Arrow("evidence", "gate"),
        Arrow("gate", "verdict"),
        Arrow("columns", "paired"),
        Arrow("baseline", "paired"),
        Arrow("paired", "test"),
        Arrow("test", "decision"),
        Arrow("decision", "verdict", "regression gate"),
    ),
)

IMPORTS = Diagram(
    "From the files of another tool to a suite, runs and a report",
    {
        "source": Box(0, 0, "source\na file or a folder", "outside"),
        "kind": Box(1, 0, "kind\nby names and first bytes"),
        "importer": Box(2, 0, "importer\nreads, translates"),
        "spool": Box(3, 0, "trace spool\nSQLite, temporary", "store"),
        "report": Box(1, 1, "report\nmapped, approximated, not"),
        "output": Box(2, 1, "output\nall or nothing"),
        "folder": Box(1, 2, "folder\nsuite, cases, answers", "store"),
        "runs": Box(2, 2, "store\nruns, grades, labels", "store"),
    },
    (
        Arrow("source", "kind"),
        Arrow("kind", "importer"),
        Arrow("importer", "spool", "steps"),
        Arrow("importer", "output"),
        Arrow("importer", "report"),
        Arrow("output", "folder"),
        Arrow("output", "runs"),
        Arrow("report", "folder", "import.md"),
    ),
)

DIAGRAMS: Mapping[str, Diagram] = {
    "run-pipeline": RUN_PIPELINE,
    "store": STORE,
    "claims": CLAIMS,
    "worker-pool": WORKER_POOL,
    "transport": TRANSPORT,
    "request-path": REQUEST_PATH,
    "verdicts": VERDICTS,
    "imports": IMPORTS,
}
"""By the page of docs/design that shows it."""
