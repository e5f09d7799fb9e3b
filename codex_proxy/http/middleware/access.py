"""Checks whether a request may use the server: the size of its headers, its Host header (against DNS rebinding),
the reverse proxy and the web page that it comes from, its key, and its content type.

Only web pages of the origins that the operator lists may use the server. A browser sends the page's origin in
`Origin` (and `Sec-Fetch-Site`), and lets a page read an answer only if the CORS headers permit it. Requests of
other pages are refused, even if they only read: without CORS headers a page could still run an answer as a script,
take a stream slot, and find out which ids exist. Programs other than browsers send neither header, and are not
restricted.

A request that comes through a reverse proxy may come from any machine, even if this server listens on loopback. So
the operator must list the proxy (PROXY_TRUSTED_PROXIES), and the server must require keys. The address of a client
is taken only from the headers of a listed proxy.

Browsers can send a form or plain text to any address without a preflight, but not JSON. They cannot set the headers
of a WebSocket, so its key may be sent as a subprotocol, as in OpenAI's API.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeAlias

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.keys import NO_KEY_OWNER, digest_of
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import HOPS_HEADER, Origin
from codex_proxy.http.app_keys import CLIENTS
from codex_proxy.http.endpoint import OPEN_PATHS
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER, REPLY_HEADERS
from codex_proxy.http.middleware.wrong_keys import WRONG_KEYS

ORIGINS: Final = web.AppKey("origins", frozenset[str])
"""The origins, in lower case, whose pages may use this server."""

PREFLIGHT_SECONDS = 600
"""Seconds for which a browser may cache the answer to a preflight. A change of the allowed origins takes effect
after that time."""

_HEADER_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")
"""Matches a list of header names that may be repeated in the answer to a preflight."""


def check_origin(request: web.Request) -> web.Response | None:
    """Returns the answer if the request is a CORS preflight of an allowed web page, and None for any other request
    that may be served. Adds the CORS headers to the reply headers. Raises `Fault` NOT_ALLOWED for a request of a
    web page that is not allowed.
    """
    allowed = request.app[ORIGINS]
    if allowed:
        request[REPLY_HEADERS]["Vary"] = "Origin"
    origin = request.headers.get("Origin", "").lower()
    if origin and origin in allowed:
        request[REPLY_HEADERS]["Access-Control-Allow-Origin"] = request.headers["Origin"]
        request[REPLY_HEADERS]["Access-Control-Expose-Headers"] = "*"
        return _preflight(request)
    if _is_foreign(request, origin):
        raise _not_allowed(
            "Web pages of this origin may not use this server. The operator can allow it in "
            "PROXY_ALLOWED_ORIGINS."
        )
    return None


def _is_foreign(request: web.Request, origin: str) -> bool:
    """Whether the request comes from a web page whose origin is not this server. `origin` is the `Origin` header in
    lower case. Of `Sec-Fetch-Site`, also `same-site` counts as foreign: it means another port or subdomain.
    """
    if origin:
        host = request.headers.get("Host", "").lower()
        return not host or origin not in (f"http://{host}", f"https://{host}")
    return request.headers.get("Sec-Fetch-Site", "").lower() in ("cross-site", "same-site")


def _preflight(request: web.Request) -> web.Response | None:
    """Returns the answer to a CORS preflight; None for any other request. A preflight has no key, so it is answered
    before keys are checked."""
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
    """Whether the text has the form of a page's origin: `scheme://host`, with or without a port. `null` and `*` are
    not accepted, because they stand for many pages.
    """
    return re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/*?#\s]+", text) is not None


MAX_HEADERS: Final = 100
"""The most headers of a request, as in Apache. SDKs send about 20; browsers behind two proxies send 40."""
MAX_HEADER_BYTES: Final = 32 << 10
"""The most bytes of all headers, as in nginx (4 times 8 KiB). Requests to localhost also contain the cookies of
other servers there."""
MAX_LINE: Final = 64 << 10
"""The longest line that aiohttp accepts. It answers a longer one in its own format and closes the connection."""

_OVERHEAD: Final = 4  # the colon, the blank and the end of each line

HOSTS: Final = web.AppKey("hosts", frozenset[str])
"""The host names, without port, that the Host header may have. Empty: any name."""

_SINGLE: Final = ("Host", "Origin", "Sec-Fetch-Site", "Authorization", "x-api-key")
_HOST: Final = re.compile(
    r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[^\[\]:/@\s]+|(?:[0-9a-f]*:){2,}[0-9a-f.]*))(?::[0-9]{0,5})?"
)
"""A name or an address of IPv4, or one of IPv6 in brackets (or, as some write it, without); then perhaps a port."""

_OF_FORMS: Final = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""The content types that a page can send to any server without a preflight. An empty form has such a type, and no
body."""

READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""The HTTP methods that change nothing, and whose bodies are ignored."""

KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""The prefix of the subprotocol that contains the API key of a page's WebSocket."""

FORWARDED_HEADERS: Final = web.AppKey("forwarded_headers", frozenset[str])
"""The names, in lower case, of headers of clients that are sent on to a model server."""
PASSES_KEYS: Final = web.AppKey("passes_keys", bool)
"""Whether turns contain the client's API key, for an agent that passes it on to its upstream."""
_MAX_HOPS: Final = 32

DIGEST: Final = web.RequestKey("digest", str)
"""The digest of the request's key; empty if it has none. The key itself is not kept."""


async def check_access(request: web.Request) -> web.Response | None:
    """Runs all checks of this module, and stores the client to which the request's key belongs in the request.
    Returns the answer if the request is a CORS preflight, else None. Raises `Fault` for a request that may not be
    served.
    """
    _check_header_limits(request)
    _check_single(request)
    _check_host(request)
    check_forwarded(request)
    preflight_reply = check_origin(request)
    if preflight_reply is not None:
        return preflight_reply
    if request.path not in request.app[OPEN_PATHS]:
        await _authenticate(request)
    if request.method not in READS and request.match_info.http_exception is None:
        _check_content_type(request)
    return None


def _check_header_limits(request: web.Request) -> None:
    """Raises `Fault` HEADERS_TOO_LARGE if the request has more than `MAX_HEADERS` headers, or if its headers and
    path together have more than `MAX_HEADER_BYTES` bytes.
    """
    headers = request.raw_headers
    if len(headers) > MAX_HEADERS:
        raise _headers_too_large(f"It has {len(headers)} headers; the maximum is {MAX_HEADERS}.")
    size = sum([len(name) + len(value) + _OVERHEAD for name, value in headers]) + len(request.raw_path)
    if size > MAX_HEADER_BYTES:
        raise _headers_too_large(f"Its headers have {size} bytes; the maximum is {MAX_HEADER_BYTES}.")


def _headers_too_large(message: str) -> Fault:
    return Fault(
        Failure(kind=FaultKind.HEADERS_TOO_LARGE, message=f"The request's head is too large. {message}")
    )


def _check_single(request: web.Request) -> None:
    """Raises `Fault` INVALID_REQUEST if a header that this module checks, such as `Authorization`, occurs twice:
    another program, such as a proxy, could use the other value.
    """
    for name in _SINGLE:
        if len(request.headers.getall(name, [])) > 1:
            raise bad_request(f"The request has more than one {name} header.")


def host_name(host: str) -> str:
    """Returns the host in a Host header, in lower case and without its port: `[::1]:80` gives `::1`. Returns an
    empty string if the header is malformed.
    """
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
"""The networks of reverse proxies that the operator trusts."""

_FORWARDED_PREFIX: Final = "x-forwarded-"
_MAX_ADDRESSES: Final = 16
"""The most addresses of `X-Forwarded-For` that are read, beginning with the last one."""


def is_forwarded(request: web.Request) -> bool:
    """Whether the request came through a reverse proxy: it has `Forwarded`, `Via` or an `X-Forwarded-*` header."""
    headers = request.headers
    if "Forwarded" in headers or "Via" in headers:
        return True
    return any(name.lower().startswith(_FORWARDED_PREFIX) for name in headers)


def is_local(request: web.Request) -> bool:
    """Whether the request comes from this machine, and not through a reverse proxy."""
    address = _address(request.remote or "")
    return address is not None and address.is_loopback and not is_forwarded(request)


def check_forwarded(request: web.Request) -> None:
    """Raises `Fault` NOT_ALLOWED for a request through a proxy that is not trusted, or through any proxy if the
    server requires no keys.
    """
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
    """Returns the client's IP address: for a request through trusted proxies, the last address in `X-Forwarded-For`
    that is not a trusted proxy's, else the address of the connection.
    """
    trusted = request.app[TRUSTED_PROXIES]
    address = request.remote or ""
    if not _is_in(address, trusted):
        return address
    hops = [
        hop.strip() for value in request.headers.getall("X-Forwarded-For", []) for hop in value.split(",")
    ]
    for hop in hops[: -_MAX_ADDRESSES - 1 : -1]:
        if _address(hop) is None:
            break
        address = hop
        if not _is_in(hop, trusted):
            break
    return address


