"""The logs: structlog to stderr, one event per line, by default never a prompt, an answer or a key.

Of an exception only type and place are logged. Text that is not this server's own is in the field `said`, which is
removed unless `log_content` is on; so are messages of libraries, which may quote anything. Unprintable characters are
escaped, because the log is read in a terminal.
"""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from codex_proxy.core.shown_text import escaped, escaped_json, trace_of

log = structlog.get_logger(__name__)

LogEvent = MutableMapping[str, Any]


def configure(level: str, format: str, *, content: bool = False, worker: int = 0) -> None:
    """Configures structlog for this process. `level` is the name of the lowest level that is logged; `format`:
    `console` for people, `json` for programs. `content`: also logs texts that are not this server's own, which
    include prompts and answers. `worker` is the number of this process in each line; 0: it is the only one.
    """
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        _with_traces(content=content),
    ]
    if worker:
        shared.append(_with_worker(worker))
    if not content:
        shared.append(_without_words)
    if format == "json":
        renderers: list[Any] = [structlog.processors.JSONRenderer(), _escape_json]
    else:
        # Escaped before it is rendered: afterwards the renderer's own colours could not be told apart.
        renderers = [_escape_values, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def _with_traces(*, content: bool) -> Callable[[Any, str, LogEvent], LogEvent]:
    """Returns a structlog processor that replaces the exception of an event by its type and place; with `content`,
    also adds its message.
    """

    def processor(_logger: Any, _method: str, event: LogEvent) -> LogEvent:
        given = event.pop("exc_info", None)
        error = given[1] if isinstance(given, tuple) else given
        if error is True:
            error = sys.exception()
        if isinstance(error, BaseException):
            event.update(trace_of(error))
            if content:
                event["said"] = "\n".join(filter(None, (event.get("said"), str(error))))
        return event

    return processor


def _with_worker(number: int) -> Callable[[Any, str, LogEvent], LogEvent]:
    def processor(_logger: Any, _method: str, event: LogEvent) -> LogEvent:
        event.setdefault("worker", number)
        return event

    return processor


def _without_words(_logger: Any, _method: str, event: LogEvent) -> LogEvent:
    event.pop("said", None)
    return event


class _Rendered:
    """A value whose `repr` is a given text, so that the console renderer writes exactly this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _escape_values(_logger: Any, _method: str, event: LogEvent) -> LogEvent:
    """Escapes the unprintable characters in the values of an event. Numbers, None and printable texts stay as they
    are.
    """
    for name, value in event.items():
        if name == "event":
            event[name] = escaped(str(value))
        elif not isinstance(value, int | float | None) and not (
            isinstance(value, str) and value.isprintable()
        ):
            event[name] = _Rendered(escaped(repr(value)))
    return event


def _escape_json(_logger: Any, _method: str, line: str) -> str:
    return escaped_json(line)


# --- what others say ------------------------------------------------------------------------------


def take_over() -> None:
    """Installs handlers for the log messages of libraries, for warnings, and for exceptions that end a thread or
    are ignored by the interpreter, so that they are logged by the same rules as this server's own events.
    """
    logging.basicConfig(handlers=[_Libraries()], level=logging.WARNING, force=True)
    warnings.showwarning = _log_warning
    sys.unraisablehook = _not_raisable
    threading.excepthook = _thread_broke


class _Libraries(logging.Handler):
    """Receives the log records of libraries, such as asyncio and aiohttp."""

    def emit(self, record: logging.LogRecord) -> None:
        """Logs a library's message. The template of a message with arguments is fixed text, so it may be logged;
        the arguments, and a message without any, may contain anything and are put into `said`.
        """
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
    log.warning("warned", category=category.__name__, source=f"{filename}:{lineno}", said=str(message))


def _not_raisable(unraisable: Any) -> None:
    """Logs an exception (`unraisable`: the argument of `sys.unraisablehook`) that the interpreter could not raise
    because it happened in a destructor or callback.
    """
    log.error("not_raisable", exc_info=unraisable.exc_value)


def _thread_broke(failed: Any) -> None:
    log.error("thread_broke", exc_info=failed.exc_value)
