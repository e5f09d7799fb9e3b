"""Checks whether a request may use the server: its headers' size, Host (against DNS rebinding), reverse proxy, web
page, key and content type; ends it when its key is no longer valid, however long its answer would last. Bodies must be
JSON, which no page of another origin can send without a preflight. Source: docs/decisions.md#access.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from itertools import chain
from types import TracebackType
from typing import Final, TypeAlias

from aiohttp import web

from codex_proxy.admission.clients import HeldRights
from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.keys import NO_KEY_OWNER, digest_of
from codex_proxy.core.safety import peer_address
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import HOPS_HEADER, Origin
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import ENDPOINT, OPEN_PATHS, area_of, is_of_a_vendor, vendor_of
from codex_proxy.http.middleware.rate_limit import WRONG_KEYS
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER, REPLY_HEADERS
from codex_proxy.surfaces.errors import INVALID_BETA

ORIGINS: Final = web.AppKey("origins", frozenset[str])
"""The allowed origins, in lower case."""

PREFLIGHT_SECONDS = 600
"""Seconds for which a browser may cache a preflight's answer."""

_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
"""Header names that a preflight's answer may repeat."""


def check_origin(request: web.Request) -> web.Response | None:
    """Adds CORS headers, and returns the answer to an allowed page's preflight. Raises `Fault` NOT_ALLOWED for other
    pages.
    """
    allowed = request.app[ORIGINS]
    if allowed:
        request[REPLY_HEADERS]["Vary"] = "Origin"
    origin = request.headers.get("Origin", "").lower()
    if origin and origin in allowed:
        request[REPLY_HEADERS]["Access-Control-Allow-Origin"] = request.headers["Origin"]
        request[REPLY_HEADERS]["Access-Control-Expose-Headers"] = "*"
        return _preflight(request)
    if _is_cross_origin(request, origin):
        raise _not_allowed(
            "Web pages of this origin may not use this server. The operator can allow it in "
            "PROXY_ALLOWED_ORIGINS."
        )
    return None


def _is_cross_origin(request: web.Request, origin: str) -> bool:
    """Whether the request comes from a page of another origin (`same-site`: another port or subdomain)."""
    if origin:
        host = request.headers.get("Host", "").lower()
        return not host or origin not in (f"http://{host}", f"https://{host}")
    return request.headers.get("Sec-Fetch-Site", "").lower() in ("cross-site", "same-site")


