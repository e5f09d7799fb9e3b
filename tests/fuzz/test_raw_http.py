"""Bytes on the socket that are nearly HTTP: whatever comes back is HTTP, and a refusal is the error envelope."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Final

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.raw import CutOffError, RawAnswer, answers_in, exchange_bytes
from tests.waiting import PATIENCE

FIRST: Final = 0.03
"""Seconds for an answer to what was sent alone: what follows in one piece is looked at together with it."""
LAST: Final = 0.3
"""Seconds for a server that waits for still more: what is sent last are bytes that no request can go on with."""
END: Final = b"\r\n\r\n\r\n0\r\n\r\n\x01\x02 \x03\r\n\r\n" + b"\x7f" * 64 + b"\r\n\r\n"
STEADY: Final = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)

BODY: Final = b'{"model":"codex-5","input":"x"}'
LINES: Final = st.sampled_from(
    [
        *(
            b"GET /livez HTTP/1.1",
            b"POST /v1/responses HTTP/1.1",
            b"GET /v1/responses HTTP/1.1",
            b"GET / HTTP/1.0",
        ),
        *(
            b"GET /livez HTTP/2",
            b"get /livez HTTP/1.1",
            b"GET  /livez  HTTP/1.1",
            b"GET\t/livez\tHTTP/1.1",
            b"GET",
        ),
        *(b"GET http://[::1 HTTP/1.1", b"GET //// HTTP/1.1", b"GET * HTTP/1.1", b"CONNECT a:1 HTTP/1.1", b""),
        *(
            b"OPTIONS * HTTP/1.1",
            b"PRI * HTTP/2.0",
            b"\x16\x03\x01",
            b"TRACE / HTTP/1.1",
            b"GET /%zz?%zz HTTP/1.1",
        ),
        *(b"GET /\xff HTTP/1.1", b"GET /v1/models/" + b"a" * 9000 + b" HTTP/1.1", b"M-SEARCH * HTTP/1.1"),
    ]
)
ODD: Final = st.lists(
    st.sampled_from(
        [
            *(
                b"Host: localhost",
                b"Host:",
                b"Host: evil.example",
                b"host : localhost",
                b"Content-Length: 31",
            ),
            *(b"Content-Length: 3", b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 31, 31"),
            *(
                b"Transfer-Encoding: chunked",
                b"Transfer-Encoding: gzip, chunked",
                b"Transfer-Encoding: chunked, x",
            ),
            *(
                b"Content-Encoding: gzip",
                b"Content-Encoding: br",
                b"Content-Type: application/json",
                b"Connection: x",
            ),
            *(
                b"Content-Type: text/plain; charset=\xff",
                b"Content-Type:",
                b"Expect: 100-continue",
                b"Expect: x",
            ),
            *(b"Connection: upgrade", b"Upgrade: websocket", b"Upgrade: h2c", b"Sec-WebSocket-Key: x"),
            *(
                b"Sec-WebSocket-Version: 13",
                b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
                b"X-Codex-Mode: \xff",
            ),
            *(
                b"x-request-id: \x00",
                b"Authorization: Bearer \xff",
                b"no colon",
                b" folded",
                b": nameless",
                b"A:\x0b",
            ),
            *(
                b"Origin: null",
                b"X-Forwarded-For: x",
                b"Cookie: " + b"a=b; " * 400,
                b"X-Codex-Workdir: \xed\xa0\x80",
            ),
        ]
    ),
    max_size=2,
)
GOOD: Final = st.sampled_from(
    [
        (b"GET /livez HTTP/1.1", [b"Host: localhost"]),
        (b"GET /v1/models/codex-5 HTTP/1.0", []),
        (b"OPTIONS /v1/responses HTTP/1.1", [b"Host: localhost"]),
        (b"GET /v1/responses HTTP/1.1", [b"Host: localhost", b"Connection: upgrade", b"Upgrade: websocket"]),
        (b"POST /v1/conversations HTTP/1.1", [b"Host: localhost", b"Content-Type: application/json"]),
        (
            b"POST /v1/responses/input_tokens HTTP/1.1",
            [b"Host: localhost", b"Content-Type: application/json"],
        ),
    ]
)
"""Requests that are right, as far as they go."""
BODIES: Final = st.sampled_from(
    [
        b"",
        BODY,
        b"1f\r\n" + BODY + b"\r\n0\r\n\r\n",
        b"zz\r\n",
        b"5;a=b\r\n{}\r\n",
        b"\x1f\x8b\x08",
        b"\x81\x00",
    ]
)
LINE_ENDS: Final = st.sampled_from([b"\r\n", b"\r\n", b"\n", b"\r"])


def raw_answers(port: int, data: bytes) -> list[RawAnswer]:
    """What comes back for these bytes until the server closes or falls silent between two answers."""
    found = b""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as line:
        for piece, seconds in ((data, FIRST), (END, LAST)):
            with contextlib.suppress(ConnectionError):
                line.settimeout(PATIENCE)
                line.sendall(piece)
                found += read_answer(line, seconds)
    return answers_in(found)


def read_answer(line: socket.socket, seconds: float) -> bytes:
    """What comes until the server closes, or says nothing for so long; an answer that has begun is heard out. Raises
    `ConnectionError` where it breaks off."""
    found, whole = b"", True
    while True:
        line.settimeout(seconds if whole else PATIENCE)
        try:
            said = line.recv(65536)
        except TimeoutError:
            said = b""
        if not said:
            return found
        found += said
        whole = is_whole(found)


def is_whole(found: bytes) -> bool:
    """Whether these bytes are answers to their ends."""
    try:
        answers_in(found)
    except CutOffError:
        return False
    return True


def check(answers: list[RawAnswer]) -> None:
    for answer in answers:
        if answer.status >= 400:
            assert answer.status < 500, answer
            assert answer.headers["x-request-id"]
            if answer.body:
                assert set(json.loads(answer.body)["error"]) == {"message", "type", "param", "code"}


@STEADY
@given(request=GOOD, line=st.none() | LINES, odd=ODD, body=BODIES, end=LINE_ENDS)
def test_requests_that_are_nearly_http_are_answered_as_http_or_not_at_all(
    port: int,
    request: tuple[bytes, list[bytes]],
    line: bytes | None,
    odd: list[bytes],
    body: bytes,
    end: bytes,
) -> None:
    good, headers = request
    check(raw_answers(port, end.join([line or good, *headers, *odd, b"", body])))


@STEADY
@given(data=st.binary(max_size=300))
def test_any_bytes_are_answered_as_http_or_not_at_all(port: int, data: bytes) -> None:
    check(raw_answers(port, data))


async def test_a_good_request_is_still_answered(port: int) -> None:
    request = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    [answer] = answers_in(await exchange_bytes(port, request))
    assert answer.status == 200
