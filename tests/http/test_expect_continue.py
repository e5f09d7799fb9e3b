"""Clients that send their body only after `100 Continue`: they are told of a refusal before they send it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.access.keyed import key_of, keyed_proxy
from tests.http.serving import Proxy, fake_proxy, user
from tests.model_server import upstream
from tests.waiting import PATIENCE

CONTINUE = b"HTTP/1.1 100 Continue\r\n"
BODY = json.dumps(user()).encode()
KEY = f"Authorization: Bearer {key_of('one')}"


class Client:
    """A connection on which a request's head was sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def line(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readline()

    async def head(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")


@asynccontextmanager
async def asking(
    proxy: Proxy,
    *headers: str,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    kind: str = "application/json",
    size: int = len(BODY),
    version: str = "1.1",
) -> AsyncIterator[Client]:
    head = [
        f"{method} {path} HTTP/{version}",
        *("Host: localhost", f"Content-Type: {kind}", f"Content-Length: {size}", "Expect: 100-continue"),
        *headers,
    ]
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.server.port)
    writer.write(("\r\n".join(head) + "\r\n\r\n").encode())
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with keyed_proxy(tmp_path, {"one": {}, "few": {"rpm": 1}}, body_limit=10_000) as proxy:
        yield proxy


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "no key": (401, {}),
    "a wrong key": (401, {"headers": ["Authorization: Bearer no"]}),
    "no such path": (404, {"headers": [KEY], "path": "/v1/nothing"}),
    "another method": (405, {"headers": [KEY], "path": "/v1/models"}),
    "too large": (413, {"headers": [KEY], "size": 10_001}),
    "too large a form": (
        413,
        {
            "headers": [KEY],
            "size": 10_001,
            "path": "/v1/images/edits",
            "kind": "multipart/form-data; boundary=x",
        },
    ),
    "no JSON": (415, {"headers": [KEY], "kind": "text/plain"}),
    "another coding": (415, {"headers": [KEY, "Content-Encoding: br"]}),
    "a foreign page": (403, {"headers": [KEY, "Origin: http://evil.example"]}),
    "too many headers": (431, {"headers": [KEY, *(f"X-{n}: x" for n in range(110))]}),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.part("upstream") if "form" in case else ()) for case in REFUSED],
)
async def test_a_request_that_is_refused_is_not_asked_for_its_body(keyed: Proxy, case: str) -> None:
    status, request = REFUSED[case]
    async with asking(keyed, *request.pop("headers", ()), **request) as client:
        head = await client.head()
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nConnection: close\r\n" in head


async def test_a_key_without_requests_left_is_not_asked_for_a_body(keyed: Proxy) -> None:
    headers = [f"Authorization: Bearer {key_of('few')}"]
    async with asking(keyed, *headers) as client:
        assert await client.line() == CONTINUE
    async with asking(keyed, *headers) as client:
        assert (await client.line()).startswith(b"HTTP/1.1 429 ")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat"])
async def test_any_other_is_asked_and_answered(tmp_path: Path, path: str) -> None:
    body = json.dumps(user(max_tokens=100, stream=False)).encode()
    async with fake_proxy(tmp_path) as proxy, asking(proxy, path=path, size=len(body)) as client:
        assert await client.head() == CONTINUE + b"\r\n"
        for start in range(0, len(body), 20):
            client.writer.write(body[start : start + 20])
            await client.writer.drain()
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"Connection: close" not in head


async def test_one_that_does_not_wait_is_answered(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, asking(proxy) as client:
        client.writer.write(BODY)
        head = await client.head()
        assert (await client.head() if head.startswith(CONTINUE) else head).startswith(b"HTTP/1.1 200 ")


@pytest.mark.part("upstream")
async def test_a_form_that_is_sent_on_is_asked_for(tmp_path: Path) -> None:
    parts = (
        b'Content-Disposition: form-data; name="model"\r\n\r\nlocal/small',
        b'Content-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"a" * (2 << 20),
    )
    form = b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x--\r\n"
    async with upstream() as server:
        table = {"url": server.url, "retries": 0, "paths": ["/images/edits"]}
        async with (
            fake_proxy(tmp_path, agent="fake", upstreams={"local": table}) as proxy,
            asking(
                proxy,
                "Authorization: Bearer none",
                path="/v1/images/edits",
                kind="multipart/form-data; boundary=x",
                size=len(form),
            ) as client,
        ):
            assert await client.head() == CONTINUE + b"\r\n"
            client.writer.write(form)
            assert (await client.line()).startswith(
                b"HTTP/1.1 404 "
            )  # of the upstream, which has no such path


async def test_an_older_client_is_never_asked(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, asking(proxy, version="1.0") as client:
        client.writer.write(BODY)
        assert (await client.line()).startswith(b"HTTP/1.0 200 ")


async def test_a_request_without_a_body_is_not_asked_for_one(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, asking(proxy, method="GET", path="/livez", size=0) as client:
        assert (await client.line()).startswith(b"HTTP/1.1 200 ")
