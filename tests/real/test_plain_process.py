"""A plain-model process of the real binary is nothing but the model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex.codex_setup import codex_confinement
from codex_proxy.agents.codex.plain_home import published_models
from codex_proxy.agents.codex.process_config import ProviderConfig
from codex_proxy.agents.codex_app_server.connection import initialize_params
from codex_proxy.agents.codex_app_server.thread_turns import thread_params
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.system import SystemClock
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command
from tests.pictures import PNG
from tests.real.codex_home import KEY, MODEL, CodexHome, bundled_catalog
from tests.real.driver import Codex, RpcError, codex
from tests.real.items import assistant, developer, user
from tests.real.model_scenarios import items_of, text_of, tools_of
from tests.real.model_server import ModelServer
from tests.real.outside_sink import OutsideSink
from tests.real.proxy import settings_of
from tests.real.release import PLAIN_MODEL, codex_path

INITIALIZE = initialize_params("codex-proxy-test", "1")
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "inputSchema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
LITE_MODELS = [
    model["slug"] for model in json.loads(bundled_catalog())["models"] if model.get("use_responses_lite")
]
"""None in releases before 0.144."""


@pytest.fixture
def planted_home(codex_home: CodexHome) -> CodexHome:
    """A home and a folder full of what must never reach the model of a plain turn."""
    (codex_home.path / "AGENTS.md").write_text("PLANTED in the home's AGENTS.md")
    (codex_home.workdir / "AGENTS.md").write_text("PLANTED in the folder's AGENTS.md")
    skill = codex_home.path / "skills" / "planted"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: planted\ndescription: PLANTED skill\n---\nPLANTED\n")
    codex_home.add_config('developer_instructions = "PLANTED developer instructions"')
    with codex_home.config.open("a") as config:
        config.write(
            '[mcp_servers.planted]\ncommand = "/bin/sh"\nargs = ["-c", "touch $HOME/mcp-was-started"]\n'
        )
    return codex_home


def plain_codex(home: CodexHome, argv: Sequence[str] = ()) -> AbstractAsyncContextManager[Codex]:
    """An app-server with this home, for plain-model turns unless another command is given."""
    given = argv or home.plain_argv()
    return codex(given, home.environment(), str(home.workdir), initialize=INITIALIZE)


def params(home: CodexHome, *tools: dict[str, Any], model: str | None = None) -> dict[str, Any]:
    turn = Turn(model=model or "", history=(), mode="model", workdir=str(home.workdir))
    return thread_params(turn) | {"dynamicTools": list(tools)}


@pytest.mark.exhaustive
async def test_in_the_users_own_home_the_planted_server_would_be_started(planted_home: CodexHome) -> None:
    """``required`` makes ``thread/start`` wait for the server, which ends at once."""
    argv = (*planted_home.plain_argv(), "-c", "mcp_servers.planted.required=true")
    async with plain_codex(planted_home, argv) as child:
        with pytest.raises(RpcError, match="planted"):
            await child.start_thread(params(planted_home))
    assert (planted_home.user / "mcp-was-started").exists()


@pytest.mark.sampled(every=3)
@PLAIN_MODEL
@pytest.mark.parametrize("model", [None, *LITE_MODELS[:1], "gpt-5.5"])
async def test_nothing_of_the_users_home_reaches_the_model_and_only_the_clients_tools_are_offered(
    planted_home: CodexHome,
    model_server: ModelServer,
    outside_sink: OutsideSink,
    tmp_path: Path,
    model: str | None,
) -> None:
    home = planted_home.shadow(tmp_path / "shadow")
    environment = home.environment(outside_sink.environment)
    history = [developer("Be brief."), user("Hello."), assistant("Hi."), user("[[model:text say=Yes.]]")]
    async with codex(home.plain_argv(), environment, str(home.workdir), initialize=INITIALIZE) as child:
        thread = await child.start_thread(params(home, WEATHER, model=model))
        turn = await child.run_turn(thread, history)
        assert child.text_of(turn["id"]) == "Yes."
    [call] = model_server.calls
    assert "PLANTED" not in json.dumps(call.body)
    assert list(tools_of(call.body)) == ["get_weather"]
    sent = [item for item in items_of(call.body) if item["type"] != "additional_tools"]
    assert [(item["role"], text_of(item)) for item in sent] == [
        (one["role"], text_of(one)) for one in history
    ]
    assert call.body["model"] == model or MODEL
    assert outside_sink.attempts == []
    assert not (home.user / "mcp-was-started").exists()


@PLAIN_MODEL
async def test_without_tools_of_the_client_no_tool_is_offered(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    home = codex_home.shadow(tmp_path / "shadow")
    async with plain_codex(home) as child:
        await child.run_turn(await child.start_thread(params(home)), [user("[[model:text]]")])
    assert tools_of(model_server.calls[0].body) == {}


@pytest.mark.exhaustive
async def test_a_custom_model_is_sent_no_effort_or_verbosity_that_nobody_asked_for(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    home = codex_home.shadow(tmp_path / "shadow")
    async with plain_codex(home) as child:
        await child.run_turn(await child.start_thread(params(home)), [user("[[model:text]]")])
        await child.run_turn(await child.start_thread(params(home)), [user("[[model:text]]")], effort="high")
    silent, asked = (call.body for call in model_server.calls)
    assert "effort" not in (silent.get("reasoning") or {})
    assert "text" not in silent
    assert asked["reasoning"]["effort"] == "high"


@pytest.mark.exhaustive
@pytest.mark.skipif(not LITE_MODELS, reason="it has no model with the lite form")
@pytest.mark.parametrize("lite", [True, False])
async def test_the_operator_chooses_the_form_in_which_tools_travel(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path, lite: bool
) -> None:
    home = codex_home.shadow(tmp_path / "shadow")
    argv = home.plain_argv(lite=lite)
    async with plain_codex(home, argv) as child:
        thread = await child.start_thread(params(home, WEATHER, model=LITE_MODELS[0]))
        await child.run_turn(thread, [user("[[model:text]]")])
    [call] = model_server.calls
    assert ("tools" in call.body) is not lite
    assert call.body["parallel_tool_calls"] is not lite


async def test_every_start_switch_is_one_the_binary_knows(codex_home: CodexHome, tmp_path: Path) -> None:
    home = codex_home.shadow(tmp_path / "shadow")
    argv = (*home.plain_argv(), "--strict-config")
    async with plain_codex(home, argv) as child:
        assert await child.start_thread(params(home))


async def test_a_misspelt_switch_would_end_the_process(codex_home: CodexHome) -> None:
    argv = (*codex_home.agent_argv(), "-c", "features.misspelt=false", "--strict-config")
    with pytest.raises(ConnectionError, match=r"features\.misspelt"):
        async with plain_codex(codex_home, argv):
            pass


async def test_the_key_of_the_provider_reaches_the_model_server(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    home = codex_home.shadow(tmp_path / "shadow")
    async with plain_codex(home) as child:
        assert (await child.request("account/read", {}))["requiresOpenaiAuth"] is False
        await child.run_turn(await child.start_thread(params(home)), [user("[[model:text]]")])
    headers = model_server.calls[0].headers
    assert (headers["authorization"], headers["originator"]) == (f"Bearer {KEY}", "codex-proxy-test")


@pytest.mark.exhaustive
async def test_a_sign_in_of_the_user_is_seen_in_the_shadow_home_and_renewed_through_the_link(
    codex_home: CodexHome, tmp_path: Path
) -> None:
    codex_home.config.write_text("")  # the built-in provider, which wants a sign-in
    home = codex_home.shadow(tmp_path / "shadow")
    argv = home.plain_argv()

    async with plain_codex(home, argv) as child:
        before = await child.request("account/read", {})
        assert (before["account"], before["requiresOpenaiAuth"]) == (None, True)

    own = (str(codex_path()), "app-server")
    async with codex(own, codex_home.environment(), str(home.workdir), initialize=INITIALIZE) as child:
        await child.request("account/login/start", {"type": "apiKey", "apiKey": "sk-first"})

    async with plain_codex(home, argv) as child:
        assert (await child.request("account/read", {}))["account"] == {"type": "apiKey"}
        await child.request("account/login/start", {"type": "apiKey", "apiKey": "sk-second"})
    assert (home.path / "auth.json").is_symlink()
    assert json.loads((codex_home.path / "auth.json").read_text())["OPENAI_API_KEY"] == "sk-second"


@pytest.mark.exhaustive
async def test_a_plain_process_makes_no_sessions_folder(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    """Its mere presence takes ``thread/start`` from 2.5 ms to 25 ms (medians, 0.163.0)."""
    home = codex_home.shadow(tmp_path / "shadow")
    async with plain_codex(home) as child:
        await child.run_turn(await child.start_thread(params(home)), [user("[[model:text]]")])
    assert not (home.path / "sessions").exists()


@PLAIN_MODEL
async def test_the_process_of_a_plain_turn_cannot_read_the_users_files(
    codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    """An input that names a picture by its path makes Codex itself read it. No client can send one; some other thing
    that Codex reads by a name may come with any release."""
    context = AgentContext(settings_of(codex_home), codex_home.environment(), SystemClock())
    confinement = await codex_confinement(context, ProviderConfig())
    if confinement.confinement is None:
        pytest.skip(confinement.warning)
    picture = codex_home.user / "picture.png"
    picture.write_bytes(PNG)
    named = [
        {"type": "text", "text": "[[model:text say=Yes.]]"},
        {"type": "localImage", "path": str(picture)},
    ]
    home = codex_home.shadow(tmp_path / "shadow")
    unconfined = Command(home.plain_argv(), home.environment(), str(home.workdir))
    for command in (unconfined, confinement.wrap(unconfined)):
        async with codex(command.argv, command.env, command.cwd, initialize=INITIALIZE) as child:
            turn = await child.run_turn(await child.start_thread(params(home)), input=named)
            assert turn["status"] == "completed"
    read, refused = (json.dumps(call.body) for call in model_server.calls)
    assert "data:image/png" in read
    assert "data:image" not in refused


def test_the_bundled_catalog_has_the_shape_we_know() -> None:
    models = published_models(bundled_catalog())
    assert any(not model.hidden for model in models)
    for model in models:
        assert model.context_window is not None
        assert 1000 < model.context_window < 10_000_000
        assert model.default_effort in model.efforts
        assert "text" in model.input_modalities
