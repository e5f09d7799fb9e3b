"""The real Claude Code behind the whole server, with the official SDK in front and a scripted model behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import AsyncOpenAI

from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.server import make_server
from codex_proxy.parts.claude_code import claude_setup, history
from codex_proxy.parts.claude_code.messages import user_line
from tests.pictures import png_of, url_of
from tests.real.anthropic_model import CACHED, IN, OUT, WRITTEN, AnthropicModel, anthropic_model, script
from tests.real.claude_proxy import claude_processes, claude_proxy, environment_of, settings_of
from tests.real.proxy import client_of
from tests.real.shared import living_on
from tests.waiting import eventually
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

pytestmark = pytest.mark.exhaustive

TWO_CALLS = [
    {"name": "mcp__client__get_weather", "args": {"city": "Oslo"}},
    {"name": "mcp__client__get_weather", "args": {"city": "Rome"}},
]


def user(text: str, *steps: dict[str, Any]) -> Any:
    return {"role": "user", "content": f"{text} {script(*steps)}" if steps else text}


PLAIN: Any = {"role": "system", "content": "Be brief."}


@living_on()
async def model() -> AsyncIterator[AnthropicModel]:
    async with anthropic_model() as model:
        yield model


@living_on()
async def client(model: AnthropicModel, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    async with claude_proxy(tmp_path, model) as (client, _):
        yield client


def token_counts(calls: int) -> tuple[int, int, int]:
    """Input, what of it was cached, and output of some model calls."""
    return calls * (IN + CACHED + WRITTEN), calls * CACHED, calls * OUT


def usage_of(answer: Any) -> tuple[int, int, int]:
    usage = answer.usage
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens


async def test_a_plain_turn_is_nothing_but_the_model(client: AsyncOpenAI, model: AnthropicModel) -> None:
    history: Any = [
        PLAIN,
        {"role": "user", "content": "I am Rumpel."},
        {"role": "assistant", "content": "Noted."},
        user("Who am I?", {"think": "hm", "text": "You are Rumpel."}),
    ]
    answer = await client.chat.completions.create(model="codex-5", messages=history)
    assert answer.choices[0].message.content == "You are Rumpel."
    assert answer.choices[0].finish_reason == "stop"
    assert usage_of(answer) == token_counts(1)
    assert len(model.requests) == 1
    assert model.texts_for_model()[:2] == [("user", "I am Rumpel."), ("assistant", "Noted.")]
    assert not model.last.get("tools")
    assert model.last["system"][-1]["text"].endswith("Be brief.")


async def test_models_are_listed_and_one_that_is_named_is_asked(
    client: AsyncOpenAI, model: AnthropicModel
) -> None:
    listed = [each.id async for each in client.models.list()]
    assert {"default", "sonnet", "opus"} <= set(listed)
    await client.chat.completions.create(
        model="claude-haiku-4-5", messages=[PLAIN, user("Hi")], reasoning_effort="low"
    )
    assert model.last["model"] == "claude-haiku-4-5"
    assert len(model.requests) == 1, "no call that nobody asked for"


@pytest.mark.parametrize("way", ["kept", "replayed", "with words"])
async def test_both_calls_of_a_step_reach_the_client_and_its_outputs_the_model(
    client: AsyncOpenAI, model: AnthropicModel, way: str
) -> None:
    """Both calls of a step come together, and the outputs come in another request, however that finds its turn."""
    messages: list[Any] = [
        PLAIN,
        user("Weather?", {"text": "I ask.", "tools": TWO_CALLS}, {"text": "Cold and warm."}),
    ]
    first = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    calls = first.choices[0].message.tool_calls
    assert first.choices[0].finish_reason == "tool_calls"
    assert calls is not None
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Oslo", "Rome"]  # type: ignore[union-attr]
    assert [call.id for call in calls] == ["toolu_msg_0_0", "toolu_msg_0_1"]
    assert usage_of(first) == token_counts(1)
    outputs: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": f"out {call.id}"} for call in calls
    ]
    if way == "with words":
        outputs.append({"role": "user", "content": "Quick!"})
    said: Any = first.choices[0].message.model_dump(exclude_none=True)
    if way == "replayed":  # another history: the conversation that is kept does not fit
        messages[0] = {"role": "system", "content": "Be very brief."}
    second = await client.chat.completions.create(
        model="codex-5", messages=[*messages, said, *outputs], tools=[CHAT_WEATHER]
    )
    assert second.choices[0].message.content == "Cold and warm."
    assert usage_of(second) == token_counts(1)
    assert len(model.requests) == 2
    role, text = model.texts_for_model()[-1]
    assert role == "user"
    assert "<output out toolu_msg_0_0>" in text
    assert "<output out toolu_msg_0_1>" in text
    assert ("Quick!" in text) == (way == "with words")
    assert model.texts_for_model()[-2][1].count("<call mcp__client__get_weather") == 2


@pytest.mark.parametrize("name", ["Bash", "Read", "WebSearch"])
async def test_a_tool_named_as_one_of_the_agent_s_own_is_called_and_answered_beside_it(
    client: AsyncOpenAI, model: AnthropicModel, tmp_path: Path, name: str
) -> None:
    own = {"name": "Read", "args": {"file_path": str(tmp_path / "missing")}}
    mine = {"name": f"mcp__client__{name}", "args": {"city": "Oslo"}}
    tools: Any = [{**CHAT_WEATHER, "function": {**CHAT_WEATHER["function"], "name": name}}]
    messages: list[Any] = [user("Go.", {"tools": [own]}, {"tools": [mine]}, {"text": "Done."})]
    asked: dict[str, Any] = {"model": "codex-5", "tools": tools, "extra_headers": {"X-Codex-Mode": "agent"}}
    first = await client.chat.completions.create(messages=messages, **asked)
    [call] = first.choices[0].message.tool_calls or []
    assert (call.function.name, call.function.arguments) == (name, '{"city": "Oslo"}')
    messages.append(first.choices[0].message.model_dump(exclude_none=True))
    messages.append({"role": "tool", "tool_call_id": call.id, "content": "of the client"})
    last = await client.chat.completions.create(messages=messages, **asked)
    assert last.choices[0].message.content == "Done."
    seen = [text for _, text in model.texts_for_model()]
    assert [text.partition(" ")[0] for text in seen[-3:]] == ["<output", "<call", "<output"]
    assert "of the client" in seen[-1]
    assert {"Read", f"mcp__client__{name}"} <= {tool["name"] for tool in model.last["tools"]}


async def test_tools_of_the_client_by_responses(client: AsyncOpenAI, model: AnthropicModel) -> None:
    first = await client.responses.create(
        model="codex-5",
        instructions="Be brief.",
        tools=[RESPONSES_WEATHER],
        input="Weather? " + script({"tools": TWO_CALLS[:1]}, {"text": "Cold."}),
    )
    [call] = first.output
    assert call.type == "function_call"
    assert json.loads(call.arguments) == {"city": "Oslo"}
    second = await client.responses.create(
        model="codex-5",
        instructions="Be brief.",
        tools=[RESPONSES_WEATHER],
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "minus 5"}],
    )
    assert second.output_text == "Cold."
    assert model.texts_for_model()[-1] == ("user", "<output minus 5>")


async def test_a_tool_loop_goes_on_after_a_restart_of_the_server(
    model: AnthropicModel, tmp_path: Path
) -> None:
    messages = [PLAIN, user("Weather?", {"tools": TWO_CALLS[:1]}, {"text": "Cold."})]
    async with claude_proxy(tmp_path, model) as (client, _):
        first = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    said = first.choices[0].message
    assert said.tool_calls is not None
    output = {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "minus 5"}
    async with claude_proxy(tmp_path, model) as (client, _):
        second = await client.chat.completions.create(
            model="codex-5",
            messages=[*messages, said.model_dump(exclude_none=True), output],  # type: ignore[list-item]
            tools=[CHAT_WEATHER],
        )
    assert second.choices[0].message.content == "Cold."
    assert model.texts_for_model()[-1] == ("user", "<output minus 5>")


async def test_arguments_are_streamed_as_the_model_writes_them(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="codex-5",
        messages=[PLAIN, user("Weather?", {"tools": TWO_CALLS[:1]})],
        tools=[CHAT_WEATHER],
        stream=True,
    )
    pieces = [
        call.function.arguments
        async for chunk in stream
        for choice in chunk.choices
        for call in choice.delta.tool_calls or ()
        if call.function is not None and call.function.arguments
    ]
    assert "".join(pieces) == '{"city": "Oslo"}'
    assert len(pieces) > 1


async def test_an_answer_under_a_schema_is_the_structured_output(
    client: AsyncOpenAI, model: AnthropicModel
) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    call = {"name": "StructuredOutput", "args": {"name": "Rumpel"}}
    answer = await client.chat.completions.create(
        model="codex-5",
        messages=[user("Name?", {"text": "Thinking aloud.", "tools": [call]})],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": schema, "strict": True},
        },
    )
    assert answer.choices[0].message.content is not None
    assert json.loads(answer.choices[0].message.content) == {"name": "Rumpel"}
    assert usage_of(answer) == token_counts(1)
    assert [tool["name"] for tool in model.last["tools"]] == ["StructuredOutput"]


async def test_images_reach_the_model(client: AsyncOpenAI, model: AnthropicModel) -> None:
    image = {"type": "image_url", "image_url": {"url": url_of(png_of())}}
    content = [image, {"type": "text", "text": script({"text": "I see."})}]
    messages: Any = [PLAIN, {"role": "user", "content": content}]
    answer = await client.chat.completions.create(model="codex-5", messages=messages)
    assert answer.choices[0].message.content == "I see."
    assert "<image>" in model.texts_for_model()[-1][1]


TOO_LONG = "prompt is too long: 250000 tokens > 200000 maximum"
ERRORS: list[tuple[dict[str, Any], int, str]] = [
    (
        {"status": 401, "type": "authentication_error", "message": "invalid x-api-key"},
        401,
        "agent_not_authenticated",
    ),
    ({"status": 429, "type": "rate_limit_error", "message": "too many"}, 429, "rate_limit_exceeded"),
    ({"status": 500, "type": "api_error", "message": "Internal"}, 502, "upstream_error"),
    (
        {
            "status": 400,
            "type": "invalid_request_error",
            "message": "prompt is too long: 250000 tokens > 200000 maximum",
        },
        400,
        "context_length_exceeded",
    ),
    ({"status": 404, "type": "not_found_error", "message": "model: codex-6"}, 404, "model_not_found"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS, ids=[code for _, _, code in ERRORS])
async def test_an_error_of_the_provider_has_its_status_at_once(
    client: AsyncOpenAI, model: AnthropicModel, error: dict[str, Any], status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(
            model="codex-5", messages=[PLAIN, user("Say.", {"error": error})]
        )
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert model.url.removeprefix("http://") not in str(raised.value)


async def test_nobody_signed_in_is_a_401_that_says_what_to_do(model: AnthropicModel, tmp_path: Path) -> None:
    async with claude_proxy(tmp_path, model, key="") as (client, server):
        with pytest.raises(openai.AuthenticationError, match="claude auth login"):
            await client.chat.completions.create(model="codex-5", messages=[PLAIN, user("Say.")])
        trouble = server.agent.trouble()
        assert trouble is not None
        assert "claude auth login" in trouble.message
    assert model.requests == []


async def test_a_stream_that_breaks_off_ends_with_an_error_and_not_as_an_answer(client: AsyncOpenAI) -> None:
    said: list[str] = []

    async def read() -> None:
        stream = await client.chat.completions.create(
            model="codex-5",
            messages=[PLAIN, user("Say.", {"text": "one two", "drop": True}, {"text": "one two"})],
            stream=True,
        )
        async for chunk in stream:
            said.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - what came before the error

    with pytest.raises(openai.APIError, match="broke off"):
        await read()
    assert "one two".startswith("".join(said).strip())


async def test_a_client_that_leaves_stops_the_model_and_its_process(
    model: AnthropicModel, tmp_path: Path
) -> None:
    async with claude_proxy(tmp_path, model, kept_threads=8) as (client, server):
        stream = await client.chat.completions.create(
            model="codex-5",
            messages=[PLAIN, user("Talk.", {"text": "word word", "hold": "never"})],
            stream=True,
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await eventually(lambda: model.gone == [0])
        await eventually(lambda: server.agent.processes().busy == 0)
    assert claude_processes() == []


async def test_conversations_at_once_are_not_mixed_and_nothing_is_left(
    model: AnthropicModel, tmp_path: Path
) -> None:
    async with claude_proxy(tmp_path, model) as (client, _):
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(
                    model="codex-5", messages=[PLAIN, user("Say.", {"text": f"I am number {number}."})]
                )
                for number in range(4)
            )
        )
        assert [answer.choices[0].message.content for answer in answers] == [
            f"I am number {number}." for number in range(4)
        ]
        assert claude_processes() != []
    assert claude_processes() == []


async def test_a_process_that_is_killed_fails_its_turn_and_the_next_one_works(
    model: AnthropicModel, tmp_path: Path
) -> None:
    async with claude_proxy(tmp_path, model) as (client, _):
        asking = asyncio.ensure_future(
            client.chat.completions.create(
                model="codex-5", messages=[PLAIN, user("Talk.", {"text": "word word", "hold": "never"})]
            )
        )
        await eventually(lambda: model.requests)
        killed = set(claude_processes())
        children = psutil.Process().children()
        wardens = [child for child in children if killed & {child, *child.children(recursive=True)}]
        for process in killed:
            process.kill()
        with pytest.raises(openai.InternalServerError) as raised:
            await asking
        assert raised.value.code == "agent_crashed"
        # Those that waited for a turn were killed too: the server has to hear of each.
        await eventually(lambda: not any(warden.is_running() for warden in wardens))
        answer = await client.chat.completions.create(model="codex-5", messages=[PLAIN, user("Again.")])
        assert answer.choices[0].message.content == "ok"


async def test_a_turn_whose_process_is_killed_before_it_reads_the_turn_is_given_to_another(
    model: AnthropicModel, tmp_path: Path
) -> None:
    async with claude_proxy(tmp_path, model, builtin_tools="never") as (client, server):
        waiting = set(await eventually(claude_processes))
        for process in waiting:
            process.suspend()
        asking = asyncio.ensure_future(
            client.chat.completions.create(model="codex-5", messages=[PLAIN, user("Say.", {"text": "Here."})])
        )
        await eventually(lambda: server.agent.processes().busy)
        for process in waiting:
            process.kill()
        assert (await asking).choices[0].message.content == "Here."
        await eventually(lambda: server.agent.processes().restarts == 1)
    assert claude_processes() == []


async def test_responses_continue_a_conversation(client: AsyncOpenAI, model: AnthropicModel) -> None:
    first = await client.responses.create(
        model="codex-5",
        instructions="Be brief.",
        input="I am Rumpel. " + script({"think": "hm", "text": "Noted."}),
    )
    second = await client.responses.create(
        model="codex-5",
        instructions="Be brief.",
        previous_response_id=first.id,
        input="Who am I? " + script({"text": "Rumpel."}),
    )
    assert second.output_text == "Rumpel."
    assert [role for role, _ in model.texts_for_model()] == ["user", "assistant", "user"]
    assert [item.type for item in first.output] == ["reasoning", "message"]


async def test_a_thinking_block_that_is_signed_reaches_the_model_again_after_a_restart(
    model: AnthropicModel, tmp_path: Path
) -> None:
    """It comes from the store, whose answers another process of Claude Code is given."""
    step = {"think": "hm", "signature": "Sig/+=", "text": "I ask.", "tools": TWO_CALLS[:1]}
    asked: Any = {"model": "codex-5", "instructions": "Be brief."}
    asked["tools"] = [RESPONSES_WEATHER]
    async with claude_proxy(tmp_path, model) as (client, _):
        first = await client.responses.create(**asked, input="Weather? " + script(step, {"text": "Cold."}))
    output: Any = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "minus 5"}
    async with claude_proxy(tmp_path, model) as (client, _):
        second = await client.responses.create(**asked, previous_response_id=first.id, input=[output])
    assert second.output_text == "Cold."
    role, said = model.texts_for_model()[-2]
    assert (role, said.splitlines()[:2]) == ("assistant", ["<thought hm signed Sig/+=>", "I ask."])


async def test_a_client_that_keeps_the_conversation_returns_the_thinking_block_itself(
    model: AnthropicModel, tmp_path: Path
) -> None:
    asked: Any = {"model": "codex-5", "instructions": "Be brief.", "store": False}
    asked["include"] = ["reasoning.encrypted_content"]
    step = {"think": "hm", "signature": "Sig/+=", "text": "Noted."}
    question: Any = {"role": "user", "content": "I am Rumpel. " + script(step)}
    async with claude_proxy(tmp_path, model) as (client, _):
        first = await client.responses.create(**asked, input=[question])
        asked["instructions"] = "Be very brief."  # another conversation: what is kept does not fit
        said: Any = [item.model_dump(exclude_none=True) for item in first.output]
        await client.responses.create(**asked, input=[question, *said, {"role": "user", "content": "Who?"}])
    assert [item.type for item in first.output] == ["reasoning", "message"]
    assert model.texts_for_model()[-2] == ("assistant", "<thought hm signed Sig/+=>\nNoted.")


async def test_limits_of_the_account_are_reported_as_the_provider_counts_them(
    model: AnthropicModel, tmp_path: Path
) -> None:
    name = "anthropic-ratelimit-unified"
    model.headers = {
        f"{name}-status": "allowed_warning",
        f"{name}-reset": "1800000000",
        f"{name}-representative-claim": "five_hour",
        f"{name}-5h-utilization": "0.82",
        f"{name}-5h-reset": "1800000000",
        f"{name}-7d-utilization": "0.31",
        f"{name}-7d-reset": "1800400000",
    }
    environment = environment_of(tmp_path, model, key="") | {"CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-test"}
    settings = settings_of(tmp_path, child_env="CLAUDE_CODE_OAUTH_TOKEN")
    server = await make_server(settings, environment)
    try:
        await server.start()
        async with client_of(f"http://127.0.0.1:{server.port}") as client:
            await client.chat.completions.create(model="codex-5", messages=[PLAIN, user("Say.")])
            told: Any = await client.get("/usage/limits", cast_to=object)
    finally:
        await server.stop()
    [limit] = told["limits"]
    windows = [(each["name"], each["used_percent"], each["resets_at"]) for each in limit["windows"]]
    assert windows == [("primary", 82, 1800000000), ("secondary", 31, 1800400000)]


# --- agent turns ------------------------------------------------------------------------------------


RUNS = {
    "name": "Bash",
    "args": {"command": 'python3 -c \'open("made.txt", "w")\'', "description": "makes a file"},
}
READS_OUTSIDE = {"name": "Read", "args": {"file_path": "/etc/passwd"}}


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
@pytest.mark.parametrize("call", [RUNS, READS_OUTSIDE], ids=["command", "reading outside"])
async def test_a_model_that_tries_runs_no_command_and_reads_nothing_outside_unasked(
    model: AnthropicModel, tmp_path: Path, sandbox: str, call: dict[str, Any]
) -> None:
    async with claude_proxy(tmp_path, model, sandbox=sandbox) as (client, _):
        messages = [user("Do it.", {"tools": [call]}, {"text": "Not done."})]
        answer = await client.chat.completions.create(model="codex-5", messages=messages)
    assert answer.choices[0].message.content == "Not done."
    assert not (tmp_path / "work" / "made.txt").exists()
    assert "root:" not in json.dumps(model.texts_for_model())


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write", "danger-full-access"])
async def test_files_are_written_where_the_sandbox_allows_it(
    model: AnthropicModel, tmp_path: Path, sandbox: str
) -> None:
    call = {"name": "Write", "args": {"file_path": str(tmp_path / "work" / "made.txt"), "content": "made"}}
    async with claude_proxy(tmp_path, model, sandbox=sandbox) as (client, _):
        answer = await client.chat.completions.create(
            model="codex-5", messages=[user("Write it.", {"tools": [call]}, {"text": "Over."})]
        )
    assert answer.choices[0].message.content == "Over."
    assert (tmp_path / "work" / "made.txt").exists() == (sandbox != "read-only")


async def test_settings_of_the_folder_run_nothing(model: AnthropicModel, tmp_path: Path) -> None:
    folder = tmp_path / "work" / ".claude"
    folder.mkdir(parents=True)
    hook = {"hooks": [{"type": "command", "command": f"touch {tmp_path}/hooked"}]}
    settings = {
        "hooks": {"SessionStart": [hook], "UserPromptSubmit": [hook]},
        "permissions": {"allow": ["Bash"]},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    async with claude_proxy(tmp_path, model, sandbox="workspace-write") as (client, _):
        messages = [user("Do it.", {"tools": [RUNS]}, {"text": "Not done."})]
        await client.chat.completions.create(model="codex-5", messages=messages)
    assert not (tmp_path / "hooked").exists()
    assert not (tmp_path / "work" / "made.txt").exists()


async def test_what_the_agent_does_is_shown_and_its_calls_are_counted(
    model: AnthropicModel, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("needle\n")
    call = {"name": "Read", "args": {"file_path": str(tmp_path / "work" / "a.txt")}}
    async with claude_proxy(tmp_path, model) as (client, _):
        answer = await client.chat.completions.create(
            model="codex-5", messages=[user("Look.", {"tools": [call]}, {"text": "Seen."})]
        )
    assert "needle" in json.dumps(model.texts_for_model())
    assert usage_of(answer) == token_counts(2)
    shown: Any = answer.choices[0].message.model_dump()
    assert "a.txt" in shown["reasoning_content"]


async def test_where_a_path_in_a_text_is_obeyed_the_process_of_a_plain_turn_cannot_read_it(
    model: AnthropicModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line: this Claude Code is not told that nobody typed the text, so that it reads what is mentioned."""

    environment = claude_setup.claude_environment

    def reading_mentions(context: AgentContext) -> dict[str, str]:
        off = "CLAUDE_CODE_DISABLE_FILE_MENTIONS"
        return {name: value for name, value in environment(context).items() if name != off}

    def typed(content: Any, *, query: bool, takes_mark: bool = True) -> bytes:
        line = json.loads(user_line(content, query=query))
        del line["text_not_typed"]
        return json.dumps(line).encode() + b"\n"

    monkeypatch.setattr(history, "user_line", typed)
    monkeypatch.setattr(claude_setup, "claude_environment", reading_mentions)
    planted = tmp_path / "elsewhere" / "notes.txt"
    planted.parent.mkdir()
    planted.write_text("planted words")
    messages: Any = [{"role": "system", "content": "Be brief."}]
    messages.append({"role": "user", "content": f"Look at @{planted}."})
    read = {}
    for confinement in ("none", "auto"):
        folder = tmp_path / confinement
        folder.mkdir()
        async with claude_proxy(folder, model, agent_confinement=confinement) as (client, server):
            if confinement == "auto" and server.agent.warning:
                pytest.skip(server.agent.warning)
            before = len(model.requests)
            answer = await client.chat.completions.create(model="default", messages=messages)
            assert answer.choices[0].message.content
            read[confinement] = "planted words" in json.dumps(model.requests[before:])
    assert read == {"none": True, "auto": False}
