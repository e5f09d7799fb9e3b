"""Agents that speak ACP behind the whole server: turns, tools in later requests, sessions, permissions, ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import psutil
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import Failure
from codex_proxy.parts.acp.acp_specs import ACP_SPEC
from codex_proxy.parts.acp.agent import AcpAgent
from codex_proxy.parts.acp.messages import ModelCallFailed, request, request_id
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.process import AcpProcess
from codex_proxy.process.child import Command
from tests.http.serving import (
    ENVIRONMENT,
    Answer,
    Proxy,
    fake_agent,
    fake_proxy,
    proxy_of,
    settings_of,
    until,
    user,
)
from tests.weather_tool import CHAT_WEATHER


def acp(folder: Path, environment: dict[str, str] | None = None, **settings: Any) -> Any:
    """A proxy on the fake agent in the dialect of ACP."""
    return fake_proxy(folder, environment, fake_dialect="acp", **settings)


def agent_of(proxy: Proxy) -> AcpAgent:
    agent = proxy.server.agent
    assert isinstance(agent, AcpAgent)
    return agent


def message_of(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.text
    message: dict[str, Any] = answer.body["choices"][0]["message"]
    return message


def continued_request(asked: dict[str, Any], answer: Answer, *more: dict[str, Any]) -> dict[str, Any]:
    """The request that goes on with a conversation."""
    return {**asked, "messages": [*asked["messages"], message_of(answer), *more]}


def outputs_of(answer: Answer, text: str = "sunny") -> list[dict[str, Any]]:
    calls = message_of(answer)["tool_calls"]
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]


async def test_text_reasoning_and_exact_usage_come_through(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user("[[fake:reasoning]]"))
        message = message_of(answer)
        assert message["content"] == "The answer is 42."
        assert "It asks for a number." in message["reasoning_content"]
        usage = answer.body["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (100, 20)
        assert usage["prompt_tokens_details"]["cached_tokens"] == 40
        assert "estimated" not in usage


async def test_four_sessions_at_once_are_not_mixed(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        said = [f"{letter} " * 40 for letter in "abcd"]
        asked = [proxy.ask(user(f'[[fake:text say="{text}" delay=2]]')) for text in said]
        answers = await asyncio.gather(*asked)
        assert [message_of(answer)["content"].strip() for answer in answers] == [
            text.strip() for text in said
        ]
        assert agent_of(proxy).processes().idle + agent_of(proxy).processes().busy == 1, (
            "one process serves all"
        )


async def test_what_the_agent_does_by_itself_is_reported_and_what_it_asks_for_is_declined(
    tmp_path: Path,
) -> None:
    async with acp(tmp_path) as proxy:
        message = message_of(await proxy.ask(user("[[fake:activity]]")))
        assert message["content"] == "All done."
        assert "[command] ls" in message["reasoning_content"]
        assert "[plan]" in message["reasoning_content"]


async def test_models_are_those_that_the_agent_lists(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        listed = [model["id"] for model in (await proxy.send("GET", "/v1/models")).body["data"]]
        assert {"fake-model", "fake-other"} <= set(listed)
        answer = await proxy.ask({**user("[[fake:echo]]"), "model": "fake-other"})
        assert '"model":"fake-other"' in message_of(answer)["content"]
        assert (await proxy.ask({**user(), "model": "nobodys"})).status == 404
        # The names of all agents' models are worked out anew whenever a list is another object.
        assert agent_of(proxy).models() is agent_of(proxy).models()


# --- the client's tools ---------------------------------------------------------------------------


@pytest.mark.parametrize("faults", ["", "stdio_tools"])
async def test_a_call_is_answered_by_a_later_request_over_http_and_over_stdio(
    tmp_path: Path, faults: str
) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": faults}) as proxy:
        asked = user("[[fake:tool_call]]", tools=[CHAT_WEATHER])
        first = await proxy.ask(asked)
        assert first.body["choices"][0]["finish_reason"] == "tool_calls"
        assert first.headers["x-codex-mode"] == "agent"
        call = message_of(first)["tool_calls"][0]["function"]
        assert call["name"] == "get_weather"
        assert json.loads(call["arguments"])
        second = await proxy.ask(continued_request(asked, first, *outputs_of(first)))
        assert second.body["choices"][0]["finish_reason"] == "stop"
        assert message_of(second)["content"]


async def test_calls_of_one_step_come_together(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        first = await proxy.ask(user("[[fake:tool_calls]]", tools=[CHAT_WEATHER]))
        assert len(message_of(first)["tool_calls"]) == 2


async def test_the_endpoint_of_a_session_is_closed_with_it_and_accepts_no_other_token(tmp_path: Path) -> None:
    async with acp(tmp_path, kept_threads=0) as proxy:
        server = agent_of(proxy)._tool_server
        asked = user("[[fake:tool_call]]", tools=[CHAT_WEATHER])
        first = await proxy.ask(asked)
        assert first.status == 200
        await until(lambda: not server._endpoints)
        assert not server.url.startswith(proxy.url), "it has a port of its own"
        async with aiohttp.ClientSession() as session:
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}):
                async with session.post(server.url, json=body, headers=headers) as reply:
                    assert reply.status == 401
            async with session.post(f"{proxy.url}/mcp", json=body) as reply:
                assert "get_weather" not in await reply.text(), "never on the public port"


async def test_an_agent_that_never_asks_for_the_tools_is_prompted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.acp.tool_server.UNTESTED_LIST_SECONDS", 0.05)
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "lists_never"}) as proxy:
        assert (await proxy.ask(user("[[fake:text]]", tools=[CHAT_WEATHER]))).status == 200


async def test_an_operator_who_wants_no_agent_turns_has_requests_with_tools_refused(tmp_path: Path) -> None:
    async with acp(tmp_path, builtin_tools="never") as proxy:
        answer = await proxy.ask(user(tools=[CHAT_WEATHER]))
        assert (answer.status, answer.error["code"]) == (400, "unsupported_by_agent")


# --- answers under a schema -----------------------------------------------------------------------

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
IN_CHAT = {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}}
ROME = '{"city": "Rome"}'


def text_in(answer: Answer) -> str:
    """The text of a streamed chat answer."""
    chunks = [frame for frame in answer.frames if isinstance(frame, dict) and frame.get("choices")]
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_is_part_of_the_prompt_and_the_answer_is_checked(tmp_path: Path, stream: bool) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user(f"[[fake:text say='{ROME}']]", stream=stream, **IN_CHAT))
        assert (text_in(answer) if stream else message_of(answer)["content"]) == ROME
        any_object = {"response_format": {"type": "json_object"}}
        anything = '{"any": ["thing"]}'
        answer = await proxy.ask(user(f"[[fake:text say='{anything}']] JSON", stream=stream, **any_object))
        assert (text_in(answer) if stream else message_of(answer)["content"]) == anything
        echoed = await proxy.ask(user("[[fake:echo]]", response_format={"type": "json_object"}))
        assert json.loads(message_of(echoed)["content"])


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_does_not_fit_is_asked_for_once_more(tmp_path: Path, stream: bool) -> None:
    async with acp(tmp_path) as proxy:
        prompt = f"[[fake:text say='The city is Rome.' anew='{ROME}']]"
        answer = await proxy.ask(user(prompt, stream=stream, **IN_CHAT))
        assert (text_in(answer) if stream else message_of(answer)["content"]) == ROME
        if not stream:
            assert answer.body["usage"]["completion_tokens"] == 40, "both attempts are counted"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_does_not_fit_twice_is_an_error(tmp_path: Path, stream: bool) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user("[[fake:text say='The city is Rome.']]", stream=stream, **IN_CHAT))
        assert answer.status == 502
        assert answer.error["code"] == "invalid_structured_output"


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_under_a_schema_are_checked_as_chat_is(tmp_path: Path, stream: bool) -> None:
    async with acp(tmp_path) as proxy:
        text = {"format": {"type": "json_schema", "name": "city", "schema": CITY}}
        prompt = f"[[fake:text say='Rome.' anew='{ROME}']]"
        body = {"model": "codex-5", "input": prompt, "text": text, "stream": stream}
        answer = await proxy.send("POST", "/v1/responses", body)
        assert answer.status == 200
        assert json.dumps(ROME)[1:-1] in answer.text
        assert "Rome." not in answer.text.replace(json.dumps(prompt)[1:-1], "")
        twice = await proxy.send("POST", "/v1/responses", {**body, "input": "[[fake:text say=Rome.]]"})
        assert "invalid_structured_output" in twice.text


async def test_an_answer_under_a_schema_may_come_after_calls_of_tools(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        asked = user(f"[[fake:tool_call say='{ROME}']]", tools=[CHAT_WEATHER], **IN_CHAT)
        first = await proxy.ask(asked)
        assert first.body["choices"][0]["finish_reason"] == "tool_calls"
        second = await proxy.ask(continued_request(asked, first, *outputs_of(first)))
        assert message_of(second)["content"] == ROME


# --- sessions -------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions are opened ahead as soon as a turn has ended."""
    monkeypatch.setattr("codex_proxy.parts.acp.process.AHEAD_PAUSE_SECONDS", 0.0)


