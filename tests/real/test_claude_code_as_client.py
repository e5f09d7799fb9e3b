"""The real Claude Code through the proxy on the real Codex: whole sessions, of which the model alone is scripted."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.http.exchange import stream_response
from codex_proxy.parts.clients.clients import CLAUDE_ENVIRONMENT
from codex_proxy.surfaces.messages.answer import PING
from tests.fuzz.requests import PIXEL
from tests.real.claude_code import claude_code
from tests.real.codex_home import CodexHome
from tests.real.model_plans import call, plan, say, think
from tests.real.model_scenarios import items_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy
from tests.real.proxy import proxy as running_proxy
from tests.real.shared import Proxies
from tests.waiting import eventually

pytestmark = pytest.mark.exhaustive
"""A session takes some seconds, and the program has to be there or to be installed."""

MCP_PROGRAM = Path(__file__).parents[1] / "mcp" / "program.py"
FILES = {"files": (sys.executable, str(MCP_PROGRAM), "stdio", "--only", "echo")}
SUB_AGENT = '[[model:tool name=Bash args="{\\"command\\":\\"echo sub\\"}" rounds=3 say=SubDone]]'
"""It stands in a plan, which is quoted with the other mark."""

SEARCH = """[[model:plan plan="[[{\\"search\\": \\"Rust\\"}, {\\"say\\": \\"Found.\\"}]]"]]"""


@pytest.fixture
def log_lines() -> Iterator[list[Any]]:
    """Every line that the proxy logs during the test."""
    with structlog.testing.capture_logs() as lines:
        yield lines


def posts(logged: list[Any]) -> list[dict[str, Any]]:
    """The requests for messages that have ended."""
    return [line for line in logged if line["event"] == "request" and line["path"] == "/v1/messages"]


def encrypted_reasoning(call: Request) -> list[str]:
    """The encrypted reasoning that a call of the model brings, in its order."""
    return [item["encrypted_content"] for item in items_of(call.body) if item["type"] == "reasoning"]


def continuations(calls: list[Request]) -> list[tuple[Request, Request]]:
    """Calls of one conversation, each with the next, where that is offered the same tools."""
    pairs = itertools.pairwise(calls)
    return [(one, next) for one, next in pairs if tools_of(one.body) == tools_of(next.body)]


def keeps_key(pair: tuple[Request, Request]) -> bool:
    """Whether the provider finds the first call's input in its cache for the second."""
    one, next = (items_of(each.body) for each in pair)
    same = pair[0].body["prompt_cache_key"] == pair[1].body["prompt_cache_key"]
    return bool(same and next[: len(one)] == one)


async def test_the_text_after_a_call_that_codex_answers_itself_is_the_result(
    tmp_path: Path, proxy: Proxy
) -> None:
    async with claude_code(tmp_path, proxy.url) as session:
        done = await session.ask(plan([call("nosuch")], [say("All done.")]))
    assert done["result"] == "All done."


async def test_a_session_with_every_kind_of_tool_has_no_failed_request_and_loses_no_reasoning(
    tmp_path: Path, proxy: Proxy, model_server: ModelServer, log_lines: list[Any]
) -> None:
    async with claude_code(tmp_path, proxy.url, servers=FILES) as session:
        text, picture = session.workdir / "a.txt", session.workdir / "pixel.png"
        text.write_text("alpha\n")
        picture.write_bytes(base64.b64decode(PIXEL.partition(",")[2]))
        done = await session.ask(
            plan(
                [think("1"), say("I will look."), call("Bash", command="ls", description="Lists")],
                [
                    think("2"),
                    call("Read", file_path=str(text)),
                    call("Bash", command="exit 3", description="Fails"),
                ],
                [think("3"), call("Read", file_path=str(picture))],
                [think("4"), call("ToolSearch", query="select:mcp__files__echo,WebSearch")],
                [think("5"), call("client_mcp__files__echo", text="through MCP")],
                [think("6"), call("WebSearch", query=SEARCH)],
                [think("7"), say("All done.")],
            )
            + " Go."
        )
    assert (done["subtype"], done["result"], done["is_error"]) == ("success", "All done.", False)
    assert {line["status"] for line in posts(log_lines)} == {200}
    assert "alpha" in str(session.results("Read")[0]["content"])
    [failed] = [each for each in session.results("Bash") if each.get("is_error")]
    assert "Exit code 3" in failed["content"]
    assert session.results("Read")[1]["content"][0]["type"] == "image"
    assert [block["tool_name"] for block in session.results("ToolSearch")[0]["content"]] == [
        "mcp__files__echo",
        "WebSearch",
    ]
    assert "through MCP" in str(session.results("mcp__files__echo")[0]["content"])
    assert "Found." in session.results("WebSearch")[0]["content"]
    [searched] = [each for each in model_server.calls if "web_search" in tools_of(each.body)]
    assert searched.scenario == "plan"

    steps = [each for each in model_server.calls if each is not searched]
    assert len(steps) == 7
    for index, step in enumerate(steps):
        assert encrypted_reasoning(step) == [f"sealed-rs_{earlier.number}_0" for earlier in steps[:index]]
    images = [
        part
        for item in items_of(steps[-1].body)
        if isinstance(item.get("output"), list)
        for part in item["output"]
        if part["type"] == "input_image"
    ]
    assert [image["image_url"] for image in images] == [PIXEL]
    ordinary = continuations(steps)
    assert len(ordinary) == 5, "the sixth came after a search for tools"
    assert all(map(keeps_key, ordinary))


