"""The logs: structlog to stderr, by default never a prompt, an answer or a key. Of an exception only type and place are
logged. Texts of others, such as messages of libraries, are in the field `said`, which is removed unless `log_content`
is on. Unprintable characters are escaped.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import warnings
from collections.abc import MutableMapping
from functools import partial
from typing import Any, Final, TextIO

import structlog

from codex_proxy.app.log_stream import LogStream
from codex_proxy.core.shown_text import escape, escape_json, trace_of

log = structlog.get_logger(__name__)

LogEvent = MutableMapping[str, Any]
_QUOTED: Final = re.compile(r"""[ \t=\r\n"']""")
"""Matches what makes a text be quoted."""


def configure(level: str, format: str, *, content: bool = False, worker: int = 0) -> None:
    """Sets up the logs. `level`: the lowest that is logged. `format`: `console` or `json`. `content`: whether the
    field `said` is kept. `worker`: the number of this process, or 0.
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
        console = structlog.dev.ConsoleRenderer(colors=True) if sys.stderr.isatty() else plain_line
        renderers = [_escape_values, console]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
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
        elif not isinstance(value, int | float | None) and not (
            isinstance(value, str) and value.isprintable()
        ):
            event[name] = _PlainText(escape(repr(value)))
    return event


def plain_line(_logger: Any, _method: str, event: LogEvent) -> str:
    """Renders an event as structlog's `ConsoleRenderer` without colours does, in half of the time."""
    parts = [f"{event.pop('timestamp')} [{event.pop('level'):<9}] {event.pop('event'):<30}"]
    if "logger" in event:
        parts.append(f"[{event.pop('logger')}]")
    for name in sorted(event):
        value = event[name]
        is_bare = isinstance(value, str) and _QUOTED.search(value) is None
        parts.append(f"{name}={value if is_bare else repr(value)}")
    return " ".join(parts).rstrip(" ")


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
