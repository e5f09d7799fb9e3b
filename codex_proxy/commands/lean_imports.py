"""Imports libraries without what a server does not need, or needs only later. Called while no other thread imports."""

from __future__ import annotations

import ssl
import sys
from typing import Any


def import_structlog() -> None:
    """Imports structlog as if the packages were not installed that it would import for tracebacks and threads which a
    server has not. One that is imported already stays as it is.
    """
    hidden = [name for name in ("rich", "greenlet") if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # Python's way to say that there is none
    try:
        import structlog  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


class _Unread(ssl.SSLContext):
    """A context that reads the system's certificates before its first connection, and is then like any other."""

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        self._read()
        return self.wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        self._read()
        return self.wrap_socket(*arguments, **options)

    def _read(self) -> None:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.set_default_verify_paths()


def import_aiohttp() -> None:
    """Imports aiohttp, whose two contexts for TLS would read all certificates of the system: a sixth of a server's
    start. It needs them for addresses outside alone.
    """

    def read_later(self: ssl.SSLContext) -> None:
        self.__class__ = _Unread

    if "aiohttp" in sys.modules:
        return
    ssl.SSLContext.set_default_verify_paths = read_later  # type: ignore[method-assign]
    try:
        import aiohttp  # noqa: F401
    finally:
        del ssl.SSLContext.set_default_verify_paths  # the class below it has the real one
