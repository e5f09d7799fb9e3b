"""Exceptions, warnings and libraries may quote anything: what is logged of them is what kind they are, and where."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from codex_proxy.core.own_errors import trace_of
from tests.waiting import PATIENCE

SCRIPT = """
import asyncio, gc, logging, sys, threading, warnings
import structlog
from codex_proxy.app.logs import capture_other_logs, configure

configure("debug", "json", content=sys.argv[1] == "content")
capture_other_logs()
log = structlog.get_logger()

def fail(*words):
    raise ValueError("planted-words")

class Sore:
    def __del__(self):
        fail()

async def main():
    loop = asyncio.get_running_loop()
    loop.call_soon(fail, "planted-argument")
    forgotten = loop.create_task(asyncio.to_thread(fail))
    await asyncio.wait([forgotten])
    del forgotten
    gc.collect()

asyncio.run(main())
logging.getLogger("aiohttp.server").error("Error handling request from %s", "planted-address")
logging.getLogger("some.library").warning(f"cannot parse {'planted-words'!r}")
try:
    fail()
except ValueError:
    log.exception("turn_internal_error")
    logging.getLogger("mcp").exception("planted-words")
log.warning("agent_start_failed", reason="ours", said="planted-words")
Sore()
gc.collect()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
warnings.warn("planted-words", UserWarning, stacklevel=1)
"""


def lines_of(content: str) -> tuple[str, list[dict[str, Any]]]:
    """All that the script wrote, and its lines."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, content],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, [json.loads(line) for line in done.stderr.splitlines()]


def test_an_exception_anywhere_is_logged_without_its_text() -> None:
    written, lines = lines_of("no content")
    assert "planted" not in written
    events = [line["event"] for line in lines]
    assert events.count("library") == 5
    assert {*events} == {
        *(
            "library",
            "turn_internal_error",
            "agent_start_failed",
            "ignored_exception",
            "thread_exception",
            "python_warning",
        )
    }
    told = {line.get("logger", line["event"]): line for line in lines}
    assert told["aiohttp.server"]["what"] == "Error handling request from %s"
    assert told["some.library"]["source"].startswith("<string>:")
    assert told["python_warning"]["category"] == "UserWarning"
    for name in ("asyncio", "turn_internal_error", "mcp", "ignored_exception", "thread_exception"):
        assert told[name]["raised"] == "ValueError"
        assert any(place.endswith(" fail") for place in told[name]["at"])


def test_the_words_are_there_where_the_operator_wants_them() -> None:
    _, lines = lines_of("content")
    without = [line["event"] for line in lines if "planted" not in line.get("said", "")]
    assert without == []


def raised_error(*, from_: Exception | None = None, text: str = "planted") -> Exception:
    try:
        raise ValueError(text) from from_
    except ValueError as error:
        return error


def test_an_exception_is_reported_with_what_it_came_of() -> None:
    told = trace_of(raised_error(from_=KeyError("planted")))
    assert told["caused_by"] == ["KeyError"]
    assert "planted" not in repr(told)


def test_an_error_of_the_system_is_reported_with_its_symbol() -> None:
    told = trace_of(raised_error(from_=OSError(errno.ENOSPC, "planted", "/planted")))
    assert told["caused_by"] == ["OSError ENOSPC"]
    assert "planted" not in repr(told)


def test_a_group_is_reported_with_what_it_holds() -> None:
    group = ExceptionGroup("planted", [raised_error(from_=OSError("planted")), TypeError("planted")])
    assert trace_of(group)["caused_by"] == ["ValueError", "TypeError", "OSError"]
    assert trace_of(group)["raised"] == "ExceptionGroup"


def test_a_long_row_of_causes_is_cut() -> None:
    error: Exception = KeyError()
    for _ in range(20):
        error = raised_error(from_=error)
    assert len(trace_of(error)["caused_by"]) == 5