async def test_a_conversation_goes_on_in_its_session(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        asked = user('[[fake:text say="first"]]')
        first = await proxy.ask(asked)
        again = continued_request(asked, first, {"role": "user", "content": "[[fake:echo]]"})
        second = await proxy.ask(again)
        assert "This is the conversation so far" not in message_of(second)["content"]
        assert "x-codex-history" not in second.headers
        process = agent_of(proxy).current
        assert process is not None
        assert process.turns_served == 1


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_that_goes_on_is_not_marked_as_flattened(tmp_path: Path, store: bool) -> None:
    async with acp(tmp_path) as proxy:
        asked = {"model": "codex-5", "input": '[[fake:text say="first"]]'}
        first = await proxy.send("POST", "/v1/responses", asked)
        more = {**asked, "previous_response_id": first.body["id"], "store": store}
        second = await proxy.send("POST", "/v1/responses", more)
        assert second.status == 200
        assert "x-codex-history" not in second.headers
        changed = await proxy.send("POST", "/v1/responses", {**more, "reasoning": {"effort": "high"}})
        assert changed.headers["x-codex-history"] == "flattened"


async def opened_ahead(proxy: Proxy) -> AcpProcess:
    """The process, once it has opened a session for the next turn."""
    assert (await proxy.ask(user())).status == 200
    process = agent_of(proxy).current
    assert process is not None
    await until(lambda: process.connection.ahead is not None)
    return process


async def test_a_session_is_opened_ahead_of_the_next_turn(tmp_path: Path, at_once: None) -> None:
    async with acp(tmp_path) as proxy:
        process = await opened_ahead(proxy)
        channel = process.connection.ahead
        assert process.turns_running == 0
        with_tools = await proxy.ask(user("[[fake:echo]]", tools=[CHAT_WEATHER]))
        assert json.loads(message_of(with_tools)["content"])["tools"], (
            "it is told its tools at a session's start"
        )
        assert process.connection.ahead == channel
        echo = json.loads(message_of(await proxy.ask(user("[[fake:echo]]")))["content"])
        assert len(echo["history"]) == 1
        assert echo["mode"] == "plan"
        assert process.turns_served == 3, "without a fourth session"
        await until(lambda: process.connection.ahead not in (None, channel))


async def test_a_session_that_was_opened_ahead_in_vain_is_closed_once_it_is_open(
    tmp_path: Path, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    async with acp(tmp_path) as proxy:
        process = await opened_ahead(proxy)
        await until(lambda: process._ahead_answer is not None)
        monkeypatch.setattr(process, "write", written.append)
        answer, process._ahead_answer = process._ahead_answer, None
        process._on_ahead_timeout()
        assert process.connection.ahead is not None, "it cannot be closed yet"
        process._ahead_answer = answer
        process._on_ahead_timeout()
        assert process.connection.ahead is None
        assert [json.loads(data)["method"] for data in written] == ["session/close"]
        assert process.turns_served == 2
        monkeypatch.undo()
        assert (await proxy.ask(user())).status == 200


async def test_an_agent_that_opens_no_session_ahead_is_asked_again_by_the_turn(
    tmp_path: Path, at_once: None
) -> None:
    async with acp(tmp_path) as proxy:
        process = await opened_ahead(proxy)
        channel = process.connection.ahead
        assert channel is not None
        refused = {
            "id": request_id(channel, 1),
            "error": {"code": -32000, "message": "Authentication required"},
        }
        process.on_output(json.dumps(refused).encode() + b"\n")
        assert process.connection.ahead is None
        assert (await proxy.ask(user())).status == 200


async def test_any_other_history_is_sent_to_a_new_session_and_the_answer_says_so(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        messages = [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": '[[fake:text say="ok"]]'},
        ]
        answer = await proxy.ask({**user(), "messages": messages})
        assert message_of(answer)["content"] == "ok"
        assert answer.headers["x-codex-history"] == "flattened"


async def closed_conversation(proxy: Proxy, **more: Any) -> dict[str, Any]:
    """A request that goes on with a conversation whose session was closed to make room for another."""
    asked = user('[[fake:text say="first"]]', **more)
    first = await proxy.ask(asked)
    await proxy.ask(user('[[fake:text say="another"]]', **more))
    agent = agent_of(proxy)
    await until(lambda: agent.current is not None and len(agent.current._readers) == 1)
    return continued_request(asked, first, {"role": "user", "content": "[[fake:echo]]"})


@pytest.mark.parametrize("tools", [[], [CHAT_WEATHER]])
async def test_a_conversation_whose_session_was_closed_goes_on_in_it(
    tmp_path: Path, tools: list[dict[str, Any]]
) -> None:
    async with acp(tmp_path, kept_threads=1) as proxy:
        answer = await proxy.ask(await closed_conversation(proxy, tools=tools))
        assert "x-codex-history" not in answer.headers
        echo = json.loads(message_of(answer)["content"])
        assert [(item["role"], item["text"]) for item in echo["history"]] == [
            ("user", '[[fake:text say="first"]]'),
            ("assistant", "first"),
            ("user", "[[fake:echo]]"),
        ]
        assert echo["mode"] == "plan", "a session that is opened again is in the agent's usual mode at first"
        assert bool(echo["tools"]) == bool(tools)


async def test_a_session_that_was_opened_ahead_is_closed_where_an_earlier_one_is_opened_again(
    tmp_path: Path, at_once: None
) -> None:
    async with acp(tmp_path, kept_threads=1) as proxy:
        again = await closed_conversation(proxy)
        process = agent_of(proxy).current
        assert process is not None
        await until(lambda: process.connection.ahead is not None)
        answer = await proxy.ask(again)
        assert "x-codex-history" not in answer.headers
        assert len(json.loads(message_of(answer)["content"])["history"]) == 3


async def test_a_closed_session_that_the_agent_has_forgotten_costs_only_the_roles(tmp_path: Path) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "forgets"}, kept_threads=1) as proxy:
        answer = await proxy.ask(await closed_conversation(proxy))
        assert answer.headers["x-codex-history"] == "flattened"
        assert "This is the conversation so far" in message_of(answer)["content"]
        assert agent_of(proxy).processes().restarts == 0


async def test_a_closed_session_of_an_agent_that_was_killed_costs_only_the_roles(tmp_path: Path) -> None:
    async with acp(tmp_path, kept_threads=1) as proxy:
        again = await closed_conversation(proxy)
        agent = agent_of(proxy)
        process = agent.current
        assert process is not None
        process.kill()
        await until(lambda: process.exit is not None)
        answer = await proxy.ask(again)
        assert answer.headers["x-codex-history"] == "flattened"
        assert "This is the conversation so far" in message_of(answer)["content"]


async def test_a_client_that_leaves_has_its_turn_cancelled_and_its_session_dropped(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        async with proxy.open(user("[[fake:count n=100000 delay=5]]", stream=True)) as reply:
            assert await reply.content.readline()
        await proxy.settled()
        agent = agent_of(proxy)
        await until(lambda: agent.current is not None and len(agent.current._readers) == 0)
        assert agent.processes().restarts == 0
        assert (await proxy.ask(user('[[fake:text say="next"]]'))).status == 200


async def test_a_turn_that_cannot_be_cancelled_costs_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.agents.sessions.session.FINISH_SECONDS", 0.1)
    async with acp(tmp_path) as proxy:
        agent = agent_of(proxy)
        before = agent.current
        prompt = "[[fake:count n=100000 delay=5 misbehave=ignore_interrupt]]"
        async with proxy.open(user(prompt, stream=True)) as reply:
            assert await reply.content.readline()
        await until(lambda: before is not None and before.exit is not None)
        assert (await proxy.ask(user())).status == 200


# --- what the agent lacks ---------------------------------------------------------------------------


async def test_what_the_agent_does_not_guarantee_is_named_in_a_header(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user())
        assert answer.headers["x-codex-uncertain"] == "usage, finish_reason, sandbox"
        plain = await proxy.ask(user(), headers={"X-Codex-Mode": "model"})
        assert plain.headers["x-codex-uncertain"] == "usage, finish_reason"
    async with fake_proxy(tmp_path) as proxy:
        assert "x-codex-uncertain" not in (await proxy.ask(user())).headers


async def test_parallel_calls_that_are_asked_for_are_named_where_the_agent_cannot_promise_them(
    tmp_path: Path,
) -> None:
    async with acp(tmp_path) as proxy:
        for stream in (True, False):
            asked = user("[[fake:text]]", tools=[CHAT_WEATHER], stream=stream, parallel_tool_calls=True)
            answer = await proxy.ask(asked)
            assert answer.headers["x-codex-ignored-params"] == "parallel_tool_calls"
            assert (
                "x-codex-ignored-params"
                not in (await proxy.ask({**asked, "parallel_tool_calls": False})).headers
            )
        tool = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
        body = {"model": "codex-5", "input": "[[fake:text]]", "tools": [tool], "parallel_tool_calls": True}
        answer = await proxy.send("POST", "/v1/responses", body)
        assert answer.headers["x-codex-ignored-params"] == "parallel_tool_calls"


async def test_an_agent_that_lists_no_models_has_one_and_takes_no_other(tmp_path: Path) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "no_models"}) as proxy:
        assert "model_choice" not in agent_of(proxy).capabilities
        for model in ("default", "codex-5"):
            answer = await proxy.ask({**user(), "model": model})
            assert answer.status == 200
            assert "x-codex-ignored-params" not in answer.headers
        refused = await proxy.ask({**user(), "model": "fake-other"})
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")


