"""Requests that are no turns: they reach the upstream that has their model as they are, and so do its answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import ollama
import pytest
from aiohttp import web
from openai import AsyncOpenAI

from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.http.body import BODY_BUDGET
from codex_proxy.parts.upstream.endpoints import MAX_FORM_HEAD
from tests.http.serving import Answer, Proxy, fake_proxy, until
from tests.model_server import proxy_before
from tests.web_application import serve_application

KEY = "a-long-secret-of-the-upstream"
EMBEDDINGS_ANSWER = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
    "model": "embed",
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


@dataclass
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """A model server that answers by script, or else with `answer`, and remembers what it was asked."""

    url: str = ""
    requests: list[ReceivedRequest] = field(default_factory=list)
    script: list[int] = field(default_factory=list)
    """The statuses of the next answers."""
    answer: bytes = json.dumps(EMBEDDINGS_ANSWER).encode()
    content_type: str = "application/json"
    chunks: asyncio.Queue[bytes | None] | None = None
    early: int = 0
    """The status that is answered before the body is read."""
    received: int = 0
    """The bytes of the body that is being read."""
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "embed"}, {"id": "say"}]})

    async def any(self, request: web.Request) -> web.StreamResponse:
        if self.early == 200:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"begun")
            await request.read()
            return response
        if self.early:
            return web.json_response({"error": {"message": "no"}}, status=self.early)
        body = b""
        async for part in request.content.iter_any():
            body += part
            self.received = len(body)
        self.requests.append(ReceivedRequest(request.path, dict(request.headers), body))
        status = self.script.pop(0) if self.script else 200
        if status != 200:
            message = "Not found." if status == 404 else f"no: {KEY}"
            return web.json_response({"error": {"message": message}}, status=status)
        if self.chunks is None:
            return web.Response(body=self.answer, content_type=self.content_type)
        response = web.StreamResponse(headers={"Content-Type": self.content_type})
        await response.prepare(request)
        try:
            while (chunk := await self.chunks.get()) is not None:
                await response.write(chunk)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set()
            raise
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/{path:.*}", server.any)
    async with serve_application(app) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


@pytest.fixture
async def proxy(server: Server, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxy_before(server.url, tmp_path, upstream_key=KEY) as running:
        yield running


def tables(server: Server, **more: Any) -> dict[str, Any]:
    return {"upstreams": {"local": {"url": server.url, **more}}}


@pytest.mark.parametrize("path", PASSED_PATHS)
async def test_a_body_and_its_answer_are_passed_on_as_they_are(
    path: str, proxy: Proxy, server: Server
) -> None:
    body = b'{"model":"embed",  "input": "\\u0041", "of_tomorrow": 1e30, "n": 10000000000000000000000}'
    server.answer, server.content_type = b"\x00\xff any bytes", "audio/mpeg"
    async with proxy.session.post(
        f"{proxy.url}/v1{path}", data=body, headers={"Content-Type": "application/json"}
    ) as reply:
        assert await reply.read() == server.answer
        assert reply.headers["Content-Type"] == "audio/mpeg"
        assert reply.headers["x-codex-attempts"] == "1"
    (asked,) = server.requests
    assert (asked.path, asked.body) == (f"/v1{path}", body)
    assert asked.headers["Authorization"] == f"Bearer {KEY}"


async def test_a_name_with_the_upstreams_becomes_its_own_and_nothing_else_changes(
    server: Server, tmp_path: Path
) -> None:
    async with fake_proxy(tmp_path, **tables(server), model_aliases="text-embedding-3=local/embed") as proxy:
        for name in ("local/embed", "text-embedding-3"):
            body = json.dumps({"input": [1.50, 2], "model": name}).encode()
            answer = await proxy.send("POST", "/v1/embeddings", body)
            assert answer.body == EMBEDDINGS_ANSWER
            assert answer.headers["x-codex-upstream"] == "local"
            assert server.requests.pop().body == b'{"input":[1.5, 2],"model":"embed"}'


async def test_a_form_with_a_file_reaches_the_upstream(server: Server, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **tables(server)) as proxy:
        server.answer = b'{"text": "Hello."}'
        async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client:
            sound = bytes(range(256)) * 100
            said = await client.audio.transcriptions.create(model="local/say", file=("a.wav", sound))
        assert said.text == "Hello."
        (asked,) = server.requests
        assert sound in asked.body
        assert b"local/say" not in asked.body
        assert b"\r\n\r\nsay\r\n" in asked.body


async def test_a_form_without_authorization_is_refused(proxy: Proxy) -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nsay\r\n--x--\r\n'
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    refused = await proxy.send("POST", "/v1/audio/transcriptions", body, headers=headers)
    assert (refused.status, "`Authorization` or `x-api-key` header" in refused.error["message"]) == (
        415,
        True,
    )
    headers["Authorization"] = "Bearer none"
    assert (await proxy.send("POST", "/v1/audio/transcriptions", body, headers=headers)).status == 200
    assert (await proxy.send("POST", "/v1/embeddings", body, headers=headers)).status == 415
    headers["Content-Type"] = "multipart/form-data; boundary=y"
    assert (await proxy.send("POST", "/v1/audio/transcriptions", body, headers=headers)).status == 400


async def test_an_answer_is_streamed_and_a_client_that_leaves_ends_it(proxy: Proxy, server: Server) -> None:
    server.chunks, server.content_type = asyncio.Queue(), "text/event-stream"
    server.chunks.put_nowait(b"data: 1\n\n")
    body = {"model": "say", "prompt": "Hi", "stream": True}
    async with proxy.session.post(f"{proxy.url}/v1/completions", json=body) as reply:
        assert await reply.content.readuntil(b"\n\n") == b"data: 1\n\n"
        server.chunks.put_nowait(b"data: 2\n\n")
        assert await reply.content.readuntil(b"\n\n") == b"data: 2\n\n"
        reply.close()
    server.chunks.put_nowait(b"data: 3\n\n")
    await until(server.left.is_set)


@pytest.mark.parametrize(
    ("end", "is_whole"),
    [
        (b"", False),
        (b"data: [DO", False),
        (b"data: [DONE]\n\n", True),
        (b'data: {"choices":[{"text":"","finish_reason": "stop"}]}\n\n', True),
        (b'data: {"error":{"message":"x"}}\n\n', True),
    ],
)
async def test_a_stream_of_completions_without_its_end_breaks_off(
    end: bytes, is_whole: bool, proxy: Proxy, server: Server
) -> None:
    server.chunks, server.content_type = asyncio.Queue(), "text/event-stream"
    text = b'data: {"choices":[{"text":"data: [DONE]","finish_reason":null}]}\n\n'
    for chunk in (text, end[:9], end[9:], None):
        if chunk != b"":
            server.chunks.put_nowait(chunk)
    body = {"model": "say", "prompt": "Hi", "stream": True}
    async with proxy.session.post(f"{proxy.url}/v1/completions", json=body) as reply:
        with contextlib.nullcontext() if is_whole else pytest.raises(aiohttp.ClientError):
            assert await reply.read() == text + end


async def test_a_failed_request_is_retried_before_the_answer_begins_and_its_error_has_no_key(
    server: Server, tmp_path: Path
) -> None:
    table = {"retries": 1, "retry_wait": 0.0}
    async with proxy_before(server.url, tmp_path, table=table, upstream_key=KEY) as proxy:
        server.script = [503]
        answer = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
        assert (answer.status, answer.headers["x-codex-attempts"]) == (200, "2")
        server.script = [503, 503]
        answer = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
        assert answer.status >= 500
        assert KEY not in answer.text


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        ({"error": {"message": "Slow down.", "code": 429}}, 429, "Slow down."),
        ({"object": "error", "message": "Too long.", "code": 400}, 400, "Too long."),
        ({"data": None, "base_resp": {"status_code": 1002, "status_msg": "Slow down."}}, 502, "Slow down."),
        ({**EMBEDDINGS_ANSWER, "error": None}, 200, '"error"'),
        ({"code": 0, "message": "success", "data": [1]}, 200, "success"),
    ],
)
async def test_an_error_with_the_status_200_is_told_as_one(
    error: dict[str, Any], status: int, words: str, proxy: Proxy, server: Server
) -> None:
    server.answer = json.dumps(error).encode()
    answer = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
    assert (answer.status, words in answer.text) == (status, True)


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
async def test_embeddings_that_are_no_numbers_are_the_model_servers_error(
    number: bytes, proxy: Proxy, server: Server
) -> None:
    answer = json.dumps(EMBEDDINGS_ANSWER).encode()
    for odd in (b"0.5, ", b"0.5,\n"):
        server.answer = answer.replace(b"[0.5, -1.0]", b"[" + odd + number + b"]")
        assert number in server.answer
        reply = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
        assert (reply.status, "NaN or Infinity" in reply.text) == (502, True)
        reply = await proxy.send("POST", "/api/embed", {"model": "embed", "input": ["x"]})
        assert reply.status == 502
    server.answer = answer.replace(b"[0.5, -1.0]", b'"AACAfw=="')  # a float that is infinite
    assert (await proxy.send("POST", "/api/embed", {"model": "embed", "input": ["x"]})).status == 502
    name = answer[:-1] + b', "name": "NaN or -Infinity"}'
    server.answer = name
    reply = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
    assert (reply.status, reply.body) == (200, json.loads(name))


async def test_a_large_answer_with_a_number_that_is_none_breaks_off(proxy: Proxy, server: Server) -> None:
    server.answer = b'{"data":[{"embedding":[' + b"0.5," * 300_000 + b'NaN],"index":0}]}'
    async with proxy.session.post(
        f"{proxy.url}/v1/embeddings", json={"model": "embed", "input": "x"}
    ) as reply:
        with pytest.raises(aiohttp.ClientError):
            await reply.read()


async def test_the_breaker_counts_these_requests_too(server: Server, tmp_path: Path) -> None:
    table = {"retries": 0, "breaker_failures": 2, "breaker_seconds": 60}
    async with proxy_before(server.url, tmp_path, table=table) as proxy:
        server.script = [503, 503, 503]
        for _ in range(3):
            answer = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
        assert answer.status == 503
        assert len(server.requests) == 2


async def test_an_upstream_without_the_path_is_a_404_that_says_what_to_add(
    proxy: Proxy, server: Server
) -> None:
    server.script = [404]
    answer = await proxy.send("POST", "/v1/rerank", {"model": "embed", "query": "x"})
    assert answer.status == 404
    assert "[upstreams.NAME]" in answer.error["message"]


async def test_a_model_that_no_upstream_has_is_a_404_that_says_what_to_add(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        for name in ("codex-5", "nothing"):
            answer = await proxy.send("POST", "/v1/embeddings", {"model": name, "input": "x"})
            assert answer.status == 404
            assert 'paths = ["/embeddings"]' in answer.error["message"]
        answer = await proxy.send("POST", "/v1/embeddings", {"input": "x"})
        assert (answer.status, answer.error["param"]) == (400, "model")


async def test_a_table_that_names_the_path_gets_models_that_nobody_has(
    server: Server, tmp_path: Path
) -> None:
    async with fake_proxy(tmp_path, **tables(server, paths=["/embeddings"])) as proxy:
        body = {"model": "text-embedding-3-small", "input": "x"}
        assert (await proxy.send("POST", "/v1/embeddings", body)).body == EMBEDDINGS_ANSWER
        assert json.loads(server.requests[0].body)["model"] == "text-embedding-3-small"
        assert (await proxy.send("POST", "/v1/moderations", {"model": "local/say"})).status == 404


async def test_bodies_that_cannot_be_read_are_refused(proxy: Proxy) -> None:
    for body in (b"[]", b"{", b'{"model": 1}'):
        assert (await proxy.send("POST", "/v1/embeddings", body)).status == 400


async def test_ollamas_clients_get_embeddings(proxy: Proxy, server: Server) -> None:
    client = ollama.AsyncClient(host=proxy.url)
    try:
        found = await client.embed("embed", ["x"])
        assert (list(found.embeddings[0]), found.prompt_eval_count) == ([0.5, -1.0], 3)
        assert list((await client.embeddings("embed", "x")).embedding) == [0.5, -1.0]
        server.answer = b"{}"
        with pytest.raises(ollama.ResponseError, match="no embeddings"):
            await client.embed("embed", "x")
    finally:
        await client._client.aclose()


async def test_a_completion_of_an_agents_model_is_a_turn_of_one_message(
    server: Server, tmp_path: Path
) -> None:
    async with (
        fake_proxy(tmp_path, **tables(server)) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        prompt = "[[fake:text say='Hello there.']]"
        whole = await client.completions.create(model="codex-5", prompt=prompt)
        assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("Hello there.", "stop")
        parts = [
            part
            async for part in await client.completions.create(model="codex-5", prompt=prompt, stream=True)
        ]
        assert "".join(part.choices[0].text for part in parts) == "Hello there."
        assert not server.requests
        server.answer = b'{"choices": []}'
        await client.completions.create(model="local/say", prompt="def f(", suffix="return x")
        assert json.loads(server.requests[0].body)["suffix"] == "return x"


async def test_ollamas_clients_have_a_text_filled_in_before_a_suffix(server: Server, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **tables(server)) as proxy:
        client = ollama.AsyncClient(host=proxy.url)
        try:
            usage = {"prompt_tokens": 5, "completion_tokens": 2}
            choices = [{"text": "x):", "finish_reason": "length"}]
            server.answer = json.dumps({"choices": choices, "usage": usage}).encode()
            answer = await client.generate("local/say", "def f(", suffix="return x")
            assert (answer.response, answer.done_reason, answer.eval_count) == ("x):", "length", 2)
            stream = await client.generate("local/say", "def f(", suffix="return x", stream=True)
            assert "".join([part.response or "" async for part in stream]) == "x):"
            asked = json.loads(server.requests[0].body)
            assert (asked["model"], asked["suffix"]) == ("say", "return x")
            with pytest.raises(ollama.ResponseError, match="cannot fill in") as raised:
                await client.generate("codex-5", "def f(", suffix="return x")
            assert raised.value.status_code == 400
        finally:
            await client._client.aclose()


AUTHORIZED = {"Content-Type": "multipart/form-data; boundary=x", "Authorization": "Bearer none"}
MODEL_PART = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nlocal/say\r\n'
FILE_HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
SOUND = bytes(range(256)) * (3 * MAX_FORM_HEAD // 256)
FORM = MODEL_PART + FILE_HEAD + SOUND + b"\r\n--x--\r\n"
TRANSCRIBE = "/v1/audio/transcriptions"


def rename_model(form: bytes) -> bytes:
    return form.replace(b"local/say", b"say")


async def transcribe(proxy: Proxy, form: bytes | AsyncIterator[bytes]) -> Answer:
    data = BytesIO(form) if isinstance(form, bytes) else form
    return await proxy.send("POST", TRANSCRIBE, None, data=data, headers=AUTHORIZED)


async def test_a_large_form_is_sent_on_while_it_comes(server: Server, tmp_path: Path) -> None:
    more = asyncio.Event()

    async def form() -> AsyncIterator[bytes]:
        yield FORM[: 2 * MAX_FORM_HEAD]
        await more.wait()
        yield FORM[2 * MAX_FORM_HEAD :]

    async with fake_proxy(tmp_path, **tables(server)) as proxy:
        sending = asyncio.ensure_future(transcribe(proxy, form()))
        await until(lambda: server.received >= 2 * MAX_FORM_HEAD - len(b"local/"))
        assert proxy.app[BODY_BUDGET].held < 1.5 * MAX_FORM_HEAD
        more.set()
        assert (await sending).body == EMBEDDINGS_ANSWER
        (asked,) = server.requests
        assert asked.body == rename_model(FORM)
        answer = await transcribe(proxy, FORM)
        assert answer.headers["x-codex-attempts"] == "1"
        assert server.requests[-1].body == rename_model(FORM)
        assert server.requests[-1].headers["Content-Length"] == str(len(rename_model(FORM)))


MODEL_LAST = FILE_HEAD + SOUND + b"\r\n" + MODEL_PART + b"--x--\r\n"


async def test_a_form_with_its_model_behind_the_file_waits_in_a_file(server: Server, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **tables(server, retry_wait=0.0)) as proxy:
        server.script = [503]
        server.chunks = asyncio.Queue()
        sending = asyncio.ensure_future(transcribe(proxy, MODEL_LAST))
        await until(lambda: len(server.requests) == 2)
        assert proxy.app[BODY_BUDGET].held < 1.5 * MAX_FORM_HEAD
        server.chunks.put_nowait(None)
        answer = await sending
        assert (answer.status, answer.headers["x-codex-attempts"]) == (200, "2")
        assert server.requests[-1].body == rename_model(MODEL_LAST)
        assert server.requests[-1].headers["Content-Length"] == str(len(rename_model(MODEL_LAST)))
        assert (await transcribe(proxy, MODEL_LAST[:-99])).status == 400


async def test_a_form_for_which_there_is_no_room_says_what_to_do(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path, **tables(server)) as proxy:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
        answer = await transcribe(proxy, MODEL_LAST)
        assert (answer.status, server.requests) == (503, [])
        assert "Put its field 'model' before its files." in answer.error["message"]


async def test_a_form_that_was_sent_on_is_not_sent_again(server: Server, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **tables(server, retry_wait=0.0)) as proxy:
        server.script = [503]
        assert (await transcribe(proxy, FORM)).status == 503
        assert len(server.requests) == 1


async def test_the_answer_of_an_upstream_before_the_end_of_a_form_is_passed_on(
    server: Server, tmp_path: Path
) -> None:
    server.early = 400
    async with fake_proxy(tmp_path, **tables(server)) as proxy:
        for _ in range(2):
            assert (await transcribe(proxy, FORM)).status == 400
        server.early = 0
        assert (await transcribe(proxy, FORM)).status == 200


async def test_a_form_that_is_too_large_or_breaks_off_is_not_the_upstreams_fault(
    server: Server, tmp_path: Path
) -> None:
    left = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield FORM[: 2 * MAX_FORM_HEAD]
        await left.wait()
        while True:
            yield SOUND

    async with fake_proxy(
        tmp_path, **tables(server, breaker_failures=1, breaker_seconds=60), body_limit=4 * MAX_FORM_HEAD
    ) as proxy:
        left.set()
        answer = await transcribe(proxy, endless())
        assert (answer.status, "PROXY_BODY_LIMIT" in answer.text) == (413, True)
        left.clear()
        sending = asyncio.ensure_future(transcribe(proxy, endless()))
        server.received = 0
        await until(lambda: server.received > MAX_FORM_HEAD)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(lambda: proxy.app[BODY_BUDGET].held == 0)
        assert (await transcribe(proxy, FORM)).status == 200
        assert len(server.requests) == 1


async def test_a_form_that_is_too_large_cuts_an_answer_that_has_begun(server: Server, tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield FORM[: 2 * MAX_FORM_HEAD]
        await begun.wait()
        while True:
            yield SOUND

    server.early = 200
    async with (
        fake_proxy(tmp_path, **tables(server), body_limit=4 * MAX_FORM_HEAD) as proxy,
        proxy.session.post(f"{proxy.url}{TRANSCRIBE}", data=endless(), headers=AUTHORIZED) as reply,
    ):
        assert await reply.content.readexactly(5) == b"begun"
        begun.set()
        with pytest.raises(aiohttp.ClientError):
            await reply.read()


async def test_the_whole_request_has_a_time_limit(server: Server, tmp_path: Path) -> None:
    table = {"total_timeout": 0.2}
    async with proxy_before(server.url, tmp_path, table=table) as proxy:
        server.chunks = asyncio.Queue()
        answer = await proxy.send("POST", "/v1/embeddings", {"model": "embed", "input": "x"})
        assert (answer.status, answer.error["code"]) == (504, "request_timeout")
        await until(server.left.is_set)
        server.left.clear()
        server.chunks.put_nowait(b"[")
        with pytest.raises(aiohttp.ClientPayloadError):
            await proxy.send("POST", "/v1/moderations", {"model": "embed", "input": "x"})
        await until(server.left.is_set)


async def test_the_tokens_of_an_answer_count_for_its_key(server: Server, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **tables(server), metrics=True) as proxy:
        body = {"model": "local/embed", "input": "x"}
        await proxy.send("POST", "/v1/embeddings", body)
        await proxy.send("POST", "/api/embed", body)
        server.script = [400]
        await proxy.send("POST", "/v1/embeddings", body)
        assert proxy.server.usage is not None
        await proxy.server.usage.flush()
        usage = (await proxy.send("GET", "/v1/usage?group_by=model")).body["data"][-1]["results"]
        (row,) = usage
        assert (row["model"], row["input_tokens"]) == ("local/embed", 6)
        assert (row["num_model_requests"], row["num_failed_requests"]) == (3, 1)
        metrics = (await proxy.send("GET", "/metrics")).text
        assert 'tokens_total{kind="input",model="local/embed"' in metrics.replace("codex_proxy_", "")
