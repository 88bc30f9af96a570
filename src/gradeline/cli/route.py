"""``gradeline route``: send requests to the cheapest model that is good enough, per task family."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text, single_line

if TYPE_CHECKING:
    from rich.text import Text

    from gradeline.model import Storage
    from gradeline.model.route import RouteCell, RouteTable
    from gradeline.store.route_log import ArmTotals
    from gradeline.trust.off_policy import LoggedReward, Policy, PolicyValue
    from gradeline.trust.route_file import RouteFile
    from gradeline.trust.route_tables import RoutePlan, RouteStatus

EXIT_REFUSED = 1

route_argument = click.argument("route_path", metavar="ROUTE", type=click.Path(path_type=Path))
seed_option = click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Random seed.")


@click.group()
@global_options
def route() -> None:
    """Send requests to the arm with the best quality minus cost, and to the baseline when in doubt.

    ROUTE is a file with the baseline, the candidates, the judge and the limits; `gradeline schema route` prints its
    schema. A plan needs a run of each arm with labels, and a judge that is calibrated.

    \b
    gradeline route plan route.yaml
    gradeline route status route.yaml
    gradeline route serve route.yaml
    gradeline route rollback route.yaml
    """


@route.command()
@route_argument
@seed_option
@click.option("--dry-run", is_flag=True, help="Show the table without putting it into use.")
@global_options
def plan(route_path: Path, seed: int, dry_run: bool) -> int:
    """Check all gates, compute the shares of each arm, and put them into use.

    Exits with 1 if a gate refuses: then the table in use stays, or the baseline gets everything.
    """
    from gradeline.trust.route_tables import plan_route, publish

    settings = current_settings()
    with _opened(route_path, "create") as (storage, opened):
        made = plan_route(storage, opened, seed=seed)
        if not dry_run:
            made = publish(storage, opened, made)
        _show_plan(settings, made, dry_run=dry_run)
    return EXIT_REFUSED if made.refused else 0


@route.command()
@route_argument
@global_options
def status(route_path: Path) -> None:
    """Show the table in use, the promise, and what was routed so far."""
    from gradeline.store.route_log import arm_totals
    from gradeline.trust.route_tables import current_table

    settings = current_settings()
    with _opened(route_path, "read") as (storage, opened):
        found = current_table(storage, opened)
        totals = arm_totals(storage, opened.route)
    if settings.json:
        _print_json(_status_data(opened, found, totals))
        return
    click.echo(_status_line(opened, found))
    if found.table is not None:
        _print_cells(settings, found.table)
        click.echo(_promise_line(found.table))
    if found.refusal is not None:
        click.echo(f"The plan of {found.refusal.at[:16]} was refused:")
        _print_failed(found.refusal)
    _print_totals(settings, totals)


@route.command()
@route_argument
@click.option("--family", default="", metavar="F", help="Task family of the request (default: none).")
@click.option("--seed", type=int, metavar="N", help="Random seed (default: a new one each time).")
@click.option("--no-log", is_flag=True, help="Do not log the decision.")
@global_options
def decide(route_path: Path, family: str, seed: int | None, no_log: bool) -> None:
    """Choose the arm of one request, and log the decision with its propensity.

    For programs that call the models themselves. Record how good the answer was with `gradeline route outcomes`.
    """
    from random import Random

    from gradeline.store.route_log import create_route_tables, put_requests
    from gradeline.trust.route_file import family_name
    from gradeline.trust.route_log_rows import logged_request
    from gradeline.trust.route_tables import current_table, shares_of
    from gradeline.trust.router import draw_choice

    settings, family = current_settings(), family_name(family)
    with _opened(route_path, "read" if no_log else "create") as (storage, opened):
        found = current_table(storage, opened)
        number = 0 if found.table is None else found.table.number
        random = Random(seed)  # noqa: S311 - the seed makes it repeatable
        choice = draw_choice(
            shares_of(opened, found.table, family), opened.baseline.name, family, random, number, found.why_baseline
        )
        if not no_log:
            put_requests(create_route_tables(storage), [logged_request(opened, choice, served_by=choice.arm)])
    if settings.json:
        _print_json({**choice._asdict(), "propensity": choice.propensity})
    elif settings.quiet:
        click.echo(choice.arm)
    else:
        reason = f"; {choice.reason}" if choice.reason else ""
        click.echo(f"{choice.arm} (propensity {choice.propensity:.3f}, id {choice.id}{single_line(reason)})")


@route.command()
@route_argument
@click.argument("file", type=click.Path(path_type=Path))
@global_options
def outcomes(route_path: Path, file: Path) -> None:
    """Record how good the answers to routed requests were.

    FILE is CSV or JSONL with the columns id (of the request), passed or score, and source: label (default), or
    judge:FINGERPRINT. Candidates' outcomes are also added to the quality ledger.
    """
    from gradeline.trust.outcomes import read_outcomes, record_outcomes

    settings = current_settings()
    with _opened(route_path, "existing") as (storage, opened):
        number = record_outcomes(storage, opened, read_outcomes(file))
    if settings.json:
        _print_json({"recorded": number})
    elif not settings.quiet:
        click.echo(f"{number:,} outcome{'' if number == 1 else 's'} recorded")


@route.command()
@route_argument
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="current, planned, baseline or the name of an arm (repeatable; default: all of them).",
)
@seed_option
@global_options
def evaluate(route_path: Path, policies: tuple[str, ...], seed: int) -> None:
    """Estimate what a policy would have earned, from logged requests and their outcomes.

    The value of a request is its outcome (0 to 1) minus lambda times its cost. IPS, SNIPS and doubly robust estimates
    have 95 % intervals; a policy that the log says nothing about is refused with the reason.
    """
    settings = current_settings()
    with _opened(route_path, "read") as (storage, opened):
        known = _policies(storage, opened, seed)
        unknown = [name for name in policies if name not in known]
        if unknown:
            raise click.UsageError(f"unknown policy {', '.join(map(repr, unknown))}; use {', '.join(known)}")
        rewards, left_out = _rewards(storage, opened)
        chosen = {name: known[name] for name in policies or known}
        found = {name: _value_of(rewards, policy) for name, policy in chosen.items()}
    _show_values(settings, found, len(rewards), left_out)


@route.command()
@route_argument
@global_options
def rollback(route_path: Path) -> None:
    """Put the table before the current one into use again.

    Without an earlier table every request goes to the baseline. Servers follow within seconds.
    """
    from gradeline.trust.route_tables import roll_back

    settings = current_settings()
    with _opened(route_path, "existing") as (storage, opened):
        made = roll_back(storage, opened)
    if settings.json:
        _print_json({"table": made.number, "copied_from": made.copied_from})
    elif made.copied_from is None:
        click.echo(f"every request of {opened.route} goes to the baseline {opened.baseline.name}")
    else:
        click.echo(f"table {made.copied_from} is in use again, as table {made.number}")


@route.command()
@route_argument
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option(
    "--token-env",
    metavar="NAME",
    help="Environment variable with the token that clients send (needed beyond loopback).",
)
@click.option("--public-only", is_flag=True, help="Refuse arms at private and loopback addresses.")
@click.option(
    "--allow-net", multiple=True, metavar="CIDR", help="Private network or host:port that arms may be at (repeatable)."
)
@click.option(
    "--max-body-mb",
    type=click.IntRange(1, 1000),
    default=20,
    show_default=True,
    metavar="MB",
    help="Maximum size of a body.",
)
@click.option(
    "--refresh",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Seconds between looks for a new table.",
)
@global_options
def serve(
    route_path: Path,
    host: str,
    port: int,
    token_env: str | None,
    public_only: bool,
    allow_net: tuple[str, ...],
    max_body_mb: int,
    refresh: float,
) -> None:
    """Serve an OpenAI-compatible proxy that routes chat completions.

    Point a client's base URL at it; the model it asks for is replaced by the arm's. Any failure of routing or of a
    candidate before its first byte falls back to the baseline. The header x-gradeline-route of a response has the arm,
    its propensity and the ID of the decision.

    \b
    gradeline route serve route.yaml
    curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' -d '{"messages": [...]}'
    """
    from gradeline.trust.proxy import ProxySettings, client_token, run_proxy

    settings = current_settings()
    with _opened(route_path, "create") as (storage, opened):
        options = ProxySettings(
            host=host,
            port=port,
            token=client_token(host, token_env),
            public_only=public_only or bool(allow_net),
            allow=allow_net,
            max_body=max_body_mb * 1_000_000,
            refresh_s=refresh,
        )
        run_proxy(storage, opened, options, lambda url: _announce(settings, url))


def _announce(settings: CliSettings, url: str) -> None:
    if settings.json:
        _print_json({"url": url})
    elif settings.quiet:
        click.echo(url)
    else:
        click.echo(f"routing at {url}/v1; stop with Ctrl-C")
    sys.stdout.flush()


@contextmanager
def _opened(path: Path, mode: Any) -> Iterator[tuple[Storage, RouteFile]]:
    from gradeline.cli.stores import open_store
    from gradeline.trust.route_file import read_route

    opened = read_route(path)
    with open_store(current_settings(), mode) as storage:
        yield storage, opened


def _policies(storage: Storage, opened: RouteFile, seed: int) -> dict[str, Policy]:
    from gradeline.trust.route_tables import current_table, plan_route, shares_of

    current = current_table(storage, opened).table
    planned = plan_route(storage, opened, seed=seed)
    found: dict[str, Policy] = {"current": lambda family: shares_of(opened, current, family)}
    if not planned.refused:
        found["planned"] = lambda family: shares_of(opened, planned.table, family)
    found["baseline"] = lambda _: {opened.baseline.name: 1.0}
    return found | {arm.name: _always(arm.name) for arm in opened.arms}


def _always(arm: str) -> Policy:
    return lambda _: {arm: 1.0}


def _rewards(storage: Storage, opened: RouteFile) -> tuple[list[LoggedReward], int]:
    from gradeline.trust.route_log_rows import logged_rewards

    return logged_rewards(storage, opened)


def _value_of(rewards: list[LoggedReward], policy: Policy) -> PolicyValue | str:
    from gradeline.trust.off_policy import NoSupportError, evaluate_policy

    try:
        return evaluate_policy(rewards, policy)
    except NoSupportError as error:
        return str(error)


def _show_values(settings: CliSettings, found: dict[str, PolicyValue | str], requests: int, left_out: int) -> None:
    if settings.json:
        data = {
            name: {"refused": value}
            if isinstance(value, str)
            else {
                **{
                    key: {"estimate": interval.estimate, "low": interval.low, "high": interval.high}
                    for key, interval in (
                        ("ips", value.ips),
                        ("snips", value.snips),
                        ("doubly_robust", value.doubly_robust),
                    )
                },
                "effective": value.effective,
            }
            for name, value in found.items()
        }
        _print_json({"requests": requests, "without_reward": left_out, "policies": data})
        return
    columns = (
        TableColumn("policy", key=True),
        *(TableColumn(title, right=True) for title in ("IPS", "SNIPS", "doubly robust", "effective n")),
    )
    rows: list[tuple[Text | str, ...]] = [
        (
            safe_text(name, "cyan"),
            *(
                f"{one.estimate:.3f} ({one.low:.3f}–{one.high:.3f})"
                for one in (value.ips, value.snips, value.doubly_robust)
            ),
            f"{value.effective:.0f}",
        )
        for name, value in found.items()
        if not isinstance(value, str)
    ]
    if rows:
        print_table(console(settings), columns, rows)
    for name, value in found.items():
        if isinstance(value, str):
            click.echo(single_line(f"{name}: not known: {value}"))
    click.echo(f"{requests:,} requests with an outcome; {left_out:,} others left out (no outcome, or unknown cost)")


def _show_plan(settings: CliSettings, made: RoutePlan, *, dry_run: bool) -> None:
    import msgspec

    if settings.json:
        table = msgspec.to_builtins(made.table)
        _print_json({"refused": made.refused, "dry_run": dry_run, "runs": made.runs, "table": table})
        return
    for gate in made.table.gates:
        mark = "ok  " if gate.passed else "FAIL"
        arm = f" {gate.arm}" if gate.arm is not None else ""
        click.echo(single_line(f"{mark} {gate.name}{arm}: {gate.detail}"))
    if made.refused:
        click.echo("refused: nothing was changed")
        return
    _print_cells(settings, made.table)
    click.echo("dry run: nothing was stored" if dry_run else f"table {made.table.number} is in use")


def _print_cells(settings: CliSettings, table: RouteTable) -> None:
    columns = (
        TableColumn("family", wraps=True, key=True),
        TableColumn("arm", wraps=True, key=True),
        *(TableColumn(title, right=True) for title in ("share", "quality", "n")),
        TableColumn("state"),
    )
    rows = (
        (safe_text(family, "cyan", most=80), safe_text(arm, most=80), *_cell(cell))
        for family, row in table.families.items()
        for arm, cell in row.items()
    )
    print_table(console(settings), columns, rows)


def _cell(cell: RouteCell) -> tuple[str, str, str, str]:
    quality = "–" if cell.quality is None else f"{cell.quality:.3f}"
    return f"{cell.share:.1%}", quality, f"{cell.n:.0f}", cell.state


def _print_failed(table: RouteTable) -> None:
    for gate in table.failed_gates:
        arm = f" {gate.arm}" if gate.arm is not None else ""
        click.echo(single_line(f"  {gate.name}{arm}: {gate.detail}"))


def _status_line(opened: RouteFile, found: RouteStatus) -> str:
    if found.table is None:
        return single_line(f"{opened.route}: every request goes to the baseline {opened.baseline.name}: {found.reason}")
    frozen = f" ({found.reason})" if found.reason else ""
    copied = f", a copy of table {found.table.copied_from}" if found.table.copied_from is not None else ""
    return single_line(f"{opened.route}: table {found.table.number}{copied} of {found.table.at[:16]}{frozen}")


def _promise_line(table: RouteTable) -> str:
    from gradeline.trust.route_plan import promise_sentence

    if table.promise is None:
        return "nothing is promised"
    return f"Promise: {promise_sentence(table.promise)}; requests that explore are not part of it."


def _print_totals(settings: CliSettings, totals: list[ArmTotals]) -> None:
    if not totals:
        click.echo("No request was routed yet.")
        return
    columns = (
        TableColumn("arm", wraps=True, key=True),
        *(TableColumn(title, right=True) for title in ("requests", "fell back", "no answer", "cost")),
    )
    rows = (
        (
            safe_text(one.arm, "cyan", most=80),
            f"{one.requests:,}",
            f"{one.fallbacks:,}",
            f"{one.unanswered:,}",
            "unknown" if one.cost is None else f"${one.cost:.4f} of {one.priced:,}",
        )
        for one in totals
    )
    print_table(console(settings), columns, rows)


def _status_data(opened: RouteFile, found: RouteStatus, totals: list[ArmTotals]) -> dict[str, Any]:
    import msgspec

    from gradeline.trust.route_plan import promise_sentence

    table = found.table
    promise = None if table is None or table.promise is None else promise_sentence(table.promise)
    return {
        "route": opened.route,
        "baseline": opened.baseline.name,
        "reason": found.reason,
        "table": msgspec.to_builtins(table),
        "promise": promise,
        "refusal": msgspec.to_builtins(found.refusal),
        "arms": [one._asdict() for one in totals],
    }


def _print_json(data: object) -> None:
    click.echo(json.dumps(data, ensure_ascii=False))
