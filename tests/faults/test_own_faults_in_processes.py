"""This server's own faults: an exception in any function between a request and the process that serves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerAgent
from tests.faults.planting import Call, at_each_call, breaking, is_part
from tests.faults.scene import Mode, request_of
from tests.http.serving import Proxy, fake_proxy, until
from tests.waiting import PATIENCE

QUESTION = request_of(Mode("chat", stream=False), "[[fake:text say='Here you are.']]")


async def answer(proxy: Proxy, found: Callable[[Call], None]) -> tuple[int, str]:
    """The status and text of an answer, during which `found` is called as `at_each_call` does."""
    path, body = QUESTION
    connector = aiohttp.TCPConnector(force_close=True)
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        with at_each_call(found) as begin:
            begin()
            async with session.post(proxy.url + path, json=body) as reply:
                return reply.status, await reply.text()


# A function that breaks before it awaits the coroutine it was given leaves that unawaited.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "parts",
    [
        ("/agents/sessions/shared_process.py",),
        pytest.param(("/agents/", "/runs/scheduler.py"), marks=pytest.mark.exhaustive, id="all"),
    ],
)
async def test_an_exception_before_or_behind_the_pipe_of_a_child_ends_the_turn_and_holds_no_process(
    parts: tuple[str, ...], tmp_path: Path
) -> None:
    """In each call of a function of these parts of the package, one after the other; no time limit passes."""
    async with fake_proxy(tmp_path, fake_dialect="app-server", kept_threads=0) as proxy:
        agent = proxy.server.agent
        assert isinstance(agent, AppServerAgent)
        called: dict[Call, None] = {}
        for found in (lambda _: None, called.setdefault):
            await answer(proxy, found)
        broken = 0
        for call in called:
            if not is_part(call, parts):
                continue
            assert (await answer(proxy, lambda _: None))[0] == 200  # on a process that has started
            try:
                status, text = await answer(proxy, breaking(call))
                broken += status == 500
                assert status in (500, 503) or "Here you are." in text
                await proxy.settled()
                await until(lambda: not any(process.turns_running for process in agent.pool.processes))
            except BaseException as error:
                error.add_note(f"broken: {call}")
                raise
        assert broken
        await until(lambda: agent.trouble() is None)
        assert (await answer(proxy, lambda _: None))[0] == 200