async def test_a_name_of_a_model_that_changes_nothing_is_named(tmp_path: Path) -> None:
    agent = fake_agent()
    agent.capabilities -= {"model_choice"}
    async with proxy_of(agent, tmp_path) as proxy:
        answer = await proxy.ask({**user(), "model": "another"})
        assert answer.headers["x-codex-ignored-params"] == "model"


async def test_a_warning_names_where_the_sandbox_of_the_settings_is_not_followed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with acp(tmp_path, sandbox="workspace-write", workdir=work) as proxy:
        assert "read-only, whatever --sandbox is set to" in agent_of(proxy).warning
        assert '"mode":"plan"' in message_of(await proxy.ask(user("[[fake:echo]]")))["content"]
    async with acp(tmp_path) as proxy:
        assert agent_of(proxy).warning == ""


# --- what may go wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "status", "code"),
    [
        ("error_rate_limit", 429, "rate_limit_exceeded"),
        ("auth_401", 401, "agent_not_authenticated"),
        ("context_length", 400, "context_length_exceeded"),
        ("error_500", 502, "upstream_error"),
        ("model_not_found", 404, "model_not_found"),
    ],
)
async def test_errors_of_the_agent_are_statuses(
    tmp_path: Path, scenario: str, status: int, code: str
) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user(f"[[fake:{scenario}]]"))
        assert (answer.status, answer.error["code"]) == (status, code)


