"""Plants an exception in one function of this server while it answers a request."""

from __future__ import annotations

import dis
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import aiohttp

import codex_proxy
from tests.faults.test_upstreams import ScriptedScene, serve_agent

PACKAGE: Final = str(Path(codex_proxy.__file__).parent)
TESTS: Final = str(Path(__file__).parent.parent)
RESUME: Final = dis.opmap["RESUME"]
GIVE_BACK: Final = (
    "leave",
    "_leave",
    "free_slot",
    "give_back",
    "release",
    "_release",
    "_on_released",
    "RunServices.spawn",
    "_close",
    "release_all",
    "end",
    "on_task_done",
    "deliver",
    "_work",
    "_begin_session",
    "guarded",
    "guarded_task",
    "OneRun.close",
    "LogReader.close",
    "ResponseReader.close",
    "RunningResponse.cancel",
    "Child.kill",
    "ProcessPool._start",
    "PooledProcess._turn_ended",
    "close_channel",
    "AgentSession.__init__",
)
"""Those that give something back, or take it over, or answer whoever waits. Nobody does it in their place."""
CONNECTION: Final = (
    "add_headers",
    "error_api_of",
    "is_ollama_path",
    "_short",
    "_uncancel_if_stopping",
    "limit_stall",
)
"""What belongs to no answer, but to its connection: its head, and its line in the log."""


CALLS: Final = ("CALL", "CALL_FUNCTION_EX")
"""The instructions that call something."""


class PlantedError(Exception):
    """The fault."""


class Call(NamedTuple):
    """A function and its caller: the nearest function of the package above it, if there is one. What a caller does when
    a function breaks is its own, so that each pair is a place for a fault."""

    function: CodeType
    caller: CodeType | None


def is_part(call: Call, parts: tuple[str, ...]) -> bool:
    """Whether the function lies in these parts of the package, and something is left to end the answer without it."""
    where = call.function.co_filename.removeprefix(PACKAGE)
    outside = where == "/http/server.py" or _is_one_of(call.function, (*GIVE_BACK, *CONNECTION))
    return where.startswith(parts) and not outside and not _is_whole_work(call.caller)


def _is_one_of(function: CodeType, names: tuple[str, ...]) -> bool:
    return not {function.co_name, function.co_qualname}.isdisjoint(names)


def _is_whole_work(caller: CodeType | None) -> bool:
    """Whether the caller gives something back by this call alone: then nobody does it in the place of either."""
    if caller is None or not _is_one_of(caller, GIVE_BACK):
        return False
    return sum(each.opname in CALLS for each in dis.get_instructions(caller)) == 1


@contextmanager
def at_each_call(found: Callable[[Call], None]) -> Iterator[Callable[[], None]]:
    """Calls `found` when a function of this server begins, once the yielded function has been called. What `found`
    raises, the function raises, and then no further one."""

    def profile(frame: FrameType, what: str, _: Any) -> None:
        code = frame.f_code
        if (
            what == "call"
            and code.co_filename.startswith(PACKAGE)
            and _begins(frame)
            and not _is_called_by_test(frame)
        ):
            found(Call(code, _caller(frame)))

    before = sys.getprofile()
    try:
        yield lambda: sys.setprofile(profile)
    finally:
        sys.setprofile(before)


def _begins(frame: FrameType) -> bool:
    """Whether a called function begins. Coroutines and generators are also called where they go on, which the argument
    of `RESUME` tells apart, and where an exception is thrown into them, which is another instruction."""
    instruction, argument = frame.f_code.co_code[frame.f_lasti : frame.f_lasti + 2]
    return instruction == RESUME and argument & 3 == 0


def _caller(frame: FrameType) -> CodeType | None:
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
        caller = caller.f_back
    return None if caller is None else caller.f_code


def _is_called_by_test(frame: FrameType) -> bool:
    """Whether a test calls the function, to look at the server."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.startswith(PACKAGE):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(TESTS)


def breaking(planted: Call) -> Callable[[Call], None]:
    """What `at_each_call` needs to break this function where this caller calls it."""

    def fail_in_function(call: Call) -> None:
        if call == planted:
            raise PlantedError

    return fail_in_function


def once(there: ScriptedScene, begin: Callable[[], None]) -> Callable[[], None]:
    """Calls `begin` and lets the upstream go on, the first time that it is called."""

    def go() -> None:
        if not there.go.is_set():
            begin()
            there.go.set()

    return go


@asynccontextmanager
async def one_at_a_time(agent: str, folder: Path) -> AsyncIterator[ScriptedScene]:
    """A server before a scripted upstream, for a client whose connections end with their answers."""
    connector = aiohttp.TCPConnector(force_close=True)
    async with serve_agent(agent, folder) as there, aiohttp.ClientSession(connector=connector) as session:
        there.proxy = replace(there.proxy, session=session)
        yield there
