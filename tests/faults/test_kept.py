"""A thread that is kept for a conversation, and whose process ends in the very moment of its use: nobody notices."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerAgent
from codex_proxy.process.warden import child_pids
from tests.http.serving import Proxy, fake_proxy, until, user

HISTORY = [
    {"role": "user", "content": "[[fake:text say=One.]]"},
    {"role": "assistant", "content": "One."},
    {"role": "user", "content": "[[fake:echo]]"},
]


def agent_process(proxy: Proxy) -> int:
    agent = proxy.server.agent
    assert isinstance(agent, AppServerAgent)
    [process] = agent.pool.processes
    assert process.pid is not None
    [pid] = child_pids(process.pid)
    return pid


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_goes_on_on_a_new_process_with_all_that_was_said(
    tmp_path: Path, stream: bool
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        assert (await proxy.ask(user(HISTORY[0]["content"]))).status == 200
        scheduler = proxy.server.runs
        assert len(scheduler.services.idle_sessions) == 1
        process = agent_process(proxy)
        os.kill(process, signal.SIGSTOP)
        body: dict[str, Any] = {"model": "codex-5", "messages": HISTORY, "stream": stream}
        asking = asyncio.create_task(proxy.ask(body))
        await until(lambda: scheduler.running == 1)
        assert len(scheduler.services.idle_sessions) == 0, "it goes on on the kept thread"
        os.kill(process, signal.SIGKILL)
        answer = await asking
        assert answer.status == 200, answer.text
        if stream:
            *chunks, done = answer.frames
            assert done == "[DONE]"
            text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        else:
            text = answer.body["choices"][0]["message"]["content"]
        assert "One." in json.dumps(json.loads(text)), "the new thread was told the whole history"
        assert agent_process(proxy) != process
        await proxy.settled()
        assert len(scheduler.services.idle_sessions) == 1


async def test_processes_that_keep_dying_make_the_server_unready_until_one_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server", kept_threads=1) as proxy:
        agent, loop, hours = proxy.server.agent, asyncio.get_running_loop(), 0
        assert isinstance(agent, AppServerAgent)
        monkeypatch.setattr(agent.pool, "now", lambda: loop.time() + 3600 * hours)

        async def recover() -> None:
            """Lets the delay of the next start pass, and waits for a process."""
            nonlocal hours
            hours += 1
            agent.pool.schedule_tick(0)
            await until(lambda: agent.trouble() is None)

        for _ in range(3):
            if agent.trouble() is not None:
                await recover()
            answer = await proxy.ask(user("[[fake:text misbehave=crash at=3]]"))
            assert answer.status in (500, 503)
        await until(lambda: agent.trouble() is not None)
        ready = await proxy.send("GET", "/readyz")
        assert ready.status == 503
        assert "keeps exiting" in ready.body["reason"]
        refused = await proxy.ask(user())
        assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
        assert int(refused.headers["Retry-After"]) >= 1
        await recover()
        assert (await proxy.ask(user())).status == 200
        assert (await proxy.send("GET", "/readyz")).status == 200
