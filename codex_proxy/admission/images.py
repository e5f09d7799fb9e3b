"""Fetches the images that a request gives by URL, because agents fetch none. Raises `Fault` INVALID_REQUEST, which
names only the host. No URL or redirect may lead into the operator's network.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    TCPConnector,
    ThreadedResolver,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from codex_proxy.core.faults import STOPPING, Fault, bad_request
from codex_proxy.core.items import (
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    TextPart,
    images_in,
)
from codex_proxy.core.media import NoImageError, data_url_of
from codex_proxy.core.safety import ip_literal, is_public
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.requests.files import IMAGE_LEFT_OUT

SETTING: Final = "PROXY_IMAGE_FETCH"
PARAM: Final = "messages"
CODE: Final = "invalid_image_url"

_WEB: Final = re.compile(r"https?:", re.IGNORECASE)
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHUNK: Final = 64 * 1024
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_HEADERS: Final = {
    "Accept": "image/png, image/jpeg, image/gif, image/webp",
    "Accept-Encoding": "identity",  # what is unpacked can be a thousand times as large
    "User-Agent": "codex-proxy",
}


class ImageLimits(msgspec.Struct, frozen=True):
    """The limits of one request. An image above `at_once` waits; above the others the request is refused."""

    image_bytes: int = 20 * 1024 * 1024
    """Maximum bytes of one image, as with model providers."""
    request_bytes: int = 40 * 1024 * 1024
    """Maximum bytes of all images together: as base64 they fit into a line to the agent."""
    request_images: int = 20
    """Maximum number of different URLs."""
    at_once: int = 4
    """Maximum connections, so that a request overloads no host."""
    redirects: int = 3
    """Maximum redirects; one or two are usual (https, CDN)."""
    seconds: float = 10.0
    """Seconds for one image: all then take at most 50, and most clients wait for 60."""


class ImageFetcher:
    def __init__(
        self,
        allowed: tuple[str, ...],
        limits: ImageLimits | None = None,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`allowed` entries: `example.com`, `*.example.com`, `10.0.0.5:8443`; https, or http after `http://`. Raises
        `ValueError` for others. `close` also closes `resolver`.
        """
        self.limits = limits or ImageLimits()
        self._allowed = tuple(_parse_entry(each) for each in allowed)
        self._resolver = resolver
        self._session: ClientSession | None = None
        self._closed = False

    async def fetch(self, url: str) -> str:
        """Returns an image as a data URL. Raises `Fault` INVALID_REQUEST, or UNAVAILABLE after `close`."""
        parsed = self._require_permitted(_parse_url(url))
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._fetch_following_redirects(parsed)
        except TimeoutError:
            raise _image_fault(parsed, f"was not received within {self.limits.seconds:g} s") from None
        except _ForbiddenAddressError:
            raise _image_fault(
                parsed, "could not be fetched: its host has an address that is not public"
            ) from None
        except (ClientError, OSError, ValueError):  # its words hold the whole address
            raise _image_fault(parsed, "could not be fetched") from None

    async def close(self) -> None:
        """Ends running requests. May be called twice."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        resolver, self._resolver = self._resolver, None
        if resolver is not None:
            await resolver.close()

    # --- one image ------------------------------------------------------------------------------

    async def _fetch_following_redirects(self, url: URL) -> str:
        for _ in range(self.limits.redirects + 1):
            async with self._open().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(url, response)
                url = self._require_permitted(_redirect_target(url, response))
        raise _image_fault(url, f"was redirected more than {self.limits.redirects} times")

    async def _read(self, url: URL, response: ClientResponse) -> str:
        if response.status != 200:
            raise _image_fault(url, f"could not be fetched (status {response.status})")
        most = self.limits.image_bytes
        too_large = _image_fault(url, f"is larger than {most / (1 << 20):g} MiB")
        if (response.content_length or 0) > most:
            raise too_large
        image = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            image += chunk
            if len(image) > most:
                raise too_large
        try:
            return data_url_of(bytes(image))  # what the server says of its type is only what it says
        except NoImageError as why:
            raise _image_fault(url, str(why)) from None

    def _open(self) -> ClientSession:
        if self._closed:
            raise Fault(STOPPING)
        if self._session is None:
            guard = _PublicAddresses(self._resolver or ThreadedResolver())
            # No cache: an address is checked for every connection, and is the one that is connected to.
            connector = TCPConnector(resolver=guard, use_dns_cache=False, force_close=True)
            self._session = ClientSession(
                connector=connector,
                headers=_HEADERS,
                cookie_jar=DummyCookieJar(),
                trust_env=False,  # a proxy would connect where we must not, and .netrc holds credentials
                auto_decompress=False,
                timeout=ClientTimeout(total=self.limits.seconds),
            )
        return self._session

    # --- which places ---------------------------------------------------------------------------

    def _require_permitted(self, url: URL) -> URL:
        if url.user is not None or url.password is not None:
            raise bad_request("An image URL must not hold a user name or password.", PARAM, CODE)
        if not any(entry.permits(url) for entry in self._allowed):
            raise _not_allowed(url)
        return url


class _Entry(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int
    below: bool
    """Whether the subdomains of `host` are allowed, and not `host` itself."""

    def permits(self, url: URL) -> bool:
        if (url.scheme, url.port) != (self.scheme, self.port):
            return False
        host = _host(url)
        return host.endswith("." + self.host) if self.below else host == self.host


def _parse_entry(text: str) -> _Entry:
    scheme, _, rest = text.strip().rpartition("://")
    below = rest.startswith("*.")
    wrong = ValueError(
        f"{SETTING}: {text!r} is not a host. Expected a name, '*.' and a name, or an address, "
        "optionally with a port; prefix it with 'http://' to allow plain http."
    )
    try:
        url = URL(f"{scheme or 'https'}://{rest.removeprefix('*.')}")
        host, port = _host(url), url.port
        plain = url == url.origin() and rest.rstrip("/") == rest
    except ValueError as error:
        raise wrong from error
    if not (plain and host and port) or url.scheme not in _DEFAULT_PORTS or "*" in host:
        raise wrong
    if below and ip_literal(host) is not None:
        raise wrong
    return _Entry(url.scheme, host, port, below)


def _host(url: URL) -> str:
    host = (url.raw_host or "").lower()
    address = ip_literal(host)
    return host if address is None else str(address)


def _parse_url(text: str) -> URL:
    try:
        url = URL(text.strip())
        if url.scheme in _DEFAULT_PORTS and url.raw_host and url.port:
            return url
    except ValueError:
        pass
    raise bad_request("An image URL is not a valid https URL.", PARAM, CODE)


def _redirect_target(url: URL, response: ClientResponse) -> URL:
    try:
        target = url.join(URL(response.headers.get("Location", "")))
    except ValueError:
        target = url
    if target == url or target.scheme not in _DEFAULT_PORTS or not target.raw_host:
        raise _image_fault(url, "was redirected to a URL that is not valid")
    return target


# --- which addresses ------------------------------------------------------------------------------


class _ForbiddenAddressError(Exception):
    """A host name resolves to an address that is not public."""


class _PublicAddresses(AbstractResolver):
    """Resolves host names to public addresses only. IP addresses, which must be in the operator's list, are not
    resolved.
    """

    def __init__(self, inner: AbstractResolver) -> None:
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Returns a host's addresses. Raises `_ForbiddenAddressError` if one is not public: mixed ones are most likely
        an attack.
        """
        found = await self._inner.resolve(host, port, family)
        if not all(is_public(each["host"]) for each in found):
            raise _ForbiddenAddressError
        return found

    async def close(self) -> None:
        await self._inner.close()