async def test_an_error_in_the_middle_of_a_text_is_an_error_frame(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user("[[fake:error_mid_text]]", stream=True))
        assert any("error" in frame for frame in answer.frames if isinstance(frame, dict))


async def test_a_text_that_begins_anew_after_a_retry_is_sent_once(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user("[[fake:retry_after_text_same]]"))
        text = message_of(answer)["content"]
        assert text == " ".join(dict.fromkeys(text.split(" "))), text


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "fault",
    ["garbage", "bad_utf8", "split", "joined", "repeat", "unknown_request", "big_line"],
)
async def test_strange_lines_do_not_end_a_turn(tmp_path: Path, fault: str) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user(f'[[fake:text say="all the words" misbehave={fault} bytes=100000]]'))
        assert answer.status == 200
        assert "words" in message_of(answer)["content"]


async def test_a_line_that_does_not_say_whose_it_is_never_makes_a_cut_answer_a_success(
    tmp_path: Path,
) -> None:
    async with acp(tmp_path) as proxy:
        for _ in range(4):
            answer = await proxy.ask(user('[[fake:text say="all the words" misbehave=wrong_types]]'))
            if answer.status == 200:
                assert message_of(answer)["content"] == "all the words"
            else:
                assert (answer.status, answer.body["error"]["code"]) == (500, "agent_protocol_error")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("fault", ["crash", "torn", "eof_without_end", "close_stdout"])
