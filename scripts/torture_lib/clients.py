"""The clients of a torture: each asks, at random, in good ways and bad ones, and notes what it was answered.

A client is done with a request when it has an answer, when the server was killed meanwhile, or when its patience
ends: that counts as unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import aiohttp

from scripts.torture_lib import requests
from scripts.torture_lib.ledger import OVER, Ledger

PATIENCE = 60.0
"""Seconds until a request counts as unanswered: all deadlines of the servers together are a fifth of it."""
FINE = frozenset({200, 400, 401, 403, 404, 409, 413, 415, 422, 429, 431, 500, 502, 503, 504})


class Client:
    """One client with one of the server's keys."""

    def __init__(self, ledger: Ledger, session: aiohttp.ClientSession, random: Random) -> None:
        self._ledger = ledger
        self._proxy = ledger.proxy
        self._session = session
        self._random = random
        self._key = random.choice(self._proxy.keys)
        self._conversation: str | None = None
        self._actions: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._chat, 20), (self._stored, 20), (self._in_the_background, 20), (self._turn_of_a_conversation, 15),
            (self._faulty_chat, 20), (self._faulty_response, 10), (self._leave, 20), (self._leave_while_created, 10),
            (self._half_a_body, 5), (self._garbage, 5), (self._hostile, 3), (self._image, 2), (self._wrong_key, 3),
            (self._delete, 3), (self._socket, 6), (self._of_an_mcp_server, 5), (self._read, 5),
        ]  # fmt: skip

    async def run(self, until: Callable[[], bool]) -> None:
        """Asks one thing after the other."""
        actions, weights = zip(*self._actions, strict=True)
        while not until():
            await self._proxy.up.wait()
            if until():
                return
            [action] = self._random.choices(actions, weights)
            self._ledger.requests[action.__name__.strip("_")] += 1
            life = self._proxy.life
            try:
                async with asyncio.timeout(PATIENCE):
                    await action()
            except TimeoutError:
                self._ledger.unanswered += 1
                self._ledger.wrong.append(f"{action.__name__}: no answer within {PATIENCE:.0f} s")
            except (aiohttp.ClientError, ConnectionError) as error:
                if self._proxy.up.is_set() and self._proxy.life == life:
                    self._ledger.wrong.append(f"{action.__name__}: {type(error).__name__}: {error}")

    # --- ordinary requests ----------------------------------------------------------------------

    async def _chat(self) -> None:
        await self._post("/v1/chat/completions", requests.chat(self._random, faulty=False))

    async def _faulty_chat(self) -> None:
        await self._post("/v1/chat/completions", requests.chat(self._random, faulty=True))

    async def _faulty_response(self) -> None:
        await self._post("/v1/responses", requests.response(self._random, faulty=True))

    async def _stored(self) -> None:
        status, response = await self._post("/v1/responses", requests.response(self._random, faulty=False))
        if status == 200 and response is not None:
            self._ledger.store(response, self._key)

    async def _in_the_background(self) -> None:
        body = requests.response(self._random, faulty=self._random.random() < 0.3)
        body |= {"background": True, "stream": False}
        status, response = await self._post("/v1/responses", body)
        if status != 200 or response is None:
            return
        id = response["id"]
        self._ledger.background[id] = self._key
        if self._random.random() < 0.1:
            await self._send("POST", f"/v1/responses/{id}/cancel", b"{}")
        elif self._random.random() < 0.4:
            while response["status"] not in OVER:
                await asyncio.sleep(0.05)
                status, response = await self._send("GET", f"/v1/responses/{id}")
                if status != 200 or response is None:
                    return

    async def _turn_of_a_conversation(self) -> None:
        if self._conversation is None:
            status, made = await self._send("POST", "/v1/conversations", b"{}")
            if status != 200 or made is None:
                return
            self._conversation = made["id"]
            self._ledger.turns[made["id"]] = (self._key, [])
        word = f"{self._random.randrange(10**9):09d}"
        body = {"model": "codex-5", "input": f"{word} [[fake:text]]", "conversation": self._conversation}
        status, response = await self._post("/v1/responses", body)
        if status == 200 and response is not None and response["status"] == "completed":
            self._ledger.turns[self._conversation][1].append(word)

    async def _read(self) -> None:
        for path in ("/v1/models", "/v1/usage", "/healthz"):
            await self._send("GET", path)

    async def _delete(self) -> None:
        mine = [id for id, (key, _) in self._ledger.stored.items() if key == self._key]
        if not mine:
            return
        id = self._random.choice(mine)
        self._ledger.forget(id)
        status, _ = await self._send("DELETE", f"/v1/responses/{id}")
        if status == 200:
            self._ledger.deleted[id] = self._key

    async def _of_an_mcp_server(self) -> None:
        """A turn whose model calls a tool of the operator's MCP server, which may die or hang in it."""
        tool = self._random.choice(("echo", "die", "big", "noise", "refuse", "extra_7"))
        arguments = json.dumps({"text": "x", "size": 100_000})
        text = f"[[fake:tool_call name=tools__{tool} args='{arguments}']]"
        await self._post("/v1/responses", {"model": "codex-5", "input": text, "stream": True})

    async def _socket(self) -> None:
        """A turn over the WebSocket, half of them left before it ends."""
        headers = {"Authorization": f"Bearer {self._key}"}
        url = f"{self._proxy.url}/v1/responses"
        try:
            async with self._session.ws_connect(url, headers=headers) as socket:
                body = requests.response(self._random, faulty=self._random.random() < 0.3)
                body.pop("stream")
                await socket.send_json({"type": "response.create", **body})
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        break
                    kind = json.loads(message.data)["type"]
                    over = kind == "error" or kind.removeprefix("response.") in OVER
                    if over or self._random.random() < 0.05:
                        return
                raise aiohttp.ClientConnectionError(f"closed with {socket.close_code} before the turn ended")
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 101:  # an upgrade that no client may take
                self._ledger.wrong.append(f"the WebSocket: {error.message}: {dict(error.headers or {})}")
            else:
                self._look_at(error.status, "the WebSocket", None)

    # --- bad clients ----------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Reads a part of a stream, then closes the connection."""
        path = self._random.choice(("/v1/chat/completions", "/v1/responses"))
        make = requests.chat if path.endswith("completions") else requests.response
        body = make(self._random, faulty=self._random.random() < 0.3) | {"stream": True}
        await self._raw(self._head(path, json.dumps(body).encode()), read=self._random.randrange(4096))

    async def _leave_while_created(self) -> None:
        """Sends a whole request for a background response and does not wait for the answer."""
        body = requests.response(self._random, faulty=False) | {"background": True}
        await self._raw(self._head("/v1/responses", json.dumps(body).encode()), read=0)

    async def _half_a_body(self) -> None:
        whole = self._head(
            "/v1/chat/completions", json.dumps(requests.chat(self._random, faulty=False)).encode()
        )
        await self._raw(whole[: self._random.randrange(1, len(whole))], read=0)

    async def _garbage(self) -> None:
        await self._raw(self._random.choice(requests.GARBAGE) + os.urandom(16), read=4096)

    async def _hostile(self) -> None:
        body = self._random.choice(requests.hostile())
        await self._send("POST", "/v1/chat/completions", body)

    async def _image(self) -> None:
        await self._post(
            "/v1/chat/completions", requests.with_image(self._random, self._random.choice((1, 8, 40)))
        )

    async def _wrong_key(self) -> None:
        await self._send("GET", "/v1/models", key="wrong")

    async def _raw(self, data: bytes, *, read: int) -> None:
        """Writes these bytes on a connection of their own, reads up to so many, and closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await writer.drain()
                async with asyncio.timeout(self._random.random()):
                    while read > 0 and (piece := await reader.read(read)):
                        read -= len(piece)
        finally:
            writer.transport.abort()

    def _head(self, path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    # --- answers --------------------------------------------------------------------------------

    async def _post(self, path: str, body: requests.Body) -> tuple[int, dict[str, Any] | None]:
        return await self._send("POST", path, json.dumps(body).encode())

    async def _send(
        self, method: str, path: str, data: bytes | None = None, *, key: str | None = None
    ) -> tuple[int, dict[str, Any] | None]:
        """The status and the object that was answered; of a stream the response that its last event holds.

        None where the answer is an error, or a stream that ended with one.
        """
        headers = {"Authorization": f"Bearer {key or self._key}", "Content-Type": "application/json"}
        async with self._session.request(
            method, f"{self._proxy.url}{path}", data=data, headers=headers
        ) as answer:
            text = await answer.text()
            kind, status = answer.content_type, answer.status
        if kind == "text/event-stream":
            return status, self._end_of(path, text)
        try:
            body = json.loads(text)
        except ValueError:
            self._ledger.wrong.append(
                f"{method} {path}: {status} with a body that is no JSON: {text[:200]!r}"
            )
            return status, None
        self._look_at(status, f"{method} {path}", body)
        return status, body if status == 200 else None

    def _end_of(self, path: str, text: str) -> dict[str, Any] | None:
        """What a stream ended with. A stream without an end is wrong."""
        if path.endswith("completions"):
            if not text.endswith("data: [DONE]\n\n"):
                self._ledger.wrong.append(f"{path}: a stream without its end: {text[-200:]!r}")
            return None
        events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
        last: dict[str, Any] = events[-1] if events else {"type": "nothing"}
        if last["type"].removeprefix("response.") not in OVER:
            self._ledger.wrong.append(f"{path}: a stream without its end: {text[-200:]!r}")
            return None
        found: dict[str, Any] = last["response"]
        failed_to_be_stored = (found.get("error") or {}).get("code") == "service_unavailable"
        return None if failed_to_be_stored else found

    def _look_at(self, status: int, what: str, body: Any) -> None:
        """Notes an answer that no request may get: a status of no fault that is known, or a fault of our own."""
        if status not in FINE:
            self._ledger.wrong.append(f"{what}: status {status}: {str(body)[:300]}")
        elif status >= 400 and body is not None:
            error = body.get("error") if isinstance(body, dict) else None
            if not isinstance(error, dict) or error.get("code") == "internal_error":
                self._ledger.wrong.append(f"{what}: {status}: {str(body)[:300]}")
