"""Holds the leases of this server's background responses, and takes over responses that no server runs any more,
such as a killed server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import structlog

from codex_proxy.admission.routes import with_model_asked
from codex_proxy.core.events import TurnEnded
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.own_errors import repeat
from codex_proxy.responses.background import BackgroundResponse, Recovery
from codex_proxy.responses.context import read_context
from codex_proxy.responses.prepare import prepare_in_context
from codex_proxy.responses.saving import end_for_another
from codex_proxy.responses.service import RETRY_SECONDS, ResponsesService
from codex_proxy.runs.observers import note_model_asked
from codex_proxy.store.leases import Node, ResponseLease
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    UNFINISHED,
    StoreConflict,
    StoreDamaged,
    StoredResponse,
    StoreError,
    StoreUnavailable,
)
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints
from codex_proxy.surfaces.responses.parse import parse
from codex_proxy.surfaces.responses.response_object import failed_response

log = structlog.get_logger(__name__)

CLAIMED_AT_ONCE = 20
"""Maximum leases that are claimed at once: few, so that several servers share the responses of a lost one."""
CUT_OFF = Failure(
    FaultKind.UNAVAILABLE, "The server was restarted while this response was in progress. Create it again."
)


class LeaseHolder:
    """Renews leases, and recovers responses that no server holds: runs one again if it has a `Recovery`, the setting is
    `rerun` and the turn is admitted; else saves it as failed.
    """

    def __init__(self, service: ResponsesService, store: Store) -> None:
        self._service = service
        self._store = store
        self._waiting: set[ResponseLease] = set()
        """Claimed leases of responses to recover."""
        self._unannounced: Node | None = None
        """This server, until it is announced."""
        self._task: asyncio.Task[None] | None = None

    async def start(self, node: Node) -> None:
        """Announces this server, recovers responses, then starts the task."""
        self._unannounced = node
        await self._renew_and_recover()
        self._task = asyncio.get_running_loop().create_task(
            repeat(
                self._renew_and_recover,
                after=self._store.leases.until_renewal,
                failed="leases_not_renewed",
            )
        )

    async def close(self) -> None:
        """Gives up what this server holds, so that others need not wait."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        try:
            await self._store.leases.release()
        except StoreError as error:
            log.warning("leases_not_released", reason=str(error))

    async def _renew_and_recover(self) -> None:
        try:
            if self._unannounced is not None:
                await self._store.leases.announce(self._unannounced)
                self._unannounced = None
            await self._renew()
            if not self._service.runs.draining:
                await self._recover_unheld()
        except StoreError as error:
            log.warning("leases_not_renewed", reason=str(error))
        except Exception:  # the next renewal tries again
            log.exception("leases_not_renewed")

    async def _renew(self) -> None:
        held = [*self._service.background.leases, *self._waiting]
        for lease in await self._store.leases.renew(held):
            self._waiting.discard(lease)
            live = self._service.background.find(lease.owner, lease.id)
            if live is not None and live.epoch == lease.epoch:
                log.info("background_lease_lost", id=lease.id)
                live.on_lease_lost()

    async def _recover_unheld(self) -> None:
        while claimed := await self._store.leases.claim_responses(CLAIMED_AT_ONCE):
            self._waiting.update(claimed)
            refused = [lease for lease in claimed if not await self._recover(lease)]
            if refused:
                self._service.background.tasks.spawn(self._recover_until_stored(refused))

    async def _recover_until_stored(self, claimed: Sequence[ResponseLease]) -> None:
        for lease in claimed:
            while lease in self._waiting and not await self._recover(lease):  # noqa: ASYNC110 - a disk gives no event
                await asyncio.sleep(RETRY_SECONDS)

    async def _recover(self, lease: ResponseLease) -> bool:
        try:
            found = await self._store.response(lease.owner, lease.id)
            if (
                found is not None
                and found.status in UNFINISHED
                and not await _run_again(self._service, self._store, found, lease.epoch)
            ):
                await _fail(self._service, self._store, found, lease.epoch)
        except StoreDamaged as error:
            log.error("background_not_recovered", id=lease.id, reason=str(error))
            return True  # it stays held, so that no server tries again
        except StoreConflict as error:
            log.info("background_lease_lost", id=lease.id, reason=str(error))
        except StoreError as error:
            log.error("background_not_recovered", id=lease.id, reason=str(error))
            return False
        self._waiting.discard(lease)
        return True


async def _run_again(service: ResponsesService, store: Store, found: StoredResponse, epoch: int) -> bool:
    if service.background_recovery != "rerun" or not found.recovery:
        return False
    try:
        recovery = msgspec.json.decode(found.recovery, type=Recovery)
        hints = RequestHints(mode=recovery.mode, workdir=recovery.workdir, activity=recovery.activity)

        client = service.clients.by_name(found.owner, recovery.key)
        context = ParseContext(client.settings, client.catalog, hints)
        read = partial(parse, recovery.body.encode(), context=context)
        pdfs = None if service.pdfs is None else PdfTexts()
        parsed = read(pdfs)
        if service.pdfs is not None and pdfs is not None and pdfs.unread:
            parsed = read(PdfTexts(await service.pdfs.read(pdfs.unread, found.owner)))
        # A route may have chosen another model than the one that the client asked for.
        parsed = with_model_asked(parsed, msgspec.json.decode(found.json)["model"])
        earlier = await read_context(parsed, store, found.owner, service.ids, found.created)
        prepared = await prepare_in_context(
            service, parsed, earlier, found.owner, id=found.id, created=found.created
        )
    except Fault as fault:
        if type(fault.__cause__) is StoreUnavailable:
            raise fault.__cause__ from None  # its context could not be read now, but may be later
        log.warning("background_not_run_again", id=found.id, reason=fault.failure.kind.value)
        return False
    except msgspec.DecodeError:
        log.warning("background_not_run_again", id=found.id, reason="written by another version")
        return False
    except StoreError:
        raise
    except Exception:  # of this server's own code: the response must not stay open because of it
        log.exception("background_not_run_again", id=found.id)
        return False
    log.info("background_run_again", id=found.id)
    note_model_asked(parsed.model_asked)
    service.background.start(BackgroundResponse(service, prepared, store, client, epoch))
    return True


async def _fail(service: ResponsesService, store: Store, found: StoredResponse, epoch: int) -> None:
    object = failed_response(msgspec.json.decode(found.json), CUT_OFF)
    ended = TurnEnded.with_failure(CUT_OFF)
    await end_for_another(service, store, found.owner, object, ended, epoch=epoch)
    log.warning("background_cut_off", id=found.id)
