"""What the official SDK gets from the real binary through the proxy, and what of its request reaches the model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletionChunk
from openai.types.completion_usage import CompletionUsage

from codex_proxy.agents.codex.plain_home import published_models
from tests.real.codex_home import MODEL, CodexHome, bundled_catalog
from tests.real.model_scenarios import items_of, text_of, tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy, chat_request
from tests.real.proxy import proxy as running_proxy
from tests.real.release import ENDS_MODEL_CALLS, PLAIN_MODEL, since
from tests.real.shared import Proxies

PNG = (  # one red pixel: Codex drops an image that it cannot read
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)

BOTH_MODES = pytest.mark.parametrize("system", [None, "Be brief."], ids=["agent", "plain model"])


async def chunks_of(proxy: Proxy, **request: Any) -> list[ChatCompletionChunk]:
    stream = await proxy.client.chat.completions.create(stream=True, **request)
    return [chunk async for chunk in stream]


def text(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def messages(call: Request) -> list[tuple[str, str]]:
    return [(item["role"], text_of(item)) for item in items_of(call.body) if item.get("role")]


def token_counts(usage: CompletionUsage | None) -> tuple[int, int, int | None, int | None, int]:
    """Prompt, completion, cached, reasoning and total tokens."""
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens_details is not None
    return (
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.prompt_tokens_details.cached_tokens,
        usage.completion_tokens_details.reasoning_tokens,
        usage.total_tokens,
    )


@BOTH_MODES
async def test_a_streamed_answer_is_a_role_then_deltas_then_a_finalizer_then_usage(
    proxy: Proxy, system: str | None
) -> None:
    request = chat_request('[[model:text say="One two three."]]', system=system)
    chunks = await chunks_of(proxy, stream_options={"include_usage": True}, **request)
    first, *deltas, final, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert not first.choices[0].delta.content
    assert [chunk.choices[0].delta.content for chunk in deltas] == ["One", " two", " three."]
    assert all(chunk.choices[0].finish_reason is None for chunk in [first, *deltas])
    assert final.choices[0].finish_reason == "stop"
    assert not final.choices[0].delta.content
    assert usage.choices == []
    assert usage.usage is not None
    assert {chunk.id for chunk in chunks} == {first.id}
    assert {chunk.model for chunk in chunks} == {MODEL}


@BOTH_MODES
async def test_a_whole_answer_says_the_same_as_a_streamed_one(proxy: Proxy, system: str | None) -> None:
    request = chat_request('[[model:reasoning say="The answer is 42." in=31 out=17]]', system=system)
    whole = await proxy.client.chat.completions.create(**request)
    chunks = await chunks_of(proxy, stream_options={"include_usage": True}, **request)
    assert whole.choices[0].message.content == text(chunks) == "The answer is 42."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.object == "chat.completion"
    assert token_counts(whole.usage) == token_counts(chunks[-1].usage)


async def test_reasoning_arrives_as_reasoning_content_before_the_text(proxy: Proxy) -> None:
    request = chat_request("[[model:reasoning parts=2 n=3 say=42.]]", system="Think.")
    chunks = await chunks_of(proxy, **request)
    thought = [getattr(chunk.choices[0].delta, "reasoning_content", None) or "" for chunk in chunks]
    for part in ("Head0", "think0.0", "think0.2", "Head1", "think1.2"):
        assert part in "".join(thought)
    spoken = next(index for index, chunk in enumerate(chunks) if chunk.choices[0].delta.content)
    assert not any(thought[spoken:])
    whole = await proxy.client.chat.completions.create(**request)
    assert whole.choices[0].message.reasoning_content == "".join(thought)


@BOTH_MODES
async def test_usage_is_what_the_model_server_sent(proxy: Proxy, system: str | None) -> None:
    request = chat_request("[[model:text say=Hi. in=1234 cached=1000 out=56 reasoning=7]]", system=system)
    whole = await proxy.client.chat.completions.create(**request)
    chunks = await chunks_of(proxy, stream_options={"include_usage": True}, **request)
    assert token_counts(whole.usage) == token_counts(chunks[-1].usage) == (1234, 56, 1000, 7, 1290)


async def test_usage_of_a_turn_with_several_model_calls_is_their_sum(
    proxy: Proxy, model_server: ModelServer
) -> None:
    answer = await proxy.client.chat.completions.create(
        **chat_request('[[model:shell cmd="echo hi" in=100 out=20]]')
    )
    assert len(model_server.calls) == 2
    assert token_counts(answer.usage)[:2] == (200, 40)


async def test_roles_reach_the_model_as_native_items(proxy: Proxy, model_server: ModelServer) -> None:
    last = "[[model:text say=Yes.]] And now?"
    history = [
        {"role": "system", "content": "Speak like a pirate."},
        {"role": "user", "content": "Who are you?"},
        {"role": "assistant", "content": "Arr, a scripted model."},
        {"role": "user", "content": last},
    ]
    await proxy.client.chat.completions.create(model=MODEL, messages=history)  # type: ignore[arg-type]
    [call] = model_server.calls
    assert messages(call)[-4:] == [
        ("developer", "Speak like a pirate."),
        ("user", "Who are you?"),
        ("assistant", "Arr, a scripted model."),
        ("user", last),
    ]


@PLAIN_MODEL
async def test_a_plain_model_request_carries_no_tool_and_nothing_of_the_users_home(
    codex_home: CodexHome, model_server: ModelServer, own_proxies: Proxies
) -> None:
    proxy = await own_proxies.of()
    (codex_home.path / "AGENTS.md").write_text("PLANTED in the home")
    (codex_home.workdir / "AGENTS.md").write_text("PLANTED in the folder")
    await proxy.client.chat.completions.create(**chat_request("[[model:text]]", system="Be brief."))
    await proxy.client.chat.completions.create(**chat_request("[[model:text]]"))
    plain, agent = model_server.calls
    assert tools_of(plain.body) == {}
    assert "PLANTED" not in json.dumps(plain.body)
    assert str(codex_home.workdir) not in json.dumps(plain.body)
    assert json.dumps(agent.body).count("PLANTED in the") == 2


async def test_an_agent_turn_has_codexs_own_prompt_tools_and_folder(
    proxies: Proxies, model_server: ModelServer, proxy: Proxy
) -> None:
    await proxy.client.chat.completions.create(**chat_request("[[model:text]]"))
    [call] = model_server.calls
    assert {"exec_command", "shell_command", "shell"} & tools_of(call.body).keys()
    assert "Codex" in json.dumps(call.body)
    assert str(proxies.home.workdir) in str(messages(call))


async def test_an_agent_works_in_the_folder_with_its_sandbox(
    proxies: Proxies, model_server: ModelServer, proxy: Proxy
) -> None:
    """The server's sandbox is read-only unless the operator says otherwise."""
    answer = await proxy.client.chat.completions.create(
        **chat_request('[[model:shell cmd="pwd; touch made"]]')
    )
    assert answer.choices[0].message.content == "Shell is done."
    output = str(items_of(model_server.calls[1].body)[-1]["output"])
    assert str(proxies.home.workdir) in output
    assert not (proxies.home.workdir / "made").exists()