# --- what is said of it ---------------------------------------------------------------------------


def _image_fault(url: URL, what: str) -> Fault:
    return bad_request(f"The image on '{_host(url)}' {what}.", PARAM, CODE)


def _not_allowed(url: URL) -> Fault:
    where = _host(url) if url.port == _DEFAULT_PORTS["https"] else f"{_host(url)}:{url.port}"
    return bad_request(
        f"This server is not allowed to fetch images from '{where}' by {url.scheme}. Send the "
        f"image as a data URL, or ask the operator to allow the host in {SETTING}.",
        PARAM,
        CODE,
    )


# --- a turn ---------------------------------------------------------------------------------------


async def inline_images(
    turn: Turn,
    fetcher: ImageFetcher | None,
    fields: Mapping[str, str] = {},
    field: str = PARAM,
    *,
    optional: Collection[str] = (),
) -> Turn:
    """Returns the turn with its web images as data URLs. Raises `Fault` INVALID_REQUEST for an image that cannot be
    fetched, or without a `fetcher` for any web image. Its `param` is the URL's value in `fields`, else `field`. For
    `optional` URLs a note takes the place of the image instead.
    """
    urls = Counter(part.url for part in images_in(turn.history) if _WEB.match(part.url))
    if not urls:
        return turn
    if fetcher is None:
        for first in (url for url in urls if url not in optional):
            with _set_param(fields.get(first, field)):
                raise _not_allowed(_parse_url(first))
    elif len(urls) > (limits := fetcher.limits).request_images:
        raise bad_request(
            f"A request may name at most {limits.request_images} images by URL. Send the others "
            "as data URLs.",
            field,
            CODE,
        )
    fetched = {} if fetcher is None else await _fetch_all(urls, fetcher, fields, field, optional)
    history = tuple(_with_data_urls(item, urls, fetched) for item in turn.history)
    return msgspec.structs.replace(turn, history=history)


