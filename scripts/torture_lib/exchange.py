"""Sends the requests of a client, and checks the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from random import Random
from typing import Any

import aiohttp

from codex_proxy.core.faults import UNFORESEEN
from scripts.torture_lib.answers import (
    Answer,
    Expected,
    faults_of,
    read_response_stream,
    read_stream,
    read_whole,
)
from scripts.torture_lib.ledger import Ledger
from scripts.torture_lib.requests import Question

FINE = frozenset({200, 400, 401, 403, 404, 409, 413, 415, 422, 429, 431, 500, 502, 503, 504, 529})
MAX_MESSAGE = 64 << 20
"""Maximum bytes of one message of a WebSocket."""


class Exchange:
    """Sends requests to one server with one key, and records in the ledger what is wrong with the answers."""

    def __init__(self, ledger: Ledger, session: aiohttp.ClientSession, key: str) -> None:
        self.key = key
        self._ledger = ledger
        self._proxy = ledger.proxy
        self._session = session

    async def ask(self, question: Question) -> Answer | None:
        """Returns the answer to a request for a turn; None if it is an error, or a stream that broke off."""
        status, kind, text = await self._post(question.path, json.dumps(question.body).encode())
        answer = None
        if kind in ("text/event-stream", "application/x-ndjson"):
            answer = read_stream(question.api, text)
            if not answer.ended:
                self._wrong(f"{question.path}: a stream without its end: {text[-200:]!r}")
        else:
            body = self._object(question.path, status, text)
            if status == 200 and body is not None:
                answer = read_whole(question.api, body)
        self.compare(question.path, question.expected, text, answer)
        return answer

    def compare(self, path: str, expected: Expected, raw: str, answer: Answer | None) -> None:
        """Records what is wrong with an answer."""
        self._ledger.crossed += [f"{path}: {fault}" for fault in faults_of(expected, raw, answer)]

    async def send(
        self, method: str, path: str, data: bytes | None = None, *, key: str | None = None
    ) -> tuple[int, dict[str, Any] | None]:
        """Returns the status and the object of an answer; None for the object of an error."""
        status, _, text = await self._request(method, path, data, key or self.key)
        body = self._object(f"{method} {path}", status, text)
        return status, body if status == 200 else None

    async def follow(self, id: str, expected: Expected) -> None:
        """Reads the stream of a background response, from its start to its end."""
        path = f"/v1/responses/{id}?stream=true"
        status, kind, text = await self._request("GET", path, None, self.key)
        if kind == "text/event-stream":
            self.compare(path, expected, text, read_stream("responses", text))
        else:
            self._object(path, status, text)

    async def over_a_socket(self, questions: list[Question], random: Random) -> None:
        """Sends one request after the other over one WebSocket, which is sometimes closed before the end."""
        headers = {"Authorization": f"Bearer {self.key}"}
        url = f"{self._proxy.url}/v1/responses"
        try:
            async with self._session.ws_connect(url, headers=headers, max_msg_size=MAX_MESSAGE) as socket:
                for question in questions:
                    body = {name: value for name, value in question.body.items() if name != "stream"}
                    await socket.send_json({"type": "response.create", **body})
                    if not await self._read_turn(socket, question.expected, random):
                        return
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 101:  # an upgrade that no client may take
                self._wrong(f"the WebSocket: {error.message}: {dict(error.headers or {})}")
            else:
                self._look_at(error.status, "the WebSocket", None)

    async def _read_turn(
        self, socket: aiohttp.ClientWebSocketResponse, expected: Expected, random: Random
    ) -> bool:
        """Reads the messages of one turn; returns False if the WebSocket is to be closed."""
        texts = []
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.TEXT:
                break
            texts.append(message.data)
            event = json.loads(message.data)
            if event["type"] == "error" or (read_response_stream([event]).ended and "response" in event):
                events = [json.loads(text) for text in texts]
                answer = None if event["type"] == "error" else read_response_stream(events)
                self.compare("the WebSocket", expected, "\n".join(texts), answer)
                return answer is not None
            if random.random() < 0.02:
                return False
        raise aiohttp.ClientConnectionError(f"closed with {socket.close_code} before the turn ended")

    async def raw(self, data: bytes, *, read: int, seconds: float) -> None:
        """Writes bytes to a new connection, reads at most `read` bytes, and closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._proxy.port)
        try:
            writer.write(data)
            with contextlib.suppress(ConnectionError, TimeoutError):
                await writer.drain()
                async with asyncio.timeout(seconds):
                    while read > 0 and (piece := await reader.read(read)):
                        read -= len(piece)
        finally:
            writer.transport.abort()

    def head(self, path: str, body: bytes) -> bytes:
        """Returns a request as bytes."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.key}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    # --- answers --------------------------------------------------------------------------------

    async def _post(self, path: str, data: bytes) -> tuple[int, str, str]:
        return await self._request("POST", path, data, self.key)

    async def _request(self, method: str, path: str, data: bytes | None, key: str) -> tuple[int, str, str]:
        """Returns the status, the media type and the text of an answer."""
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        url = f"{self._proxy.url}{path}"
        async with self._session.request(method, url, data=data, headers=headers) as answer:
            return answer.status, answer.content_type, await answer.text()

    def _object(self, what: str, status: int, text: str) -> dict[str, Any] | None:
        """Returns the JSON object of an answer; None if it is no object."""
        try:
            body = json.loads(text)
        except ValueError:
            self._wrong(f"{what}: {status} with a body that is no JSON: {text[:200]!r}")
            return None
        self._look_at(status, what, body)
        return body if isinstance(body, dict) else None

    def _look_at(self, status: int, what: str, body: Any) -> None:
        """Records an answer that no request may get: an impossible status, or an error of the server itself."""
        if status not in FINE:
            self._wrong(f"{what}: status {status}: {str(body)[:300]}")
        elif status >= 400 and body is not None:
            error = body.get("error") if isinstance(body, dict) else None
            if what.endswith("/api/chat"):  # Ollama's errors are texts
                error = {"code": "internal_error"} if error == UNFORESEEN.message else {}
            if not isinstance(error, dict) or error.get("code") == "internal_error":
                self._wrong(f"{what}: {status}: {str(body)[:300]}")

    def _wrong(self, text: str) -> None:
        self._ledger.wrong.append(text)
