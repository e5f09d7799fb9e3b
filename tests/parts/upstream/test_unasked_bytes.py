"""One answer, one request: what an upstream sends without being asked is nobody's answer."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.upstream.connections import UpstreamConnection
from tests.http.serving import Proxy, user
from tests.model_server import proxy_before, raw_upstream, text
from tests.parts.upstream.test_connections import own_agent, wait_until_nothing_is_left
from tests.response_events import message, response_with
from tests.waiting import eventually

AGENTS: dict[str, Callable[[str], bytes]] = {
    "openai-chat": text,
    "openai-responses": lambda said: response_with(message(said)),
}


def answer(agent: str, said: str) -> bytes:
    """A whole HTTP answer, behind which the connection stays."""
    body = AGENTS[agent](said)
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


UNASKED: dict[str, Any] = {
    "a whole answer": lambda agent: answer(agent, "Stray."),
    "twenty answers": lambda agent: answer(agent, "Stray.") * 20,
    "half an answer": lambda agent: answer(agent, "Stray.")[:60],
    "the beginning of a head": lambda agent: b"HTTP/1.1 2",
    "an interim answer": lambda agent: b"HTTP/1.1 103 Early Hints\r\n\r\n",
    "an error": lambda agent: b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n{}",
    "no HTTP": lambda agent: b"Stray.",
    "a blank line": lambda agent: b"\r\n",
}


class Sender:
    """An upstream that answers each request with its number, and sends more than that."""

    def __init__(self, agent: str, unasked: bytes, *, together: bool) -> None:
        self.agent = agent
        self.unasked = unasked
        self.together = together
        self.count = 0
        self.idle: list[asyncio.StreamWriter] = []
        """Connections that have been answered."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What it does on each connection."""
        while True:
            await whole_json(reader)
            self.count += 1
            said = answer(self.agent, f"Answer {self.count}.")
            writer.write(said + (self.unasked if self.together else b""))
            await writer.drain()
            self.idle.append(writer)
            await reader.readuntil(b"\r\n\r\n")


async def whole_json(reader: asyncio.StreamReader) -> None:
    """Reads the body of a request: it is over where its last bracket is closed."""
    body = b""
    while body.count(b"{") != body.count(b"}") or not body:
        body += await reader.read(1)


async def answer_text(proxy: Proxy) -> str:
    """The text of one answer; that of the error where it is one."""
    reply = await proxy.ask(user() | {"model": "m"})
    if reply.status != 200:
        return reply.text
    said: str = reply.body["choices"][0]["message"]["content"]
    return said


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("when", ["with the answer", "while it is idle", "while nobody reads"])
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", UNASKED)
async def test_bytes_between_two_requests_are_no_answer(
    name: str, agent: str, when: str, tmp_path: Path
) -> None:
    sender = Sender(agent, UNASKED[name](agent), together=when == "with the answer")
    async with raw_upstream(sender.talk) as url, proxy_before(url, tmp_path, agent=agent) as proxy:
        for number in range(1, 5):
            said = await answer_text(proxy)
            assert said == f"Answer {number}." or (name == "no HTTP" and "not valid HTTP" in said)
            await wait_until_nothing_is_left(proxy)
            if when == "with the answer":
                continue
            connections = own_agent(proxy)._late.value.client._session.connector._conns
            kept = [protocol for each in connections.values() for protocol, _ in each]
            if when == "while nobody reads":
                for protocol in kept:
                    protocol.transport.pause_reading()
            sender.idle[-1].write(sender.unasked)
            await sender.idle[-1].drain()
            if when == "while it is idle":
                await eventually(lambda: not any(protocol.is_connected() for protocol in kept))  # noqa: B023


async def test_an_idle_connection_is_closed_by_a_byte_and_not_by_aiohttp_going_on_to_read() -> None:
    loop = asyncio.get_running_loop()
    own, other = socket.socketpair()
    _, connection = await loop.create_connection(lambda: UpstreamConnection(loop), sock=own)
    connection.set_response_params()
    connection.is_idle = True
    connection.data_received(b"")  # as aiohttp calls it when it has stopped to read, and goes on
    assert connection.is_connected()
    other.send(b"x")
    await eventually(lambda: not connection.is_connected())
    other.close()
