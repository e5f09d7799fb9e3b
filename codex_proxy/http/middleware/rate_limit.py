"""Limits each key's requests per minute and at once (POST requests, and turns of a WebSocket), and the connections
that requests of any kind keep open.

Delays the check of keys that may be guesses, longer with each wrong key of an address; right keys too, because a late
answer must not reveal a wrong one. Keys that were valid from there before do not wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from codex_proxy.admission.clients import Client
from codex_proxy.core.caches import LruCache, subtract
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.safety import peer_address
from codex_proxy.http.endpoint import ENDPOINT
from codex_proxy.http.middleware.request_context import CLIENT, REPLY_HEADERS
from codex_proxy.store.team import NO_REQUESTS, KeyRequests
from codex_proxy.workers.slots import FairQueue

MAX_BUCKETS = 1024
"""Number of buckets above which full ones, which are like new ones, are dropped."""


class Allowance(msgspec.Struct, frozen=True):
    """Whether a request is `allowed`: `remaining` of `limit` a minute are left. Times in seconds."""

    allowed: bool
    limit: int
    remaining: int
    full_after: float
    wait: float
    """Seconds until the next request may pass; 0: at once."""


class _Bucket(msgspec.Struct, frozen=True):
    """A token bucket: `level` requests left at `since` (monotonic seconds)."""

    level: float
    since: float
    limit: int

    def level_at(self, now: float) -> float:
        return min(float(self.limit), self.level + (now - self.since) * self.limit / 60)


class RateLimits:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}
        self._taken: Counter[str] = Counter()
        """Requests since the last `report`."""

    def take(self, key: str, per_minute: int) -> Allowance:
        """Takes a request, unless the bucket is empty. A changed limit applies from now on."""
        now = self._clock.monotonic()
        before = self._buckets.get(key)
        level = float(per_minute) if before is None else min(float(per_minute), before.level_at(now))
        allowed = level >= 1
        if allowed:
            level -= 1
            self._taken[key] += 1
        self._buckets[key] = _Bucket(level, now, per_minute)
        if len(self._buckets) > MAX_BUCKETS:
            full = [name for name, bucket in self._buckets.items() if bucket.level_at(now) >= bucket.limit]
            for name in full:
                del self._buckets[name]
        second = per_minute / 60
        return Allowance(
            allowed, per_minute, int(level), (per_minute - level) / second, max(0.0, (1 - level) / second)
        )

    def take_elsewhere(self, key: str, per_minute: int, requests: int) -> None:
        """Takes requests that other servers have let through; if they are too many, the bucket is empty for longer, at
        most a minute.
        """
        now = self._clock.monotonic()
        before = self._buckets.get(key, _Bucket(float(per_minute), now, per_minute))
        level = min(float(per_minute), before.level_at(now)) - requests
        self._buckets[key] = _Bucket(max(level, -float(per_minute)), now, per_minute)

    def report(self) -> dict[str, int]:
        """Returns what was taken from each bucket since the last call."""
        taken, self._taken = self._taken, Counter()
        return dict(taken)


class RunningRequests:
    def __init__(self) -> None:
        self._running: Counter[str] = Counter()
        self._reported: dict[str, int] = {}
        self.elsewhere: Mapping[str, KeyRequests] = {}

    def enter(self, key: str, limit: int) -> bool:
        """Counts a request until `leave`; returns False if `limit` (0: none) are running."""
        if limit and self._running[key] >= limit - self.elsewhere.get(key, NO_REQUESTS).running:
            return False
        self._running[key] += 1
        return True

    def leave(self, key: str) -> None:
        subtract(self._running, key)

    def of(self, key: str) -> int:
        return self._running[key]

    def report(self) -> dict[str, int]:
        """Returns the running requests of each key that has some, or had at the last call."""
        before, self._reported = self._reported, dict(self._running)
        return {**dict.fromkeys(before, 0), **self._running}


class RequestLimits:
    def __init__(self, clock: Clock) -> None:
        self.rate = RateLimits(clock)
        self.running = RunningRequests()

    def report(self) -> dict[str, KeyRequests]:
        """Returns the requests of each key, for `store.team.Team.exchange`."""
        taken, running = self.rate.report(), self.running.report()
        return {key: KeyRequests(taken.get(key, 0), running.get(key, 0)) for key in taken | running}

    def count_elsewhere(self, others: Mapping[str, KeyRequests], rpm_of: Callable[[str], int]) -> None:
        """Counts the requests of other servers. `rpm_of` returns a key's limit, 0 for none."""
        self.running.elsewhere = others
        for key, requests in others.items():
            per_minute = rpm_of(key) if requests.taken else 0
            if per_minute:
                self.rate.take_elsewhere(key, per_minute, requests.taken)


