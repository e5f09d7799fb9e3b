"""The logs: structlog to stderr, by default never a prompt, an answer or a key. Of an exception only type and place are
logged. Texts of others, such as messages of libraries, are in the field `said`, which is removed unless `log_content`
is on. Unprintable characters are escaped. A line that cannot be written is dropped and counted, so that a full disk or
a reader that has ended or does not read cannot stop the server.
"""

from __future__ import annotations

import io
import logging
import os
import re
import select
import sys
import threading
import warnings
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, TextIO

import structlog

from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.shown_text import escape, escape_json

log = structlog.get_logger(__name__)

LogEvent = MutableMapping[str, Any]
_BARE: Final = re.compile(r"""[!#-&(-<>-~]*""")
"""Matches ASCII that is written as it is: printable, without blanks, quotes and `=`."""
_QUOTED: Final = re.compile(r"""[ \t=\r\n"']""")
"""Matches what makes a text be quoted."""
_NUMBERS: Final = (int, float, bool, type(None))


def configure(
    level: str, format: str, *, content: bool = False, worker: int = 0, for_good: bool = False
) -> None:
    """Sets up the logs. `level`: the lowest that is logged. `format`: `console` or `json`. `content`: whether the
    field `said` is kept. `worker`: the number of this process, or 0. `for_good`: whether this process never sets them
    up again, so that each logger is made once and not for every line.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        partial(_add_facts, content=content, worker=worker, stream=sys.stderr),
    ]
    if format == "json":
        renderers: list[Any] = [structlog.processors.JSONRenderer(), lambda *given: escape_json(given[2])]
    else:
        # Escaped before it is rendered: afterwards the renderer's own colours could not be told apart.
        coloured = [_escape_values, structlog.dev.ConsoleRenderer(colors=True)]
        renderers = coloured if sys.stderr.isatty() else [plain_line]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=for_good,
    )


def _add_facts(
    _logger: Any, _method: str, event: LogEvent, *, content: bool, worker: int, stream: TextIO
) -> LogEvent:
    """Replaces an exception by its type and place, drops `said` without `content` (with it, adds the exception's
    message), and adds the worker's number and the lines that the stream has lost.
    """
    given = event.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else given
    if error is True:
        error = sys.exception()
    if isinstance(error, BaseException):
        event.update(trace_of(error))
        if content:
            event["said"] = "\n".join(filter(None, (event.get("said"), str(error))))
    if not content:
        event.pop("said", None)
    if worker:
        event.setdefault("worker", worker)
    if isinstance(stream, LogStream) and stream.lost:
        event["lost_lines"] = stream.lost
    return event


class _PlainText:
    """A text whose `repr`, which the console renderer writes, is the text itself."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _escape_values(_logger: Any, _method: str, event: LogEvent) -> LogEvent:
    for name, value in event.items():
        if name == "event":
            event[name] = escape(str(value))
        elif not isinstance(value, _NUMBERS) and not (isinstance(value, str) and value.isprintable()):
            event[name] = _PlainText(escape(repr(value)))
    return event


def plain_line(_logger: Any, _method: str, event: LogEvent) -> str:
    """Renders an event as structlog's `ConsoleRenderer` without colours does, and escapes its values."""
    name = escape(str(event.pop("event")))
    parts = [f"{event.pop('timestamp')} [{event.pop('level'):<9}] {name:<30}"]
    if "logger" in event:
        parts.append(f"[{_plain_value(event.pop('logger'))}]")
    for name in sorted(event):
        value = event[name]
        is_bare = _BARE.fullmatch(value) if type(value) is str else type(value) in _NUMBERS
        parts.append(f"{name}={value if is_bare else _plain_value(value)}")  # most values are bare
    return " ".join(parts).rstrip(" ")


def _plain_value(value: object) -> str:
    if isinstance(value, str) and value.isprintable() and _QUOTED.search(value) is None:
        return value
    return escape(repr(value))


# --- what others say ------------------------------------------------------------------------------


def capture_other_logs() -> None:
    """Logs, in this server's form, messages of libraries, warnings, and exceptions that are ignored or end a
    thread.
    """
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    warnings.showwarning = _log_warning
    # Of a destructor or callback, which can raise nothing.
    sys.unraisablehook = lambda failed: log.error("ignored_exception", exc_info=failed.exc_value)
    threading.excepthook = lambda failed: log.error("thread_exception", exc_info=failed.exc_value)


class _Libraries(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        # The template of a message with arguments is fixed text; anything else may be foreign.
        what = str(record.msg) if record.args else ""
        log.log(
            record.levelno,
            "library",
            logger=record.name,
            source=f"{record.pathname}:{record.lineno}",
            what=what,
            exc_info=record.exc_info,
            said=record.getMessage(),
        )


def _log_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    log.warning(
        "python_warning", category=category.__name__, source=f"{filename}:{lineno}", said=str(message)
    )


PATIENCE_SECONDS: Final = 0.1
"""Seconds that a line waits for a reader that is behind. After a line has waited in vain, the next ones do not wait
until the reader reads.
"""
PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes any."""


class LogStream(io.TextIOBase):
    """Writes to a descriptor; never raises, or waits for longer than `PATIENCE_SECONDS`."""

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """Texts lost since the last that was written."""
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._cut = False
        """Whether only the beginning of the last text was written."""

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if self._cut:
            data = b"\n" + data
        if self._write_all(data):
            self.lost = 0
        else:
            self.lost += 1
        return len(text)

    def _write_all(self, data: bytes) -> bool:
        for start in range(0, len(data), PIECE):
            if not self._poll.poll(0 if self.lost else PATIENCE_SECONDS * 1000):
                return False
            try:
                written = os.write(self._descriptor, data[start : start + PIECE])
            except OSError:
                return False  # the disk is full, or nobody reads any more
            self._cut = start + written < len(data)
            if written < min(PIECE, len(data) - start):
                return False
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)
