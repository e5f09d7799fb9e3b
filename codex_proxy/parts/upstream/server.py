"""A model server: its list of models, the requests of turns, and its HTTP client, which follows no redirects, keeps no
cookies, requests no compression and reads no .netrc. Errors become a `Failure` without addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import pkgutil
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeGuard

import aiohttp
import msgspec
import structlog
from aiohttp.http_writer import _serialize_headers
from multidict import CIMultiDict

from codex_proxy.agents.agent import TRACE_HEADERS
from codex_proxy.agents.dialect import Dialect
from codex_proxy.agents.shared.history_items import instructions_as_user_messages
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind, misconfigured
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.json_values import UNREADABLE, count_at, is_too_costly, value_at
from codex_proxy.core.own_errors import repeat
from codex_proxy.core.passing import Body, RestOfBody, pieces_of
from codex_proxy.core.turn import HOPS_HEADER, Origin, Turn
from codex_proxy.parts.upstream.config import Upstream
from codex_proxy.parts.upstream.connections import MAX_HEADER_BYTES, UpstreamConnections
from codex_proxy.parts.upstream.exchange import Deliver, Exchange, OutgoingRequest, failure_of
from codex_proxy.parts.upstream.failures import ErrorReader, Secrets, SecretsReader
from codex_proxy.parts.upstream.stream import Message
from codex_proxy.parts.upstream.turn import UpstreamContext

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


log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 5.0
"""Seconds between requests for a list that cannot be reached."""
MAX_HOPS: Final = 8
"""Maximum servers like this one on a request's way."""

_LOOP_MESSAGE: Final = (
    "This server's upstream sent the request back to this server. The operator must set "
    "another address with {}."
)
_NO_MODEL: Final = (
    "This server has no default model, since its upstream lists no models. Name one in "
    "'model', or ask the operator to set {}."
)
NO_CLIENTS_KEY: Final = Failure(
    FaultKind.INVALID_API_KEY,
    "This server passes your API key on to the model server, but the request has none. Send it "
    "as `Authorization: Bearer KEY`.",
)


