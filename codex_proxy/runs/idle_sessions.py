"""Keeps the session of a client's turn with the agent for the client's next request. The session (with its thread,
the agent's state of the conversation) is idle after an answer, or waits for the outputs of the client's tool calls.

This only saves time: without a kept session, the whole history is sent to a new one. A session is used again only
by the same owner (the name of the client's key) with the same model, tools and settings, and only if the new
history begins with exactly the items that the session's thread has seen. The number of sessions and the time are
limited; then a session is closed.

Some agents store their sessions, and can open one again after it was closed. The ids of closed sessions are kept
for longer, and used under the same conditions.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.session import AgentSession
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
)
from codex_proxy.core.turn import Turn
from codex_proxy.tools.policy import HiddenOutput
from codex_proxy.tools.replay import assistant_text, canonical_arguments

Digests = tuple[bytes, ...]


def item_digests(history: Sequence[HistoryItem]) -> tuple[Digests, tuple[int, ...]]:
    """Returns two tuples of the same length for a history. The first has a digest for each item that is compared;
    adjacent assistant messages share one. The second has, for each digest, the index in the history at which the
    items after it begin.

    Raw items (JSON that the model generated) and the calls that this server ran itself have no digest, because
    clients do not always send them back.
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


def _is_assistant(item: HistoryItem) -> bool:
    if isinstance(item, HistoryMessage):
        return item.role == "assistant"
    return isinstance(item, RawHistoryItem) or _is_by_server(item)


def _is_by_server(item: HistoryItem) -> bool:
    """Whether the item is a call that this server ran itself, or the output of one."""
    return isinstance(item, HistoryCall | HistoryOutput) and item.by_server


def _item_digest(item: HistoryItem) -> bytes:
    if isinstance(item, HistoryMessage):
        return _digest(item.role, *_parts(item.parts))
    if isinstance(item, HistoryCall):
        return _digest("call", item.kind, item.call_id, item.name, canonical_arguments(item))
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


def unseen_items(
    seen: Digests, history: Sequence[HistoryItem], computed: tuple[Digests, tuple[int, ...]]
) -> tuple[HistoryItem, ...] | None:
    """Returns the items of `history` that are new to a thread that has seen the items with the digests `seen`; None
    if the history does not begin with these digests, or has no further ones.

    Raw items and this server's own calls have no digest; those that directly follow the last item seen are not new,
    because the thread itself generated them. `computed` is `item_digests(history)`, passed in so that it is
    computed once for all threads.
    """
    digests, ends = computed
    if not seen or len(digests) <= len(seen) or digests[: len(seen)] != seen:
        return None
    return tuple(history[ends[len(seen) - 1] :])


MAX_CLOSED: Final = 256
"""The most closed sessions that are remembered, to be opened again (32 bytes for each item of a conversation)."""
CLOSED_SECONDS: Final = 24 * 3600.0
"""The most seconds that a closed session is remembered. People return to a conversation after a night, seldom
later."""


class IdleLimits(msgspec.Struct, frozen=True):
    """How many idle sessions are kept for their clients' next requests (each takes about 1.4 MiB), and for how many
    seconds. Above `count`, the session that has been idle longest is closed; 0: none is kept.

    The time is about as long as the provider caches a prompt, because a later request gains little from a kept
    session.
    """

    count: int = 32
    seconds: float = 300.0


INSTRUCTION_WORDS = "<system-reminder>\n{}\n</system-reminder>"
"""The template of an instruction within a tool output. Coding agents have long used this form, and models know it."""


class PendingOutputs(msgspec.Struct, frozen=True):
    """The outputs that the thread of an idle session waits for: `visible` are the ids of the calls that the client
    answers; `hidden` are outputs of calls that the client does not see, which this server gives to the agent
    together with the client's.
    """

    visible: frozenset[str] = frozenset()
    hidden: tuple[HiddenOutput, ...] = ()


