"""The command line. `main` is the entry point; `gradeline.cli.commands` lists the commands.

This module imports nothing slow, so that Ctrl-C ends the program with one line from the start.
"""

from __future__ import annotations

import signal
import sys

EXIT_INTERRUPTED = 130
_EXIT_USAGE = 2
_NO_WINDOWS = (
    "gradeline: the command line needs Linux or macOS; on Windows, use WSL (wsl --install)."
    " Grading from Python works here: from gradeline.graders import grade\n"
)


def main() -> None:
    """Entry point of the ``gradeline`` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # unless the caller ignores it (nohup)
        # asyncio replaces Python's own handler with one that only cancels a task; blocking code would not end
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from gradeline.cli.streams import guard_standard_streams

        guard_standard_streams()
        code = run_cli(sys.argv[1:])
    except KeyboardInterrupt as interrupt:
        code = report_interrupt(*interrupt.args)
    # during interpreter shutdown nothing catches an exception
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run_cli(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if sys.platform == "win32":
        sys.stderr.write(_NO_WINDOWS)
        return _EXIT_USAGE
    from gradeline.cli.commands import run_command

    return run_command(arguments)


def report_interrupt(*advice: object) -> int:
    """Print one line about the interruption and what to do next; returns the exit code."""
    echoed = "\n" if sys.stderr.isatty() else ""  # after the ^C that the terminal shows
    sys.stderr.write(f"{echoed}{'; '.join(('interrupted', *map(str, advice)))}\n")
    return EXIT_INTERRUPTED


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
