"""The command line. `main` is its entry point; `gradeline.cli.commands` lists the commands.

This module imports nothing that takes time: from the first millisecond Ctrl-C ends the program with one line.
"""

from __future__ import annotations

import signal
import sys

EXIT_INTERRUPTED = 130
_EXIT_USAGE = 2
_NO_WINDOWS = (
    "gradeline: the command line needs Linux or macOS; on Windows run it in WSL (wsl --install), where all of it works."
    " Grading from Python works here: from gradeline.graders import grade\n"
)


def main() -> None:
    """Entry point of the ``gradeline`` command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where the caller ignores it (nohup)
        # asyncio replaces Python's own handler by one that only cancels a task; code that blocks would not end
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from gradeline.cli.streams import guard_standard_streams

        guard_standard_streams()
        code = _run_once()
    except KeyboardInterrupt as interrupt:
        code = report_interrupt(*interrupt.args)
    # while the interpreter ends, an exception has no one to catch it
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    if sys.platform == "win32":
        sys.stderr.write(_NO_WINDOWS)
        return _EXIT_USAGE
    from gradeline.cli.commands import run_command

    return run_command(arguments)


def report_interrupt(*advice: object) -> int:
    """Report in one line that Ctrl-C ended the command, and what to do next; gives the exit code for it."""
    echoed = "\n" if sys.stderr.isatty() else ""  # the terminal shows ^C
    sys.stderr.write(f"{echoed}{'; '.join(('interrupted', *map(str, advice)))}\n")
    return EXIT_INTERRUPTED


def _run_once() -> int:
    from gradeline.cli.garbage import look_later

    look_later()
    return run(sys.argv[1:])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
