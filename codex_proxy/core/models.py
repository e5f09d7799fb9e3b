"""A model of the agent's, as far as it is known. A value; it decides nothing."""

from __future__ import annotations

import msgspec


class AgentModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the agent lists it."""

    id: str
    display_name: str = ""
    context_window: int | None = None
    input_modalities: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()
    default_effort: str | None = None
    is_default: bool = False
    hidden: bool = False
    """Not in our lists, though its name is accepted."""
    native: bytes = b""
    """The agent's own entry for it, JSON, which only Codex as a client reads; empty where there is none."""
