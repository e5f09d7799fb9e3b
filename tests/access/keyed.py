"""A proxy whose keys stand in a file, and what a client with one of them sends."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import tomli_w

from codex_proxy.app.server import Server
from codex_proxy.core.keys import digest_of
from codex_proxy.http.endpoints import ENDPOINTS
from tests.http.serving import Answer, Proxy, fake_proxy


def key_of(name: str) -> str:
    """The key that has this name in every file of these tests."""
    return f"cpx_{name}"


def key_header(name: str) -> dict[str, str]:
    """The header of a client with the key of this name."""
    return {"Authorization": f"Bearer {key_of(name)}"}


def file_in(folder: Path) -> Path:
    return folder / "state" / "keys.toml"


def write_keys(folder: Path, /, **tables: Mapping[str, Any]) -> None:
    """Puts keys with these limits into the file of the server in `folder`, in place of what was there."""
    text = tomli_w.dumps(
        {"keys": {name: {"sha256": digest_of(key_of(name)), **table} for name, table in tables.items()}}
    )
    write_text(folder, text)


def write_text(folder: Path, text: str) -> None:
    file = file_in(folder)
    file.parent.mkdir(exist_ok=True)
    beside = file.with_suffix(".new")
    beside.write_text(text)
    os.replace(beside, file)


@asynccontextmanager
async def keyed_proxy(
    folder: Path,
    keys: Mapping[str, Mapping[str, Any]],
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[Proxy]:
    """A proxy with these keys, whose agent takes any model."""
    write_keys(folder, **keys)
    environment = {"FAKE_CODEX_MODELS": "any", **(environment or {})}
    async with fake_proxy(folder, environment, **more) as proxy:
        yield proxy


def look_now(server: Server) -> None:
    """Lets the second pass after which the server looks at its file again."""
    server.keyring._looked -= 10


def refusal_of(answer: Answer) -> tuple[int, str, str | None]:
    """What is told of a refusal."""
    return answer.status, answer.error["code"], answer.error["param"]


async def ids_of_agents(
    proxy: Proxy, headers: Mapping[str, str] = {}, *, folder: Path | None = None
) -> dict[str, str]:
    """The ids of an agent, of a session and of its turn; empty without the part that has them. With a folder, and the
    fake app-server as the agent, the session has an environment and a subagent, which has a turn; else their ids are of
    nothing.
    """
    beta = next((each.beta for each in ENDPOINTS if each.beta), "")
    if not beta:
        return dict.fromkeys(("agent", "session", "environment", "turn", "subagent", "subagent's turn"), "")
    given = {**headers, "OpenAI-Beta": beta}
    settings = {"model": "codex-5", "multi_agent": {"enabled": folder is not None}}
    agent = (await proxy.send("POST", "/v1/agents", settings, headers=given)).body["id"]
    environment = {"type": "self_hosted", "workspace_directory": str(folder)} if folder else {"type": "none"}
    input = "[[fake:subagent]]" if folder else "Hello."
    body = {"environment": environment, "agent_id": agent, "input": input, "stream": True}
    created = (await proxy.send("POST", "/v1/agents/sessions", body, headers=given)).frames[0]["session"]
    path = f"/v1/agents/sessions/{created['id']}"
    [turn] = (await proxy.send("GET", f"{path}/turns", headers=given)).body["data"]
    found = {"agent": agent, "session": created["id"], "turn": turn["id"]}
    if folder is None:
        return found | {
            "environment": "env_none",
            "subagent": "subagent_none",
            "subagent's turn": "turn_none",
        }
    [subagent] = (await proxy.send("GET", f"{path}/subagents", headers=given)).body["data"]
    of_subagent = await proxy.send("GET", f"{path}/subagents/{subagent['id']}/turns", headers=given)
    return found | {
        "environment": created["environment"]["id"],
        "subagent": subagent["id"],
        "subagent's turn": of_subagent.body["data"][0]["id"],
    }


async def id_of_environment(proxy: Proxy, headers: Mapping[str, str]) -> str:
    """The id of an environment of Anthropic's API that is made; empty without the part that keeps them."""
    if not any(each.path == "/environments" for each in ENDPOINTS):
        return ""
    answer = await proxy.send("POST", "/v1/environments", {"name": "Mine"}, headers=headers)
    return str(answer.body["id"])


async def id_of_file(proxy: Proxy, headers: Mapping[str, str]) -> str:
    """The id of a file that is uploaded; empty without the part that keeps them."""
    if not any(each.path == "/files" for each in ENDPOINTS):
        return ""
    form = aiohttp.FormData({"purpose": "user_data"})
    form.add_field("file", b"Mine.", filename="a.txt")
    async with proxy.session.post(f"{proxy.url}/v1/files", data=form, headers=headers) as reply:
        return str((await reply.json())["id"])


def filled(path: str, ids: Mapping[str, str], **more: str) -> str:
    """A path of sessions, and of what is beside them, with the `ids` of `ids_of_agents`."""
    turn = ids["subagent's turn" if "{subagent_id}" in path else "turn"]
    thread = f"sthr_{ids['session'].partition('_')[2]}"
    none = {"resource_id": "sesrsc_none", "request_id": "mcpr_none", "artifact_id": "artifact_none"}
    return path.format(subagent_id=ids["subagent"], turn_id=turn, thread_id=thread, **none, **more)
