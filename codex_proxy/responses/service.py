"""What a server's responses use: its parts, and the operator's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Clients
from codex_proxy.admission.rights import HeldRights
from codex_proxy.core.interfaces import Clock, IdSource
from codex_proxy.responses.live import BackgroundResponses
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.store.health import WriteCheck
from codex_proxy.store.store import Store
from codex_proxy.store.usage_recorder import UsageRecorder
from codex_proxy.store.values import PendingWebhook
from codex_proxy.surfaces.responses.profile import Profile
from codex_proxy.workers.pdf_reader import PdfReader


class Webhooks(Protocol):
    """A sender of webhooks, which are in the store."""

    def make_for(self, response_id: str, status: str) -> Sequence[PendingWebhook]:
        """Returns the webhooks for the end of a response, to be stored with it."""

    def wake(self) -> None:
        """Called when there may be new webhooks in the store."""


class ResponsesService(msgspec.Struct, frozen=True, kw_only=True):
    runs: RunScheduler
    admission: Admission
    clients: Clients
    rights: HeldRights
    clock: Clock
    ids: IdSource
    usage: UsageRecorder
    store: Store | None
    profile: Profile = "openai"
    """The form of responses and events (`PROXY_RESPONSES_PROFILE`)."""
    heartbeat: float = 15.0
    """Seconds of silence until a comment in a stream; 0: never."""
    conversation_wait: float = 30.0
    """Seconds that a turn waits for another of its conversation."""
    background: BackgroundResponses
    background_recovery: Literal["fail", "rerun"] = "fail"
    """Whether responses that a restart interrupted fail or run again."""
    write_check: WriteCheck | None = None
    """Whether the store takes writes; None without a store."""
    pdfs: PdfReader | None = None
    webhooks: Webhooks | None = None
