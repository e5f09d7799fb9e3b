"""The JSON-RPC connection to one process, without IO. A session has a channel: a number in its request ids, by which
its messages are found. Channel 0 is the connection's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from codex_proxy import __version__
from codex_proxy.agents.dialect import ReceivedMessages
from codex_proxy.agents.shared.json_lines import OF_NOBODY, TORN, divided
from codex_proxy.core.damaged_json import is_torn
from codex_proxy.parts.acp.messages import (
    PROTOCOL_VERSION,
    Message,
    channel_of,
    decode,
    new_session,
    refusal,
    request,
    request_id,
)
from codex_proxy.parts.acp.presets import INITIALIZE, DeclaredFeatures, read_declared_features

CLIENT: Final = {"name": "codex-proxy", "title": "codex-proxy", "version": __version__}
INITIALIZE_ID: Final = request_id(0, 1)
PROBE_ID: Final = request_id(0, 2)
CLOSE_ID: Final = request_id(0, 3)


class AcpConnection:
    def __init__(self, session_meta: Mapping[str, Any]) -> None:
        """`session_meta` is the `_meta` of each `session/new`."""
        self._session_meta = session_meta
        self.declared: DeclaredFeatures | None = None
        self.fault: str | None = None
        """Why the agent cannot be used, if so."""
        self.probe: Message | None = None
        self._last_channel = 0
        self._open: set[int] = set()
        self.ahead: int | None = None
        """The channel of the session that was opened ahead, if any."""
        self.sessions: dict[str, int] = {}
        """The channel of each session. A session that is opened again is added before the agent's answer, since its
        messages may come first.
        """
        self._answered: set[int] = set()

    def initialize(self) -> bytes:
        return request(INITIALIZE_ID, "initialize", {**INITIALIZE, "clientInfo": CLIENT})

    def open_probe(self, folder: str) -> bytes:
        """Returns the line that opens the probe session. The answer has modes and models, or an error if nobody is
        signed in.
        """
        return request(PROBE_ID, "session/new", new_session(folder, (), self._session_meta))

    def close_line(self, opened: Message) -> bytes:
        """Returns the line that closes the session in `opened`, the response to `session/new`; empty if that is
        impossible.
        """
        if self.declared is None or not self.declared.closes or not opened.session:
            return b""
        return request(CLOSE_ID, "session/close", {"sessionId": opened.session})

    # --- channels -------------------------------------------------------------------------------

    def open_channel(self) -> int:
        self._last_channel += 1
        self._open.add(self._last_channel)
        return self._last_channel

    def open_ahead(self, folder: str) -> bytes:
        """Opens a channel for a later turn; returns the line that opens a session on it."""
        self.ahead = self.open_channel()
        params = new_session(folder, (), self._session_meta)
        return request(request_id(self.ahead, 1), "session/new", params)

    def close_channel(self, channel: int) -> bytes:
        """Drops the channel's messages from now on, and refuses requests among them."""
        self._open.discard(channel)
        self._answered.discard(channel)
        if channel == self.ahead:
            self.ahead = None
        self.sessions = {session: each for session, each in self.sessions.items() if each != channel}
        return b""

    # --- received messages ----------------------------------------------------------------------

    def receive(self, lines: Sequence[bytes]) -> ReceivedMessages:
        """Sorts messages by channel; answers come last, since some agents send a turn's last text behind the answer
        that ends it. Refuses, in `writes`, requests of no channel.
        """
        by_channel: dict[int, list[Message]] = {}
        writes: list[bytes] = []
        found: list[tuple[int, Message]] = []
        answers: list[tuple[int, Message]] = []
        lost = ""
        for line in divided(lines):
            message = decode(line)
            if message is None:
                lost = TORN if is_torn(line) else lost
                continue
            channel = self._channel_of(message, writes)
            if channel is None:
                if _is_lost(message):
                    lost = TORN if is_torn(line) else OF_NOBODY
                continue
            (answers if message.method is None else found).append((channel, message))
        for channel, message in found + answers if answers else found:
            by_channel.setdefault(channel, []).append(message)
        return ReceivedMessages(b"".join(writes), list(by_channel.items()), lost=lost)

    def _channel_of(self, message: Message, writes: list[bytes]) -> int | None:
        if message.method is not None:
            channel = self.sessions.get(message.params.session_id)
            if channel is None and message.id is not None:
                writes.append(refusal(message.id))
            return channel
        channel = channel_of(message.id)
        if channel == 0:
            self._handle_own_answer(message)
            return None
        if channel is None or channel not in self._open:
            return None
        if message.id == request_id(channel, 1) and channel not in self._answered:
            self._answered.add(channel)
            if isinstance(message.session, str):
                self.sessions[message.session] = channel
        return channel

    def _handle_own_answer(self, message: Message) -> None:
        if message.id == PROBE_ID:
            self.probe = message
        elif message.id == INITIALIZE_ID:
            if message.error is not None:
                self.fault = f"the agent refused to start: {message.error.message or message.error.code}"
            elif not isinstance(message.result, dict):
                self.fault = "the agent's answer to initialize is invalid"
            elif message.result.get("protocolVersion") != PROTOCOL_VERSION:
                self.fault = "the agent speaks an unsupported version of ACP"
            else:
                self.declared = read_declared_features(message.result)


def _is_lost(message: Message) -> bool:
    """Whether some turn misses the message, which does not say which: an answer without an id, an update of no
    session.
    """
    if message.id is not None:
        return False
    if message.method is None:
        return message.error is not None or message.result is not None
    return message.method in ("", "session/update") and not message.params.session_id
