"""A store that several processes work on: its database, and what is written beside the rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from gradeline.model import Storage
from gradeline.model.protocols import StoreWriter
from gradeline.store.database import Database, Transaction
from gradeline.store.rows import Row

Beside: TypeAlias = Callable[[Transaction, Sequence[Row]], None]
"""Called in the transaction of each batch with the rows that it stores. What it writes is committed with them, and
where it raises `StoreError` nothing of the batch is stored."""


@runtime_checkable
class SharedStorage(Storage, Protocol):
    """`Storage` in a database."""

    @property
    def database(self) -> Database: ...

    def delete_run(
        self,
        id: str,  # noqa: A002 - as the seed names it
        beside: Callable[[Transaction], object] | None = None,
    ) -> bool:
        """``beside`` is called in the transaction that hides the run, where there is one."""

    def writer(self, beside: Beside | None = None) -> StoreWriter: ...
