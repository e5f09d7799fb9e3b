"""codex-proxy usage: what the running server tells, as tables and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands.codexes import CommandResult, command
from tests.commands.other_servers import other_server
from tests.http.serving import Proxy, fake_proxy, user

ANY_MODEL = {"FAKE_CODEX_MODELS": "any"}


async def usage(proxy: Proxy, home: Path, *arguments: str, **more: str) -> CommandResult:
    """`codex-proxy usage`, with the port in the settings."""
    return await command(home, "usage", *arguments, more={"PROXY_PORT": str(proxy.server.port)} | more)


async def test_usage_shows_days_models_and_the_account(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"api_key": "a-key", "store": "off", "fake_dialect": "app-server"}
    async with fake_proxy(tmp_path, ANY_MODEL, **settings) as proxy:
        key = {"Authorization": "Bearer a-key"}
        await proxy.ask(user("[[fake:text in=12345 out=67 limits=43]]", model="some-model"), headers=key)
        done = await usage(proxy, tmp_path, PROXY_API_KEY="a-key")
        assert (done.status, done.err) == (0, "")
        (row,) = [line.split() for line in done.out.splitlines() if "some-model" in line]
        assert row[1:5] == ["some-model", "1", "0", "12,345"]
        assert "kept in memory only, since" in done.out
        assert "codex of 5 h: 43 % used, until 21" in done.out
        refused = await usage(proxy, tmp_path)
        assert refused.status == 1
        assert "requires an API key" in refused.err


async def test_for_programs_it_is_the_servers_own_answer(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await usage(proxy, tmp_path, "--json", "--days", "3")
        empty = await usage(proxy, tmp_path)
    assert set(json.loads(done.out)) == {"usage", "limits"}
    assert len(json.loads(done.out)["usage"]["data"]) == 3
    assert "No turns in these days." in empty.out
    assert "has reported no limits" in " ".join(empty.out.split())


@pytest.mark.exhaustive
async def test_the_words_of_a_fault_send_a_terminal_nothing(tmp_path: Path) -> None:
    async with other_server(b'{"error": {"message": "No.\\u001b]0;owned\\u0007\\u202e"}}', 400) as url:
        done = await command(tmp_path, "usage", "--base-url", url)
        assert done.err.endswith(": No.\\x1b]0;owned\\x07\\u202e\n")


async def test_the_operator_sees_every_key_out_of_the_store(tmp_path: Path) -> None:
    store = {"PROXY_STATE_DIR": str(tmp_path / "state")}
    async with fake_proxy(tmp_path, ANY_MODEL) as proxy:
        await proxy.ask(user("[[fake:text in=1000 out=7]]", model="some-model"))
    async with fake_proxy(tmp_path, ANY_MODEL, api_key="a-key") as proxy:
        await proxy.ask(user("[[fake:text out=8]]", model="other"), headers={"Authorization": "Bearer a-key"})
        await proxy.send("GET", "/v1/usage", headers={"Authorization": "Bearer a-key"})  # writes what waits
        done = await command(tmp_path, "usage", "--all-keys", more=store)
        rows = await command(tmp_path, "usage", "--all-keys", "--json", more=store)
    assert (done.status, done.err) == (0, "")
    assert [line.split()[1:6] for line in done.out.splitlines()[1:]] == [
        ["default", "other", "1", "0", "100"],
        ["local", "some-model", "1", "0", "1,000"],
    ]
    assert [(row["key"], row["output_tokens"]) for row in json.loads(rows.out)] == [
        ("default", 8),
        ("local", 7),
    ]


async def test_without_a_store_there_is_nobody_elses_usage_to_read(tmp_path: Path) -> None:
    done = await command(tmp_path, "usage", "--all-keys", more={"PROXY_STORE": "off"})
    assert done.status == 1
    assert "PROXY_STORE=off" in done.err


async def test_without_a_server_usage_says_how_to_start_one(tmp_path: Path) -> None:
    done = await command(tmp_path, "usage", "--base-url", "http://127.0.0.1:9/v1")
    assert (done.status, done.out) == (1, "")
    assert "codex-proxy serve" in done.err
