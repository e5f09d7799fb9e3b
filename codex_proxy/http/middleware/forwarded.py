"""Checks requests that come through a reverse proxy. They may come from any machine, even if this server listens on
loopback.

The operator must list the proxy (PROXY_TRUSTED_PROXIES), and the server must require keys. The address of a client
is taken only from the headers of a listed proxy.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, TypeAlias

from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.http.app_keys import CLIENTS

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

TRUSTED_PROXIES: Final = web.AppKey("trusted_proxies", tuple[Network, ...])
"""The networks of reverse proxies that the operator trusts."""

_PREFIX: Final = "x-forwarded-"
_MAX_HOPS: Final = 16
"""The most addresses of `X-Forwarded-For` that are read, beginning with the nearest."""


def is_forwarded(request: web.Request) -> bool:
    """Whether the request came through a reverse proxy."""
    headers = request.headers
    if "Forwarded" in headers or "Via" in headers:
        return True
    return any(name.lower().startswith(_PREFIX) for name in headers)


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
        raise _refused(
            "This request was passed on by a reverse proxy that this server does not know: its headers say so. "
            "The operator names the proxy's address in PROXY_TRUSTED_PROXIES."
        )
    if not request.app[CLIENTS].keys_required:
        raise _refused(
            "Behind a reverse proxy this server can be reached by others, so it needs keys: the operator makes one "
            "with `codex-proxy keys add NAME`, or sets PROXY_API_KEY."
        )


def client_address(request: web.Request) -> str:
    """Returns the client's address. For a request through trusted proxies, it is the nearest address that is not a
    trusted proxy's.
    """
    trusted = request.app[TRUSTED_PROXIES]
    address = request.remote or ""
    if not _is_in(address, trusted):
        return address
    hops = [
        hop.strip() for value in request.headers.getall("X-Forwarded-For", []) for hop in value.split(",")
    ]
    for hop in hops[: -_MAX_HOPS - 1 : -1]:
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
    """Parses an IP address; None if it is malformed. An IPv4 address in IPv6 form (`::ffff:127.0.0.1`) is returned
    as IPv4.
    """
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _refused(message: str) -> Fault:
    return Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))
