"""The frame of every request: its id, its log line, and what aiohttp itself refuses, as OpenAI's errors."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from codex_proxy.core.events import TurnEnded
from codex_proxy.http import chat
from codex_proxy.surfaces.chat.render import ChatRenderer
from tests.http.serving import Answer, Proxy, fake_proxy, until, user
from tests.waiting import PATIENCE

SECRET = "the secret of the prompt"


def request_lines(logged: list[Any]) -> list[Any]:
    return [line for line in logged if line["event"] == "request"]


def complete(answer: Answer) -> bool:
    """Whether it is an error with all four keys."""
    return set(answer.error) == {"message", "type", "param", "code"} and bool(answer.error["message"])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", user()),
        ("POST", "/v1/chat/completions", user(stream=True)),
        ("POST", "/v1/chat/completions", user("[[fake:error_500]]")),
        ("POST", "/v1/chat/completions", user(n=0)),
        ("GET", "/v1/models", None),
        ("GET", "/v1/nothing", None),
        ("DELETE", "/v1/models", None),
        ("GET", "/healthz", None),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_every_reply_carries_a_request_id_the_clients_own_if_it_sent_one(
    proxy: Proxy, method: str, path: str, body: Any
) -> None:
    own = await proxy.send(method, path, body, headers={"x-request-id": "mine-1"})
    assert own.headers["x-request-id"] == "mine-1"
    ours = [(await proxy.send(method, path, body)).headers["x-request-id"] for _ in range(2)]
    assert all(id.startswith("req_") for id in ours)
    assert len(set(ours)) == 2


@pytest.mark.parametrize("id", ["", "with space", "x" * 129, "tab\there", "ünïcode"])
async def test_a_request_id_that_could_break_a_header_or_a_log_is_replaced(proxy: Proxy, id: str) -> None:
    answer = await proxy.send("GET", "/livez", headers={"x-request-id": id})
    assert answer.headers["x-request-id"].startswith("req_")


@pytest.mark.parametrize(
    "path", ["/v1/nothing", "/nothing", "/v1/chat/completions/more", "/v2/chat/completions"]
)
async def test_an_unknown_path_is_404_in_the_error_envelope(proxy: Proxy, path: str) -> None:
    answer = await proxy.send("GET", path)
    assert answer.status == 404
    assert complete(answer)
    assert (answer.error["type"], answer.error["code"]) == ("not_found_error", "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/codex-5", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405_and_names_those_that_are_allowed(
    proxy: Proxy, method: str, path: str, allow: str
) -> None:
    answer = await proxy.send(method, path)
    assert answer.status == 405
    assert answer.headers["Allow"] == allow
    if method != "HEAD":
        assert complete(answer)
        assert answer.error["code"] == "method_not_allowed"


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/livez"])
async def test_head_has_the_status_and_headers_of_get_and_no_body(proxy: Proxy, path: str) -> None:
    head, get = await proxy.send("HEAD", path), await proxy.send("GET", path)
    assert (head.status, head.text) == (200, "")
    assert head.headers["Content-Type"] == get.headers["Content-Type"]
    assert "x-request-id" in head.headers


async def test_no_path_sends_a_body_to_head(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, test_endpoints=True) as proxy:
        resources = [route.resource for route in proxy.app.router.routes() if route.method == "HEAD"]
        paths = {each.canonical for each in resources if each is not None and "{" not in each.canonical}
        assert "/livez" in paths
        for path in sorted(paths):
            reader, writer = await asyncio.open_connection(proxy.server.host, proxy.server.port)
            ask = "{} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
            writer.write(
                (ask.format(f"HEAD {path}", "") + ask.format("GET /livez", "Connection: close\r\n")).encode()
            )
            sent = await asyncio.wait_for(reader.read(), PATIENCE)
            writer.close()
            head, _, rest = sent.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 ")
            assert rest.startswith(b"HTTP/1.1 200 OK\r\n"), (path, rest[:200])


async def test_a_body_over_the_limit_is_413(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, body_limit=1000) as proxy:
        answer = await proxy.ask(user("x" * 1000))
        assert answer.status == 413
        assert complete(answer)
        assert answer.error["code"] == "request_too_large"
        assert (await proxy.ask(user("x" * 500))).status == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
async def test_a_body_that_a_page_could_send_without_asking_is_415(proxy: Proxy, kind: str) -> None:
    answer = await proxy.ask(user(), headers={"Content-Type": kind})
    assert answer.status == 415
    assert complete(answer)
    assert answer.error["code"] == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"])
async def test_json_is_json_however_it_is_written(proxy: Proxy, kind: str) -> None:
    assert (await proxy.ask(user(), headers={"Content-Type": kind})).status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"messages": NaN}', b"[" * 10_000]
)
async def test_a_body_that_is_no_json_object_is_400(proxy: Proxy, body: bytes) -> None:
    answer = await proxy.ask(body)
    assert answer.status == 400
    assert complete(answer)
    assert answer.error["type"] == "invalid_request_error"


async def test_a_missing_body_is_400(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/v1/chat/completions")
    assert answer.status == 400
    assert complete(answer)


async def test_paths_work_without_v1_too(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/chat/completions", user())
    assert answer.body["object"] == "chat.completion"
    assert (await proxy.send("GET", "/models")).body["object"] == "list"


async def test_without_its_key_a_protected_server_is_401_authentication_error(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="right") as proxy:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
            answer = await proxy.ask(user(), headers=headers)
            assert answer.status == 401
            assert complete(answer)
            assert answer.error["type"] == "authentication_error"
            assert answer.error["code"] == "invalid_api_key"
        assert (await proxy.ask(user(), headers={"Authorization": "bearer right"})).status == 200


# --- the log --------------------------------------------------------------------------------------


async def test_the_request_log_has_choice_count_finish_reason_and_its_source_event(
    proxy: Proxy, log_lines: list[Any]
) -> None:
    await proxy.ask(user("[[fake:truncation]]", n=3, stream=True))
    await until(lambda: bool(request_lines(log_lines)))
    (line,) = request_lines(log_lines)
    assert line["choice_count"] == 3
    assert (line["finish_reason"], line["finish_source"]) == ("length", "token_count")
    assert (line["status"], line["method"], line["stream"]) == (200, "POST", True)
    assert line["ms"] >= line["first_ms"] > 0


async def test_usage_without_include_usage_is_logged_with_its_trigger_and_not_forwarded(
    proxy: Proxy, log_lines: list[Any]
) -> None:
    answer = await proxy.ask(user("[[fake:text in=11 out=7]]", stream=True))
    assert "usage" not in answer.text
    await until(lambda: bool(request_lines(log_lines)))
    (line,) = request_lines(log_lines)
    assert (line["input_tokens"], line["output_tokens"]) == (11, 7)
    assert line["emission_trigger"] in ("token_count", "task_complete", "provider")


async def test_no_line_of_the_log_holds_a_word_of_prompt_answer_or_key(
    tmp_path: Path, log_lines: list[Any]
) -> None:
    async with fake_proxy(tmp_path, api_key="the-key") as proxy:
        headers = {"Authorization": "Bearer the-key"}
        for fields in ({}, {"stream": True}, {"n": 99}, {"messages": [{"role": SECRET, "content": SECRET}]}):
            await proxy.ask(
                {**user(f"[[fake:text say='answered words']] {SECRET}"), **fields}, headers=headers
            )
        await proxy.settled()
    text = repr(log_lines)
    assert len(request_lines(log_lines)) == 4
    for hidden in (SECRET, "answered words", "answered", "the-key"):
        assert hidden not in text


# --- faults of ours -------------------------------------------------------------------------------


def breaks(*_: Any, **__: Any) -> Any:
    raise ValueError(SECRET)


async def test_an_internal_error_is_500_and_its_log_line_says_where_but_not_what(
    proxy: Proxy, log_lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "parse", breaks)
    answer = await proxy.ask(user())
    assert answer.status == 500
    assert complete(answer)
    assert answer.error["code"] == "internal_error"
    assert SECRET not in answer.text
    (line,) = [line for line in log_lines if line["event"] == "internal_error"]
    assert line["raised"] == "ValueError"
    assert any("breaks" in place for place in line["at"])
    assert SECRET not in repr(log_lines)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, SECRET), "ulimit -n"),
        (MemoryError(SECRET), "memory"),
    ],
)
async def test_a_503_names_what_a_busy_machine_lacks(
    proxy: Proxy, log_lines: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception, advice: str
) -> None:
    def lacks(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(chat, "parse", lacks)
    answer = await proxy.ask(user())
    assert (answer.status, answer.error["code"]) == (503, "service_unavailable")
    assert advice in answer.error["message"]
    (line,) = [line for line in log_lines if line["event"] == "internal_error"]
    assert advice in line["lack"]
    assert SECRET not in answer.text + repr(log_lines)


async def test_an_internal_error_in_the_middle_of_a_stream_is_an_error_frame_and_done(
    proxy: Proxy, log_lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = ChatRenderer.feed

    def feed_first(self: Any, events: Any) -> bytes:
        if self.visible and not self.ended and not any(isinstance(event, TurnEnded) for event in events):
            raise ValueError(SECRET)
        return feed(self, events)

    monkeypatch.setattr(ChatRenderer, "feed", feed_first)
    answer = await proxy.ask(user("[[fake:text delay=30]]", stream=True))
    *_, failed, done = answer.frames
    assert failed["error"]["code"] == "internal_error"
    assert done == "[DONE]"
    assert SECRET not in repr(log_lines) + answer.text
    await proxy.settled()


async def test_an_answer_whose_error_cannot_be_sent_is_cut_and_not_followed_by_another(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.http.sse.EventStream.close", breaks)
    with pytest.raises(aiohttp.ClientError):
        await proxy.ask(user("[[fake:text delay=30]]", stream=True))
    monkeypatch.undo()
    assert (await proxy.ask(user(stream=True))).status == 200


# --- clients that leave ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_turn_and_is_499_in_the_log(
    tmp_path: Path, log_lines: list[Any], stream: bool
) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "never")}
    async with fake_proxy(tmp_path, environment) as proxy:
        held = user("[[fake:text hold=1]]", stream=stream)
        if stream:
            async with proxy.open(held) as reply:
                await reply.content.readline()
        else:
            asking = asyncio.create_task(proxy.ask(held))
            await until(lambda: proxy.server.runs.running == 1)
            asking.cancel()
        await proxy.settled()
        await until(lambda: bool(request_lines(log_lines)))
    (line,) = request_lines(log_lines)
    assert line["status"] == 499


async def test_a_connection_that_breaks_under_a_write_is_a_client_that_left_and_no_error_of_this_server(
    proxy: Proxy, log_lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_off(*_: Any) -> Any:
        raise ConnectionResetError

    for writes in ("write", "close"):
        monkeypatch.setattr(f"codex_proxy.http.sse.EventStream.{writes}", breaks_off)
    with pytest.raises(aiohttp.ClientError):
        await proxy.ask(user(stream=True))
    await proxy.settled()
    await until(lambda: bool(request_lines(log_lines)))
    assert request_lines(log_lines)[0]["status"] == 499
    assert not [line for line in log_lines if line["event"] == "internal_error"]


async def test_every_reply_says_how_long_it_took(proxy: Proxy) -> None:
    for answer in (await proxy.ask(user()), await proxy.ask({}), await proxy.ask(user(stream=True))):
        assert 0 <= int(answer.headers["openai-processing-ms"]) < PATIENCE * 1000


@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("DELETE", "/v1/models/")])
async def test_a_path_is_repeated_up_to_eighty_characters(proxy: Proxy, method: str, path: str) -> None:
    answer = await proxy.send(method, path + "x" * 5000)
    assert len(answer.error["message"]) < 250
    assert "..." in answer.error["message"]
