"""A turn of a plug-in's agent is recorded, and replayed where the operator names the plug-in again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from click.testing import CliRunner

from codex_proxy.app.server import Server
from codex_proxy.cli import main
from codex_proxy.core.faults import UserError
from tests.cassettes.talking import running_server

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "oneshot_agent"
PLUGIN: Final = {"agent": "auto", "agent_plugin": "oneshot_agent.spec:SPEC"}
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "v1/chat/completions": {"messages": [{"role": "user", "content": "Hello?"}]},
    "v1/responses": {"input": "Hello?"},
    "v1/messages": {"messages": [{"role": "user", "content": "Hello?"}], "max_tokens": 99},
    "api/chat": {"messages": [{"role": "user", "content": "Hello?"}], "stream": False},
}


async def ask(server: Server, path: str) -> str:
    url = f"http://127.0.0.1:{server.port}/{path}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"model": "any", **REQUESTS[path]}) as reply,
    ):
        said = await reply.text()
        assert reply.status == 200, said
    return said


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["cassettes", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


async def test_a_turn_of_a_plugin_is_replayed_with_the_plugin_and_an_error_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    folder = tmp_path / "cassettes"
    environ = {"PATH": "/usr/bin:/bin"}
    async with running_server(tmp_path, environ, **PLUGIN, cassettes={"record": folder}) as server:
        assert "You wrote 1 word" in await ask(server, "v1/chat/completions")
    async with running_server(tmp_path, {"PATH": ""}, **PLUGIN, cassettes={"replay": folder}) as server:
        for path in REQUESTS:
            assert "You wrote 1 word" in await ask(server, path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "oneshot_agent"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"line 5: there is no dialect 'oneshot_agent.*--agent-plugin"):
        async with running_server(tmp_path, {"PATH": ""}, cassettes={"replay": folder}):
            pass
    assert "oneshot_agent" not in sys.modules


def test_the_commands_read_a_turn_of_a_plugin_with_the_plugin_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    file = tmp_path / "x.jsonl"
    lines = (
        '{"cassette":1,"agent":"oneshot"}',
        '{"request":"POST /v1/chat/completions","body":{"model":"any","messages":[{"role":"user","content":"Hi"}]}}',
        '{"turn":{"mode":"agent","model":"any"}}',
        '{"message":{"role":"user","text":"Hi"}}',
        '{"session":"oneshot_agent.dialect:OneShotTurn"}',
        '{"ms":1,"begin":{}}',
        '{"ms":2,"from_text":"Hello."}',
        '{"ms":3,"ended":{"code":0,"signal":null,"stderr_tail":""}}',
        '{"answer":200,"body":{}}',
        '{"end":9}',
    )
    file.write_text("\n".join(lines) + "\n")
    named = ("--agent-plugin", PLUGIN["agent_plugin"])
    status, said = run(*named, "show", str(tmp_path / "x"))
    assert (status, "Hello." in said) == (0, True), said
    assert run(*named, "update", str(tmp_path))[0] == 0
    assert run(*named, "check", str(tmp_path)) == (0, "1 cassettes: as recorded.\n")
    for command, given in (("show", "x"), ("to-scenario", "x"), ("check", "."), ("update", ".")):
        status, said = run(command, str(tmp_path / given))
        assert (status, "x.jsonl, line 5: there is no dialect" in said) == (1, True), said
