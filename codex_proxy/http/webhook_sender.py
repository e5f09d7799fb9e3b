"""Tells the configured targets that a background response has ended: signed, and again until they take it.

What is not delivered waits in the store, and is told after the next start; without a store it is lost with the server.
"""

from __future__ import annotations

import asyncio

import aiohttp
import msgspec
import structlog

from codex_proxy.core.ids import Clock, IdSource
from codex_proxy.store.base import StoreError
from codex_proxy.store.webhooks import Outbox, PendingWebhook
from codex_proxy.surfaces.responses.webhooks import signed, webhook_body

log = structlog.get_logger("codex_proxy.http")

DELAYS = (1.0, 5.0, 30.0, 120.0, 600.0, 3600.0)
"""Seconds before each further try: a receiver that is being deployed comes back within them."""
TIMEOUT_SECONDS = 15.0
MAX_WAITING = 1000
"""Deliveries that are under way or wait for their next try."""


class WebhookSender:
    """Posts to every target by itself, so that one that hangs holds up no other. `secret`: `whsec_...`, or any text."""

    def __init__(
        self,
        urls: tuple[str, ...],
        secret: str,
        *,
        ids: IdSource,
        clock: Clock,
        outbox: Outbox | None = None,
        delays: tuple[float, ...] = DELAYS,
    ) -> None:
        """Raises `ValueError` for a secret that is not what it says."""
        signed(b"{}", event_id="evt", timestamp=0, secret=secret)
        self._urls = urls
        self._secret = secret
        self._ids = ids
        self._clock = clock
        self._outbox = outbox
        self._delays = delays
        self._session: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def tell(self, response_id: str, status: str) -> None:
        """A response has ended with this status. Returns as soon as it is written down that this is to be told."""
        event_id = self._ids.new("evt_")
        body = webhook_body(
            event_id=event_id, response_id=response_id, status=status, created_at=int(self._clock.epoch())
        )
        for url in self._urls:
            if len(self._tasks) >= MAX_WAITING:
                log.warning("webhook_dropped", reason="too many wait", event_id=event_id)
                return
            pending = PendingWebhook(event_id, url, body)
            await self._keep(pending)
            self._begin(pending)

    async def take_up_again(self) -> None:
        """Tells what was left when the server stopped. What was for a target that is none any more is dropped."""
        if self._outbox is None:
            return
        try:
            left = await self._outbox.webhooks(MAX_WAITING)
        except StoreError as error:
            log.warning("webhooks_not_taken_up", reason=str(error))
            return
        for pending in left:
            if pending.url in self._urls:
                self._begin(pending)
            else:
                await self._forget(pending)

    def _begin(self, pending: PendingWebhook) -> None:
        if self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._deliver(pending))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver(self, pending: PendingWebhook) -> None:
        before = min(pending.tries, len(self._delays))
        for number, delay in enumerate((*self._delays[before:], None), before + 1):
            problem = await self._post(pending.url, pending.event_id, pending.body)
            if problem is None:
                log.info("webhook_delivered", event_id=pending.event_id, tries=number)
                break
            log.warning(
                "webhook_failed", event_id=pending.event_id, tries=number, reason=problem, again_in=delay
            )
            if delay is not None:
                await self._keep(msgspec.structs.replace(pending, tries=number))
                await asyncio.sleep(delay)
        await self._forget(pending)

    async def _keep(self, pending: PendingWebhook) -> None:
        if self._outbox is not None:
            try:
                await self._outbox.put_webhook(pending)
            except StoreError as error:
                log.warning("webhook_not_kept", event_id=pending.event_id, reason=str(error))

    async def _forget(self, pending: PendingWebhook) -> None:
        if self._outbox is not None:
            try:
                await self._outbox.drop_webhook(pending.event_id, pending.url)
            except StoreError as error:
                log.warning("webhook_not_dropped", event_id=pending.event_id, reason=str(error))

    async def _post(self, url: str, event_id: str, body: bytes) -> str | None:
        """One try; what was the matter, if anything was. A redirect is not followed: it would take the body along."""
        hook = signed(body, event_id=event_id, timestamp=int(self._clock.epoch()), secret=self._secret)
        try:
            async with self._opened().post(
                url, data=hook.body, headers=hook.headers, allow_redirects=False
            ) as reply:
                return None if 200 <= reply.status < 300 else f"status {reply.status}"
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return type(error).__name__

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
            self._session = aiohttp.ClientSession(timeout=timeout)
        return self._session

    async def close(self) -> None:
        """Ends what is under way; it stays in the store."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()
