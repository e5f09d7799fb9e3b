"""What is not HTTP, or HTTP that aiohttp refuses by itself: the error envelope, a closed connection, and no word of
it in the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fuzz.raw import RawAnswer, answers_in, exchange_bytes
from tests.http.serving import Proxy, user

SECRET = b"sk-very-secret"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"

BROKEN = {
    "no method": b"\x16\x03\x01\x02\x00 " + SECRET + b"\r\n\r\n",
    "another version": b"GET / HTTP/9\r\nX: " + SECRET + b"\r\n\r\n",
    "another protocol": b"SSH-2.0-" + SECRET + b"\r\n\r\n",
    "a header without a colon": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + SECRET + b"\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost: localhost\r\nA : " + SECRET + b"\r\n\r\n",
    "a NUL in a header": b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + SECRET + b"\0\r\n\r\n",
    "a length that is no number": POST + b"Content-Length: " + SECRET + b"\r\n\r\n{}",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}" + SECRET,
    "a length and chunks": POST
    + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    + SECRET,
    "a line without an end": b"GET /" + SECRET + b"a" * 70_000,
    "a header without an end": b"GET / HTTP/1.1\r\nA: " + SECRET + b"a" * 70_000,
}


async def answer_to(proxy: Proxy, data: bytes) -> RawAnswer:
    (answer,) = answers_in(await exchange_bytes(proxy.server.port, data))
    return answer


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
async def test_bytes_that_are_not_http_are_refused_in_the_error_envelope(
    proxy: Proxy, log_lines: list[Any], data: bytes
) -> None:
    answer = await answer_to(proxy, data)
    assert answer.status in (400, 431)
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.error["type"] == "invalid_request_error"
    assert SECRET not in answer.body
    assert SECRET.decode() not in repr(log_lines)
    assert {line["event"] for line in log_lines} == {"malformed_request"}


@pytest.mark.parametrize("chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}abc\r\n0\r\n\r\n", b"-1\r\n{}\r\n"])
async def test_chunks_that_are_none_are_a_400(proxy: Proxy, chunks: bytes) -> None:
    answers = answers_in(
        await exchange_bytes(proxy.server.port, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    )
    assert answers
    for answer in answers:
        assert answer.status == 400
        assert set(answer.error) == {"message", "type", "param", "code"}


async def test_an_expectation_that_nobody_knows_is_refused_in_the_envelope(proxy: Proxy) -> None:
    answer = await answer_to(proxy, POST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}")
    assert answer.status == 400
    assert "Expectation Failed" in answer.error["message"]


async def test_a_body_that_ends_too_early_starts_no_turn(proxy: Proxy) -> None:
    assert (
        await exchange_bytes(proxy.server.port, POST + b"Content-Length: 100\r\n\r\n{}", patience=0.05) == b""
    )
    await proxy.settled()


async def test_a_good_request_on_the_same_port_is_answered_afterwards(proxy: Proxy) -> None:
    for data in BROKEN.values():
        await exchange_bytes(proxy.server.port, data)
    assert (await proxy.send("GET", "/livez")).status == 200


async def test_a_body_that_is_too_large_by_its_length_is_refused_before_it_comes(proxy: Proxy) -> None:
    head = b"Content-Length: 99999999\r\nConnection: close\r\n\r\n"
    (answer,) = answers_in(await exchange_bytes(proxy.server.port, POST + head, one_answer=True))
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
async def test_the_end_of_a_stream_is_that_of_the_connection_where_a_client_knows_no_chunks(
    proxy: Proxy, path: str
) -> None:
    body = json.dumps(user(stream=True)).encode()
    head = f"POST {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
    head += b"Connection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body)
    answer = await exchange_bytes(
        proxy.server.port, head + body
    )  # which does not wait as long as a silent connection
    assert answer.endswith((b"data: [DONE]\n\n", b"}\n"))
