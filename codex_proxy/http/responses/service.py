"""What the handlers of responses and conversations share beside the rest of the server."""

from __future__ import annotations

from typing import Literal

import msgspec

from codex_proxy.http.responses.background_runs import BackgroundRuns
from codex_proxy.http.webhook_sender import WebhookSender
from codex_proxy.responses.conversation_turns import ConversationTurns
from codex_proxy.responses.profiles import Profile
from codex_proxy.store.base import Store
from codex_proxy.store.write_check import WriteCheck


class ResponsesService(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's decisions about responses, and what is shared between requests."""

    store: Store | None
    """None: nothing is kept."""
    profile: Profile = "openai"
    heartbeat: float = 15.0
    """Seconds of silence after which a stream gets a comment; 0 for never."""
    conversation_wait: float = 30.0
    """Seconds that a turn waits for another one of its conversation."""
    turns: ConversationTurns
    background: BackgroundRuns
    background_recovery: Literal["fail", "rerun"] = "fail"
    """What becomes of background responses that a restart has cut off."""
    write_check: WriteCheck | None = None
    """Of the store, where there is one."""
    webhooks: WebhookSender | None = None
    """Who hears of the ends of background responses."""