class ModelServer:
    """A model server, whose list of models a task keeps current."""

    def __init__(self, upstream: Upstream, clock: Clock) -> None:
        self._upstream = upstream
        self._make_dialect: Callable[[Turn, str, UpstreamContext], Dialect[Message]] = pkgutil.resolve_name(
            upstream.config.api.make_dialect
        )
        self.client = UpstreamClient(upstream)
        errors = self.errors_at(upstream.config.api.path)
        self._context = UpstreamContext(
            *(errors, upstream.config.kind.refuses, _new_id, clock.epoch),
            reasoning_back=upstream.config.reasoning_field,
        )
        self._takes_instructions = "system_prompt" in upstream.config.capabilities
        self._id = uuid.uuid4().hex[:12]
        """Identifies this server in a header, to detect a request that comes back."""
        self.models = self._models_for_clients(())
        self.any_model = not self.models
        self.trouble: Failure | None = None
        """Why the newest request for the list failed, if it did."""
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Requests the list now and at intervals. `trouble` reports a server that cannot be reached."""
        await self.client.start()
        await self._refresh_models()
        self._watch = asyncio.get_running_loop().create_task(
            repeat(self._refresh_models, after=self._sleep, failed="upstream_not_asked")
        )

    def prepare(self, turn: Turn) -> tuple[Turn, Dialect[Message], dict[str, str]]:
        """Returns the turn as this upstream gets it, its dialect and headers. Raises `Fault` as `headers_for`, or if no
        model is named.
        """
        headers = self.headers_for(turn.origin)
        model = turn.model or next((model.id for model in self.models if model.is_default), "")
        if not model:
            message = _NO_MODEL.format(self._upstream.names.model)
            raise Fault(self.trouble or Failure(FaultKind.MODEL_NOT_FOUND, message, param="model"))
        if not self._takes_instructions:
            turn = msgspec.structs.replace(turn, history=instructions_as_user_messages(turn.history))
        return turn, self._make_dialect(turn, model, self._context), headers

    def headers_for(self, origin: Origin) -> dict[str, str]:
        """Returns a request's headers. Raises `Fault` if it came from this server or through too many, or lacks the
        client's key.
        """
        hops = origin.hops
        if self._id in hops or len(hops) >= MAX_HOPS:
            raise misconfigured(_LOOP_MESSAGE.format(self._upstream.names.url))
        headers = {HOPS_HEADER: ",".join((*hops, self._id))}
        if self._upstream.clients_key:
            if not origin.key:
                raise Fault(NO_CLIENTS_KEY)
            headers["Authorization"] = f"Bearer {origin.key}"
        names = self._upstream.config.forward_headers
        return headers | {name: origin.headers[name] for name in names if name in origin.headers}

    def errors_at(self, path: str) -> ErrorReader:
        upstream = self._upstream
        return ErrorReader(
            upstream.secrets, clients_key=upstream.clients_key, path=path, setting_names=upstream.names
        )

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self.client.close()

    def _models_for_clients(self, listed: Sequence[AgentModel]) -> tuple[AgentModel, ...]:
        window = self._upstream.config.context_window
        found = models_of(self._upstream.config.models, listed)
        return tuple(
            model if model.context_window else msgspec.structs.replace(model, context_window=window)
            for model in found
        )

    async def _sleep(self) -> None:
        usual = self._upstream.config.health_interval
        await asyncio.sleep(usual if self.trouble is None else min(usual, RETRY_SECONDS))

    async def _refresh_models(self) -> None:
        """Requests the list, and logs when the upstream starts to fail or works again. A server without a list counts
        as working.
        """
        before = self.trouble
        self.trouble = await self._request_models()
        if self.trouble is not None and before is None:
            log.warning("upstream_trouble", **self._upstream.log_fields, reason=self.trouble.message)
        elif self.trouble is None and before is not None:
            log.info("upstream_is_back", **self._upstream.log_fields)

    async def _request_models(self) -> Failure | None:
        if self._upstream.clients_key:
            return None  # only clients have a key to ask with
        try:
            status, headers, body = await self.client.list_models()
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return failure_of(error)
        if status == 200:
            with contextlib.suppress(TypeError):
                found = self._models_for_clients(models_in(body) or ())
                if found != self.models:  # who has looked names up in them need not do so again
                    self.models, self.any_model = found, not found
            return None
        if status in (404, 405, 501):
            return None
        context = self._context
        return context.errors.of_response(status, dict(headers), body, context.now())


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


async def request_models_once(
    upstream: Upstream, clock: Clock
) -> tuple[Failure | None, tuple[AgentModel, ...]]:
    """Requests the list for `doctor`."""
    server = ModelServer(upstream, clock)
    await server.client.start()
    try:
        return await server._request_models(), server.models
    finally:
        await server.close()


# --- the list of models: OpenAI's shape, and what others add ---------------------------------------

MAX_MODELS: Final = 5_000
_MAX_NAME_CHARS: Final = 200


def models_in(body: bytes) -> tuple[AgentModel, ...] | None:
    """Returns the models, the first as the default; None if the body is no list, or costs too much to decode."""
    if is_too_costly(body):
        return None
    try:
        value = json.loads(body)
    except UNREADABLE:
        return None
    listed = value.get("data") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        return None
    models: dict[str, AgentModel] = {}
    for each in listed[:MAX_MODELS]:
        id = value_at(each, "id")
        if _is_name(id):
            owner = each.get("owned_by")
            models.setdefault(
                id,
                AgentModel(
                    id=id,
                    owned_by=owner if _is_name(owner) else "upstream",
                    context_window=_window_of(each),
                    is_default=not models,
                ),
            )
    return tuple(models.values())


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value.strip()) <= _MAX_NAME_CHARS and value.isprintable()


def _window_of(model: dict[str, Any]) -> int | None:
    names = ("max_model_len", "context_length", "max_context_length")
    found = (*(count_at(model, name) for name in names), count_at(model.get("meta"), "n_ctx"))
    return next(filter(None, found), None)


def models_of(wanted: Sequence[str], listed: Sequence[AgentModel]) -> tuple[AgentModel, ...]:
    """Returns the models to serve, the default first. `wanted`: names, and patterns with `*` for `listed`; empty:
    `listed`.
    """
    if not wanted:
        return tuple(listed)
    known = {model.id: model for model in listed}
    found: dict[str, AgentModel] = {}
    for name in wanted:
        fitting = [id for id in known if fnmatchcase(id, name)] if "*" in name else [name]
        for id in fitting:
            found.setdefault(id, known.get(id) or AgentModel(id=id, owned_by="upstream"))
    return tuple(
        msgspec.structs.replace(model, is_default=not index) for index, model in enumerate(found.values())
    )
