"""A run as a Parquet file, for whoever asks the service for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from gradeline.errors import ConfigError
from gradeline.model import Record, RunGrader
from gradeline.report.parquet import require_duckdb, write_parquet
from gradeline.service.failures import ApiError, Code
from gradeline.service.streams import Chunks

_CHUNK = 256 * 1024


def parquet_chunks(records: Iterable[Record], graders: Mapping[str, RunGrader], done: Callable[[], None]) -> Chunks:
    """The bytes of the file (`gradeline.report.parquet`).

    It is whole on disk before the first byte is given; ``done`` is called at the end, whatever that is.
    """
    with ExitStack() as opened:
        opened.callback(done)
        _require_duckdb()
        made = Path(opened.enter_context(TemporaryDirectory(prefix="gradeline-parquet-"))) / "results.parquet"
        write_parquet(made, records, graders)
        return Chunks(_read(made, opened.pop_all()))


def _require_duckdb() -> None:
    try:
        require_duckdb()
    except ConfigError:
        raise ApiError(
            Code.INVALID_INPUT,
            "Parameter 'format' is 'parquet', which this server cannot write: install DuckDB there with"
            " pip install 'gradeline[export]', or take another format",
        ) from None


def _read(path: Path, opened: ExitStack) -> Generator[bytes, None, None]:
    with opened, path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
