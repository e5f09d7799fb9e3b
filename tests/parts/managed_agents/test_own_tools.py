"""The toolset of a definition: its answer has the defaults filled in, and what the agent of the model cannot keep is
refused before anybody relies on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.items import ToolName
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.sessions.records import AGENT
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.driving import HEADERS, TOOLSET, ask
from tests.parts.sessions.approving import KEY

ALLOW, ASK = {"type": "always_allow"}, {"type": "always_ask"}
WITH_KEY = {**HEADERS, "x-api-key": KEY}
WHOLE: dict[str, Any] = {"sandbox": "danger-full-access", "api_key": KEY}


def agent(*configs: dict[str, Any], **default: Any) -> dict[str, Any]:
    tool = {**TOOLSET, "configs": [*configs]} | ({"default_config": default} if default else {})
    return {"model": "codex-5", "name": "a", "tools": [tool]}


async def stored_toolset(proxy: Proxy, id: str) -> Toolset | None:
    assert proxy.server.app is not None
    store = proxy.server.app[SESSIONS].store
    return (await store.get("default", AGENT, id)).settings.toolset


async def test_a_toolset_is_answered_with_the_defaults_and_with_what_was_named(tmp_path: Path) -> None:
    body = agent({"name": "read", "permission_policy": ALLOW}, {"name": "web_fetch", "enabled": False})
    body["tools"][0]["default_config"] = {"permission_policy": ASK}
    async with claude_proxy(tmp_path, **WHOLE) as proxy:
        made = (await ask(proxy, "POST", "/v1/agents", body, WITH_KEY)).body
        assert made["tools"] == [
            {
                **TOOLSET,
                "default_config": {"enabled": True, "permission_policy": ASK},
                "configs": [
                    {"name": "read", "type": "read", "enabled": True, "permission_policy": ALLOW},
                    {
                        "name": "web_fetch",
                        "type": "web_fetch",
                        "enabled": False,
                        "permission_policy": ASK,
                        "url_sources": None,
                    },
                ],
            }
        ]
        asked: tuple[ToolName, ...] = ("bash", "write", "edit", "glob", "grep", "web_search")
        assert await stored_toolset(proxy, made["id"]) == Toolset(("read",), asked)
        path = f"/v1/agents/{made['id']}"
        plain = (await ask(proxy, "POST", path, {"tools": [TOOLSET]}, WITH_KEY)).body
        assert plain["tools"][0]["default_config"] == {"enabled": True, "permission_policy": ALLOW}
        assert plain["tools"][0]["configs"] == []
        await ask(proxy, "POST", path, {"tools": None}, WITH_KEY)
        assert await stored_toolset(proxy, made["id"]) == Toolset()


async def test_a_tool_that_the_keys_sandbox_does_not_reach_is_refused(tmp_path: Path) -> None:
    async with claude_proxy(tmp_path, sandbox="read-only") as proxy:
        answer = await ask(proxy, "POST", "/v1/agents", agent())
        assert (answer.status, answer.body["error"]["message"]) == (
            400,
            "tools[0].default_config: bash of the agent claude-code needs the sandbox danger-full-access, and this key "
            "has read-only. Disable the tool, or have the operator allow more (--sandbox).",
        )
        reads = [{"name": name, "enabled": True} for name in ("read", "glob", "grep")]
        made = await ask(proxy, "POST", "/v1/agents", agent(*reads, enabled=False))
        assert made.status == 200
        answer = await ask(
            proxy, "POST", f"/v1/agents/{made.body['id']}", agent(*reads, {"name": "write"}, enabled=True)
        )
        assert answer.body["error"]["message"].startswith("tools[0].default_config: bash")
        found = (await ask(proxy, "GET", f"/v1/agents/{made.body['id']}")).body
        assert found == made.body


async def test_a_key_that_may_not_answer_is_told_so_before_it_is_asked(tmp_path: Path) -> None:
    body = agent({"name": "read", "enabled": True, "permission_policy": ASK}, enabled=False)
    async with claude_proxy(tmp_path) as proxy:
        answer = await ask(proxy, "POST", "/v1/agents", body)
        assert (answer.status, answer.body["error"]["type"]) == (403, "permission_error")
        assert "may_approve" in answer.body["error"]["message"]


async def test_tools_of_an_mcp_server_are_asked_about_unless_they_are_disabled_or_allowed(
    tmp_path: Path,
) -> None:
    body: dict[str, Any] = {
        "model": "codex-5",
        "name": "a",
        "mcp_servers": [{"type": "url", "name": "desk", "url": "https://example.com/mcp"}],
    }
    desk = {"type": "mcp_toolset", "mcp_server_name": "desk"}
    one = {"name": "one", "enabled": True, "permission_policy": ALLOW}
    async with fake_proxy(tmp_path) as proxy:
        answer = await ask(proxy, "POST", "/v1/agents", {**body, "tools": [desk]})
        assert (answer.status, "may_approve" in answer.text) == (403, True)
        allowed = [{**desk, "default_config": {"enabled": False}, "configs": [one]}]
        made = await ask(proxy, "POST", "/v1/agents", {**body, "tools": allowed})
        assert made.body["tools"] == [
            {**desk, "default_config": {"enabled": False, "permission_policy": ASK}, "configs": [one]}
        ]
    async with fake_proxy(tmp_path, api_key=KEY) as proxy:
        made = await ask(proxy, "POST", "/v1/agents", {**body, "tools": [desk]}, WITH_KEY)
        toolset = await stored_toolset(proxy, made.body["id"])
        assert toolset is not None
        assert toolset.asks_mcp("desk", "one")


@pytest.mark.parametrize("name", ["no-such-model", "other/codex-5"])
async def test_a_model_that_this_server_does_not_have_is_not_found(tmp_path: Path, name: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await ask(proxy, "POST", "/v1/agents", {"model": name, "name": "a"})
        assert (answer.status, answer.body["error"]["type"]) == (404, "not_found_error")
        assert name in answer.body["error"]["message"]
        made = (await ask(proxy, "POST", "/v1/agents", {"model": "codex-5", "name": "a"})).body
        assert (await ask(proxy, "POST", f"/v1/agents/{made['id']}", {"model": name})).status == 404
