"""Ollama's API through the whole server, with Ollama's own package as the client."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import ollama
import pytest

from codex_proxy.commands.serve import banner
from tests.http.serving import Proxy, fake_proxy, until
from tests.ollama_client import SCHEMA, WEATHER, client_of, user_messages
from tests.pictures import png_of


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(proxy.url) as made:
        yield made


async def test_a_chat_is_answered_whole_and_in_pieces(client: ollama.AsyncClient) -> None:
    messages = user_messages("[[fake:text say='Hello there.']]")
    whole = await client.chat("codex-5", messages)
    assert whole.message.content == "Hello there."
    assert (whole.done, whole.done_reason, whole.model) == (True, "stop", "codex-5")
    pieces = [piece async for piece in await client.chat("codex-5", messages, stream=True)]
    assert "".join(piece.message.content or "" for piece in pieces) == "Hello there."
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]


async def test_the_counts_and_times_of_an_answer_are_those_of_its_turn(client: ollama.AsyncClient) -> None:
    answer = await client.generate("codex-5", "[[fake:text say='Hello there.']]")
    assert (answer.prompt_eval_count or 0) > 0
    assert (answer.eval_count or 0) > 0
    parts = [answer.load_duration, answer.prompt_eval_duration, answer.eval_duration]
    assert all(isinstance(part, int) and part >= 0 for part in parts)
    assert sum(part or 0 for part in parts) <= (answer.total_duration or 0)


async def test_a_completion_is_answered_and_named_as_it_was_asked_for(client: ollama.AsyncClient) -> None:
    answer = await client.generate("codex-5:latest", "[[fake:text say=Hi]]", system="Be brief.")
    assert (answer.response, answer.model) == ("Hi", "codex-5:latest")


async def test_an_answer_is_streamed_where_the_body_does_not_say(proxy: Proxy) -> None:
    answer = await proxy.send(
        "POST", "/api/generate", {"model": "codex-5", "prompt": "[[fake:text say='Hello there.']]"}
    )
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert answer.headers["x-codex-agent"] == "fake"
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert lines[-1]["done"]
    assert len(lines) > 2


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "application/octet-stream"}], ids=["none", "any"])
@pytest.mark.parametrize(("path", "status"), [("/api/generate", 200), ("/v1/completions", 415)])
async def test_a_body_whose_type_says_nothing_is_json_only_here(
    proxy: Proxy, path: str, status: int, headers: dict[str, str]
) -> None:
    body = b'{"model": "codex-5", "prompt": "[[fake:text say=Hi]]", "stream": false}'
    url = f"{proxy.url}{path}"
    async with proxy.session.post(
        url, data=body, headers=headers, skip_auto_headers=["Content-Type"]
    ) as answer:
        assert answer.status == status
        assert status == 200 or ("octet-stream" in await answer.text()) == bool(headers)


async def test_a_tool_is_called_and_its_output_answered(client: ollama.AsyncClient) -> None:
    marker = """[[fake:tool_call args='{"city":"Bern"}' say='It is {outputs}.']]"""
    messages = user_messages(marker)
    first = await client.chat("codex-5", messages, tools=[WEATHER])
    (call,) = first.message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Bern"})
    output = {"role": "tool", "content": "sunny", "tool_name": "get_weather"}
    second = await client.chat("codex-5", [*messages, first.message, output], tools=[WEATHER])
    assert second.message.content == "It is sunny."


async def test_an_answer_follows_a_schema(client: ollama.AsyncClient) -> None:
    answer = await client.chat("codex-5", user_messages("Who?"), format=SCHEMA)
    assert set(json.loads(answer.message.content or "")) == {"name"}


async def test_an_image_reaches_the_agent(client: ollama.AsyncClient) -> None:
    messages = [{"role": "system", "content": "Look."}, *user_messages("[[fake:echo]]", images=[png_of()])]
    answer = await client.chat("codex-5", messages)
    assert "data:image/png" in (answer.message.content or "") or '"images"' in (answer.message.content or "")


async def test_thinking_is_apart_from_the_answer_and_can_be_left_out(client: ollama.AsyncClient) -> None:
    messages = user_messages("[[fake:reasoning]]")
    assert (await client.chat("codex-5", messages, think=True)).message.thinking
    assert (await client.chat("codex-5", messages, think=False)).message.thinking is None


async def test_ollamas_python_package_reads_errors(client: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError) as raised:
        await client.chat("llama3:latest", user_messages("Hi"))
    assert raised.value.status_code == 404
    assert "llama3:latest" in raised.value.error
    with pytest.raises(ollama.ResponseError, match="codex-proxy, not Ollama"):
        await client.pull("llama3")
    with pytest.raises(ollama.ResponseError, match="codex-proxy, not Ollama"):
        await client.delete("llama3")


async def test_a_turn_that_fails_is_an_error_before_and_in_a_stream(proxy: Proxy) -> None:
    body = {"model": "codex-5", "messages": user_messages("[[fake:crash]]")}
    failed = await proxy.send("POST", "/api/chat", body)
    assert failed.status >= 500
    assert set(failed.body) == {"error"}
    body["messages"] = user_messages("[[fake:text say='Hello there.']] [[fake:crash]]")
    lines = (await proxy.send("POST", "/api/chat", body)).text.splitlines()
    assert set(json.loads(lines[-1])) == {"error"}


async def test_a_client_that_leaves_ends_its_turn(proxy: Proxy) -> None:
    body = {"model": "codex-5", "messages": user_messages("[[fake:text n=100000 delay=5]]")}
    async with proxy.session.post(f"{proxy.url}/api/chat", json=body) as reply:
        assert not json.loads(await reply.content.readline())["done"]
        reply.close()
    await until(lambda: proxy.server.runs.running == 0)


async def test_a_model_is_loaded_without_a_turn(client: ollama.AsyncClient) -> None:
    loaded = await client.generate("codex-5", "")
    assert (loaded.done, loaded.done_reason, loaded.response) == (True, "load", "")
    unloaded = await client.chat("codex-5", [], keep_alive=0)
    assert unloaded.done_reason == "unload"


async def test_ignored_parameters_are_named(proxy: Proxy) -> None:
    options = {"temperature": 0.5, "num_ctx": 4096}
    body = {"model": "codex-5", "prompt": "[[fake:text say=Hi]]", "options": options, "stream": False}
    answer = await proxy.send("POST", "/api/generate", body)
    assert answer.headers["x-codex-ignored-params"] == "temperature, num_ctx"


async def test_models_are_listed_and_described(client: ollama.AsyncClient, proxy: Proxy) -> None:
    listed = [model.model for model in (await client.list()).models]
    assert "codex-5" in listed
    for name in listed:
        assert "completion" in ((await client.show(str(name))).capabilities or ())
    assert (await client.ps()).models == []
    assert (await client.show("codex-5:latest")).modelinfo
    with pytest.raises(ollama.ResponseError):
        await client.show("nothing")


async def test_requests_of_copilot_chat_are_answered_as_it_expects(proxy: Proxy) -> None:
    """The calls of its provider for Ollama: the version, the list, each model, then Chat Completions."""
    version = (await proxy.send("GET", "/api/version")).body["version"]
    assert [int(part) for part in version.split(".")] >= [0, 6, 4]
    for model in (await proxy.send("GET", "/api/tags")).body["models"]:
        info = (await proxy.send("POST", "/api/show", {"model": model["model"]})).body
        architecture = info["model_info"]["general.architecture"]
        assert isinstance(info["model_info"].get(f"{architecture}.context_length", 1), int)
        assert info["model_info"]["general.basename"]
        assert "tools" in info["capabilities"]
        body = {"model": model["model"], "messages": user_messages("[[fake:text say=Hi]]")}
        assert (await proxy.ask(body)).body["choices"][0]["message"]["content"] == "Hi"


async def test_the_base_url_is_ollamas_for_its_clients_alone(proxy: Proxy) -> None:
    as_ollama = {"User-Agent": "ollama-python/0.6.3"}
    assert (await proxy.send("GET", "/", headers=as_ollama)).text == "Ollama is running"
    assert (await proxy.send("HEAD", "/", headers=as_ollama)).status == 200
    assert (await proxy.send("GET", "/")).body["name"] == "codex-proxy"


async def test_a_server_with_keys_takes_one_in_authorization(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="a secret of the server") as proxy:
        async with client_of(proxy.url) as client:
            with pytest.raises(ollama.ResponseError) as raised:
                await client.list()
            assert raised.value.status_code == 401
        async with client_of(proxy.url, Authorization="Bearer a secret of the server") as client:
            assert (await client.list()).models


def free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port: int = own.getsockname()[1]
        return port


async def test_ollamas_port_is_served_too_where_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setattr("codex_proxy.http.server.OLLAMA_PORT", port)
    monkeypatch.setattr("codex_proxy.http.server_info.OLLAMA_PORT", port)
    async with fake_proxy(tmp_path, ollama=True) as proxy:
        assert f"also on port {port}" in banner(proxy.server)
        async with proxy.session.get(f"http://127.0.0.1:{port}/") as reply:
            assert await reply.text() == "Ollama is running"
        async with proxy.session.get(f"http://127.0.0.1:{port}/api/version") as reply:
            assert reply.status == 200
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_taken_port_of_ollamas_is_reported_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr("codex_proxy.http.server.OLLAMA_PORT", port)
        async with fake_proxy(tmp_path, ollama=True) as proxy:
            assert f"not on port {port}" in banner(proxy.server)
            assert (await proxy.send("GET", "/api/version")).status == 200
