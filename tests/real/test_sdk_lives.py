"""Clients that leave, processes that die, many at once: each turn for itself, and nothing is left of it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import Any

import openai
import psutil
import pytest
from openai import AsyncStream
from openai.types.chat import ChatCompletionChunk

from codex_proxy.agents.codex_app_server.agent import AppServerProcess
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Mode
from codex_proxy.process.warden import SPAWNER_NAME, WARDEN_NAME
from tests.real.codex_home import CodexHome
from tests.real.model_server import ModelServer
from tests.real.outside_sink import OutsideSink
from tests.real.proxy import Proxy, chat_request, has_ended, proxy
from tests.real.release import codex_path
from tests.real.shared import Proxies
from tests.waiting import PATIENCE, eventually, poll

BOTH_MODES = pytest.mark.parametrize("system", [None, "Be brief."], ids=["agent", "plain model"])


async def open_stream(proxy: Proxy, prompt: str, **more: Any) -> AsyncStream[ChatCompletionChunk]:
    """A stream that has begun: its first text has arrived."""
    stream: AsyncStream[ChatCompletionChunk]
    stream = await proxy.client.chat.completions.create(stream=True, **chat_request(prompt, **more))
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            return stream
    raise AssertionError("the stream ended without text")


async def rest_of(stream: AsyncStream[ChatCompletionChunk]) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def answer(proxy: Proxy, prompt: str, **more: Any) -> str | None:
    completion = await proxy.client.chat.completions.create(**chat_request(prompt, **more))
    content: str | None = completion.choices[0].message.content
    return content


def agent_of(process: AppServerProcess) -> psutil.Process:
    """The agent's own process, the one below the warden."""
    assert process.pid is not None
    [agent] = psutil.Process(process.pid).children()
    return agent


MODES: tuple[Mode, ...] = ("agent", "model")


@pytest.mark.exhaustive
@BOTH_MODES
async def test_a_client_that_leaves_mid_stream_drops_the_model_connection(
    proxy: Proxy, model_server: ModelServer, system: str | None
) -> None:
    stream = await open_stream(proxy, "[[model:stall n=3]]", system=system)
    [call] = model_server.calls
    assert not call.ended.done()
    await stream.close()
    assert await call.ending() == "client_gone"
    await eventually(lambda: proxy.idle)
    processes = proxy.processes
    assert await answer(proxy, "[[model:text say=Hi.]]", system=system) == "Hi."
    assert proxy.processes == processes, "the same process serves on"


@BOTH_MODES
async def test_a_client_that_leaves_before_the_first_word_drops_the_model_connection(
    proxy: Proxy, model_server: ModelServer, system: str | None
) -> None:
    for stream in (False, True):
        request = proxy.client.chat.completions.create(
            stream=stream, **chat_request("[[model:hang]]", system=system)
        )
        asking = asyncio.create_task(request)
        call = await model_server.call(int(stream))
        asking.cancel()
        assert await call.ending() == "client_gone"
        await eventually(lambda: proxy.idle)
    assert not any(process.unhealthy for process in proxy.processes)