async def test_an_agent_that_dies_in_a_turn_fails_it_and_is_started_again(tmp_path: Path, fault: str) -> None:
    async with acp(tmp_path) as proxy:
        answer = await proxy.ask(user(f"[[fake:count n=1000 misbehave={fault}]]", stream=True))
        assert any("error" in frame for frame in answer.frames if isinstance(frame, dict))
        assert message_of(await proxy.ask(user('[[fake:text say="back"]]')))["content"] == "back"
        assert agent_of(proxy).processes().restarts == 1


async def test_without_a_sign_in_of_the_agent_every_answer_is_a_401_that_says_so(tmp_path: Path) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "signed_out"}) as proxy:
        answer = await proxy.ask(user())
        assert (answer.status, answer.error["code"]) == (401, "agent_not_authenticated")
        assert (await proxy.send("GET", "/readyz")).status == 503


async def test_a_sign_in_is_seen_by_the_next_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codex_proxy.agents.process_pool.pool.RECHECK_SECONDS", 0.0)
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "signed_out"}) as proxy:
        agent = agent_of(proxy)
        command = agent._launch.command
        signed_in = msgspec.structs.replace(command, env={**command.env, "FAKE_CODEX_MISBEHAVE": ""})
        agent._launch = msgspec.structs.replace(agent._launch, command=signed_in)
        assert (await proxy.ask(user())).status == 200
        assert agent.trouble() is None