REQUEST_LIMITS: Final = web.AppKey("request_limits", RequestLimits)
CONNECTIONS: Final = web.AppKey("connections", FairQueue[None])
"""The connections that the server has accepted, as slots; no further connection waits."""


@contextlib.contextmanager
def hold_connection(request: web.Request) -> Iterator[None]:
    """Counts the request as one of its key's connections, which get a share. Raises `Fault` CONCURRENCY_EXCEEDED."""
    client, connections = request.get(CLIENT), request.app[CONNECTIONS]
    if client is None:
        yield
        return
    if not connections.enter(client.name):
        request.protocol.close()  # after the error: an idle connection would be one more
        request[REPLY_HEADERS]["Connection"] = "close"
        raise _too_many_connections()
    try:
        yield
    finally:
        connections.leave(client.name)


def count_if_turn(request: web.Request) -> AbstractContextManager[None]:
    """Returns a context in which the request counts, if it can start a turn."""
    client, endpoint = request.get(CLIENT), request.get(ENDPOINT)
    is_counted = endpoint is None or endpoint.counted
    if client is None or request.method != "POST" or not is_counted:
        return contextlib.nullcontext()
    return count_request(request.app[REQUEST_LIMITS], client, request[REPLY_HEADERS])


@contextlib.contextmanager
def count_request(
    limits: RequestLimits, client: Client, headers: MutableMapping[str, str] | None = None
) -> Iterator[None]:
    """Counts a request, and adds `x-ratelimit-*` to `headers`. Raises `Fault` RATE_LIMITED, or CONCURRENCY_EXCEEDED."""
    if client.rpm:
        allowance = limits.rate.take(client.name, client.rpm)
        if headers is not None:
            headers.update(headers_of(allowance))
        if not allowance.allowed:
            raise _too_many_a_minute(allowance)
    if not limits.running.enter(client.name, client.concurrency):
        raise _too_many_at_once(client.concurrency)
    try:
        yield
    finally:
        limits.running.leave(client.name)


def _too_many_a_minute(allowance: Allowance) -> Fault:
    message = (
        f"Rate limit reached: {allowance.limit} requests per minute for this key (its own "
        "limit, or PROXY_RATE_LIMIT_RPM). Try again later."
    )
    return Fault.of(FaultKind.RATE_LIMITED, message, retry_after=allowance.wait)


def _too_many_at_once(limit: int) -> Fault:
    message = (
        f"Limit of concurrent requests reached: {limit} for this key (its own limit, or "
        "PROXY_KEY_CONCURRENCY). Try again when one has ended."
    )
    return Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message)


def _too_many_connections() -> Fault:
    message = (
        "This key's requests, streams and WebSockets have all of this server's connections that one key may have; the "
        "rest are reserved for other keys. Close some, or try again later."
    )
    return Fault.of(FaultKind.CONCURRENCY_EXCEEDED, message)


def headers_of(allowance: Allowance) -> dict[str, str]:
    """Returns OpenAI's `x-ratelimit-*` headers."""
    return {
        "x-ratelimit-limit-requests": str(allowance.limit),
        "x-ratelimit-remaining-requests": str(allowance.remaining),
        "x-ratelimit-reset-requests": format_duration(allowance.full_after),
    }


