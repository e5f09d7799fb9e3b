"""What servers with one store tell each other of sessions."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from codex_proxy.core.faults import Failure
from codex_proxy.parts.sessions.commands import Command
from codex_proxy.store.record_leases import NodeId


class Told(msgspec.Struct, frozen=True, tag="told"):
    """Events of a session, each with its type, for the readers at servers that follow it. `number`: how many such
    messages of the lease with this `epoch` were before it. `ended`: whether the session was deleted.
    """

    owner: str
    session: str
    epoch: int
    number: int
    events: tuple[tuple[str, bytes], ...]
    ended: bool = False


class Asked(msgspec.Struct, frozen=True, tag="asked"):
    """A command for the server that holds a session, from the server `node`, which waits for the answer."""

    id: str
    node: NodeId
    owner: str
    session: str
    command: Command


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """What has come of a command. `moved`: it was not done, because another server holds the session."""

    id: str
    failure: Failure | None = None
    moved: bool = False


Message: TypeAlias = Told | Asked | Answered

_DECODER: Final = msgspec.msgpack.Decoder(Message)
encode_message: Final = msgspec.msgpack.Encoder().encode


def decode_message(data: bytes) -> Message:
    """Raises `msgspec.DecodeError` for a message of another release."""
    found: Message = _DECODER.decode(data)
    return found
