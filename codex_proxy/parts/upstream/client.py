"""The HTTP client of one upstream. It follows no redirects, keeps no cookies, requests no compression, reads no .netrc.
Errors become a `Failure` without addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict

from codex_proxy.agents.agent import TRACE_HEADERS
from codex_proxy.core.passing import Body, RestOfBody, pieces_of
from codex_proxy.parts.upstream.config import Upstream
from codex_proxy.parts.upstream.connections import MAX_HEADER_BYTES, UpstreamConnections
from codex_proxy.parts.upstream.exchange import Deliver, Exchange, OutgoingRequest
from codex_proxy.parts.upstream.secrets import Secrets, SecretsReader

MAX_LIST_BYTES: Final = 8 << 20
KEEPALIVE_SECONDS: Final = 30.0
"""The seconds that an unused connection is kept; many servers close theirs after 60."""
LIST_SECONDS: Final = 15.0
_HEADERS: Final = {"User-Agent": "codex-proxy", "Accept-Encoding": "identity"}
_JSON: Final = {"Content-Type": "application/json", "Accept": "text/event-stream, application/json"}


class UpstreamClient:
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._secrets = Secrets(upstream.hidden_texts)
        self._session: aiohttp.ClientSession | None = None
        self._connections: UpstreamConnections | None = None
        self._headers: CIMultiDict[str] = CIMultiDict(_HEADERS | _JSON)

    async def start(self) -> None:
        upstream, config = self._upstream, self._upstream.config
        self._connections = UpstreamConnections(
            upstream.url,
            proxy=upstream.proxy,
            connect_timeout=config.connect_timeout,
            keepalive=KEEPALIVE_SECONDS,
            limit=0,  # how many turns run at once is bounded elsewhere
            ssl=_certificates(upstream) if upstream.url.startswith("https:") else True,
        )
        self._headers.update(self._connections.headers)
        self._headers.update(upstream.headers)
        self._session = aiohttp.ClientSession(
            connector=self._connections,
            timeout=aiohttp.ClientTimeout(total=None, connect=config.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers=_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    async def close(self) -> None:
        """Closes all connections; running requests fail."""
        if self._session is not None:
            await self._session.close()

    def post(
        self,
        body: Body,
        headers: Mapping[str, str],
        deliver: Deliver,
        *,
        path: str = "",
        rest: RestOfBody | None = None,
    ) -> Exchange:
        """Starts a POST request. `deliver`: see `Exchange`. `path`: empty for the path of the upstream's API. `rest`
        follows the body, as it comes.
        """
        assert self._connections is not None
        path = path or self._upstream.config.api.path
        request = OutgoingRequest(self._head(path, headers, body, rest), body, rest)
        return Exchange(
            self._connections, request, self._upstream.config, SecretsReader(self._secrets), deliver
        )

    def _head(self, path: str, headers: Mapping[str, str], body: Body, rest: RestOfBody | None) -> bytes:
        assert self._connections is not None
        sent = self._headers.copy()
        sent.update(headers)
        sent.update(TRACE_HEADERS.get())
        left = 0 if rest is None else rest.left
        if left is None:
            sent["Transfer-Encoding"] = "chunked"
        else:
            sent["Content-Length"] = str(sum(map(len, pieces_of(body))) + left)
        return _serialize_headers(f"POST {self._connections.target}{path} HTTP/1.1", sent)

    async def list_models(self) -> tuple[int, Mapping[str, str], bytes]:
        """Returns status, headers and body of GET /models. Raises `aiohttp.ClientError` or `OSError`."""
        assert self._session is not None
        async with (
            asyncio.timeout(LIST_SECONDS),
            self._session.get(
                f"{self._upstream.url}/models",
                headers=self._upstream.headers,
                proxy=self._upstream.proxy,
                allow_redirects=False,
            ) as response,
        ):
            body = bytearray()
            while chunk := await response.content.readany():
                body += chunk
                if len(body) > MAX_LIST_BYTES:
                    response.close()
                    break
            return response.status, response.headers, self._secrets.hide(bytes(body))


def _certificates(upstream: Upstream) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if upstream.config.ca_file is not None:
        context.load_verify_locations(upstream.config.ca_file)
    return context
