"""What clients have a session do, as values: the server that holds the session does it, and others send it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.approvals import Approval
from codex_proxy.parts.sessions.sessions import Content, Session
from codex_proxy.parts.sessions.state import Result

Submitted: TypeAlias = Literal["cancel"] | Result | Approval | Sequence[Content]
"""An event of a client: the end of the turn, a call's result, an answer to a question, or messages."""


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """Events, all or none. `key`: an `Idempotency-Key` with the digest of the body; what was accepted under it before
    does nothing.
    """

    changes: Sequence[Submitted]
    key: tuple[str, str] | None = None


class Change(msgspec.Struct, frozen=True, tag="change"):
    """The settings that differ between `before` and `after`, and new metadata unless None."""

    before: AgentSettings
    after: AgentSettings
    metadata: dict[str, str] | None = None

    @classmethod
    def between(cls, before: Session, after: Session) -> Change:
        metadata = None if before.metadata == after.metadata else after.metadata
        return cls(before.agent, after.agent, metadata)

    def applied_to(self, session: Session) -> Session:
        before = asdict(self.before)
        changed = {name: value for name, value in asdict(self.after).items() if value != before[name]}
        metadata = session.metadata if self.metadata is None else self.metadata
        return replace(session, agent=replace(session.agent, **changed), metadata=metadata)


class Delete(msgspec.Struct, frozen=True, tag="delete"):
    """The end of an idle session."""


class Follow(msgspec.Struct, frozen=True, tag="follow"):
    """That a server follows the session from now on."""


Command: TypeAlias = Submit | Change | Delete | Follow
