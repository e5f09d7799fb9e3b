"""An agent process of the real binary is the user's own Codex, at work in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.connection import initialize_params
from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.core.turn import Sandbox, Turn
from tests.real.codex_home import KEY_NAME, CodexHome
from tests.real.driver import Codex, codex
from tests.real.items import assistant, user
from tests.real.model_scenarios import items_of, text_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.outside_sink import OutsideSink
from tests.real.release import codex_path

INITIALIZE = initialize_params("codex-proxy-test", "1")


def params(home: CodexHome, sandbox: Sandbox = "read-only") -> dict[str, Any]:
    return thread_params(Turn(model="", history=(), workdir=str(home.workdir), sandbox=sandbox))


def messages(call: Request) -> list[tuple[str, str]]:
    return [(item["role"], text_of(item)) for item in items_of(call.body) if item["type"] == "message"]


def shell_output(child: Codex) -> str:
    """What the shell commands of all turns so far printed."""
    items = (one.params["item"] for one in child.messages if one.method == "item/completed")
    return "".join(item["aggregatedOutput"] for item in items if item["type"] == "commandExecution")


async def test_the_users_instructions_reach_the_model_and_the_shell_is_offered(
    codex_home: CodexHome, model_server: ModelServer, outside_sink: OutsideSink
) -> None:
    (codex_home.path / "AGENTS.md").write_text("PLANTED in the home")
    (codex_home.workdir / "AGENTS.md").write_text("PLANTED in the folder")
    codex_home.add_config('developer_instructions = "PLANTED for the developer role"')
    environment = codex_home.environment(outside_sink.environment)
    async with codex(
        codex_home.agent_argv(), environment, str(codex_home.workdir), initialize=INITIALIZE
    ) as child:
        await child.run_turn(await child.start_thread(params(codex_home)), [user("[[model:text]]")])
    [call] = model_server.calls
    said = str(messages(call))
    for planted in ("PLANTED in the home", "PLANTED in the folder", "PLANTED for the developer role"):
        assert planted in said
    assert {"exec_command", "shell_command", "shell"} & tools_of(call.body).keys()
    assert outside_sink.attempts == []


@pytest.mark.exhaustive
async def test_without_our_switches_the_sink_would_see_connections_to_other_hosts(
    codex_home: CodexHome, model_server: ModelServer, outside_sink: OutsideSink
) -> None:
    argv = (str(codex_path()), "app-server")
    environment = codex_home.environment(outside_sink.environment)
    async with codex(argv, environment, str(codex_home.workdir), initialize=INITIALIZE) as child:
        await child.run_turn(await child.start_thread(params(codex_home)), [user("[[model:text]]")])
        assert (await outside_sink.attempt()).startswith("CONNECT ")


@pytest.mark.exhaustive
async def test_injected_history_comes_after_the_context_and_an_empty_input_adds_nothing(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    """The whole history can be injected: its last message as turn input makes no difference upstream."""
    (codex_home.workdir / "AGENTS.md").write_text("PLANTED in the folder")
    last = "[[model:text say=Yes.]] three"
    history = [user("one"), assistant("two")]
    environment = codex_home.environment()
    async with codex(
        codex_home.agent_argv(), environment, str(codex_home.workdir), initialize=INITIALIZE
    ) as child:
        thread = await child.start_thread(params(codex_home))
        injected = await child.run_turn(thread, [*history, user(last)])
        thread = await child.start_thread(params(codex_home))
        given = await child.run_turn(thread, history, input=[{"type": "text", "text": last}])
    assert injected["status"] == given["status"] == "completed"
    first, second = (messages(call) for call in model_server.calls)
    assert first == second
    *told, (role, context), one, two, three = first
    assert {role for role, _ in told} == {"developer"}  # one message or, since 0.162, two
    assert [role, one[0], two[0], three[0]] == ["user", "user", "assistant", "user"]
    assert "PLANTED in the folder" in context
    assert "<environment_context>" in context
    assert [one[1], two[1], three[1]] == ["one", "two", last]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("sandbox", "written"), [("read-only", False), ("workspace-write", True), ("danger-full-access", True)]
)
async def test_the_shell_runs_in_the_sandbox_that_was_chosen(
    codex_home: CodexHome, model_server: ModelServer, sandbox: Sandbox, written: bool
) -> None:
    environment = codex_home.environment()
    async with codex(
        codex_home.agent_argv(), environment, str(codex_home.workdir), initialize=INITIALIZE
    ) as child:
        thread = await child.start_thread(params(codex_home, sandbox))
        turn = await child.run_turn(thread, [user('[[model:shell cmd="echo hi; touch made"]]')])
        assert turn["status"] == "completed"
    assert (codex_home.workdir / "made").exists() is written
    output = items_of(model_server.calls[1].body)[-1]["output"]
    assert "hi\n" in output
    assert ("Read-only file system" in output) is not written


@pytest.mark.exhaustive
async def test_a_command_that_the_sandbox_stopped_shows_in_the_raw_items_too(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    """A command that merely failed has its item; one that the sandbox stopped has none as a rule, but on a busy machine
    it may. The raw calls include those of the agent's own tools."""
    environment = codex_home.environment()
    async with codex(
        codex_home.agent_argv(), environment, str(codex_home.workdir), initialize=INITIALIZE
    ) as child:
        shown = []
        for command in ("touch made", "exit 3"):
            since = len(child.messages)
            prompt = f'[[model:shell cmd="{command}"]]'
            await child.run_turn(await child.start_thread(params(codex_home)), [user(prompt)])
            new = [one for one in child.messages[since:] if "item" in one.params]
            shown.append([(one.method, one.params["item"]["type"]) for one in new])
    for methods in shown:
        assert ("rawResponseItem/completed", "function_call") in methods
        assert ("rawResponseItem/completed", "function_call_output") in methods
    assert ("item/completed", "commandExecution") in shown[1]


@pytest.mark.exhaustive
async def test_a_command_of_the_agent_does_not_see_the_providers_key(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    prompt = f'[[model:shell cmd="echo key: ${{{KEY_NAME}:-none}}"]]'
    for argv, seen in (
        (codex_home.agent_argv(), "key: none\n"),
        ((str(codex_path()), "app-server"), f"key: {codex_home.environment()[KEY_NAME]}\n"),
    ):
        environment = codex_home.environment()
        async with codex(argv, environment, str(codex_home.workdir), initialize=INITIALIZE) as child:
            await child.run_turn(await child.start_thread(params(codex_home)), [user(prompt)])
            assert shell_output(child) == seen


@pytest.mark.exhaustive
async def test_the_state_files_go_where_the_sqlite_variable_says(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    """What Codex still writes to the home: skills/, shell_snapshots/, installation_id and a marker file."""
    state = tmp_path / "state"
    state.mkdir()
    environment = codex_home.environment({"CODEX_SQLITE_HOME": str(state)})
    async with codex(
        codex_home.agent_argv(), environment, str(codex_home.workdir), initialize=INITIALIZE
    ) as child:
        await child.run_turn(await child.start_thread(params(codex_home)), [user("[[model:text]]")])
    assert [path.name for path in codex_home.path.rglob("*.sqlite*")] == []
    assert [path.name for path in state.glob("state*.sqlite")] != []
    assert not (codex_home.path / "sessions").exists()
