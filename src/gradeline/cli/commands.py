"""The commands by name, each imported when it is called."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from gradeline import __version__
from gradeline.cli import report_interrupt
from gradeline.cli.options import global_options
from gradeline.errors import ConfigError, GradelineError

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_BROKEN = 4

COMMANDS = {
    "init": "gradeline.cli.init:init",
    "run": "gradeline.cli.run:run",
    "validate": "gradeline.cli.run:validate",
    "resume": "gradeline.cli.run:resume",
    "regrade": "gradeline.cli.run:regrade",
    "compare": "gradeline.cli.compare:compare",
    "baseline": "gradeline.cli.baseline:baseline",
    "ci": "gradeline.cli.ci:ci",
    "push": "gradeline.cli.push:push",
    "trend": "gradeline.cli.trend:trend",
    "plan": "gradeline.cli.plan:plan",
    "pair": "gradeline.cli.pair:pair",
    "probe": "gradeline.cli.probe:probe",
    "judge": "gradeline.cli.judge:judge",
    "route": "gradeline.cli.route:route",
    "list": "gradeline.cli.show:list_runs",
    "show": "gradeline.cli.show:show",
    "export": "gradeline.cli.export:export",
    "label": "gradeline.cli.label:label",
    "calibrate": "gradeline.cli.calibrate:calibrate",
    "anchors": "gradeline.cli.anchors:anchors",
    "ledger": "gradeline.cli.ledger:ledger",
    "view": "gradeline.cli.serve:view",
    "serve": "gradeline.cli.serve:serve",
    "keys": "gradeline.cli.keys:keys",
    "secrets": "gradeline.cli.secrets:secrets",
    "store": "gradeline.cli.store:store",
    "import": "gradeline.cli.imports:import_command",
    "dataset": "gradeline.cli.dataset:dataset",
    "grade": "gradeline.cli.grade:grade",
    "schema": "gradeline.cli.init:schema",
    "graders": "gradeline.cli.graders:graders",
    "extractors": "gradeline.cli.graders:extractors",
    "demo": "gradeline.cli.demo:demo",
}


class _Commands(click.Group):
    """Commands by name, each imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        location = COMMANDS.get(cmd_name)
        if location is None:
            return None
        module, _, attribute = location.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            raise click.Abort(*interrupt.args) from None  # click would print an empty line

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from gradeline.errors import closest_match

            close = closest_match(args[0], COMMANDS)
            hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(COMMANDS)}."
            raise click.UsageError(f"No command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 pass, 1 fail, 2 usage error, 3 undecided, 4 nothing could be graded, 130 interrupted.",
)
@click.version_option(__version__, message="gradeline %(version)s")
@global_options
def cli() -> None:
    """Grade any agent, and know whether the difference is real."""


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        code = cli.main(arguments, prog_name="gradeline", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_PASS
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt) as interrupt:
        return report_interrupt(*interrupt.args)
    except GradelineError as error:
        click.echo(f"gradeline: {error}", err=True)
        _release(error)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_BROKEN
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"gradeline: {place}{error.strerror or error}", err=True)
        return EXIT_BROKEN
    except Exception:
        import traceback

        traceback.print_exc()
        click.echo("gradeline: this is a bug in gradeline; please report it with the traceback above", err=True)
        return EXIT_BROKEN


def _release(error: BaseException) -> None:
    """Close what the frames of a reported error still hold: DuckDB prints a list of open objects at exit."""
    import traceback

    known: set[int] = set()
    links: list[BaseException | None] = [error]
    while links:
        link = links.pop()
        if link is not None and id(link) not in known:
            known.add(id(link))
            traceback.clear_frames(link.__traceback__)
            links += [link.__cause__, link.__context__]
