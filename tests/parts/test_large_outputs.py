"""Outputs that an agent would give to its model only in part: where they are given, and what the model is told."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from codex_proxy.agents.dialect import Reply, Step, ToolReply
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.system import SystemClock
from codex_proxy.core.items import ImagePart, TextPart, Tool
from codex_proxy.parts.acp.acp_setup import launch_of
from codex_proxy.parts.acp.presets import CODEX_ACP, OPENCODE, PRESETS, AcpPreset
from codex_proxy.parts.acp.reported_calls import tool_entry
from codex_proxy.parts.claude_code.calls import tool_entry as claude_tool
from tests.http.serving import settings_of
from tests.runs.actors import TURN, WordDialect, WordTransport

TOOL = Tool("f", "", msgspec.Raw(b"{}"))


class Answering(WordDialect):
    """Keeps the answers that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[ToolReply] = []

    def answer(self, request_id: str, reply: Reply) -> Step:
        assert isinstance(reply, ToolReply)
        self.given.append(reply)
        return super().answer(request_id, reply)


@pytest.mark.parametrize(
    ("text", "whole"), [("x" * 100, True), ("x" * 101, False), ("\u00e9" * 50, True), ("\u00e9" * 51, False)]
)
def test_the_size_of_an_output_is_that_of_its_bytes(text: str, whole: bool) -> None:
    session = AgentSession(TURN, Answering(), WordTransport())
    assert session.takes_uncut((TextPart(text),)), "an agent without a limit"
    session.max_output = 100
    assert session.takes_uncut((ImagePart("data:," + "x" * 500), TextPart(text))) == whole


def test_the_output_of_a_tool_of_the_servers_own_is_replaced_by_one_that_says_why() -> None:
    dialect = Answering()
    session = AgentSession(TURN, dialect, WordTransport())
    session.max_output = 100
    session.answer("r", ToolReply((TextPart("x" * 101),)))
    session.answer("r", ToolReply((TextPart("x" * 100),)))
    refused, whole = dialect.given
    assert not refused.success
    assert "larger than 100 bytes" in refused.parts[0].text  # type: ignore[union-attr]
    assert whole == ToolReply((TextPart("x" * 100),))


def test_agents_are_configured_to_shorten_no_output() -> None:
    for listed in (tool_entry(TOOL), claude_tool(TOOL)):
        assert listed["_meta"]["anthropic/maxResultSizeChars"] == 500_000
    assert json.loads(CODEX_ACP.env["CODEX_CONFIG"])["tool_output_token_limit"] >= 1_000_000
    assert json.loads(OPENCODE.env["OPENCODE_CONFIG_CONTENT"])["tool_output"]["max_bytes"] >= 1_000_000


def test_an_unknown_program_gets_no_large_output_in_a_waiting_call() -> None:
    assert AcpPreset(name="x", title="x", argv=()).max_output == 10_000
    assert {name for name, preset in PRESETS.items() if preset.max_output} == {
        "qwen",
        "copilot",
        "claude-acp",
        "kimi",
    }


@pytest.mark.parametrize(("unconfined", "action"), [(False, "deny"), (True, "ask")])
async def test_what_opencode_may_never_do_it_is_not_offered(
    tmp_path: Path, unconfined: bool, action: str
) -> None:
    settings = settings_of(tmp_path, agent="opencode", acp={"unconfined": unconfined})
    launch = launch_of(OPENCODE, AgentContext(settings, {"PATH": "/bin"}, SystemClock()))
    permission = json.loads(launch.command.env["OPENCODE_CONFIG_CONTENT"])["permission"]
    assert set(permission.values()) == {action}
    assert {"bash", "edit", "webfetch"} <= set(permission)
