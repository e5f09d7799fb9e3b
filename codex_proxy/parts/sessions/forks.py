"""Forks: new sessions that begin with items of another one. The items, their turns and what the log tells of them are
copied, so that either session can go on, or be deleted, without the other. Nothing here does IO or reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from msgspec.structs import replace

from codex_proxy.core.events import Event, ItemEnded, ItemStarted
from codex_proxy.core.items import ToolCall
from codex_proxy.parts.sessions.conversation import beginning_of
from codex_proxy.parts.sessions.items import call_entry
from codex_proxy.parts.sessions.log import LOGGED, Log, Logged, LogPage, Rested, Running
from codex_proxy.parts.sessions.render import TurnRenderer
from codex_proxy.parts.sessions.sessions import (
    AgentItem,
    AgentThread,
    CallResult,
    Entry,
    Session,
    SessionTurn,
    UserMessage,
    environment_id,
    said_name,
)


class Past(NamedTuple):
    """What a fork begins with: copies of turns and of their items, and the page of its log that tells of them."""

    turns: list[SessionTurn]
    entries: list[Entry]
    page: LogPage | None

    @property
    def last_item(self) -> str:
        return self.entries[-1].id if self.entries else ""


NO_PAST: Final = Past([], [], None)


def kept_entries(entries: Sequence[Entry], running: str) -> list[Entry]:
    """Returns the entries of a session that a fork takes over: calls without results are left out, and so are items of
    the turn `running` that have not ended.
    """
    results = {(entry.turn, entry.item.call_id) for entry in entries if isinstance(entry.item, CallResult)}
    return [entry for entry in entries if _is_whole(entry, results, running)]


def _is_whole(entry: Entry, results: set[tuple[str, str]], running: str) -> bool:
    if not isinstance(entry.item, AgentItem):
        return True
    events = entry.item.events()
    first, last = events[0], events[-1]
    if isinstance(first, ItemStarted) and isinstance(first.item, ToolCall):
        return (entry.turn, first.item.call_id) in results
    # One that has not ended is stored as incomplete until it has.
    return entry.turn != running or (isinstance(last, ItemEnded) and last.status != "incomplete")


def beginning_in(entries: Iterable[Entry]) -> str:
    """Returns the beginning of the first message of the client."""
    return beginning_of(entry.item.content for entry in entries if isinstance(entry.item, UserMessage))


def fork_of(source: Session, id: str, entries: Iterable[Entry], title: str | None, now: int) -> Session:
    """Returns a new session with the settings of another one. `entries`: those that it begins with; `title`: None for
    that of the other session; `now`: seconds since 1970.
    """
    environment = dict(source.environment)
    if "id" in environment:
        environment["id"] = environment_id(id)
    return Session(
        id=id,
        created_at=now,
        last_active_at=now,
        agent_id=source.agent_id,
        agent=source.agent,
        agent_version=source.agent_version,
        environment=environment,
        environment_id=source.environment_id,
        metadata=source.metadata,
        title=source.title if title is None else title,
        beginning=beginning_in(entries),
        sandbox=source.sandbox,
        forked_from=source.id,
    )


def thread_to_copy(source: Session, entries: Sequence[Entry], kept: Sequence[Entry]) -> AgentThread | None:
    """Returns the agent's own session of an idle session if it has seen exactly what a fork begins with. `entries`:
    those of `source` before the fork's end; `kept`: those of them that the fork takes over.
    """
    thread = source.thread
    if thread is None or source.turn or source.queued or not kept or len(kept) != len(entries):
        return None
    has_all = thread.turn == thread.until == kept[-1].turn and thread.item == kept[-1].id
    return thread if has_all else None


def with_thread(fork: Session, thread: AgentThread, past: Past) -> Session:
    """Returns the fork with an agent's own session that has seen what the fork begins with."""
    last = past.turns[-1].id
    own = replace(thread, turn=last, until=last, item=past.last_item, imported="")
    return replace(fork, threads=(own,))


def past_of(
    fork: Session,
    turns: Iterable[SessionTurn],
    entries: Iterable[Entry],
    new_id: Callable[[str], str],
    now: float,
) -> Past:
    """Returns what the fork begins with. `turns`: those of the entries, and others; `new_id` makes an id with a prefix;
    `now`: seconds since 1970.
    """
    known = {turn.id: turn for turn in turns}
    log, logged = Log(), list[Logged]()
    past = Past([], [], None)
    for turn_id, group in groupby(entries, lambda entry: entry.turn):
        turn = _begin(known[turn_id], fork, new_id("turn_"), past.last_item, int(now))
        renderer = TurnRenderer.of(turn, log)
        # A call comes again with its result.
        copies = {entry.id: entry for entry in _copies(renderer, group)}
        logged += [each for each in renderer.events if isinstance(each, LOGGED)]
        logged.append(Rested(log.number(), turn.error is not None, turn.refused))
        past.turns.append(replace(turn, items=renderer.items, outputs=renderer.outputs))
        past.entries.extend(copies.values())
    return past._replace(page=log.page(logged, now) if logged else None)


def _begin(turn: SessionTurn, fork: Session, id: str, before: str, now: int) -> SessionTurn:
    """Returns a copy of a turn, without items. One that goes on in the other session is cancelled in the fork."""
    copy = replace(turn, id=id, session=fork.id, before=before, items=0, outputs=0, runs=0, step=None)
    copy = replace(copy, acting={})
    if turn.completed_at is not None:
        return copy
    return replace(copy, status="cancelled", completed_at=now, usage=None)


def _copies(renderer: TurnRenderer, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields a turn's entries as the renderer makes them anew, in their order; a call once more behind its result, with
    which it ends.
    """
    said, runs = 0, False
    for entry in entries:
        item = entry.item
        if isinstance(item, UserMessage):
            renderer.add_input(item, "msg", name=said_name(renderer.turn, said))
            said += 1
            yield from _taken(renderer)
            continue
        if not runs:
            renderer.events.append(Running(renderer.log.number()))
            runs = True
        if isinstance(item, CallResult):
            calls = (each for each in reversed(renderer.calls) if each.call_id == item.call_id)
            call = next(calls, None)
            if call is None:
                continue
            yield call_entry(call, "completed" if item.success else "failed")
            renderer.add_input(item, "fco", call=call.item)
        else:
            renderer.feed(_whole(item))
        yield from _taken(renderer)
    renderer.end()
    yield from _taken(renderer)


def _taken(renderer: TurnRenderer) -> list[Entry]:
    taken, renderer.entries = renderer.entries, []
    return taken


def _whole(item: AgentItem) -> list[Event]:
    """Returns the events of an item with its end, which a call has only with its result."""
    events = item.events()
    first, last = events[0], events[-1]
    if isinstance(first, ItemStarted) and not isinstance(last, ItemEnded):
        events.append(ItemEnded(first.item.id))
    return events