def fetched_bytes(requested: Turn, admitted: Turn) -> int:
    """Returns the size of the images that `inline_images` has put into a turn, in characters of data URLs."""
    if admitted.history is requested.history:
        return 0
    sizes = [sum(len(part.url) for part in images_in(turn.history)) for turn in (requested, admitted)]
    return max(0, sizes[1] - sizes[0])


@contextmanager
def _set_param(field: str) -> Iterator[None]:
    try:
        yield
    except Fault as fault:
        raise Fault(msgspec.structs.replace(fault.failure, param=field)) from fault


async def _fetch_all(
    urls: Counter[str],
    fetcher: ImageFetcher,
    fields: Mapping[str, str],
    field: str,
    optional: Collection[str],
) -> dict[str, str]:
    """Returns data URLs by URL. `urls`: how often the turn has each, and so the agent gets the image. If one image
    fails that is not `optional`, cancels the others and raises its `Fault`.
    """
    limits = fetcher.limits
    slots = asyncio.Semaphore(limits.at_once)
    fetched: dict[str, str] = {}

    async def fetch(url: str) -> None:
        async with slots:
            try:
                with _set_param(fields.get(url, field)):
                    fetched[url] = await fetcher.fetch(url)
            except Fault:
                if url not in optional:
                    raise
        if sum(len(each) * urls[url] for url, each in fetched.items()) * 3 // 4 > limits.request_bytes:
            raise bad_request(
                "The images of the request are larger than "
                f"{limits.request_bytes / (1 << 20):g} MiB in total. Send fewer or smaller images.",
                field,
                CODE,
            )

    try:
        async with asyncio.TaskGroup() as group:
            for url in urls:
                group.create_task(fetch(url))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return fetched


def _with_data_urls(item: HistoryItem, urls: Collection[str], fetched: Mapping[str, str]) -> HistoryItem:
    if not isinstance(item, HistoryMessage | HistoryOutput):
        return item

    def inlined(part: Part) -> Part:
        if not (isinstance(part, ImagePart) and part.url in urls):
            return part
        url = fetched.get(part.url)
        return TextPart(IMAGE_LEFT_OUT) if url is None else msgspec.structs.replace(part, url=url)

    return msgspec.structs.replace(item, parts=tuple(map(inlined, item.parts)))