def _preflight(request: web.Request) -> web.Response | None:
    method = request.headers.get("Access-Control-Request-Method")
    if request.method != "OPTIONS" or method is None:
        return None
    headers = {
        "Access-Control-Allow-Methods": "GET, POST, DELETE",
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }
    asked = request.headers.get("Access-Control-Request-Headers", "")
    if _HEADER_NAMES.fullmatch(asked):
        headers["Access-Control-Allow-Headers"] = asked
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def is_origin(text: str) -> bool:
    """Whether the text is `scheme://host`, perhaps with a port."""
    return re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/*?#\s]+", text) is not None


MAX_HEADERS: Final = 100
"""Maximum headers, as in Apache; SDKs send 20, browsers behind two proxies 40."""
MAX_HEADER_BYTES: Final = 32 << 10
"""Maximum bytes of headers, as in nginx; on localhost they have other servers' cookies."""
MAX_LINE: Final = 64 << 10
"""Maximum bytes of a line of the headers; aiohttp answers a longer one with an error in its own format."""

_OVERHEAD: Final = 4  # the colon, the blank and the end of each line

HOSTS: Final = web.AppKey("hosts", frozenset[str])
"""The names that the Host header may have, without port; empty: any."""

_SINGLE_HEADERS: Final = ("Host", "Origin", "Sec-Fetch-Site", "Authorization", "x-api-key", "Content-Type")
_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@\s]+|(?:[0-9a-f]*:){2,}[0-9a-f.]*))(?::[0-9]{0,5})?"
)
"""Matches a name or an address, IPv6 in brackets or without, and perhaps a port."""

FORM: Final = "multipart/form-data"
_OF_FORMS: Final = frozenset({"text/plain", "application/x-www-form-urlencoded", FORM})
"""Content types that a page can send without a preflight."""

READ_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The methods that change nothing, and whose bodies are ignored."""

KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""The prefix of the subprotocol with the API key of a page's WebSocket."""

FORWARDED_HEADERS: Final = web.AppKey("forwarded_headers", frozenset[str])
"""Clients' headers, in lower case, that go on to a model server."""
PASSES_KEYS: Final = web.AppKey("passes_keys", bool)
"""Whether turns contain the client's key, for an upstream."""
_MAX_HOPS: Final = 32


async def check_access(request: web.Request) -> web.Response | None:
    """Runs all checks, and sets the request's client. Returns the answer to a preflight, else None. Raises `Fault`."""
    _check_header_limits(request)
    _check_single(request)
    _check_host(request)
    check_forwarded(request)
    preflight_reply = check_origin(request)
    if preflight_reply is not None:
        return preflight_reply
    if ENDPOINT in request and is_of_a_vendor(request):
        _check_vendor(request)
    if request.path not in request.app[OPEN_PATHS]:
        await _authenticate(request)
    if request.method not in READ_METHODS and request.match_info.http_exception is None:
        _check_content_type(request)
    return None


def _check_vendor(request: web.Request) -> None:
    """Raises `Fault` for a path in a beta of OpenAI's, if no header says this, or that Anthropic's API is meant."""
    area = area_of(request)
    if area is None or not area.beta:
        return
    vendor = vendor_of(request)
    if vendor == "Anthropic":
        return
    if area.of_two_vendors and vendor is None:
        message = (
            f"Two APIs have this path: send the header 'OpenAI-Beta: {area.beta}' for OpenAI's, or "
            "'anthropic-version: 2023-06-01' for Anthropic's."
        )
        raise bad_request(message, code=INVALID_BETA)
    if request.headers.getall("OpenAI-Beta", []) != [area.beta]:
        message = (
            f"This API is in beta: send the header 'OpenAI-Beta: {area.beta}', and no other value of it."
        )
        raise bad_request(message, code=INVALID_BETA)


def _check_header_limits(request: web.Request) -> None:
    headers = request.raw_headers
    if len(headers) > MAX_HEADERS:
        raise _headers_too_large(f"It has {len(headers)} headers; the maximum is {MAX_HEADERS}.")
    size = sum(map(len, chain.from_iterable(headers))) + _OVERHEAD * len(headers) + len(request.raw_path)
    if size > MAX_HEADER_BYTES:
        raise _headers_too_large(f"Its headers have {size} bytes; the maximum is {MAX_HEADER_BYTES}.")


def _headers_too_large(message: str) -> Fault:
    return Fault.of(FaultKind.HEADERS_TOO_LARGE, f"The request's head is too large. {message}")


def _check_single(request: web.Request) -> None:
    """Raises `Fault` if a header that is checked is repeated: a proxy could use the other value."""
    for name in _SINGLE_HEADERS:
        if len(request.headers.getall(name, [])) > 1:
            raise bad_request(f"The request has more than one {name} header.")


def host_name(host: str) -> str:
    """Returns the host in lower case without its port; empty if malformed."""
    found = _HOST.fullmatch(host.lower())
    return (found["address"] or found["name"]) if found else ""


def _check_host(request: web.Request) -> None:
    hosts = request.app[HOSTS]
    if hosts and host_name(request.headers.get("Host", "")) not in hosts:
        raise _not_allowed(
            "This server does not accept this Host name. The operator can allow it in PROXY_ALLOWED_HOSTS."
        )


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

TRUSTED_PROXIES: Final = web.AppKey("trusted_proxies", tuple[Network, ...])

_FORWARDED_PREFIX: Final = "x-forwarded-"
_MAX_ADDRESSES: Final = 16
"""Maximum addresses of `X-Forwarded-For` that are read, from the last one."""


def is_forwarded(request: web.Request) -> bool:
    for name in request.headers:
        lower = name.lower()
        if lower in ("forwarded", "via") or lower.startswith(_FORWARDED_PREFIX):
            return True
    return False


def is_local(request: web.Request) -> bool:
    """Whether the request comes from this machine, and not through a reverse proxy."""
    address = peer_address(request.remote or "")
    return address is not None and address.is_loopback and not is_forwarded(request)


def check_forwarded(request: web.Request) -> None:
    """Raises `Fault` NOT_ALLOWED for a reverse proxy that is not trusted, or if no keys are required."""
    if not is_forwarded(request):
        return
    trusted = request.app[TRUSTED_PROXIES]
    if not _is_in(request.remote or "", trusted):
        raise _not_allowed(
            "The request's headers show that it came through a reverse proxy, which this "
            "server does not trust. The operator must list the proxy's address in "
            "PROXY_TRUSTED_PROXIES."
        )
    if not request.app[CLIENTS].keys_required:
        raise _not_allowed(
            "Behind a reverse proxy, this server requires API keys. The operator must create "
            "one with `codex-proxy keys add NAME` or set PROXY_API_KEY."
        )


def client_address(request: web.Request) -> str:
    """Returns the last address in `X-Forwarded-For` that is no trusted proxy's."""
    trusted = request.app[TRUSTED_PROXIES]
    address = request.remote or ""
    if not _is_in(address, trusted):
        return address
    hops = [
        hop.strip() for value in request.headers.getall("X-Forwarded-For", []) for hop in value.split(",")
    ]
    for hop in hops[: -_MAX_ADDRESSES - 1 : -1]:
        if peer_address(hop) is None:
            break
        address = hop
        if not _is_in(hop, trusted):
            break
    return address


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    address = peer_address(text)
    return address is not None and any(address in network for network in networks)


def _not_allowed(message: str) -> Fault:
    return Fault.of(FaultKind.NOT_ALLOWED, message)


async def _authenticate(request: web.Request) -> None:
    clients = request.app[CLIENTS]
    key = key_in(request)
    digest = digest_of(key) if key else ""
    try:
        if digest and clients.keys_required:
            async with delay_guesses(request, digest):
                client = clients.by_digest(digest)
        else:
            client = clients.by_digest(digest or None)  # perhaps of the key of this start
    except Fault:
        request[NOTES]["address"] = client_address(request)
        raise
    request[CLIENT], request[OWNER] = client, client.name
    if client.name != NO_KEY_OWNER:
        request[NOTES]["owner"] = client.name


def delay_guesses(request: web.Request, digest: str) -> AbstractAsyncContextManager[None]:
    """Returns `WrongKeys.delay_guess` for a key of this request."""
    return request.app[WRONG_KEYS].delay_guess(client_address(request), digest)


def origin_of(request: web.Request) -> Origin:
    """Returns the servers that the request has come through, and what of its key and headers may go to a model
    server.
    """
    hops = request.headers.get(HOPS_HEADER, "").split(",", _MAX_HOPS)
    key = key_in(request) if request.app[PASSES_KEYS] else ""
    is_of_start = request.app[CLIENTS].is_of_start
    if key and is_of_start(
        digest_of(key)
    ):  # it is for this server only, and the other key for the model server
        key = next((other for other in keys_in(request) if not is_of_start(digest_of(other))), "")
    given = request.headers
    headers = {name: given[name] for name in request.app[FORWARDED_HEADERS] if name in given}
    only = request[CLIENT].catalog.only
    return Origin(tuple(filter(None, map(str.strip, hops))), key, headers, only)


def key_in(request: web.Request) -> str:
    """Returns the key, or empty; of two the valid one, since clients of Anthropic's API may send another one for
    Anthropic.
    """
    keys = keys_in(request)
    if len(keys) > 1:
        clients = request.app[CLIENTS]
        return next((key for key in keys if clients.is_valid(digest_of(key))), keys[0])
    return keys[0] if keys else ""


def keys_in(request: web.Request) -> list[str]:
    """Returns the keys of `Authorization`, `x-api-key` and, for a WebSocket without these, its subprotocols."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    found = [given.strip()] if scheme.lower() == "bearer" else []
    found.append(request.headers.get("x-api-key", "").strip())
    if not any(found) and request.headers.get("Upgrade", "").lower() == "websocket":
        names = subprotocols(request)
        found += [name.removeprefix(KEY_PROTOCOL) for name in names if name.startswith(KEY_PROTOCOL)][:1]
    return list(filter(None, found))


def subprotocols(request: web.Request) -> list[str]:
    """Returns the subprotocols that a client offers, in its order."""
    values = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _check_content_type(request: web.Request) -> None:
    if request.headers.get("Content-Type") == "application/json":
        return  # nearly every body, of which no part need be looked for
    kind = request.content_type.lower()
    endpoint = request.get(ENDPOINT)
    if endpoint is not None and endpoint.takes_form and kind == FORM:
        if "Authorization" in request.headers or "x-api-key" in request.headers:
            return
        raise Fault.of(
            FaultKind.UNSUPPORTED_MEDIA_TYPE,
            f"The content type '{FORM}' needs an `Authorization` or `x-api-key` header, such as `Authorization: Bearer "
            "none`, because a page could send it otherwise.",
        )
    if endpoint is not None and endpoint.chapter == "Ollama" and kind == "application/octet-stream":
        return  # LiteLLM sends this type there, or none, which aiohttp reads as this one; a form sends neither
    is_json = kind == "application/json" or kind.endswith("+json")
    if kind in _OF_FORMS if not request.can_read_body else not is_json:
        wrong = f"The content type {excerpt(kind)} is not supported."
        if "Content-Type" not in request.headers:
            wrong = "The request has no content type."
        wanted = FORM if endpoint is not None and endpoint.takes_form else "application/json"
        raise Fault.of(
            FaultKind.UNSUPPORTED_MEDIA_TYPE, f"{wrong} Send the body as `Content-Type: {wanted}`."
        )


ABORT_SECONDS: Final = 0.2
"""Seconds for the last bytes of an answer whose key is no longer valid; then its connection is closed."""

RIGHTS: Final = web.AppKey("rights", HeldRights)


class RequestRight:
    """The right to a request's answer. If it is lost, the request's task is cancelled; a `with` of this raises the
    `Fault` INVALID_API_KEY in place of that cancellation.
    """

    def __init__(self, request: web.Request) -> None:
        self._task = asyncio.current_task()
        self._transport = request.transport
        self._failure: Failure | None = None
        self._abort: asyncio.TimerHandle | None = None
        self._give_up = request.app[RIGHTS].hold(request[CLIENT], self._on_lost)

    def _on_lost(self, failure: Failure) -> None:
        assert self._task is not None, "a request has a task"
        self._failure = failure
        self._task.cancel()
        if self._transport is not None:
            self._abort = self._task.get_loop().call_later(ABORT_SECONDS, self._transport.abort)

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.raise_if_lost()

    def raise_if_lost(self) -> None:
        """Raises the `Fault`, once, if the right is lost. Called when the task was cancelled."""
        if self._failure is None or self._task is None:
            return
        failure, self._failure = self._failure, None
        if not self._task.uncancel():  # else somebody else has cancelled it, too
            raise Fault(failure) from None

    def release(self) -> None:
        self._give_up()
        if self._abort is not None:
            self._abort.cancel()
        self._task = self._transport = None  # the task holds the request, and the request this


RIGHT: Final = web.RequestKey("right", RequestRight)
"""Not set for paths that need no key."""


@contextmanager
def hold_right(request: web.Request) -> Iterator[None]:
    """Ends the request with the `Fault` INVALID_API_KEY as soon as its key is no longer valid."""
    if CLIENT not in request:
        yield
        return
    right = request[RIGHT] = RequestRight(request)
    try:
        yield
    except asyncio.CancelledError:
        right.raise_if_lost()
        raise
    finally:
        right.release()