@pytest.mark.exhaustive
async def test_a_client_that_leaves_while_its_process_starts_leaves_no_trace(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    async with proxy(codex_home) as running:
        pool = running.pool
        first = asyncio.create_task(answer(running, "[[model:text say=never]]", system="Be brief."))
        await eventually(lambda: running.server.runs.running == 1)
        assert pool.processes_of("model") == []
        first.cancel()
        await eventually(lambda: running.idle)
        assert await answer(running, "[[model:text say=Hi.]]", system="Be brief.") == "Hi."
        assert len(pool.processes_of("model")) == 1
    assert len(model_server.calls) == 1


@pytest.mark.exhaustive
async def test_a_thread_is_unloaded_when_its_turn_is_over(own_proxies: Proxies) -> None:
    """What the agent still knows: it lists the threads that it has loaded."""
    proxy = await own_proxies.of()
    stream = await open_stream(proxy, "[[model:stall n=1]]")
    [process] = proxy.processes
    assert len(await loaded_threads(process)) == 1
    await stream.close()
    await eventually(lambda: proxy.idle)
    await answer(proxy, "[[model:text]]")
    await eventually(lambda: proxy.idle)
    assert len(await loaded_threads(process)) == 1  # the one that is kept for the conversation to go on
    proxy.server.runs.services.idle_sessions.close()

    async def none_is_loaded() -> bool:
        return not await loaded_threads(process)

    await poll(none_is_loaded)


async def loaded_threads(process: AppServerProcess) -> list[str]:
    """Asks the agent on a lane of its own."""
    from codex_proxy.agents.codex_app_server.wire import request

    class Reader:
        def __init__(self) -> None:
            self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_messages(self, messages: Any, size: int) -> None:
            self.answer.set_result(bytes(messages[0].result))

        def on_end(self, ended: Any) -> None:
            self.answer.set_exception(AssertionError("the agent ended"))

        def fail(self, failure: Any) -> None:
            self.answer.set_exception(AssertionError(failure))

        def on_long_line(self, fault: Any) -> None:
            self.fail(fault)

    transport, reader = process.open_channel(), Reader()
    transport.attach(reader)
    transport.send(request(f"{transport.channel}.2", "thread/loaded/list", {}))
    async with asyncio.timeout(PATIENCE):
        answered = await reader.answer
    await transport.release(finished=True)
    import json

    data: list[str] = json.loads(answered)["data"]
    return data


@pytest.mark.sampled(every=2)
@BOTH_MODES
async def test_a_killed_process_fails_its_own_turns_and_the_next_one_takes_over(
    codex_home: CodexHome, model_server: ModelServer, system: str | None
) -> None:
    async with proxy(codex_home) as running:
        other = "Be brief." if system is None else None
        bystander = await open_stream(running, "[[model:stall n=2 gate=go]]", system=other)
        hit = [await open_stream(running, f"[[model:stall n={n}]]", system=system) for n in (1, 2)]
        pool, mode = running.pool, MODES[system is not None]
        [process] = pool.processes_of(mode)
        assert process.turns_running == 2
        agent_of(process).send_signal(signal.SIGKILL)
        for stream in hit:
            with pytest.raises(openai.APIError) as caught:
                await rest_of(stream)
            assert (caught.value.type, caught.value.code) == ("server_error", "agent_crashed")
        assert await answer(running, "[[model:text say=Hi.]]", system=system) == "Hi."
        [successor] = pool.processes_of(mode)
        assert successor is not process
        assert pool.restarts == 1
        model_server.open_gate("go")
        assert (await rest_of(bystander)).endswith("and on.")
        await eventually(lambda: running.idle)


@pytest.mark.exhaustive
async def test_a_turn_that_waits_for_a_process_that_dies_in_its_start_gets_the_reason_or_another(
    codex_home: CodexHome,
) -> None:
    async with proxy(codex_home) as running:
        waiting = [
            asyncio.create_task(answer(running, "[[model:text say=Hi.]]", system="Be brief.")) for _ in "12"
        ]
        await eventually(lambda: running.server.runs.running == 2)
        own = {process.pid for process in running.processes}
        wardens = []
        for child in psutil.Process().children():
            with suppress(psutil.NoSuchProcess):  # one may have ended meanwhile
                if child.pid not in own and child.name().encode() in (WARDEN_NAME, SPAWNER_NAME):
                    child.kill()
                    wardens.append(child)
        await eventually(lambda: all(map(has_ended, wardens)))
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            assert outcome == "Hi." or (
                isinstance(outcome, openai.InternalServerError)
                and outcome.code in ("spawn_error", "agent_crashed")
            )
        assert await answer(running, "[[model:text say=Hi.]]", system="Be brief.") == "Hi."


@pytest.mark.exhaustive
async def test_twenty_streams_on_two_processes_keep_their_texts_apart(codex_home: CodexHome) -> None:
    async def one(index: int) -> None:
        system = "Be brief." if index % 2 else None
        stream = await running.client.chat.completions.create(
            stream=True, **chat_request(f"[[model:text n=60 word=w{index}_ delay=2]]", system=system)
        )
        assert await rest_of(stream) == "".join(f"w{index}_{word} " for word in range(60))

    async with proxy(codex_home, max_running_turns=20) as running:
        await asyncio.gather(*(one(index) for index in range(20)))
        await eventually(lambda: running.idle)
        assert len(running.processes) >= 2
        assert sum(process.turns_served for process in running.processes) >= 20


@pytest.mark.exhaustive
async def test_two_servers_share_a_state_folder_but_for_the_store(codex_home: CodexHome) -> None:
    """Started in the same moment, with nothing laid out yet."""

    async def serve(name: str) -> None:
        async with proxy(codex_home, store=str(codex_home.path.parent / name)) as running:
            for system in (None, "Be brief."):
                assert await answer(running, f"[[model:text say={name}]]", system=system) == name

    await asyncio.gather(serve("one"), serve("two"))


@pytest.mark.exhaustive
async def test_no_other_host_is_asked_for_anything(
    codex_home: CodexHome, outside_sink: OutsideSink, model_server: ModelServer
) -> None:
    """The sink sees a child that asks: `test_agent_process` shows one that is caught."""
    async with proxy(codex_home, outside_sink.environment) as running:
        for system in (None, "Be brief."):
            await answer(running, "[[model:text]]", system=system)
            await answer(running, "[[model:reasoning]]", system=system)
            with pytest.raises(openai.APIStatusError):
                await answer(running, "[[model:http status=401]]", system=system)
            stream = await open_stream(running, "[[model:stall n=1]]", system=system)
            await stream.close()
        await answer(running, '[[model:shell cmd="echo hi"]]')
        await eventually(lambda: running.idle)
    assert outside_sink.attempts == []
    assert {call.path for call in model_server.requests} == {"/v1/responses"}


@pytest.mark.exhaustive
async def test_a_missing_default_home_is_no_obstacle_but_nobody_is_signed_in(
    codex_home: CodexHome, model_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(codex_home.user))
    monkeypatch.delenv("CODEX_HOME", raising=False)
    from codex_proxy.app.server import make_server
    from codex_proxy.settings.fields import Settings
    from tests.real.proxy import client_of

    settings = Settings(
        agent="codex-app-server",
        codex_bin=str(codex_path()),
        workdir=codex_home.workdir,
        state_dir=codex_home.path.parent / "state",
        port=0,
    )
    environ = {name: value for name, value in codex_home.environment().items() if name != "CODEX_HOME"}
    server = await make_server(settings, environ)
    try:
        await server.start()
        async with client_of(f"http://127.0.0.1:{server.port}") as client:
            for system in (None, "Be brief."):
                request = chat_request("Hello", system=system) | {"model": "codex-5"}
                with pytest.raises(openai.AuthenticationError) as caught:
                    await client.chat.completions.create(**request)
                assert caught.value.code == "agent_not_authenticated"
    finally:
        await server.stop()
    assert (codex_home.user / ".codex").is_dir(), "Codex has made its home itself"


async def test_a_named_home_that_is_missing_is_refused(codex_home: CodexHome) -> None:
    with pytest.raises(Fault, match="--codex-home"):
        async with proxy(codex_home, codex_home=codex_home.path / "nowhere"):
            raise AssertionError("it started")