@BOTH_MODES
async def test_effort_and_verbosity_reach_the_model(
    model_server: ModelServer, proxy: Proxy, system: str | None
) -> None:
    request = chat_request("[[model:text]]", system=system, reasoning_effort="low", verbosity="low")
    await proxy.client.chat.completions.create(**request | {"model": "gpt-5.5"})
    [call] = model_server.calls
    assert call.body["model"] == "gpt-5.5"
    assert call.body["reasoning"]["effort"] == "low"
    assert call.body["text"]["verbosity"] == "low"


@BOTH_MODES
async def test_an_image_reaches_the_model_as_it_is(
    model_server: ModelServer, proxy: Proxy, system: str | None
) -> None:
    url = f"data:image/png;base64,{PNG}"
    content = [
        {"type": "text", "text": "[[model:text say=Seen.]] What is this?"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    request = chat_request("", system=system)
    request["messages"][-1]["content"] = content
    answer = await proxy.client.chat.completions.create(**request)
    assert answer.choices[0].message.content == "Seen."
    parts = [part for item in items_of(model_server.calls[0].body) for part in item.get("content") or []]
    assert [part["image_url"] for part in parts if part["type"] == "input_image"] == [url]


async def test_an_unknown_model_passes_to_a_custom_provider(model_server: ModelServer, proxy: Proxy) -> None:
    request = chat_request("[[model:text say=Hi.]]", system="Be brief.") | {"model": "nobody/knows-it"}
    answer = await proxy.client.chat.completions.create(**request)
    assert answer.choices[0].message.content == "Hi."
    assert answer.model == model_server.calls[0].body["model"] == "nobody/knows-it"


@ENDS_MODEL_CALLS
async def test_a_stop_sequence_ends_the_answer_and_the_model_call(
    model_server: ModelServer, proxy: Proxy
) -> None:
    request = chat_request('[[model:stall n=6 say="never sent"]]', system="Count.", stop=["word3"])
    chunks = await chunks_of(proxy, **request)
    assert text(chunks) == "word0 word1 word2 "
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert await model_server.calls[0].ending() == "client_gone"


@ENDS_MODEL_CALLS
async def test_max_tokens_ends_the_answer_and_the_model_call(model_server: ModelServer, proxy: Proxy) -> None:
    request = chat_request(
        '[[model:stall n=100 say="never sent"]]', system="Count.", max_completion_tokens=10
    )
    chunks = await chunks_of(proxy, **request)
    assert text(chunks).split() == ["word0", "word1", "word2", "word3", "word4"]
    assert chunks[-1].choices[0].finish_reason == "length"
    assert await model_server.calls[0].ending() == "client_gone"


TIERS = (None, "auto", "default", "flex", "scale", "priority", "fast")
LISTED = next(model.id for model in published_models(bundled_catalog()) if "priority" in model.service_tiers)


@pytest.mark.exhaustive
@since("0.156", "`flex` reaches the provider only for models that list it, and is answered for all")
@BOTH_MODES
@pytest.mark.parametrize("configured", [None, "fast", "flex"])
@pytest.mark.parametrize(
    ("model", "own"),
    [(MODEL, MODEL), (LISTED, MODEL), ("codex-5", MODEL), ("codex-5", LISTED), ("codex-5", None)],
)
async def test_the_service_tier_of_an_answer_is_the_one_that_the_provider_was_asked_for(
    codex_home: CodexHome,
    model_server: ModelServer,
    system: str | None,
    configured: str | None,
    model: str,
    own: str | None,
) -> None:
    """`own`: the model in config.toml."""
    text = codex_home.config.read_text()
    line = f'model = "{MODEL}"\n'
    assert line in text
    codex_home.config.write_text(text.replace(line, "" if own is None else f'model = "{own}"\n'))
    if configured is not None:
        codex_home.add_config(f'service_tier = "{configured}"')
    async with running_proxy(codex_home) as proxy:
        for tier in TIERS:
            asked: dict[str, Any] = {} if tier is None else {"service_tier": tier}
            chat = {**chat_request("[[model:text say=Hi.]]", system=system), "model": model}
            answer: Any = await proxy.client.chat.completions.with_raw_response.create(**chat, **asked)
            used = model_server.calls[-1].body.get("service_tier", "default")
            assert answer.parse().service_tier == (None if tier is None else used)
            named = "service_tier" in answer.headers.get("x-codex-ignored-params", "")
            assert named == (used == "default" and tier not in (None, "auto", "default"))
            response = await proxy.client.responses.create(
                model=model, instructions=system, input="[[model:text say=Hi.]]", **asked
            )
            assert response.service_tier == model_server.calls[-1].body.get("service_tier", "default")
