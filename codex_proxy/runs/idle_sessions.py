"""Keeps a turn's session for the client's next request: idle after an answer, or waiting for outputs. It is used again
only by the same owner (key) with the same model, tools and settings, if the new history begins with exactly what the
session has seen. Ids of closed sessions that the agent can reopen are kept for longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.caches import OwnedEntries
from codex_proxy.core.events import ApprovalRequested, Event, InputRequested
from codex_proxy.core.faults import Failure
from codex_proxy.core.interfaces import TimerHandle, Timers
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    texts_of,
)
from codex_proxy.core.options import OPTIONS
from codex_proxy.core.turn import StoredSession, Turn
from codex_proxy.tools.policy import HiddenOutput
from codex_proxy.tools.replay import assistant_text

Digests = tuple[bytes, ...]


def item_digests(history: Sequence[HistoryItem]) -> tuple[Digests, tuple[int, ...]]:
    """Returns a digest for each compared item (adjacent assistant messages share one), and the index of the items after
    it. Raw items and this server's own calls have none, because clients do not always send them back.
    """
    digests: list[bytes] = []
    ends: list[int] = []
    index = 0
    while index < len(history):
        item = history[index]
        end = index + 1
        if isinstance(item, RawHistoryItem) or _is_by_server(item):
            index = end
            if ends:
                ends[-1] = end
            continue
        if isinstance(item, HistoryMessage) and item.role == "assistant":
            while end < len(history) and _is_assistant(history[end]):
                end += 1
            text = assistant_text(history[index:end])
            if text:
                digests.append(_digest("assistant", text))
                ends.append(end)
            elif ends:
                ends[-1] = end
        else:
            digests.append(_item_digest(item))
            ends.append(end)
        index = end
    return tuple(digests), tuple(ends)


class HistoryDigests:
    """A history, and its `item_digests`, which are computed once."""

    def __init__(self, history: Sequence[HistoryItem]) -> None:
        self.history = history
        self._computed: tuple[Digests, tuple[int, ...]] | None = None

    def compute(self) -> tuple[Digests, tuple[int, ...]]:
        if self._computed is None:
            self._computed = item_digests(self.history)
        return self._computed

    def followed_by(self, items: Sequence[HistoryItem]) -> Digests:
        """Returns the digests of the history with these items behind it."""
        history, start = self.history, len(self.history)
        while start and _is_assistant(history[start - 1]):  # they share a digest with the items
            start -= 1
        seen, _ = self.compute()
        shared = item_digests(history[start:])[0] if start < len(history) else ()
        added, _ = item_digests((*history[start:], *items))
        return seen[: len(seen) - len(shared)] + added


def _is_assistant(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, RawHistoryItem) or _is_by_server(item)


def _is_by_server(item: HistoryItem) -> bool:
    return isinstance(item, HistoryCall | HistoryOutput) and item.by_server


def _item_digest(item: HistoryItem) -> bytes:
    if isinstance(item, HistoryMessage):
        return _digest(item.role, *_parts(item.parts))
    if isinstance(item, HistoryCall):
        return _digest("call", item.kind, item.call_id, item.name, item.canonical_arguments)
    assert isinstance(item, HistoryOutput)
    return _digest("output", item.kind, item.call_id, *_parts(item.parts))


def _parts(parts: Sequence[Part]) -> list[str]:
    out: list[str] = []
    for part in parts:
        if isinstance(part, ImagePart):
            out += ("image", part.url, part.detail or "")
        else:
            out += ("text", part.text)
    return out


def _digest(*parts: str) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big"))
        digest.update(encoded)
    return digest.digest()


def unseen_items(seen: Digests, known: HistoryDigests) -> tuple[HistoryItem, ...] | None:
    """Returns what is new to a session that has seen `seen`; None if the history does not begin with that, or has
    nothing new.
    """
    digests, ends = known.compute()
    if not seen or len(digests) <= len(seen) or digests[: len(seen)] != seen:
        return None
    return tuple(known.history[ends[len(seen) - 1] :])


MAX_CLOSED: Final = 256
"""Maximum remembered sessions, at 32 bytes for each item."""
CLOSED_SECONDS: Final = 24 * 3600.0
"""Seconds for which a closed session is remembered: people return after a night."""


class IdleLimits(msgspec.Struct, frozen=True):
    """How many sessions are kept (1.4 MiB each), and for how many `seconds`. Above that number, the owner that has
    most sessions loses the one that is idle for longest.
    """

    count: int = 32
    seconds: float = 300.0


INSTRUCTION_TEMPLATE = "<system-reminder>\n{}\n</system-reminder>"
"""The words around instructions in an output, as coding agents use."""


class PendingOutputs(msgspec.Struct, frozen=True):
    """What a session waits for: outputs of the client (`visible`), and this server's for other calls of the same
    step (`hidden`).
    """

    visible: frozenset[str] = frozenset()
    hidden: tuple[HiddenOutput, ...] = ()


class _IdleSession(msgspec.Struct, frozen=True):
    """An idle session: its `session_key`, what it has seen and waits for, and when (the loop's time) it is
    closed.
    """

    owner: str
    key: bytes
    session: AgentSession
    digests: Digests
    pending: PendingOutputs
    until: float


class ClosedSession(msgspec.Struct, frozen=True):
    """A closed session for the next turn, and the items that it does not contain."""

    reopen_id: str
    new_items: tuple[HistoryItem, ...]


class _ClosedRecord(msgspec.Struct, frozen=True):
    """A closed session: its `session_key`, and what it has seen."""

    owner: str
    key: bytes
    digests: Digests
    until: float
    """When the record is forgotten, by the loop's clock."""


class ReusedSession(msgspec.Struct, frozen=True):
    """An idle session for the next turn, the items that it has not seen, and this server's `hidden` outputs."""

    session: AgentSession
    new_items: tuple[HistoryItem, ...]
    hidden: tuple[HiddenOutput, ...]


_fixed_values: Final = attrgetter(*(option.field for option in OPTIONS if option.fixes_session))


def session_key(owner: str, turn: Turn) -> bytes:
    """Returns a digest of what must be equal to continue a session."""
    if turn.stored_session is not None:  # only whose it is, and of what: the rest changes from turn to turn
        stored = turn.stored_session
        only = StoredSession(stored.conversation, before=stored.before)
        turn = msgspec.structs.replace(turn, stored_session=only)
    return hashlib.sha256(msgspec.json.encode((owner, _fixed_values(turn)))).digest()


class IdleSessions:
    """Keeps idle sessions, and remembers closed ones. As their listener it drops those that fail, and declines
    approvals and input.
    """

    def __init__(self, limits: IdleLimits, timers: Callable[[], Timers]) -> None:
        self._limits = limits
        self._timers = timers
        self._kept: OwnedEntries[int, _IdleSession] = OwnedEntries(lambda _, kept: kept.owner)
        """The idle sessions by identity, the longest idle first."""
        self._closed: OwnedEntries[str, _ClosedRecord] = OwnedEntries(lambda _, closed: closed.owner)
        """The closed sessions by the agent's ids, the oldest first."""
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        return bool(self._kept or self._closed)

    def put(
        self, owner: str, key: bytes, session: AgentSession, digests: Digests, pending: PendingOutputs
    ) -> None:
        """Keeps an owner's session under its `session_key`, or closes it if it cannot be resumed. `digests`: what it
        has seen; empty if the key names that (`StoredSession.before`).
        """
        if not session.can_resume or self._limits.count == 0:
            session.close()
            return
        timers = self._timers()
        when = timers.time() + self._limits.seconds
        if self._timer is None:
            self._timer = timers.call_at(when, self._close_old)
        session.listener = self
        session.set_idle(True)
        self._kept[id(session)] = _IdleSession(owner, key, session, digests, pending, when)
        while len(self._kept) > self._limits.count:
            self._drop(self._kept[self._kept.oldest_of_most()].session)

    def take(self, key: bytes, turn: Turn, digests: HistoryDigests | None = None) -> ReusedSession | None:
        """Removes and returns a session that the turn can continue. `digests`: those of its history, if known."""
        digests = digests or HistoryDigests(turn.history)
        for kept in reversed(list(self._kept.values())):
            if kept.key != key:
                continue
            if not kept.session.can_resume:
                self._drop(kept.session)  # the agent may be able to open it again
                continue
            # Without digests its key names what it has seen.
            fresh = unseen_items(kept.digests, digests) if kept.digests else _new_items(turn)
            new = None if fresh is None else _accepted_items(kept.pending, fresh, turn)
            if new is None:
                continue
            outputs = (item.parts for item in new if isinstance(item, HistoryOutput))
            if not all(map(kept.session.takes_uncut, outputs)):
                self._drop(kept.session)  # in a new session they are part of the prompt, uncut
                continue
            del self._kept[id(kept.session)]
            kept.session.set_idle(False)
            return ReusedSession(kept.session, new, kept.pending.hidden)
        return None

    def take_closed(
        self, key: bytes, turn: Turn, digests: HistoryDigests | None = None
    ) -> ClosedSession | None:
        """Removes and returns the closed session that has seen most of the turn's history. `digests`: its, if known."""
        digests = digests or HistoryDigests(turn.history)
        now = self._timers().time()
        found: tuple[int, ClosedSession] | None = None
        for reopen_id, closed in list(self._closed.items()):
            if closed.until <= now:
                del self._closed[reopen_id]
            elif closed.key == key and (found is None or len(closed.digests) > found[0]):
                fresh = unseen_items(closed.digests, digests)
                new = None if fresh is None else _accepted_items(PendingOutputs(), fresh, turn)
                if new is not None:
                    found = len(closed.digests), ClosedSession(reopen_id, new)
        if found is None:
            return None
        del self._closed[found[1].reopen_id]
        return found[1]

    def has(self, session: AgentSession) -> bool:
        return id(session) in self._kept

    def close_stored(self, owner: str, conversation: str) -> None:
        """Closes the sessions of a conversation that the agent stores, so that others can use them."""
        for kept in list(self._kept.values()):
            if kept.session.stored_for == (owner, conversation):
                self._drop(kept.session)

    def close(self) -> None:
        for kept in list(self._kept.values()):
            self._drop(kept.session)
        self._closed.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_old(self) -> None:
        self._timer = None
        timers = self._timers()
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.until > timers.time():
                self._timer = timers.call_at(oldest.until, self._close_old)
                break
            self._drop(oldest.session)

    def _drop(self, session: AgentSession) -> None:
        kept = self._kept.pop(id(session), None)
        if kept is None:
            return
        # Closing loses outputs for which it waits.
        reopen_id = "" if kept.pending.visible else session.reopen_id
        session.close()
        if reopen_id and kept.digests:
            self._closed.pop(reopen_id, None)
            until = self._timers().time() + CLOSED_SECONDS
            self._closed[reopen_id] = _ClosedRecord(kept.owner, kept.key, kept.digests, until)
            if len(self._closed) > MAX_CLOSED:
                del self._closed[self._closed.oldest_of_most()]

    # --- what an idle agent may still do ----------------------------------------------------------

    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None:
        for event in events:
            if isinstance(event, ApprovalRequested | InputRequested):
                session.answer(event.request_id, Decision())
        if session.gone or not session.can_resume:
            self._drop(session)

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None:
        self._drop(session)

    def on_session_error(self, session: AgentSession) -> None:
        self._kept.pop(id(session), None)


def _new_items(turn: Turn) -> tuple[HistoryItem, ...] | None:
    """Returns what is new to the stored session that has seen what lies before; None if that is not known."""
    stored = turn.stored_session
    return tuple(turn.history[-stored.new_items :]) if stored is not None and stored.new_items else None


def _accepted_items(
    pending: PendingOutputs, fresh: Sequence[HistoryItem], turn: Turn
) -> tuple[HistoryItem, ...] | None:
    """Returns new items as the session accepts them: outputs if it waits for exactly these, with developer messages if
    `turn.instructions_in_outputs`; otherwise any items but outputs. None if it does not accept them.
    """
    outputs = [item for item in fresh if isinstance(item, HistoryOutput)]
    if not pending.visible:
        return None if outputs else tuple(fresh)
    behind = fresh[len(outputs) :]
    if (
        len(outputs) != len(pending.visible)
        or {item.call_id for item in outputs} != pending.visible
        or (behind and not turn.instructions_in_outputs)
        or not all(_is_instruction(item) for item in behind)
    ):
        return None
    return (*outputs[:-1], _with_instructions(outputs[-1], behind))


def _is_instruction(item: HistoryItem) -> bool:
    return (
        isinstance(item, HistoryMessage)
        and item.role == "developer"
        and all(isinstance(part, TextPart) for part in item.parts)
    )


def _with_instructions(output: HistoryOutput, instructions: Sequence[HistoryItem]) -> HistoryOutput:
    """Adds developer messages to an output: a waiting session takes no others."""
    words = [
        INSTRUCTION_TEMPLATE.format("".join(texts_of(item.parts)))
        for item in instructions
        if isinstance(item, HistoryMessage)
    ]
    if not words:
        return output
    *parts, last = output.parts or (TextPart(""),)
    if isinstance(last, TextPart):
        parts.append(TextPart("\n\n".join([last.text, *words])))
    else:
        parts += [last, TextPart("\n\n".join(words))]
    return msgspec.structs.replace(output, parts=tuple(parts))
