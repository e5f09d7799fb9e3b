"""An app-server for each turn, which `kept_threads = 0` asks for, through the whole server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import Fault
from tests.codex_schemas import NEWEST, TOO_OLD
from tests.commands.codexes import codex
from tests.http.serving import ENVIRONMENT, Proxy, fake_proxy, running_proxy, settings_of, user
from tests.process.children import have_ended
from tests.waiting import eventually
from tests.weather_tool import CHAT_WEATHER

OLD_NAME = "codex-exec is an old name, which now starts an app-server for each turn."


def pids(folder: Path) -> list[int]:
    """Every app-server that has begun, in the order of their starts."""
    file = folder / "pids"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


@asynccontextmanager
async def per_turn(folder: Path, **more: Any) -> AsyncIterator[Proxy]:
    environment = {"FAKE_CODEX_PID_FILE": str(folder / "pids")}
    settings = {"fake_dialect": "app-server", "kept_threads": 0} | more
    async with fake_proxy(folder, environment, **settings) as proxy:
        yield proxy
    await eventually(lambda: have_ended(pids(folder)))


@asynccontextmanager
async def codex_proxy(folder: Path, agent: str, *, schema: str = NEWEST, **more: Any) -> AsyncIterator[Proxy]:
    """A server whose Codex is the fake agent."""
    home = folder / "codex-home"
    home.mkdir(exist_ok=True)
    (home / "auth.json").write_text("{}")
    program = codex(folder, "9.0.0", schema=schema)
    settings = settings_of(folder, agent=agent, codex_bin=str(program), codex_home=home, **more)
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        yield proxy


async def test_no_process_serves_two_turns(tmp_path: Path) -> None:
    async with per_turn(tmp_path) as proxy:
        for _ in range(4):
            assert (await proxy.ask(user("[[fake:text]]"))).status == 200
        assert len(set(pids(tmp_path))) >= 4
        await eventually(lambda: proxy.server.agent.processes().busy == 0)
        assert all(each.turns_served == 0 for each in proxy.server.agent.each_process())
        counts = proxy.server.agent.processes()
        assert counts.restarts == 0
        assert counts.idle <= 1, "one waits for the next turn"


async def test_a_server_that_has_kept_threads_has_one_process_for_all_turns(tmp_path: Path) -> None:
    async with per_turn(tmp_path, kept_threads=16) as proxy:
        for _ in range(3):
            assert (await proxy.ask(user("[[fake:text]]"))).status == 200
        assert len(pids(tmp_path)) == 1


async def test_the_outputs_of_a_client_s_calls_go_to_another_process(tmp_path: Path) -> None:
    call = "[[fake:tool_call name=get_weather args='{\"city\": \"Paris\"}' say='Seen: {outputs}']]"
    async with per_turn(tmp_path) as proxy:
        asked = user(call, tools=[CHAT_WEATHER])
        first = (await proxy.ask(asked)).body["choices"][0]["message"]
        [tool_call] = first["tool_calls"]
        output = {"role": "tool", "tool_call_id": tool_call["id"], "content": "sunny"}
        answer = await proxy.ask(asked | {"messages": [*asked["messages"], first, output]})
        assert "sunny" in answer.body["choices"][0]["message"]["content"]
        await eventually(lambda: proxy.server.agent.processes().busy == 0)
        assert all(each.turns_served == 0 for each in proxy.server.agent.each_process())
        assert len(set(pids(tmp_path))) >= 2
        assert len(proxy.server.runs.services.idle_sessions) == 0


async def test_a_client_that_leaves_ends_its_process(tmp_path: Path) -> None:
    async with per_turn(tmp_path) as proxy:
        body = user("[[fake:text say='Hello there.' misbehave=hang behind=Hello]]", stream=True)
        url = f"{proxy.url}/v1/chat/completions"
        async with proxy.session.post(url, json=body):
            await eventually(lambda: proxy.server.agent.processes().busy == 1)
            [running, *_] = [pid for pid in pids(tmp_path) if not have_ended([pid])]
        await eventually(lambda: have_ended([running]))


@pytest.mark.parametrize("misbehave", ["crash", "eof_without_end", "torn"])
async def test_a_process_that_ends_before_its_turn_is_an_error_and_no_restart(
    misbehave: str, tmp_path: Path
) -> None:
    async with per_turn(tmp_path) as proxy:
        for _ in range(3):
            answer = await proxy.ask(user(f"[[fake:text misbehave={misbehave}]]"))
            assert (answer.status, answer.error["code"]) == (500, "agent_crashed")
        assert (await proxy.ask(user("[[fake:text]]"))).status == 200
        assert (await proxy.send("GET", "/readyz")).status == 200


# --- the old name codex-exec ------------------------------------------------------------------------


async def test_codex_exec_is_an_app_server_for_each_turn_and_the_start_says_what_to_write(
    tmp_path: Path,
) -> None:
    with structlog.testing.capture_logs() as lines:
        async with codex_proxy(tmp_path, "codex-exec") as proxy:
            answer = await proxy.ask(user("[[fake:text]]"))
            assert answer.headers["x-codex-agent"] == "codex-app-server"
            assert (await proxy.ask(user("[[fake:text]]", tools=[CHAT_WEATHER]))).status == 200
            shown = banner(proxy.server)
            health = (await proxy.send("GET", "/healthz")).body["warning"]
            assert proxy.server.agent.processes().idle <= 1
    [logged] = [each for each in lines if each["event"] == "agent_limited"]
    for said in (shown, health, logged["reason"]):
        assert f"{OLD_NAME} Write --agent codex-app-server and PROXY_KEPT_THREADS=0" in said


async def test_a_table_with_codex_exec_is_told_its_own_settings(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"old": {"agent": "codex-exec"}, "codex-exec": {}, "fake": {}}
    async with codex_proxy(tmp_path, "old", agents=tables) as proxy:
        answers = [await proxy.ask(user("[[fake:text]]", model=name)) for name in ("old", "codex-exec")]
        assert [answer.headers["x-codex-agent"] for answer in answers] == ["old", "codex-exec"]
        warning = (await proxy.send("GET", "/healthz")).body["warning"]
    for name in ("old", "codex-exec"):
        assert f'Write `agent = "codex-app-server"` and `kept_threads = 0` in [agents.{name}].' in warning


async def test_what_is_to_be_written_in_a_table_does_the_same_without_a_word(tmp_path: Path) -> None:
    tables: dict[str, Any] = {"one": {"agent": "codex-app-server", "kept_threads": 0}, "fake": {}}
    async with codex_proxy(tmp_path, "one", agents=tables) as proxy:
        for _ in range(3):
            assert (await proxy.ask(user("[[fake:text]]", model="one"))).status == 200
        await eventually(lambda: proxy.server.agent.processes().busy == 0)
        assert len(proxy.server.runs.services.idle_sessions) == 0
        assert "old name" not in (await proxy.send("GET", "/healthz")).text


async def test_doctor_says_what_to_write_in_place_of_codex_exec(tmp_path: Path) -> None:
    home = tmp_path / "codex-home"
    home.mkdir()
    program = codex(tmp_path, "9.0.0")
    flags = {
        "port": 0,
        "agent": "codex-exec",
        "workdir": tmp_path,
        "state_dir": tmp_path / "state",
        "codex_bin": str(program),
        "codex_home": home,
    }
    checks = {check.name: check for check in (await examine(flags, None, ENVIRONMENT)).checks}
    assert (checks["old name"].status, checks["old name"].message) == ("warning", OLD_NAME)
    assert "--agent codex-app-server" in (checks["old name"].advice or "")
    assert checks["protocol"].facts["agent"] == "codex-app-server"


@pytest.mark.parametrize("agent", ["auto", "codex-exec", "codex-app-server"])
async def test_a_codex_whose_app_server_lacks_something_stops_the_start(agent: str, tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"Codex 9\.0\.0 cannot be used with codex-app-server, which needs"):
        async with codex_proxy(tmp_path, agent, schema=TOO_OLD):
            pass
