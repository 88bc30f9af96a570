"""Loads the system's certificates with the first TLS connection instead of at import.

Importing aiohttp creates two TLS contexts, and each reads every certificate of the system: some 40 ms, a sixth of a
short run's time, and not needed for agents called by plain http.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, get_ident
from typing import Any

_READ = "set_default_verify_paths"
_reading = Lock()


class _LazyContext(ssl.SSLContext):
    """A context that reads the certificates when it is first used or inspected."""

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return _load(self).wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return _load(self).wrap_socket(*arguments, **options)

    def cert_store_stats(self) -> dict[str, int]:
        return _load(self).cert_store_stats()

    def get_ca_certs(self, *arguments: Any) -> Any:
        return _load(self).get_ca_certs(*arguments)


def _load(context: ssl.SSLContext) -> ssl.SSLContext:
    """Read the certificates and turn the context into a plain one."""
    with _reading:
        lazy = isinstance(context, _LazyContext)
        if lazy:
            context.set_default_verify_paths()
            context.__class__ = ssl.SSLContext
    return context


@contextmanager
def lazy_certificates() -> Iterator[None]:
    """Make TLS contexts that this thread creates inside the block read the system's certificates on first use."""
    if _READ in vars(ssl.SSLContext):  # already replaced by other code
        yield
        return
    here = get_ident()

    def defer(context: ssl.SSLContext) -> None:
        if get_ident() == here and type(context) is ssl.SSLContext:
            context.__class__ = _LazyContext
        else:
            super(ssl.SSLContext, context).set_default_verify_paths()

    setattr(ssl.SSLContext, _READ, defer)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, _READ)  # restores the inherited method


with lazy_certificates():
    import aiohttp  # noqa: F401
