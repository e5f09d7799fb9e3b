"""The banner of a server that replays shows a request that its folder answers."""

from __future__ import annotations

import itertools
import shlex
import subprocess
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from codex_proxy.app.server import Server
from codex_proxy.commands.serve import banner
from tests.parts.cassettes.talking import running_server

ASKED: Final = [{"role": "user", "content": '[[fake:text]] What\'s new in "Oslo"?'}]
REQUESTS: Final[dict[str, dict[str, Any]]] = {
    "v1/chat/completions": {"messages": ASKED},
    "v1/responses": {"input": "[[fake:text]] It's new.", "stream": True},
    "v1/messages": {"messages": ASKED, "max_tokens": 99},
    "api/chat": {"messages": ASKED},
}


async def try_it(server: Server) -> tuple[int, str]:
    """Sends what the banner shows."""
    shown = banner(server).partition("Try it:\n")[2]
    program, *words = shlex.split(shown)
    assert program == "curl"
    url = next(word for word in words if word.startswith("http"))
    headers = dict(word.split(": ", 1) for before, word in itertools.pairwise(words) if before == "-H")
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=words[words.index("-d") + 1], headers=headers) as reply,
    ):
        return reply.status, await reply.text()


@pytest.mark.parametrize("path", REQUESTS)
async def test_the_request_in_the_banner_is_answered_by_the_folder(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        url, headers = f"http://127.0.0.1:{server.port}/{path}", {"x-codex-note": "It's kept"}
        async with session.post(url, json={"model": "codex-5", **REQUESTS[path]}, headers=headers) as reply:
            said = await reply.text()
            assert reply.status == 200, said
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        status, said = await try_it(server)
    assert status == 200, said
    assert "deterministic" in said


async def test_a_path_of_a_cassette_is_one_word_for_a_shell(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        body = {"model": "codex-5", **REQUESTS["v1/chat/completions"]}
        async with session.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
    [cassette] = folder.iterdir()
    made = tmp_path / "made"
    cassette.write_text(cassette.read_text().replace("/v1/chat/completions", f"/v1/x;touch${{IFS}}{made};#"))
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        shown = banner(server).partition("Try it:\n")[2]
    assert ";touch" in shown
    subprocess.run(["sh", "-c", shown.replace("curl", "true", 1)], check=True)
    assert not made.exists()


async def test_the_request_in_the_banner_of_any_other_server_stays(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"record": tmp_path / "cassettes", "replay": tmp_path / "cassettes"}
    async with running_server(tmp_path, cassettes=settings) as server:
        assert "Say hello." in banner(server)
        assert (await try_it(server))[0] == 200


async def test_a_request_that_is_too_long_for_the_banner_is_not_shown(tmp_path: Path) -> None:
    folder = tmp_path / "cassettes"
    async with (
        running_server(tmp_path, cassettes={"record": folder}) as server,
        aiohttp.ClientSession() as session,
    ):
        body = {"model": "codex-5", "messages": [{"role": "user", "content": "Hello. " * 1000}]}
        async with session.post(f"http://127.0.0.1:{server.port}/v1/chat/completions", json=body) as reply:
            assert reply.status == 200
    async with running_server(tmp_path, cassettes={"replay": folder}) as server:
        assert "codex-proxy cassettes show" in banner(server)