def format_duration(seconds: float) -> str:
    """Returns a duration as in OpenAI's headers: `1m30s`, `12.5s`, `340ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"


FREE_ATTEMPTS: Final = 3
"""Number of wrong keys without a delay, for a person who mistypes."""
FIRST_SECONDS: Final = 0.25
MAX_SECONDS: Final = 5.0
"""The longest pause between two checks for one address."""
MAX_WAIT_SECONDS: Final = 20.0
"""The longest wait of a key; one that would wait longer is refused."""
FORGET_SECONDS: Final = 600.0
"""Seconds without a wrong key until an address is forgotten."""
MAX_ADDRESSES: Final = 4096
"""Maximum addresses, about 1 MiB; the oldest is forgotten first."""
MAX_KNOWN: Final = 4096
"""Maximum valid keys that are remembered, each with its address."""


class FailedAttempts:
    """Counts wrong keys by network (`network_of`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: OrderedDict[str, tuple[int, float, float]] = OrderedDict()
        """The number of wrong keys by network, oldest first, and when the last came and is checked (monotonic
        seconds).
        """

    def delay(self, network: str) -> float:
        """Returns the seconds that a check from this network waits, and counts the key as wrong until `uncount`. Raises
        `Fault` RATE_LIMITED if too many wait.
        """
        now = self._clock.monotonic()
        count, last, looked = self._failed.pop(network, (0, now, now))
        if now - last >= FORGET_SECONDS:
            count = 0
        spacing = (
            0.0
            if count < FREE_ATTEMPTS
            else min(FIRST_SECONDS * 2.0 ** min(count - FREE_ATTEMPTS, 16), MAX_SECONDS)
        )
        wait = max(looked - now, 0.0) + spacing
        if wait > MAX_WAIT_SECONDS:
            self._failed[network] = (count, now, looked)
            raise _too_many_wrong(wait)
        self._failed[network] = (count + 1, now, now + wait)
        if len(self._failed) > MAX_ADDRESSES:
            self._failed.popitem(last=False)
        return wait

    def uncount(self, network: str) -> None:
        count, last, looked = self._failed.pop(network, (0, 0.0, 0.0))
        if count > 1:
            self._failed[network] = (count - 1, last, looked)

    def __len__(self) -> int:
        return len(self._failed)


def network_of(address: str) -> str:
    """Returns what stands for an address: an IPv4 address itself, or the /64 of which a machine has all addresses."""
    parsed = peer_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return address if parsed is None else str(parsed)


MAX_WAITING: Final = 256
"""Maximum waiting checks of all addresses."""


class WrongKeys:
    def __init__(self, clock: Clock, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        self._attempts = FailedAttempts(clock)
        self._valid: LruCache[tuple[str, str], None] = LruCache(MAX_KNOWN)
        """Network and digest of keys that were valid."""
        self._sleep = sleep
        self._held = 0

    @asynccontextmanager
    async def delay_guess(self, address: str, digest: str) -> AsyncIterator[None]:
        """Delays the body of the `with`, which checks a key and must raise `Fault` if it is wrong. Raises `Fault`
        RATE_LIMITED if too many wait.
        """
        network = network_of(address)
        may_be_guess = (network, digest) not in self._valid
        if may_be_guess:
            await self._wait(network)
        try:
            yield
        except Fault:
            self._valid.drop((network, digest))
            raise
        if may_be_guess:
            self._attempts.uncount(network)
        self._valid.put((network, digest), None)

    async def _wait(self, network: str) -> None:
        seconds = self._attempts.delay(network)
        if seconds == 0:
            return
        if self._held >= MAX_WAITING:
            raise _too_many_wrong(MAX_SECONDS)
        self._held += 1
        try:
            await self._sleep(seconds)
        finally:
            self._held -= 1


WRONG_KEYS: Final = web.AppKey("wrong_keys", WrongKeys)


def _too_many_wrong(seconds: float) -> Fault:
    message = (
        "Too many wrong keys came from this address, so this one was not checked. Try again later; a key that has "
        "worked from here before works at any time."
    )
    return Fault.of(FaultKind.RATE_LIMITED, message, retry_after=seconds)
