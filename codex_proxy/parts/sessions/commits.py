"""The changes of one session on the server that holds it: each is stored under the session's lease before readers hear
of it, here and at the servers that follow the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.json_values import encode_json
from codex_proxy.parts.sessions.messages import Told, encode_message
from codex_proxy.parts.sessions.records import ENTRY, LEASE_LOST, SESSION, records_of
from codex_proxy.parts.sessions.render import WEBHOOKS, webhook_of
from codex_proxy.parts.sessions.server import Server
from codex_proxy.parts.sessions.sessions import Session, SessionTurn
from codex_proxy.parts.sessions.state import Changes
from codex_proxy.parts.sessions.stream import DELETED, EncodedEvent, encode_changes
from codex_proxy.responses.service import RETRY_SECONDS
from codex_proxy.store.record_leases import RecordLease
from codex_proxy.store.values import PendingWebhook, Record

log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 0.05
"""Seconds between two messages to servers that follow a session, but for those of what is stored at once."""


class Commits:
    """Stores and tells the changes of one session. `lease` is None for a session that is not stored yet."""

    def __init__(self, service: Server[Any], owner: str, session: Session, lease: RecordLease | None) -> None:
        self.trouble: Failure | None = None
        """Why the store does not take what has happened, if it does not."""
        self.followed = service.is_shared
        """Whether other servers may follow the session. After a write this is known."""
        self.next_message = 0.0
        """When others should be told again, in seconds of the event loop."""
        self._service = service
        self._owner = owner
        self._id = session.id
        self.storage = session.storage
        self._sizes: dict[str, int] = {}
        """The bytes of the items of the turn that goes on, by their ids: one is written again when it ends."""
        self._lease = lease
        self.writes = 0
        """How much was written under the lease."""
        self._messages = 0
        """How many messages were sent under the lease."""

    async def commit(
        self, session: Session, changes: Changes, more: Sequence[Record] = (), *, long: bool = False
    ) -> None:
        """Stores what has changed, then tells readers. `long`: whether that is much text. Raises `Fault`."""
        epoch = self._service.epoch()
        make = partial(records_of, session, changes.records, epoch, self.storage, more, self._sizes)
        records, storage = await beside_the_loop(make, long=long)
        await self._write(records, changes, await self._encoded(changes, long=long))
        self.storage = storage
        self._note_sizes(session, records)

    async def commit_surely(self, session: Session, changes: Changes, *, long: bool = False) -> None:
        """Stores what has changed, however long the store cannot be reached, then tells readers. `long`: whether that
        is much text. Raises `Fault` NOT_FOUND if the session was deleted, and LEASE_LOST.
        """
        epoch = self._service.epoch()
        make = partial(records_of, session, changes.records, epoch, self.storage, (), self._sizes)
        records, self.storage = await beside_the_loop(make, long=long)
        self._note_sizes(session, records)
        told = await self._encoded(changes, long=long)
        while True:
            try:
                await self._write(records, changes, told)
                self.trouble = None
                return
            except Fault as fault:
                if fault.failure.kind is FaultKind.NOT_FOUND or fault.failure is LEASE_LOST:
                    raise
                self.trouble = fault.failure
                await asyncio.sleep(RETRY_SECONDS)

    def _note_sizes(self, session: Session, records: Sequence[Record]) -> None:
        if not session.turn:
            self._sizes.clear()
            return
        self._sizes.update((each.id, len(each.json)) for each in records if each.kind == ENTRY.name)

    async def delete(self) -> None:
        """Removes the session, and ends the streams of it. Raises `Fault`."""
        end = [(DELETED, encode_json(self._service.epoch()))]
        told = self._message(end, ended=True)
        await self._service.store.delete_session(
            self._owner, self._id, self._service.epoch(), epoch=self._epoch, tell=told
        )
        self.writes += 1
        if readers := self._service.streams.readers(self._owner, self._id):
            readers.add(end)
            readers.end()
        if feed := self._service.streams.feed(self._owner):
            feed.add(self._id, end)

    async def check(self) -> None:
        """Raises `Fault` LEASE_LOST if another server has taken the session over, NOT_FOUND if it was deleted."""
        if self._service.is_shared:
            key = SESSION.key(self._id)
            await self._service.store.write(self._owner, (), require=key, epoch=self._epoch)

    def hold(self, lease: RecordLease | None) -> None:
        """Goes on under the lease of a session that was stored now."""
        if lease is None:  # another server has taken over what was not certain to be stored
            raise Fault(LEASE_LOST)
        self._lease = lease

    def release(self) -> None:
        """Lets other servers take the session."""
        if self._lease is not None:
            self._lease.release()

    @property
    def _epoch(self) -> int | None:
        return None if self._lease is None else self._lease.epoch

    async def _write(self, records: Sequence[Record], changes: Changes, told: Sequence[EncodedEvent]) -> None:
        message = self._message(told) if told and self.followed else None
        if records or message is not None:
            key, epoch, webhooks = SESSION.key(self._id), self._epoch, self._webhooks(changes)
            written = await self._service.store.write(
                self._owner,
                records,
                require=None if epoch is None else key,
                epoch=epoch,
                hold=key if epoch is None else None,
                webhooks=webhooks,
                tell=message,
            )
            if epoch is None:
                self.hold(written.lease)
            self.writes += 1
            self._messages += message is not None
            self.followed = written.followed
            self.next_message = asyncio.get_running_loop().time() + PAUSE_SECONDS
            if webhooks and self._service.responses.webhooks is not None:
                self._service.responses.webhooks.wake()
        self._tell(changes, told)

    def _message(self, told: Sequence[EncodedEvent], *, ended: bool = False) -> bytes:
        return encode_message(
            Told(self._owner, self._id, self._epoch or 0, self._messages, tuple(told), ended)
        )

    def _webhooks(self, changes: Changes) -> list[PendingWebhook]:
        """Returns the webhooks about what has changed."""
        sender = self._service.responses.webhooks
        if sender is None:
            return []
        found = [event for event in changes.events if event["type"] in WEBHOOKS]
        return [
            webhook
            for event in found
            for webhook in sender.make(self._service.new_id("evt_"), *webhook_of(event))
        ]

    async def _encoded(self, changes: Changes, *, long: bool = False) -> list[EncodedEvent]:
        """Returns the events, if anybody reads them. `long`: whether that is much text."""
        streams = self._service.streams
        read_here = streams.readers(self._owner, self._id) or streams.feed(self._owner)
        if not (changes.told and (self.followed or read_here)):
            return []
        told = partial(encode_changes, changes, self._service.responses.ids.new)
        return await beside_the_loop(told, long=long)

    def _tell(self, changes: Changes, told: Sequence[EncodedEvent]) -> None:
        """Logs the turn's end, and sends events to this server's readers."""
        for each in changes.records:
            if isinstance(each, SessionTurn) and each.completed_at is not None:
                code = {} if each.error is None else {"error": each.error.code}
                log.info("session_turn_ended", session=each.session, turn=each.id, status=each.status, **code)
        if told and (readers := self._service.streams.readers(self._owner, self._id)):
            readers.add(told)
        if feed := self._service.streams.feed(self._owner):
            feed.add(self._id, told)
            if any(isinstance(each, Session | SessionTurn) for each in changes.records):
                feed.note(self._id)
