"""This server's own faults: an exception in any function between the bytes of an upstream and the log of the turn."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import aiohttp
import pytest
from structlog.testing import capture_logs

import codex_proxy
from tests.faults.places import APIS, answer_at, assert_failed
from tests.faults.test_upstreams import HEAD, WIRES, Served, Wire, request_of, response, served
from tests.upstreams.cases import DONE, chunk, event

PACKAGE: Final = str(Path(codex_proxy.__file__).parent)
ENDS: Final = {
    "passed on": event(chunk({"content": " you"})) + event(chunk({}, "stop")) + DONE,
    "read": event(chunk({"content": " you"})) + event(chunk({}, "stop")) + DONE,
    "responses": event({"type": "response.output_text.delta", "item_id": "msg_1", "delta": " you"})
    + response("response.completed", "completed"),
}
"""What comes behind the first word."""
GOOD_ENDS: Final = {
    "chat": '"finish_reason":"stop"',
    "responses": "event: response.completed",
    "messages": "event: message_stop",
}
WAY: Final = ("/agents/", "/runs/run.py", "/runs/scheduler.py", "/tools/")
"""From the bytes of the upstream to the log of the turn."""
GIVE_BACK: Final = (
    "leave",
    "_leave",
    "_leave_connection",
    "free_slot",
    "give_back",
    "release_run",
    "release",
    "_release",
)
"""Where these break, nobody is left to give back what the turn held."""


class PlantedError(Exception):
    """The fault."""


@contextmanager
def at_each_call(found: Callable[[CodeType], None]) -> Iterator[Callable[[], None]]:
    """Calls `found` when a function of this server begins, once the yielded function has been called. What `found`
    raises, the function raises, and then no further one."""

    def profile(frame: FrameType, what: str, _: Any) -> None:
        code = frame.f_code  # of a coroutine, a call may be where it goes on
        if (
            what == "call"
            and code.co_filename.startswith(PACKAGE)
            and not code.co_flags & inspect.CO_COROUTINE
        ):
            found(code)

    before = sys.getprofile()
    try:
        yield lambda: sys.setprofile(profile)
    finally:
        sys.setprofile(before)


async def answer_with(
    there: Served, name: str, api: str, found: Callable[[CodeType], None]
) -> tuple[int, str]:
    """The status and text of an answer. `found` is called as `at_each_call` does behind the first word."""
    wire: Wire = WIRES[name]
    path, body = request_of(api, wire, stream=True)
    there.before, there.then = HEAD + wire.begin + wire.word, ENDS[name]
    there.go.clear()
    with at_each_call(found) as begin:

        def go() -> None:
            if not there.go.is_set():
                begin()
                there.go.set()

        return await answer_at(there.proxy, path, body, "behind a word", go)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # where what was to await it is broken
@pytest.mark.parametrize(
    ("name", "api", "parts"),
    [
        ("passed on", "chat", ("/runs/",)),
        *(
            pytest.param(name, api, WAY, marks=pytest.mark.exhaustive, id=f"{name}, {api}")
            for name in WIRES
            for api in APIS
        ),
    ],
)
async def test_an_exception_in_the_middle_of_a_stream_ends_it_at_once_as_failed(
    name: str, api: str, parts: tuple[str, ...], tmp_path: Path
) -> None:
    """In each function of these parts of the package, one after the other; no time limit passes."""
    connector = aiohttp.TCPConnector(force_close=True)
    with capture_logs() as logged:
        async with (
            served(WIRES[name].agent, tmp_path) as there,
            aiohttp.ClientSession(connector=connector) as session,
        ):
            there.proxy = replace(there.proxy, session=session)
            called: dict[CodeType, None] = {}
            status, _ = await answer_with(there, name, api, called.setdefault)
            assert status == 200
            broken = 0
            for function in called:
                where = function.co_filename.removeprefix(PACKAGE)
                if not where.startswith(parts) or function.co_name in GIVE_BACK:
                    continue

                def break_it(code: CodeType, function: CodeType = function) -> None:
                    if code is function:
                        raise PlantedError

                status, text = await answer_with(there, name, api, break_it)
                if GOOD_ENDS[api] in text:  # the exception came behind it
                    assert " you" in text
                else:
                    assert_failed(api, status, text)
                    broken += 1
            assert broken
            assert "turn_internal_error" in {line["event"] for line in logged}
            await there.proxy.settled()
            assert (await answer_with(there, name, api, lambda _: None))[0] == 200
