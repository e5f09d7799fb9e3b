"""The HTTP client of a running server. Whatever goes wrong is a `UserError` that says what to do."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from codex_proxy.core.faults import UserError

CONNECT_SECONDS: Final = 5.0
"""Seconds to connect; the server is usually on this machine."""
SILENCE_SECONDS: Final = 120.0
"""Seconds without a byte until an answer is given up. Streams are never silent for that long: they have comments."""
NOT_OURS: Final = "The answer is not from a codex-proxy server. Check the address."
MAX_FRAME: Final = 1 << 26
"""Maximum bytes of one event of a stream."""


class ConnectionLostError(UserError):
    """The server cannot be reached, or the connection broke: it may be tried again."""


class RefusedError(UserError):
    """The server has answered with an error: its status, and the code and the field that it names."""

    def __init__(self, message: str, status: int, code: str, param: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param


class Server:
    """A server at an address that ends with `/v1`, and the key to send. Used with `async with`."""

    def __init__(self, base_url: str, key: str | None) -> None:
        self.base_url = base_url.rstrip("/")
        self.key = key
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        self._session = aiohttp.ClientSession(timeout=timeout, headers={"OpenAI-Beta": "agents=v1"})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Returns the JSON of the answer to a request; None if it has none."""
        async with self._request(method, path, body, headers or {}) as reply:
            try:
                return await reply.json(content_type=None)
            except ValueError as error:
                raise UserError(NOT_OURS) from error

    async def read(self, path: str) -> bytes:
        """Returns the content of a file."""
        async with self._request("GET", path, None, {}) as reply:
            return await reply.read()

    async def events(self, path: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the events of a stream until the server ends it."""
        async with self._request("GET", path, None, {}) as reply:
            async for data in _frames(reply):
                try:
                    event = json.loads(data)
                    kind = event["type"]
                except (ValueError, TypeError, KeyError) as error:
                    raise UserError(NOT_OURS) from error
                if isinstance(kind, str):
                    yield event

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        sent = dict(headers) | ({"Authorization": f"Bearer {self.key}"} if self.key else {})
        sent |= {} if body is None else {"Content-Type": "application/json"}
        try:
            data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # bytes of a terminal, a pipe or an argument
            raise UserError("the input is not text.") from error
        try:
            async with self._session.request(
                method, self.base_url + path, data=data, headers=sent, allow_redirects=False
            ) as reply:
                if reply.status >= 300:
                    raise _refusal(path, reply.status, await reply.text(errors="replace"))
                yield reply
        except aiohttp.ClientConnectorError as error:
            raise ConnectionLostError(
                f"No server is running at {self.base_url}. Start one with `codex-proxy serve`, "
                "or set --base-url."
            ) from error
        except aiohttp.InvalidURL as error:
            raise UserError(
                f"--base-url {self.base_url} is not an address like http://127.0.0.1:11435/v1."
            ) from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionLostError(
                f"The connection broke: {error or 'the server sent nothing for too long'}."
            ) from error
        except ValueError as error:  # a key with characters that no header may have
            raise UserError(f"The request cannot be sent: {error}.") from error


def address_and_key(base_url: str | None, key: str | None, settings: Any) -> tuple[str, str | None]:
    """Returns what a `Server` needs, of the flags or else the settings. The key of the settings is used only without
    `base_url`: another server must not get it.
    """
    if key is None and base_url is None:
        key = settings.default_key
    return base_url or f"{settings.server_url}/v1", key


async def _frames(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yields the data of a stream's frames."""
    unread, searched = bytearray(), 0
    async for chunk in reply.content.iter_any():
        unread += chunk
        while (end := unread.find(b"\n\n", max(searched - 1, 0))) >= 0:
            frame, searched = bytes(unread[:end]), 0
            del unread[: end + 2]
            if frame.startswith(b"data: "):  # others are comments
                yield frame[6:]
        searched = len(unread)
        if searched > MAX_FRAME:
            raise UserError(NOT_OURS)


_WORDS: Final = {
    "environment.workspace_directory": "--folder",
    "GET /v1/models lists": "/model in a chat lists",
}
"""What the API names, and how chat is told it."""


def _refusal(path: str, status: int, text: str) -> RefusedError:
    """Returns the error of an answer."""
    try:
        error = json.loads(text)["error"]
        message, code, param = str(error["message"]), str(error.get("code")), str(error.get("param") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        message, code, param = f"The server answered with HTTP status {status}. Check the address.", "", ""
    if status == 401:
        message = f"{message} Give the key with --key KEY or, without --base-url, in PROXY_API_KEY."
    elif code == "store_disabled":
        message = "This server keeps no sessions (PROXY_STORE=off). Start it with PROXY_STORE=memory, or with a file."
    elif code == "not_found" and path.startswith("/agents/"):
        message = (
            "This server has no sessions: it is too old, or its installation lacks the part `sessions`. "
            "Update it, or check the address."
        )
    for name, word in _WORDS.items():
        message = message.replace(name, word)
    return RefusedError(message, status, code, param)
