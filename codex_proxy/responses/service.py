"""What all responses of a server share: its parts, and what the operator decided about responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients
from codex_proxy.core.ids import Clock, IdSource
from codex_proxy.responses.background_responses import BackgroundResponses
from codex_proxy.responses.conversation_turns import ConversationTurns
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.store.base import PendingWebhook, Store
from codex_proxy.store.usage_recorder import UsageRecorder
from codex_proxy.store.write_check import WriteCheck
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.responses.profile import Profile
from codex_proxy.workers.pdf_reader import PdfReader


class Webhooks(Protocol):
    """Sends webhooks that the store holds."""

    def pending(self, response_id: str, status: str) -> Sequence[PendingWebhook]:
        """The webhooks that tell of a response's end, to be stored with it."""
        ...

    def wake(self) -> None:
        """There may be more in the store."""
        ...


class ResponsesService(msgspec.Struct, frozen=True, kw_only=True):
    """The parts that responses are made with."""

    runs: RunScheduler
    admission: Admission
    """What every turn passes before it starts."""
    clients: Clients
    catalog: ModelCatalog
    clock: Clock
    ids: IdSource
    usage: UsageRecorder
    store: Store | None
    """None: nothing is kept."""
    profile: Profile = "openai"
    heartbeat: float = 15.0
    """Seconds of silence after which a stream gets a comment; 0 for never."""
    conversation_wait: float = 30.0
    """Seconds that a turn waits for another one of its conversation."""
    turns: ConversationTurns
    background: BackgroundResponses
    background_recovery: Literal["fail", "rerun"] = "fail"
    """What becomes of background responses that a restart has cut off."""
    write_check: WriteCheck | None = None
    """Of the store, where there is one."""
    pdfs: PdfReader | None = None
    """None: nobody reads PDFs."""
    webhooks: Webhooks | None = None
    """None: nobody is told of the ends of background responses."""