class _IdleSession:
    """An idle session, with its `thread_key`, the digests of the items that its thread has seen, the outputs it
    waits for, and when it is closed, by the clock of the event loop.
    """

    __slots__ = ("digests", "key", "pending", "session", "thread", "until")

    def __init__(
        self, key: bytes, session: AgentSession, digests: Digests, pending: PendingOutputs, until: float
    ) -> None:
        self.key = key
        self.session = session
        self.digests = digests
        self.pending = pending
        self.until = until
        self.thread = "" if pending.visible or pending.hidden else session.thread
        """The id by which the agent can open the session again after it was closed; else empty. Outputs that a closed
        session waited for are lost, so such a one is not opened again."""


class ClosedSession(msgspec.Struct, frozen=True):
    """A closed session that the next turn can continue. `thread` is the id by which the agent opens it again;
    `new_items` are the items of that turn's history that the session does not contain yet.
    """

    thread: str
    new_items: tuple[HistoryItem, ...]


class _Closed(msgspec.Struct, frozen=True):
    """What is kept of a closed session: its `thread_key`, and the digests of the items that it has seen."""

    key: bytes
    digests: Digests
    until: float
    """When the closed session is forgotten, by the clock of the event loop."""


class ReusedSession(msgspec.Struct, frozen=True):
    """An idle session that the next turn continues: `new_items` are the items of the turn's history that its thread
    has not seen, and `hidden` are the outputs that this server itself gives to the agent (see `PendingOutputs`).
    """

    session: AgentSession
    new_items: tuple[HistoryItem, ...]
    hidden: tuple[HiddenOutput, ...]


def thread_key(owner: str, turn: Turn) -> bytes:
    """Returns a digest of the owner and of those settings of a turn that must be equal if another turn is to
    continue its session.

    These are the settings that cannot be changed after the thread's start; those that the agent would keep from the
    earlier turn if the later one does not set them (reasoning effort and summary, service tier); and the output
    schema, which cannot be changed while the thread waits for outputs.
    """
    fixed = (
        owner,
        turn.mode,
        turn.model,
        turn.tools,
        turn.tool_choice,
        turn.web_search,
        turn.verbosity,
        turn.workdir,
        turn.sandbox,
        turn.effort,
        turn.summary,
        turn.service_tier,
        turn.output_schema,
    )
    return hashlib.sha256(msgspec.json.encode(fixed)).digest()


