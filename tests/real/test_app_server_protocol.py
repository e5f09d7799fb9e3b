"""What the dialect relies on in the app-server's protocol, asked of the real binary."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from codex_proxy.agents.codex.program import version_from
from codex_proxy.agents.codex_app_server.connection import OPT_OUT_NOTIFICATIONS, initialize_params
from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.core.turn import Turn
from tests.real.codex_home import CodexHome
from tests.real.driver import Codex, RpcError, codex
from tests.real.items import user
from tests.real.model_server import ModelServer
from tests.real.release import ENDS_MODEL_CALLS, knows, needs, since
from tests.real.shared import living_on
from tests.waiting import PATIENCE

INITIALIZE = initialize_params("codex-proxy-test", "1")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def plain_home(codex_home: CodexHome, tmp_path: Path) -> CodexHome:
    return codex_home.shadow(tmp_path / "shadow")


@living_on()
async def child(plain_home: CodexHome, model_server: ModelServer) -> AsyncIterator[Codex]:
    argv = plain_home.plain_argv()
    async with codex(
        argv, plain_home.environment(), str(plain_home.workdir), initialize=INITIALIZE
    ) as running:
        yield running


def params(home: CodexHome, *tools: dict[str, Any]) -> dict[str, Any]:
    turn = Turn(model="", history=(), mode="model", workdir=str(home.workdir))
    return thread_params(turn) | {"dynamicTools": list(tools)}


@pytest.mark.exhaustive
async def test_the_version_is_in_the_version_command_and_in_the_user_agent(
    codex_binary: Path, plain_home: CodexHome
) -> None:
    environment = plain_home.environment()
    printed = subprocess.run(
        [codex_binary, "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        env=environment,
    )
    version = version_from(printed.stdout)
    assert version is not None
    async with codex(
        plain_home.plain_argv(), environment, str(plain_home.workdir), initialize=INITIALIZE
    ) as running:
        assert version_from(running.user_agent) == version


@pytest.mark.exhaustive
@pytest.mark.parametrize("identity", ["7.1", "a b/ü", 12])
async def test_a_request_id_is_echoed_as_it_was_sent(child: Codex, identity: Any) -> None:
    assert "account" in await child.request("account/read", {}, id=identity)


async def test_inject_and_turn_can_be_written_at_once_and_are_answered_in_order(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    thread = await child.start_thread(params(plain_home))
    injected, started = await child.batch(
        ("thread/inject_items", {"threadId": thread, "items": [user("[[model:text say=Yes.]]")]}),
        ("turn/start", {"threadId": thread, "input": []}),
        ids=["8.1", "8.2"],
    )
    assert injected == {}
    await child.until("turn/completed")
    assert child.text_of(started["turn"]["id"]) == "Yes."


@pytest.mark.exhaustive
async def test_a_refused_history_fails_the_inject_and_the_turn_still_starts(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    """So whoever writes both at once must interrupt the turn when the inject is refused."""
    thread = await child.start_thread(params(plain_home))
    with pytest.raises(RpcError, match="not a valid response item"):
        await child.start_turn(thread, [{"type": "message", "role": "user", "content": "no list"}])
    assert (await child.until("turn/completed")).params["turn"]["status"] == "completed"


@pytest.mark.exhaustive
async def test_silenced_notifications_never_come_and_the_others_still_do(
    plain_home: CodexHome, model_server: ModelServer
) -> None:
    loud = copy.deepcopy(INITIALIZE)
    loud["capabilities"]["optOutNotificationMethods"] = []
    seen = []
    for initialize in (loud, INITIALIZE):
        argv, environment = plain_home.plain_argv(), plain_home.environment()
        async with codex(argv, environment, str(plain_home.workdir), initialize=initialize) as running:
            await running.run_turn(await running.start_thread(params(plain_home)), [user("[[model:text]]")])
            seen.append(set(running.methods()))
    everything, ours = seen
    silenced = set(OPT_OUT_NOTIFICATIONS)
    assert {"thread/started", "thread/status/changed"} <= everything & silenced
    assert ours == everything - silenced


@pytest.mark.exhaustive
@since("0.163", "some notifications that are silenced came later")
async def test_a_name_we_silence_is_one_the_binary_has(codex_binary: Path, tmp_path: Path) -> None:
    subprocess.run(
        [codex_binary, "app-server", "generate-ts", "--out", tmp_path],
        check=True,
        capture_output=True,
        timeout=PATIENCE,
        env={"CODEX_HOME": str(tmp_path), "HOME": str(tmp_path)},
    )
    known = (tmp_path / "ServerNotification.ts").read_text()
    assert [name for name in OPT_OUT_NOTIFICATIONS if f'"{name}"' not in known] == []


@ENDS_MODEL_CALLS
async def test_an_interrupted_turn_closes_its_model_connection(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    """Mostly within 1 ms; Codex gives a task that is busy with a delta up to 100 ms before it cuts it."""
    thread = await child.start_thread(params(plain_home))
    turn = await child.start_turn(thread, [user("[[model:stall n=2]]")])
    await child.until("item/agentMessage/delta")
    assert await child.request("turn/interrupt", {"threadId": thread, "turnId": turn}) == {}
    assert (await child.until("turn/completed")).params["turn"]["status"] == "interrupted"
    assert await (await model_server.call(0)).ending() == "client_gone"


@pytest.mark.exhaustive
async def test_an_interrupt_before_the_response_headers_closes_the_connection_too(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    thread = await child.start_thread(params(plain_home))
    turn = await child.start_turn(thread, [user("[[model:hang]]")])
    call = await model_server.call(0)
    await child.request("turn/interrupt", {"threadId": thread, "turnId": turn})
    assert await call.ending() == "client_gone"


@pytest.mark.exhaustive
async def test_the_end_of_stdin_ends_a_running_turn_and_the_process(
    plain_home: CodexHome, model_server: ModelServer
) -> None:
    argv, environment = plain_home.plain_argv(), plain_home.environment()
    async with codex(argv, environment, str(plain_home.workdir), initialize=INITIALIZE) as running:
        await running.start_turn(
            await running.start_thread(params(plain_home)), [user("[[model:stall n=2]]")]
        )
        await running.until("item/agentMessage/delta")
    assert running.process.returncode == 0
    assert await model_server.calls[0].ending() == "client_gone"


@pytest.mark.exhaustive
@knows("thread_unload_delay_secs")
async def test_leaving_a_thread_unloads_it_but_does_not_stop_its_turn(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    thread = await child.start_thread(params(plain_home))
    await child.start_turn(thread, [user("[[model:stall n=2 gate=on]]")])
    await child.until("item/agentMessage/delta")
    assert await child.request("thread/unsubscribe", {"threadId": thread}) == {"status": "unsubscribed"}
    model_server.open_gate("on")
    assert await model_server.calls[0].ending() == "completed"
    await child.until("thread/closed", lambda seen: seen["threadId"] == thread)
    assert (await child.request("thread/loaded/list", {}))["data"] == []


@pytest.mark.exhaustive
@knows("thread_unload_delay_secs")
async def test_threads_that_were_left_cost_no_memory(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    """Without ``thread_unload_delay_secs=0`` a thread stays for 30 minutes, with its history."""
    process = psutil.Process(child.process.pid)
    filler = "x" * 500_000
    sizes = []
    for _ in range(3):
        for _ in range(10):
            seen = len(child.messages)
            thread = await child.start_thread(params(plain_home))
            await child.run_turn(thread, [user("[[model:text]] " + filler)])
            await child.request("thread/unsubscribe", {"threadId": thread})
            await child.until("thread/closed", since=seen)
        sizes.append(process.memory_info().rss)
    assert sizes[-1] - sizes[0] < 20 * len(filler)


@pytest.mark.exhaustive
async def test_a_fault_of_the_model_server_is_not_tried_again(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    for prompt in ("[[model:http status=500]]", "[[model:drop n=2]]", "[[model:http status=429]]"):
        before = len(model_server.calls)
        turn = await child.run_turn(await child.start_thread(params(plain_home)), [user(prompt)])
        assert turn["status"] == "failed"
        assert len(model_server.calls) == before + 1


@pytest.mark.exhaustive
@since("0.153", "the fault is told as `other`")
async def test_a_model_server_that_cannot_be_reached_fails_the_turn_at_once(
    plain_home: CodexHome, model_server: ModelServer
) -> None:
    """0.163 does so by itself once the retry counts are 0; 0.169 tries for ever but for our switch."""
    plain_home.config.write_text(plain_home.config.read_text().replace(str(model_server.port), "1"))
    argv, environment = plain_home.plain_argv(), plain_home.environment()
    async with codex(argv, environment, str(plain_home.workdir), initialize=INITIALIZE) as running:
        turn = await running.run_turn(await running.start_thread(params(plain_home)), [user("Hello.")])
    assert turn["status"] == "failed"
    assert "httpConnectionFailed" in turn["error"]["codexErrorInfo"]


@needs("parallel_calls")
async def test_calls_of_the_clients_tools_are_all_known_when_the_model_response_ends(
    child: Codex, plain_home: CodexHome, model_server: ModelServer
) -> None:
    """0.163 asks for one answer at a time, so the raw items are the only way to hear of parallel calls."""
    thread = await child.start_thread(params(plain_home, WEATHER))
    turn = await child.start_turn(thread, [user("[[model:tool n=3]]")])
    await child.until("rawResponse/completed", lambda seen: seen["turnId"] == turn)
    raw = [one.params for one in child.messages if one.method == "rawResponseItem/completed"]
    calls = [one["item"] for one in raw if one["turnId"] == turn and one["item"]["type"] == "function_call"]
    assert [call["call_id"] for call in calls] == ["call_0_0", "call_0_1", "call_0_2"]
    assert [call["arguments"] for call in calls] == [
        f'{{"city": "{city}"}}' for city in ("Paris", "Rome", "Oslo")
    ]
    await child.request("turn/interrupt", {"threadId": thread, "turnId": turn})
    await child.until("turn/completed")
    assert len(model_server.calls) == 1