@pytest.mark.parametrize("fault", ["no_modes", "keeps_mode"])
async def test_nothing_is_asked_of_an_agent_that_is_not_in_a_safe_mode(tmp_path: Path, fault: str) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": fault}) as proxy:
        assert (await proxy.ask(user())).status >= 500


async def test_an_operator_may_serve_an_agent_without_a_safe_mode_and_is_warned(tmp_path: Path) -> None:
    async with acp(tmp_path, {"FAKE_CODEX_MISBEHAVE": "no_modes"}, acp={"unconfined": True}) as proxy:
        assert (await proxy.ask(user())).status == 200
        assert "--agent-unconfined" in agent_of(proxy).warning


async def test_a_turn_of_a_plain_model_writes_nothing_whatever_the_server_allows(tmp_path: Path) -> None:
    async with acp(tmp_path, sandbox="danger-full-access", acp={"unconfined": True}) as proxy:
        plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "[[fake:echo]]"}]
        body = {"model": "codex-5", "messages": plain}
        echoed = message_of(await proxy.ask(body, headers={"X-Codex-Mode": "model"}))["content"]
        assert '"mode":"plan"' in echoed


async def test_no_process_is_left_after_the_end(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    environment = {"FAKE_CODEX_PID_FILE": str(pids)}
    async with acp(tmp_path, environment) as proxy:
        await proxy.ask(user("[[fake:text misbehave=grandchild]]"))
        pid = agent_of(proxy).current.pid  # type: ignore[union-attr]
        left = int(pids.read_text().split()[0])
        os.kill(left, 0)
    await until(lambda: not _alive(left) and not _alive(pid or 0))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def test_a_killed_agent_is_replaced_for_the_next_turn(tmp_path: Path) -> None:
    async with acp(tmp_path) as proxy:
        await proxy.ask(user())
        process = agent_of(proxy).current
        assert process is not None
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        await until(lambda: process.exit is not None)
        assert (await proxy.ask(user())).status == 200


async def test_a_program_that_does_not_speak_acp_ends_the_start_with_a_sentence(tmp_path: Path) -> None:
    from codex_proxy.core.faults import Fault

    with pytest.raises(Fault) as raised:
        async with fake_proxy(tmp_path, agent="acp", acp={"command": "true"}):
            pass
    assert "ended while it was starting" in raised.value.failure.message


async def test_a_program_that_is_not_installed_is_named_with_how_to_install_it(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, agent="gemini")
    with pytest.raises(NoAgentError, match=r"gemini is not on PATH.*npm install -g @google/gemini-cli"):
        await make_server(settings, {"PATH": str(tmp_path)})


async def test_a_file_in_place_of_a_folder_of_the_agent_ends_the_start_with_what_to_set(
    tmp_path: Path,
) -> None:
    settings = settings_of(tmp_path, agent="acp", acp={"command": "true"})
    settings.state_dir.mkdir(parents=True, exist_ok=True)
    (settings.state_dir / "empty").write_text("no folder")
    with pytest.raises(NoAgentError, match=r"File exists: .*/empty.* PROXY_STATE_DIR"):
        await make_server(settings, ENVIRONMENT)


LOGGING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {"protocolVersion": 1, "sessionId": "ses_1"}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    if asked["method"] == "session/new":
        print("x" * 100_000, file=sys.stderr)
        for session in ("ses_2", "ses_1"):
            print(f"session={session} error={session} has failed", file=sys.stderr, flush=True)
"""


class RecordingReader:
    """A reader that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def on_messages(self, messages: Sequence[Any], size: int) -> None:
        self.messages += messages

    def on_end(self, ended: Ended) -> None:
        pass

    def fail(self, failure: Failure) -> None:
        pass

    def on_long_line(self, fault: object) -> None:
        pass


async def test_a_failed_model_call_in_the_agents_log_is_reported_to_its_session_only(tmp_path: Path) -> None:
    process = AcpProcess(
        AcpPreset(name="x", title="X", argv=(), error_log=r"session=(?P<session>\S+) error=(?P<error>.*)")
    )
    command = Command((sys.executable, "-c", LOGGING), {}, str(tmp_path))
    await process.start(command)
    try:
        heard, other = RecordingReader(), RecordingReader()
        for reader in (heard, other):
            channel = process.open_channel()
            process.attach(channel, reader)
            if reader is heard:
                process.write(request(request_id(channel, 1), "session/new", {}))
        failed = ModelCallFailed("ses_1 has failed")
        await until(lambda: failed in heard.messages)
        assert [each for each in heard.messages if isinstance(each, ModelCallFailed)] == [failed]
        assert other.messages == []
    finally:
        await process.end()


def programs() -> set[int]:
    """The processes of agents below this one."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it is just ending
            if "acp" in child.cmdline():
                found.add(child.pid)
    return found


async def test_a_checkup_ends_the_program_that_it_has_started(tmp_path: Path) -> None:
    own = {"agent": "acp", "acp": {"command": f"{sys.executable} -P -m fake_proto acp", "unconfined": True}}
    before = programs()
    checks = await ACP_SPEC.check(AgentContext(settings_of(tmp_path, **own), ENVIRONMENT, SystemClock()))
    assert "ok" in {check.status for check in checks}
    assert programs() <= before