class IdleSessions:
    """Keeps sessions for the next request of their client, and remembers closed ones. It is the listener of the
    sessions that it keeps: one that fails or can no longer be resumed is dropped, and approvals or input that it
    asks for are declined.
    """

    def __init__(self, limits: IdleLimits, timers: Callable[[], Timers]) -> None:
        self._limits = limits
        self._timers = timers
        self._kept: OrderedDict[int, _IdleSession] = OrderedDict()
        """The idle sessions by identity, the longest idle first."""
        self._closed: OrderedDict[str, _Closed] = OrderedDict()
        """The closed sessions by the agent's ids, the longest closed first."""
        self._timer: TimerHandle | None = None
        """Closes the session that has been idle longest. One for all, since all are kept equally long."""

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        """Returns whether `take` or `take_closed` may find anything."""
        return bool(self._kept or self._closed)

    def put(self, key: bytes, session: AgentSession, digests: Digests, pending: PendingOutputs) -> None:
        """Keeps a session under `key` (see `thread_key`), or closes it if it cannot be resumed or none are to be
        kept. `digests` are those of the items that its thread has seen, `pending` are the outputs that it waits
        for. If there are too many sessions, the one that has been idle longest is closed.
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
        self._kept[id(session)] = _IdleSession(key, session, digests, pending, when)
        while len(self._kept) > self._limits.count:
            self._drop(next(iter(self._kept.values())).session)

    def take(self, key: bytes, turn: Turn) -> ReusedSession | None:
        """Removes and returns a kept session that the turn can continue: one whose thread has seen the beginning of
        the turn's history, and accepts the rest. None if there is none. `key` is the turn's `thread_key`; only
        sessions with the same key are considered.
        """
        history = turn.history
        computed: tuple[Digests, tuple[int, ...]] | None = None
        for kept in reversed(list(self._kept.values())):
            if kept.key != key:
                continue
            if not kept.session.can_resume:
                self._drop(kept.session)  # the agent may be able to open it again
                continue
            computed = computed or item_digests(history)
            if len(computed[0]) <= len(kept.digests):
                continue  # the most frequent case by far: a new conversation beside others
            fresh = unseen_items(kept.digests, history, computed)
            new = None if fresh is None else _accepted_items(kept.pending, fresh, turn)
            if new is None:
                continue
            if not _reach_the_model(kept.session, new):
                self._drop(kept.session)  # in a new session they are part of the prompt
                continue
            self._forget(kept.session)
            kept.session.set_idle(False)
            return ReusedSession(kept.session, new, kept.pending.hidden)
        return None

    def take_closed(self, key: bytes, turn: Turn) -> ClosedSession | None:
        """Removes and returns a closed session that the turn can continue, as `take` does for kept ones. If there
        are several, it is the one that has seen most of the history. None if there is none.
        """
        now = self._timers().time()
        computed: tuple[Digests, tuple[int, ...]] | None = None
        found: tuple[int, ClosedSession] | None = None
        for thread, closed in list(self._closed.items()):
            if closed.until <= now:
                del self._closed[thread]
            elif closed.key == key and (found is None or len(closed.digests) > found[0]):
                computed = computed or item_digests(turn.history)
                fresh = unseen_items(closed.digests, turn.history, computed)
                new = None if fresh is None else _accepted_items(PendingOutputs(), fresh, turn)
                if new is not None:
                    found = len(closed.digests), ClosedSession(thread, new)
        if found is None:
            return None
        del self._closed[found[1].thread]
        return found[1]

    def close(self) -> None:
        """Closes all kept sessions, and forgets the closed ones."""
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
        kept = self._forget(session)
        if kept is not None:
            session.close()
            if kept.thread:
                self._remember_closed(kept)

    def _remember_closed(self, kept: _IdleSession) -> None:
        self._closed.pop(kept.thread, None)
        until = self._timers().time() + CLOSED_SECONDS
        self._closed[kept.thread] = _Closed(kept.key, kept.digests, until)
        while len(self._closed) > MAX_CLOSED:
            self._closed.popitem(last=False)

    def _forget(self, session: AgentSession) -> _IdleSession | None:
        return self._kept.pop(id(session), None)

    # --- what an idle agent may still do ----------------------------------------------------------

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        for event in events:
            if isinstance(event, ApprovalRequested | InputRequested):
                session.answer(event.request_id, Decision())
        if session.gone or not session.can_resume:
            self._drop(session)

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        self._drop(session)

    def session_broke(self, session: AgentSession) -> None:
        self._forget(session)


def _accepted_items(
    pending: PendingOutputs, fresh: Sequence[HistoryItem], turn: Turn
) -> tuple[HistoryItem, ...] | None:
    """Returns the new items `fresh` in the form in which the thread accepts them; None if it does not accept them.
    A thread that waits for no outputs accepts any items except outputs. A thread that waits for outputs
    (`pending.visible`) accepts exactly these, followed by developer messages if `turn.instructions_in_outputs` is
    True; their text is appended to the last output.
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


def _reach_the_model(session: AgentSession, items: Sequence[HistoryItem]) -> bool:
    """Returns whether the agent gives the outputs among `items` to its model whole."""
    return all(session.takes_whole(item.parts) for item in items if isinstance(item, HistoryOutput))


def _is_instruction(item: HistoryItem) -> bool:
    return (
        isinstance(item, HistoryMessage)
        and item.role == "developer"
        and all(isinstance(part, TextPart) for part in item.parts)
    )


def _with_instructions(output: HistoryOutput, instructions: Sequence[HistoryItem]) -> HistoryOutput:
    """Returns the output with the texts of the developer messages `instructions` appended, because a thread that
    waits for outputs accepts no other items.
    """
    words = [
        INSTRUCTION_WORDS.format("".join(part.text for part in item.parts if isinstance(part, TextPart)))
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
