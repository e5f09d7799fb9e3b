"""Faults that are planted in a server, so that a run shows that it finds them.

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


def put_in_place(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a method of a class, or a function of a module."""
    setattr(owner, name, function)


def leak() -> None:
    """A turn in five leaves a task that waits for ever, with a socket open."""
    from codex_proxy.runs.scheduler import RunScheduler

    release_run, is_due = RunScheduler.release_run, every(5)
    kept: list[asyncio.Task[None]] = []

    async def wait_for_ever() -> None:
        with socket.socket():
            await asyncio.Event().wait()

    def leaking(self: RunScheduler, run: Any) -> None:
        if is_due():
            kept.append(asyncio.create_task(wait_for_ever()))
        release_run(self, run)

    put_in_place(RunScheduler, "release_run", leaking)


def lost_webhook() -> None:
    """The end of a background response in three is told to nobody."""
    from codex_proxy.http.webhook_sender import WebhookSender

    make_for, is_due = WebhookSender.make_for, every(3)

    def losing(self: WebhookSender, response_id: str, status: str) -> Sequence[Any]:
        return () if is_due() else make_for(self, response_id, status)

    put_in_place(WebhookSender, "make_for", losing)


def lost_response() -> None:
    """A foreground response in three is acknowledged and not stored."""
    from codex_proxy.responses import foreground
    from codex_proxy.responses.saving import save_response

    save, is_due = save_response, every(3)

    async def losing(*arguments: Any) -> None:
        if not is_due():
            await save(*arguments)

    put_in_place(foreground, "save_response", losing)


def slow_loop() -> None:
    """A batch of events in 50 is logged by a calculation of 0.4 s, in the event loop."""
    from codex_proxy.runs.event_log import EventLog

    append, is_due = EventLog.append, every(50)

    def slow(self: EventLog, events: list[Any], size: int, *, ended: bool = False) -> None:
        until = time.thread_time() + 0.4 * is_due()
        while time.thread_time() < until:
            pass
        append(self, events, size, ended=ended)

    put_in_place(EventLog, "append", slow)


def crossed_answer() -> None:
    """A turn in twenty gets the messages of the turn before it, which may be another client's."""
    from codex_proxy.core.turn import Turn
    from codex_proxy.runs.scheduler import RunScheduler

    start, is_due = RunScheduler.start, every(20)
    before: list[Turn] = []

    async def crossing(self: RunScheduler, turn: Turn, *arguments: Any, **named: Any) -> Any:
        asked = turn
        if is_due() and before:
            turn = msgspec.structs.replace(turn, history=before[-1].history)
        before[:] = [asked]
        return await start(self, turn, *arguments, **named)

    put_in_place(RunScheduler, "start", crossing)


@dataclass(frozen=True)
class Plant:
    """A fault: `put` puts it into this process, `found_as` is the kind of finding that it has to cause, and `named`
    what the line says of it, empty where it cannot be told from another of its kind.
    """

    put: Callable[[], None]
    found_as: str
    named: str = ""

    def is_found_in(self, findings: Mapping[str, Sequence[str]]) -> bool:
        return any(self.named in line for line in findings[self.found_as])


PLANTS = {
    "leak": Plant(leak, "leaked", "wait_for_ever"),
    "lost-webhook": Plant(lost_webhook, "lost", "webhook"),
    "lost-response": Plant(lost_response, "lost", "is gone"),
    "slow-loop": Plant(slow_loop, "held", "plants.py"),
    "crossed-answer": Plant(crossed_answer, "crossed"),
}
