"""Maps errors of the store to faults. The text of an error goes to the log only, since it names files of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.store.base import NotStored, Store, StoreConflict, StoreDamaged, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

UNAVAILABLE = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The store cannot be read or written just now (its disk is full, or another process has locked it). "
    "The server's log says why. Try again, or send 'store': false.",
)
DAMAGED = Failure(
    kind=FaultKind.INTERNAL,
    message="What this server's store holds of it is damaged on the disk, and nothing of it is shown. The server's log "
    "names it; the operator finds all that is damaged with `codex-proxy store check`.",
    code="store_damaged",
)
OFF = Failure(
    kind=FaultKind.INVALID_REQUEST,
    message="This server keeps no responses and no conversations (PROXY_STORE=off).",
    code="store_disabled",
)


@contextmanager
def store_errors_as_faults() -> Iterator[None]:
    """Raises a `Fault` where the store is unavailable or damaged. Other errors of the store pass through."""
    try:
        yield
    except StoreDamaged as error:
        log.error("store_damaged", reason=str(error))
        raise Fault(DAMAGED) from error
    except StoreUnavailable as error:
        log.error("store_unavailable", reason=str(error))
        raise Fault(UNAVAILABLE) from error


def required_store(store: Store | None) -> Store:
    """The store, where there is one. Raises `Fault`."""
    if store is None:
        raise Fault(OFF)
    return store


def failure_of(error: StoreError) -> Failure:
    """The failure that a response ends with when saving it raised this error. Logs the error."""
    log.error("not_saved", reason=str(error))
    if isinstance(error, NotStored):
        message = f"The {error.kind} that this response continues was deleted while it was made."
        return Failure(kind=FaultKind.NOT_FOUND, message=message)
    if isinstance(error, StoreConflict):
        return Failure(kind=FaultKind.INTERNAL, message="The response contradicts what is stored already.")
    return DAMAGED if isinstance(error, StoreDamaged) else UNAVAILABLE
