"""Faults that a run plants in a server, to show that it finds them.

Each replaces one function of the server before the server starts. The server's own code knows nothing of them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec


def every(number: int) -> Callable[[], bool]:
    """Returns a function that is true at each call whose number this number divides."""
    calls = count(1)
    return lambda: next(calls) % number == 0


def put_in_place(owner: Any, name: str, value: object) -> None:
    """Replaces a method of a class, or a function or a constant of a module."""
    setattr(owner, name, value)


def leak() -> None:
    """Makes one turn in five leave a task that waits for ever, with an open socket."""
    from codex_proxy.runs.run import Run

    release, is_due = Run._release, every(5)
    kept: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        with socket.socket():
            await asyncio.Event().wait()

    def release_and_leak(self: Run) -> None:
        if is_due():
            kept.append(asyncio.create_task(wait_for_ever()))
        release(self)

    put_in_place(Run, "_release", release_and_leak)


def lose_webhooks() -> None:
    """Makes the server send no webhook for one background response in three."""
    from codex_proxy.http.webhook_sender import WebhookSender

    make, is_due = WebhookSender.make, every(3)

    def lose_some(self: WebhookSender, event_id: str, kind: str, data: Mapping[str, object]) -> Sequence[Any]:
        return () if is_due() else make(self, event_id, kind, data)

    put_in_place(WebhookSender, "make", lose_some)


def lose_responses() -> None:
    """Makes the server acknowledge one foreground response in three without storing it."""
    from codex_proxy.responses import foreground
    from codex_proxy.responses.saving import save_response

    save, is_due = save_response, every(3)

    async def lose_some(*arguments: Any, **options: Any) -> None:
        if not is_due():
            await save(*arguments, **options)

    put_in_place(foreground, "save_response", lose_some)


def slow_the_loop_down() -> None:
    """Makes the server compute for 0.4 s in the event loop before it logs one batch of events in 50."""
    from codex_proxy.runs.event_log import EventLog

    append, is_due = EventLog.append, every(50)

    def append_slowly(self: EventLog, events: list[Any], size: int, *, ended: bool = False) -> None:
        until = time.thread_time() + 0.4 * is_due()
        while time.thread_time() < until:
            pass
        append(self, events, size, ended=ended)

    put_in_place(EventLog, "append", append_slowly)


def cross_answers() -> None:
    """Gives one turn in twenty the messages of the turn before, which may be another client's."""
    from codex_proxy.core.turn import Turn
    from codex_proxy.runs.scheduler import RunScheduler

    start, is_due = RunScheduler.start, every(20)
    before: list[Turn] = []

    async def start_with_earlier_messages(
        self: RunScheduler, turn: Turn, *arguments: Any, **named: Any
    ) -> Any:
        given = turn
        if is_due() and before:
            turn = msgspec.structs.replace(turn, history=before[-1].history)
        before[:] = [given]
        return await start(self, turn, *arguments, **named)

    put_in_place(RunScheduler, "start", start_with_earlier_messages)


def swap_ollama_streams() -> None:
    """Gives the lines with a request's words to the client of the Ollama stream before, and that one's to this one."""
    from codex_proxy.surfaces.ollama.render import OllamaRenderer

    pieces = OllamaRenderer.pieces
    before: list[tuple[OllamaRenderer, list[bytes]]] = []

    def pieces_of_another(self: OllamaRenderer, events: Any) -> list[bytes]:
        mine = pieces(self, events)
        text = b"".join(mine)
        if b"nonce-" not in text or b'"done":true' in text:
            return mine
        given = before.pop()[1] if before and before[0][0] is not self else mine
        before[:] = [(self, mine)]
        return given

    put_in_place(OllamaRenderer, "pieces", pieces_of_another)


def acknowledge_before_the_disk() -> None:
    """Makes no commit wait for the disk."""
    from codex_proxy.parts.machines.postgresql import database

    settings_of = database._settings_of

    async def without_wait(url: str, location: str) -> tuple[dict[str, str], bool]:
        settings, pooled = await settings_of(url, location)
        return {**settings, "synchronous_commit": "off"}, pooled

    put_in_place(database, "_settings_of", without_wait)


def lease_to_everybody() -> None:
    """Lets every server add a turn to a conversation in which another one works."""
    from codex_proxy.parts.machines.postgresql import leases

    condition = "WHERE held.node = excluded.node OR held.lease_until < clock_timestamp()"
    assert condition in leases._ENTER
    put_in_place(leases, "_ENTER", leases._ENTER.replace(condition, ""))


def leave_the_fence_out() -> None:
    """Lets a turn be stored behind the end of its lease, which is short."""
    from codex_proxy.store import leases

    put_in_place(leases, "LEASE_SECONDS", 1.0)
    put_in_place(leases, "RENEW_SECONDS", 0.3)
    from codex_proxy.parts.machines.postgresql import statements

    assert "SELECT FROM turn" in statements.IN_TURN
    put_in_place(statements, "IN_TURN", "{0}::bigint IS NULL OR true AS in_turn")


@dataclass(frozen=True)
class Plant:
    """A fault. `put` plants it in this process. `found_as`: the kind of finding that it must cause. `named`: a text in
    that finding; empty if nothing tells it from others of its kind.
    """

    put: Callable[[], None]
    found_as: str
    named: str = ""
    database: bool = False
    """Whether it is a fault of servers that share a database."""
    pauses: Sequence[float] = ()
    """Seconds for which a server hangs; empty: as in a run without a plant. With them nothing else happens to it."""
    only_crashes: bool = False
    """Whether the database crashes in each round, and nothing else happens."""
    database_settings: Sequence[str] = ()
    """Settings of PostgreSQL that show the fault sooner."""

    def is_found_in(self, findings: Mapping[str, Sequence[str]]) -> bool:
        return any(self.named in line for line in findings[self.found_as])


PLANTS = {
    "leak": Plant(leak, "leaked", "wait_for_ever"),
    "lost-webhook": Plant(lose_webhooks, "lost", "webhook"),
    "lost-response": Plant(lose_responses, "lost", "is gone"),
    "slow-loop": Plant(slow_the_loop_down, "held", "plants.py"),
    "crossed-answer": Plant(cross_answers, "crossed"),
    "swapped-ollama": Plant(swap_ollama_streams, "crossed", "/api/chat"),
    "early-commit": Plant(
        acknowledge_before_the_disk,
        *("lost", "acknowledged"),
        database=True,
        only_crashes=True,
        # What is written to the disk meanwhile outlives a crash.
        database_settings=("wal_writer_delay = '10s'", "wal_writer_flush_after = '1GB'"),
    ),
    "shared-lease": Plant(lease_to_everybody, "wrong", "at once", database=True),
    "no-fence": Plant(leave_the_fence_out, "lost", "at once", database=True, pauses=(2.5,)),
}
