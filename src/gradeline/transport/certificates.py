"""The machine's certificates, read by the first TLS connection instead of at import.

Importing aiohttp makes two TLS contexts, and each reads every certificate of the machine: some 40 ms, a sixth of a
short run's time, which an agent that is called by plain http never needs.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

_READ = "set_default_verify_paths"
_reading = Lock()


class _WaitingContext(ssl.SSLContext):
    """A context that reads the certificates when it is first used or looked into."""

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return _ready(self).wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return _ready(self).wrap_socket(*arguments, **options)

    def cert_store_stats(self) -> dict[str, int]:
        return _ready(self).cert_store_stats()

    def get_ca_certs(self, *arguments: Any) -> Any:
        return _ready(self).get_ca_certs(*arguments)


def _ready(context: ssl.SSLContext) -> ssl.SSLContext:
    """The context with its certificates, from now on one like any other."""
    with _reading:
        waiting = isinstance(context, _WaitingContext)
        if waiting:
            context.set_default_verify_paths()
            context.__class__ = ssl.SSLContext
    return context


@contextmanager
def read_when_needed() -> Iterator[None]:
    """Contexts that this thread makes inside the block read the machine's certificates when they are first used."""
    if _READ in vars(ssl.SSLContext):  # somebody has put another class or another way in its place
        yield
        return
    here = get_ident()

    def put_off(context: ssl.SSLContext) -> None:
        if get_ident() == here and type(context) is ssl.SSLContext:
            context.__class__ = _WaitingContext
        else:
            super(ssl.SSLContext, context).set_default_verify_paths()

    setattr(ssl.SSLContext, _READ, put_off)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, _READ)  # what the class inherits shows again


with read_when_needed():
    import aiohttp  # noqa: F401
