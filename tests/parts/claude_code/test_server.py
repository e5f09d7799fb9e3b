"""The agent `claude-code` through the whole server, with the fake agent in the place of Claude Code."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import Mode, Turn
from tests.http.claude import claude, claude_proxy
from tests.http.serving import ENVIRONMENT, Proxy, alive, model_input, running_proxy, settings_of, until, user
from tests.pictures import PIXEL

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with claude_proxy(tmp_path) as proxy:
        yield proxy


def plain(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "codex-5", "messages": [SYSTEM, {"role": "user", "content": text}], **more}


async def test_an_answer_comes_whole_and_streamed_with_its_usage(proxy: Proxy) -> None:
    whole = await proxy.ask(user("[[fake:text say='Hello there.']]"))
    assert whole.body["choices"][0]["message"]["content"] == "Hello there."
    assert whole.body["usage"]["prompt_tokens"] == 100
    assert whole.body["usage"]["prompt_tokens_details"]["cached_tokens"] == 40
    assert whole.body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    streamed = await proxy.ask(user("[[fake:text say='Hello there.']]", stream=True))
    texts = [
        frame["choices"][0]["delta"].get("content") for frame in streamed.frames[:-1] if frame["choices"]
    ]
    assert [text for text in texts if text] == ["Hello", " there."]
    assert whole.headers["x-codex-agent"] == "claude-code"


async def test_roles_model_and_effort_reach_it_as_what_they_are(proxy: Proxy) -> None:
    messages = [
        SYSTEM,
        {"role": "user", "content": "I am Rumpel."},
        {"role": "assistant", "content": "Noted."},
        {"role": "user", "content": "[[fake:echo]]"},
    ]
    told = await model_input(proxy, {"model": "sonnet", "messages": messages, "reasoning_effort": "low"})
    assert told["instructions"] == ["Be brief."]
    assert [(each["role"], each["text"]) for each in told["history"]] == [
        ("user", "I am Rumpel."),
        ("assistant", "Noted."),
        ("user", "[[fake:echo]]"),
    ]
    assert (told["model"], told["effort"]) == ("sonnet", "low")


@pytest.mark.exhaustive
async def test_images_and_a_schema_reach_claude_code(proxy: Proxy) -> None:
    image = {"type": "image_url", "image_url": {"url": PIXEL}}
    content = [{"type": "text", "text": "[[fake:echo]]"}, image]
    told = await model_input(
        proxy, {"model": "codex-5", "messages": [SYSTEM, {"role": "user", "content": content}]}
    )
    assert told["history"][0]["images"] == 1
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
    answer = await proxy.ask(user("Who?", response_format=wanted))
    assert json.loads(answer.body["choices"][0]["message"]["content"]) == {"name": "name"}


@pytest.mark.parametrize("kept", [True, False])
async def test_calls_of_a_step_come_together_and_their_outputs_continue_it(
    tmp_path: Path, kept: bool
) -> None:
    async with claude_proxy(tmp_path, kept_threads=32 if kept else 0) as proxy:
        body = plain("[[fake:tool_calls say='{outputs}']]", tools=[TOOL])
        first = await proxy.ask(body)
        said = first.body["choices"][0]["message"]
        ids = [call["id"] for call in said["tool_calls"]]
        assert first.body["choices"][0]["finish_reason"] == "tool_calls"
        assert [json.loads(call["function"]["arguments"]) for call in said["tool_calls"]] == [
            {"city": "Paris"},
            {"city": "Rome"},
        ]
        outputs = [{"role": "tool", "tool_call_id": id, "content": f"out {id}"} for id in reversed(ids)]
        second = await proxy.ask({**body, "messages": [*body["messages"], said, *outputs]})
        content = second.body["choices"][0]["message"]["content"]
        assert sorted(content.split("; ")) == [f"out {id}" for id in ids]
        assert second.body["usage"]["prompt_tokens"] == 100


async def test_a_conversation_that_goes_on_keeps_its_process(proxy: Proxy) -> None:
    body = plain("[[fake:text say=One]]")
    first = await proxy.ask(body)
    assert proxy.server.agent.processes().busy == 0
    messages = [
        *body["messages"],
        first.body["choices"][0]["message"],
        {"role": "user", "content": "[[fake:echo]]"},
    ]
    told = await model_input(proxy, {**body, "messages": messages})
    assert [each["text"] for each in told["history"]] == ["[[fake:text say=One]]", "[[fake:echo]]"], (
        "the process was given what is new alone; its own answer it knows"
    )


@pytest.mark.exhaustive
async def test_no_more_conversations_are_kept_than_the_operator_says(tmp_path: Path) -> None:
    async with claude_proxy(tmp_path, kept_threads=16) as proxy:
        for number in range(4):
            await proxy.ask(plain(f"{number} [[fake:text]]"))
        await until(lambda: proxy.server.agent.processes().busy == 0)
        # Two that wait, one of each kind, and a conversation.
        await until(lambda: proxy.server.agent.processes().idle <= 3)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("marker", "status", "code"),
    [
        ("error_rate_limit", 429, "rate_limit_exceeded"),
        ("context_length", 400, "context_length_exceeded"),
        ("model_not_found", 404, "model_not_found"),
        ("error_500", 502, "upstream_error"),
        ("text misbehave=crash", 500, "agent_crashed"),
        ("text misbehave=eof_without_end", 500, "agent_crashed"),
        ("text misbehave=torn", 500, "agent_crashed"),
        ("text misbehave=close_stdout", 500, "agent_crashed"),
    ],
)
async def test_a_failed_turn_is_an_error_and_no_answer(
    proxy: Proxy, marker: str, status: int, code: str
) -> None:
    answer = await proxy.ask(plain(f"[[fake:{marker}]]"))
    assert (answer.status, answer.error["code"]) == (status, code)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "fault",
    [
        *("garbage", "bad_utf8", "split", "joined", "unknown_events", "strangers"),
        *("unknown_request", "stderr_flood"),
    ],
)
async def test_a_program_that_misbehaves_but_says_its_answer_is_understood(proxy: Proxy, fault: str) -> None:
    answer = await proxy.ask(plain(f"[[fake:text say='All is well.' misbehave={fault}]]"))
    assert (answer.status, answer.body["choices"][0]["message"]["content"]) == (200, "All is well.")


async def test_a_client_that_leaves_ends_the_process_and_all_that_it_has_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with claude_proxy(tmp_path, {"FAKE_CODEX_PID_FILE": str(pids)}) as proxy:
        before = set(alive(pids))
        async with proxy.open(plain("[[fake:text misbehave=hang,grandchild at=5]]", stream=True)):
            await until(lambda: len(set(alive(pids)) - before) >= 2)
            started = set(alive(pids)) - before
        await until(lambda: not started & set(alive(pids)) or len(started & set(alive(pids))) <= 1)
    await until(lambda: not alive(pids))


@pytest.mark.exhaustive
async def test_turns_at_once_are_not_mixed(proxy: Proxy) -> None:
    answers = await asyncio.gather(
        *(proxy.ask(plain(f"[[fake:text say='I am {number}.']]")) for number in range(6))
    )
    assert [answer.body["choices"][0]["message"]["content"] for answer in answers] == [
        f"I am {number}." for number in range(6)
    ]


@pytest.mark.exhaustive
async def test_turns_of_both_modes_in_a_row_leave_a_waiting_process_for_each(proxy: Proxy) -> None:
    agent = proxy.server.agent
    turns = [Turn(model="", history=(), mode=mode, workdir=str(Path.cwd())) for mode in get_args(Mode)]
    sessions = [await agent.open(turn) for turn in turns]
    await until(lambda: agent.processes().idle == 2)
    for session in sessions:
        await agent.release(session, finished=True)


@pytest.mark.exhaustive
async def test_a_process_that_ended_while_it_waited_serves_nobody(proxy: Proxy) -> None:
    await proxy.ask(plain("[[fake:text]]"))
    agent = proxy.server.agent
    await until(lambda: agent.processes().idle >= 2)
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, and is not waited for yet
            if "claude" in child.cmdline():
                child.kill()
    answer = await proxy.ask(plain("[[fake:text say=Again.]]"))
    assert answer.body["choices"][0]["message"]["content"] == "Again."


@pytest.mark.exhaustive
async def test_models_are_those_that_it_lists(proxy: Proxy) -> None:
    listed = {each["id"] for each in (await proxy.send("GET", "/v1/models")).body["data"]}
    assert {"default", "fake-model"} <= listed
    assert not any(name.startswith("codex-5") for name in listed)


# --- how it is started ------------------------------------------------------------------------------


async def test_claude_code_sees_no_key_that_nobody_has_passed_on(tmp_path: Path) -> None:
    given = {
        "ANTHROPIC_API_KEY": "sk-ant-1",
        "CLAUDE_CODE_OAUTH_TOKEN": "t",
        "AWS_SECRET_ACCESS_KEY": "s",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "CLAUDECODE": "1",
    }
    async with claude_proxy(tmp_path, given):
        seen = (tmp_path / "env").read_text()
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:9" in seen
    for name in ("ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "CLAUDECODE="):
        assert name not in seen
    async with claude_proxy(tmp_path, given, child_env="ANTHROPIC_API_KEY"):
        seen = (tmp_path / "env").read_text()
    assert "ANTHROPIC_API_KEY=sk-ant-1" in seen


async def test_a_plain_process_gets_nothing_of_the_users_and_a_read_only_one_no_tool_that_writes(
    proxy: Proxy, tmp_path: Path
) -> None:
    await proxy.ask(plain("[[fake:text]]"))
    started = (tmp_path / "args").read_text().splitlines()
    [agent, *_] = [line for line in started if "--permission-prompt-tool stdio" in line]
    [plain_one, *_] = [line for line in started if "--strict-mcp-config" in line]
    assert "--tools Read,Glob,Grep" in agent
    assert "--setting-sources user " in agent
    assert "--disable-slash-commands" in plain_one
    assert "--no-session-persistence" in plain_one


async def test_without_a_sign_in_there_is_an_error_at_once_and_the_server_is_not_ready(
    tmp_path: Path,
) -> None:
    async with claude_proxy(tmp_path, {"FAKE_CODEX_ACCOUNT": "none"}) as proxy:
        answer = await proxy.ask(plain("Hi"))
        assert (answer.status, answer.error["code"]) == (401, "agent_not_authenticated")
        assert "claude auth login" in answer.error["message"]
        assert (await proxy.send("GET", "/readyz")).status == 503


async def test_without_the_program_the_start_ends_with_what_to_do(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, agent="claude-code")
    with pytest.raises(NoAgentError, match="npm install -g @anthropic-ai/claude-code"):
        await make_server(settings, ENVIRONMENT)
    other = settings_of(tmp_path, agent="claude-code", claude_bin="/bin/echo")
    with pytest.raises(NoAgentError, match="did not print a version of Claude Code"):
        await make_server(other, ENVIRONMENT)
    with pytest.raises(Fault, match="--version failed"):
        await make_server(settings_of(tmp_path, agent="claude-code", claude_bin="/bin/false"), ENVIRONMENT)


def without_mark(program: Path) -> None:
    """Makes it a release that does not know the mark of text that nobody typed."""
    # Where the program may not be started, it ends at once: sed would wait for input for ever.
    starts = f"{shlex.quote(sys.executable)} -P -m fake_proto --version >/dev/null || exit"
    marked = """sed -u 's/"text_not_typed":true/"unknown":1/' | """
    program.write_text(program.read_text().replace("exec ", f"{starts}\n{marked}"))


@pytest.mark.exhaustive
async def test_a_release_that_runs_commands_in_marked_text_is_found_and_given_none(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, agent="claude-code", claude_bin=str(claude(tmp_path)))
    flags = {"agent": "claude-code", "claude_bin": str(tmp_path / "claude"), "state_dir": tmp_path / "state"}
    body = plain("/help [[fake:echo]]")
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        assert (await model_input(proxy, body))["history"][0]["text"] == "/help [[fake:echo]]"
    found = {each.name: each for each in (await examine(flags, None, ENVIRONMENT)).checks}
    assert found["client text"].status == "ok"
    without_mark(tmp_path / "claude")
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        assert (await model_input(proxy, body))["history"][0]["text"] == "\n/help [[fake:echo]]"
    found = {each.name: each for each in (await examine(flags, None, ENVIRONMENT)).checks}
    assert found["client text"].status == "warning"
    assert "claude update" in found["client text"].advice


@pytest.mark.parametrize(("release", "knows"), [("2.1.299", False), ("2.1.300", True)])
async def test_a_release_from_before_the_mark_opens_no_file_that_a_client_mentions(
    release: str, knows: bool, tmp_path: Path
) -> None:
    """It runs no command in a marked text either, so that the question at its start does not tell them apart."""
    program, variables = claude(tmp_path), tmp_path / "variables"
    begin, _, rest = program.read_text().partition("\n")
    version = f'[ "$1" = --version ] && echo "{release} (Claude Code)" && exit'
    program.write_text(f"{begin}\n{version}\nenv >>{variables}\n{rest}")
    settings = settings_of(tmp_path, agent="claude-code", claude_bin=str(program))
    server = await make_server(settings, ENVIRONMENT)
    async with running_proxy(server) as proxy:
        variables.unlink()  # of the process that was asked at the start
        text = (await model_input(proxy, plain("/help [[fake:echo]]")))["history"][0]["text"]
    assert text == ("" if knows else "\n") + "/help [[fake:echo]]"
    assert ("CLAUDE_CODE_DISABLE_ATTACHMENTS=1" in variables.read_text()) is not knows
    flags = {"agent": "claude-code", "claude_bin": str(program), "state_dir": tmp_path / "state"}
    found = {each.name: each for each in (await examine(flags, None, ENVIRONMENT)).checks}
    assert found["client text"].status == ("ok" if knows else "warning")
    assert knows or "attachments are off" in found["client text"].message


@pytest.mark.exhaustive
async def test_doctor_says_what_is_found_and_how_to_sign_in(tmp_path: Path) -> None:
    flags = {
        "agent": "claude-code",
        "claude_bin": str(claude(tmp_path)),
        "state_dir": str(tmp_path / "state"),
        "port": 0,
    }
    found = {each.name: each for each in (await examine(flags, None, ENVIRONMENT)).checks}
    assert "2.1.330" in found["version"].message
    assert (found["sign-in"].status, found["sign-in"].facts["models"]) == ("ok", 2)
    nobody = ENVIRONMENT | {"FAKE_CODEX_ACCOUNT": "none", "ANTHROPIC_API_KEY": "sk-ant-1"}
    found = {each.name: each for each in (await examine(flags, None, nobody)).checks}
    assert found["sign-in"].status == "failed"
    assert "ANTHROPIC_API_KEY is set but not passed on" in found["sign-in"].message
    assert "claude auth login" in found["sign-in"].advice
    assert "sk-ant-1" not in str(found)


@pytest.mark.exhaustive
async def test_a_release_that_is_too_old_ends_the_start_with_what_to_do(tmp_path: Path) -> None:
    old = tmp_path / "claude"
    refuses = "echo 'error: unknown option --include-partial-messages' >&2; exit 1"
    old.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "1.0.20 (Claude Code)" && exit\n{refuses}\n')
    old.chmod(0o755)
    server = await make_server(settings_of(tmp_path, agent="claude-code", claude_bin=str(old)), ENVIRONMENT)
    try:
        with pytest.raises(Fault, match=r"unknown option.*Claude Code 1.0.20 is installed.*claude update"):
            await server.start()
    finally:
        await server.stop()
    flags = {"agent": "claude-code", "claude_bin": str(old), "state_dir": str(tmp_path / "state"), "port": 0}
    found = {each.name: each for each in (await examine(flags, None, ENVIRONMENT)).checks}
    assert "claude update" in found["sign-in"].advice