async def test_a_sub_agent_works_beside_the_session_and_its_steps_keep_their_key(
    tmp_path: Path, proxy: Proxy, model_server: ModelServer, log_lines: list[Any]
) -> None:
    """A message of the system stands behind the results of its calls."""
    async with claude_code(tmp_path, proxy.url) as session:
        sub = call("Agent", description="A task", prompt=SUB_AGENT, subagent_type="general-purpose")
        done = await session.ask(plan([think(), sub], [think(), say("Started.")]) + " Go.")
        assert done["result"] == "Started."
        told = await session.until("system", subtype="task_notification")
        assert (told["status"], told["summary"]) == ("completed", "SubDone")
        await session.until("result")
    assert {line["status"] for line in posts(log_lines)} == {200}
    steps = [each for each in model_server.calls if each.scenario == "tool"]
    assert len(steps) == 4
    assert all(map(keeps_key, continuations(steps)))


async def test_esc_stops_the_model_and_the_session_goes_on(
    tmp_path: Path, proxy: Proxy, model_server: ModelServer, log_lines: list[Any]
) -> None:
    async with claude_code(tmp_path, proxy.url) as session:
        await session.send(session.user_message("[[model:stall n=3]] Go."))
        await session.until_text("word2")
        await session.interrupt()
        await session.until("result")
        assert await model_server.calls[0].ending() == "client_gone"
        done = await session.ask("[[model:text say=Again.]] Go on.")
    assert done["result"] == "Again."
    assert [line["status"] for line in posts(log_lines)] == [499, 200]


async def test_a_conversation_is_compacted_and_goes_on_from_its_summary(
    tmp_path: Path, proxy: Proxy, model_server: ModelServer, log_lines: list[Any]
) -> None:
    async with claude_code(tmp_path, proxy.url) as session:
        bash = call("Bash", command="echo one", description="Speaks")
        await session.ask(plan([think(), bash], [say("Done.")], [say("The summary.")]) + " Go.")
        compacted = await session.ask("/compact")
        done = await session.ask("[[model:text say=Onwards.]] Go on.")
    assert not compacted["is_error"]
    assert done["result"] == "Onwards."
    assert {line["status"] for line in posts(log_lines)} == {200}
    last = json.dumps(model_server.calls[-1].body["input"])
    assert "echo one" not in last


async def test_the_context_is_counted_at_once_and_has_the_size_that_connect_writes(
    tmp_path: Path, proxy: Proxy, log_lines: list[Any]
) -> None:
    async with claude_code(tmp_path, proxy.url) as session:
        first = await session.ask("[[model:text say=Hello.]] Hello.")
        context = await session.ask("/context")
    [usage] = first["modelUsage"].values()
    tokens = int(CLAUDE_ENVIRONMENT["CLAUDE_CODE_MAX_CONTEXT_TOKENS"])
    assert usage["contextWindow"] == tokens
    assert f"/ {tokens // 1000}k" in context["result"]
    counts = [line for line in log_lines if line.get("path") == "/v1/messages/count_tokens"]
    assert len(counts) > 10
    assert {line["status"] for line in counts} == {200}


async def test_a_context_that_is_too_long_is_compacted_and_the_session_goes_on(
    tmp_path: Path, proxy: Proxy, model_server: ModelServer, log_lines: list[Any]
) -> None:
    async with claude_code(tmp_path, proxy.url) as session:
        await session.ask("[[model:text say=Hello.]] Hello.")
        done = await session.ask("[[model:failed code=context_length_exceeded times=1 say=Onwards.]] Go on.")
    assert (done["is_error"], done["subtype"]) == (False, "success")
    refused = [line for line in posts(log_lines) if line["status"] != 200]
    assert [(line["status"], line["error"]) for line in refused] == [(400, "context_length_exceeded")]
    assert any(message.get("subtype") == "compact_boundary" for message in session.messages)


async def test_who_is_not_signed_in_reads_what_to_do_at_once(
    tmp_path: Path, codex_home: CodexHome, model_server: ModelServer, log_lines: list[Any]
) -> None:
    codex_home.config.write_text("")
    async with running_proxy(codex_home) as running, claude_code(tmp_path, running.url) as session:
        done = await session.ask("Hello.")
    assert done["is_error"]
    assert "codex login" in done["result"]
    assert [line["status"] for line in posts(log_lines)] == [401]


async def test_a_silence_of_forty_pings_is_no_end(
    tmp_path: Path,
    proxies: Proxies,
    model_server: ModelServer,
    monkeypatch: pytest.MonkeyPatch,
    log_lines: list[Any],
) -> None:
    """As many as ten minutes have; here one comes every twentieth of a second."""
    sent = 0

    def ping() -> bytes:
        nonlocal sent
        sent += 1
        return PING

    async def counted(*args: Any, comment: Callable[[], bytes], **more: Any) -> Any:
        return await stream_response(*args, comment=ping, **more)

    monkeypatch.setattr("codex_proxy.http.turns.stream_response", counted)
    running = await proxies.of(heartbeat_interval=0.05)
    async with claude_code(tmp_path, running.url) as session:
        asked = asyncio.create_task(session.ask("[[model:stall n=2 gate=go say=Awake.]] Go."))
        await eventually(lambda: sent >= 40)
        model_server.open_gate("go")
        done = await asked
    assert done["result"] == "word0 word1 Awake."
    assert [line["status"] for line in posts(log_lines)] == [200]
