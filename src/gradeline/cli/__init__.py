"""The command line. Each command lives in its own module and is imported when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module

import click

from gradeline import __version__
from gradeline.cli.garbage import look_later
from gradeline.cli.settings import global_options
from gradeline.errors import ConfigError, GradelineError

EXIT_PASS = 0
EXIT_FAIL = 1
EXIT_USAGE = 2
EXIT_BROKEN = 4
EXIT_INTERRUPTED = 130

_COMMANDS = {
    "init": "gradeline.cli.starting:init",
    "run": "gradeline.cli.runs:run",
    "validate": "gradeline.cli.runs:validate",
    "resume": "gradeline.cli.runs:resume",
    "regrade": "gradeline.cli.runs:regrade",
    "compare": "gradeline.cli.comparing:compare",
    "pair": "gradeline.cli.pair:pair",
    "list": "gradeline.cli.runs:list_runs",
    "show": "gradeline.cli.runs:show",
    "export": "gradeline.cli.exporting:export",
    "ledger": "gradeline.cli.ledger:ledger",
    "view": "gradeline.cli.view:view",
    "serve": "gradeline.cli.serve:serve",
    "keys": "gradeline.cli.keys:keys",
    "grade": "gradeline.cli.grade:grade",
    "schema": "gradeline.cli.starting:schema",
    "graders": "gradeline.cli.listing:graders",
    "extractors": "gradeline.cli.listing:extractors",
    "demo": "gradeline.cli.demo:demo",
}


class _Commands(click.Group):
    """Commands by name, each imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        where = _COMMANDS.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # the reader (head, less) has gone: nothing is wrong, and nothing more can be said; click would exit with 1
            _mute()
            return EXIT_PASS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from gradeline.errors import closest

            close = closest(args[0], _COMMANDS)
            hint = f"did you mean {close!r}?" if close else f"there are {', '.join(_COMMANDS)}."
            raise click.UsageError(f"No command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 pass, 1 fail, 2 the call is wrong, 3 undecided, 4 nothing could be graded, 130 interrupted.",
)
@click.version_option(__version__, message="gradeline %(version)s")
@global_options
def cli() -> None:
    """Grade any agent, and know whether the difference is real."""


def _mute() -> None:
    """What is still to be written cannot be, and must not fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point of the ``gradeline`` command."""
    look_later()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and give its exit code; what goes wrong is said in one line on stderr."""
    try:
        code = cli.main(arguments, prog_name="gradeline", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_PASS
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except ConfigError as error:
        click.echo(f"gradeline: {error}", err=True)
        return EXIT_USAGE
    except GradelineError as error:
        click.echo(f"gradeline: {error}", err=True)
        return EXIT_BROKEN
    except OSError as error:
        click.echo(f"gradeline: {error.filename or 'standard output'}: {error.strerror}", err=True)
        _mute()
        return EXIT_BROKEN
    except Exception:
        import traceback

        traceback.print_exc()
        click.echo("gradeline: this is a defect of gradeline itself; please report it with the lines above", err=True)
        return EXIT_BROKEN
