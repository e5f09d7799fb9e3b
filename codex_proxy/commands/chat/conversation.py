"""A conversation with a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp
import msgspec

from codex_proxy.core.faults import UserError

CONNECT_SECONDS = 5.0
"""Seconds to connect; the server is usually on this machine."""

SILENCE_SECONDS = 900.0
"""Seconds without a byte until an answer is given up: more than a server allows a turn."""

NOT_OURS = "The answer is not from a codex-proxy server. Check the address."


class Piece(msgspec.Struct, frozen=True):
    """A piece of an answer: `text` or reasoning (`thought`), such as `[command] ls`."""

    kind: Literal["text", "thought"]
    text: str


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()


class _Error(msgspec.Struct, frozen=True):
    message: str = "The server failed."


class _Frame(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: _Error | None = None


class ChatSession:
    """A conversation with a server, and the model for the next message. Methods raise `UserError`."""

    def __init__(self, base_url: str, model: str, key: str | None) -> None:
        self.base_url = base_url.rstrip("/")
        self.model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._messages: list[dict[str, str]] = []

    def forget(self) -> None:
        self._messages.clear()

    async def ask(self, text: str) -> AsyncGenerator[Piece, None]:
        """Sends a message, and yields the answer; what was received stays in the conversation. Closing the generator
        ends the turn.
        """
        self._messages.append({"role": "user", "content": text})
        texts: list[str] = []
        body = {"model": self.model, "messages": self._messages, "stream": True}
        try:
            async with self._request("POST", "/chat/completions", json=body) as reply:
                async for piece in _pieces(reply):
                    if piece.kind == "text":
                        texts.append(piece.text)
                    yield piece
        finally:
            if texts:
                self._messages.append({"role": "assistant", "content": "".join(texts)})
            else:
                self._messages.pop()

    async def models(self) -> list[str]:
        listed = await self.read("/models")
        try:
            return [str(entry["id"]) for entry in listed["data"]]
        except (KeyError, TypeError) as error:
            raise UserError(NOT_OURS) from error

    async def read(self, path: str) -> Any:
        """Returns the JSON of a GET request."""
        async with self._request("GET", path) as reply:
            try:
                return await reply.json(content_type=None)
            except ValueError as error:
                raise UserError(NOT_OURS) from error

    @asynccontextmanager
    async def _request(self, method: str, path: str, **more: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, headers=self._headers) as session,
                session.request(method, self.base_url + path, **more) as reply,
            ):
                if reply.status != 200:
                    raise UserError(_refusal(reply.status, await reply.text()))
                yield reply
        except aiohttp.ClientConnectorError as error:
            raise UserError(
                f"No server is running at {self.base_url}. Start one with `codex-proxy serve`, "
                "or set --base-url."
            ) from error
        except aiohttp.InvalidURL as error:
            raise UserError(
                f"--base-url {self.base_url} is not an address like http://127.0.0.1:11435/v1."
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UserError(
                f"The connection broke: {error or 'the server sent nothing for too long'}."
            ) from error


async def _pieces(reply: aiohttp.ClientResponse) -> AsyncIterator[Piece]:
    rest = b""
    async for chunk in reply.content.iter_any():
        *blocks, rest = (rest + chunk).split(b"\n\n")
        for block in blocks:
            if not block.startswith(b"data: "):
                continue  # a comment that keeps the line alive
            if block == b"data: [DONE]":
                return
            try:
                frame = msgspec.json.decode(block.removeprefix(b"data: "), type=_Frame)
            except msgspec.DecodeError as error:
                raise UserError(
                    "The answer is not a stream of chat completions. Check the address."
                ) from error
            if frame.error is not None:
                raise UserError(frame.error.message)
            for choice in frame.choices:
                if choice.delta.reasoning_content:
                    yield Piece("thought", choice.delta.reasoning_content)
                text = choice.delta.content or choice.delta.refusal
                if text:
                    yield Piece("text", text)
    raise UserError("The answer was cut off.")


def _refusal(status: int, text: str) -> str:
    try:
        error = json.loads(text)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"The server answered with HTTP status {status}. Check the address."
    return f"{message} Pass it with --key KEY." if code == "invalid_api_key" else message