def _is_in(text: str, networks: Sequence[Network]) -> bool:
    address = _address(text)
    return address is not None and any(address in network for network in networks)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Returns the parsed IP address; None if it is malformed. An IPv4 address in IPv6 form (`::ffff:127.0.0.1`) is
    returned as IPv4.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _not_allowed(message: str) -> Fault:
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))


async def _authenticate(request: web.Request) -> None:
    """Finds the client to which the request's key belongs, and stores it in the request; if the server requires no
    keys, that is the client for requests without a key. Raises `Fault`: INVALID_API_KEY for a missing or wrong key,
    or RATE_LIMITED if too many checks of keys wait (see `wrong_keys`).
    """
    clients = request.app[CLIENTS]
    key = key_in(request)
    digest = digest_of(key) if key else ""
    if digest and clients.keys_required:
        async with delaying_guesses(request, digest):
            client = clients.by_digest(digest)
    else:
        client = clients.by_digest(None)
    request[CLIENT], request[OWNER], request[DIGEST] = client, client.name, digest
    if client.name != NO_KEY_OWNER:
        request[NOTES]["owner"] = client.name


def delaying_guesses(request: web.Request, digest: str) -> AbstractAsyncContextManager[None]:
    """Returns `WrongKeys.delaying` for a key of this request: a context manager that delays the body of the `with`
    if the key with this `digest` may be a guess. The body must check the key and raise `Fault` if it is wrong.
    Raises `Fault` RATE_LIMITED on entry if too many checks wait.
    """
    return request.app[WRONG_KEYS].delaying(client_address(request), digest)


def origin_of(request: web.Request) -> Origin:
    """Returns the other codex-proxy servers through which the request came (`X-Codex-Hops`), and the key and
    headers of the client that an agent may send on to a model server. The key is empty unless the settings pass it
    on.
    """
    hops = request.headers.get(HOPS_HEADER, "").split(",", _MAX_HOPS)
    key = key_in(request) if request.app[PASSES_KEYS] else ""
    given = request.headers
    headers = {name: given[name] for name in request.app[FORWARDED_HEADERS] if name in given}
    only = request[CLIENT].catalog.only
    return Origin(tuple(hop.strip() for hop in hops if hop.strip()), key, headers, only)


def key_in(request: web.Request) -> str:
    """Returns the key in the request's headers; empty if there is none. Clients of Anthropic's API may send two
    keys, in `Authorization` and in `x-api-key`, of which one is for Anthropic. Of two keys, returns the one that is
    valid here, or the first if neither is.
    """
    keys = keys_in(request)
    if len(keys) > 1:
        clients = request.app[CLIENTS]
        return next((key for key in keys if clients.knows(digest_of(key))), keys[0])
    return keys[0] if keys else ""


def keys_in(request: web.Request) -> list[str]:
    """Returns the keys in the request's headers: that of `Authorization`, that of `x-api-key`, and, for a WebSocket
    without either, that of its subprotocols."""
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    found = [given.strip()] if scheme.lower() == "bearer" else []
    found.append(request.headers.get("x-api-key", "").strip())
    if not any(found) and request.headers.get("Upgrade", "").lower() == "websocket":
        names = subprotocols(request)
        found += [name.removeprefix(KEY_PROTOCOL) for name in names if name.startswith(KEY_PROTOCOL)][:1]
    return [key for key in found if key]


def subprotocols(request: web.Request) -> list[str]:
    """Returns the subprotocols in the headers of a WebSocket handshake, in the client's order."""
    values = request.headers.getall("Sec-WebSocket-Protocol", [])
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _check_content_type(request: web.Request) -> None:
    """Raises `Fault` UNSUPPORTED_MEDIA_TYPE if the request has a body that is not declared as JSON, or has no body
    but a content type of HTML forms.
    """
    kind = request.content_type.lower()
    if kind in _OF_FORMS if not request.can_read_body else not _is_json(kind):
        raise Fault(
            Failure(
                kind=FaultKind.UNSUPPORTED_MEDIA_TYPE,
                message=f"The content type {excerpt(kind)} is not supported. Send the body as "
                "`Content-Type: application/json`.",
            )
        )


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")
