"""Tracebacks of user code and plugins, as records keep them: from the first frame that is theirs."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

from gradeline.model.text import clean_text

_MAX_CHARS = 20_000
_LIBRARY = Path(os.__file__).parent
_CALLERS = tuple(
    str(folder) + os.sep for folder in (Path(__file__).parents[1], _LIBRARY / "asyncio", _LIBRARY / "concurrent")
)
"""Where the frames above the user's own are: this package, and the event loop and threads that run functions."""


def is_callers(file: str) -> bool:
    """Whether the code of this file calls user code, and is not the user's."""
    return file.startswith(_CALLERS)


def users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the user's first frame on; as it is where it has none."""
    here = trace
    while here is not None and is_callers(here.tb_frame.f_code.co_filename):
        here = here.tb_next
    return here if here is not None else trace


def users_traceback(error: BaseException) -> str | None:
    """The text of an exception's traceback from the user's first frame on; None where it cannot be shown."""
    from traceback import format_exception  # 18 ms, only where something failed

    try:
        text = "".join(format_exception(type(error), error, users_frames(error.__traceback__)))
    except BaseException:  # it shows the exception's message, which is the user's code
        return None
    return clean_text(text[-_MAX_CHARS:]).text
