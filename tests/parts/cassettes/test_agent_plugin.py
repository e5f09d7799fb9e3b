"""A turn of a plug-in's agent is recorded, and replayed without the plug-in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from codex_proxy.app.server import Server
from codex_proxy.parts.cassettes.check import check_folder, report
from codex_proxy.parts.cassettes.replay import Folder
from tests.parts.cassettes.talking import running_server

EXAMPLE: Final = Path(__file__).parents[3] / "examples" / "oneshot_agent"
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


async def test_a_turn_of_a_plugin_is_replayed_without_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)
    folder = tmp_path / "cassettes"
    environ = {"PATH": "/usr/bin:/bin"}
    async with running_server(tmp_path, environ, **PLUGIN, cassettes={"record": folder}) as server:
        assert "You wrote 1 word" in await ask(server, "v1/chat/completions")
    for name in [name for name in sys.modules if name.partition(".")[0] == "oneshot_agent"]:
        monkeypatch.delitem(sys.modules, name)
    assert "oneshot_agent" not in (folder / next(iter(folder.iterdir())).name).read_text("utf-8")
    async with running_server(tmp_path, {"PATH": ""}, cassettes={"replay": folder}) as server:
        for path in REQUESTS:
            assert "You wrote 1 word" in await ask(server, path)
    (result,) = await check_folder(Folder(folder))
    assert result.same, report([result])
    assert "oneshot_agent" not in sys.modules
