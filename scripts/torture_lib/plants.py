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


def put_in_place(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a method of a class, or a function of a module."""
    setattr(owner, name, function)


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

    make_for, is_due = WebhookSender.make_for, every(3)

    def lose_some(self: WebhookSender, response_id: str, status: str) -> Sequence[Any]:
        return () if is_due() else make_for(self, response_id, status)

    put_in_place(WebhookSender, "make_for", lose_some)


def lose_responses() -> None:
    """Makes the server acknowledge one foreground response in three without storing it."""
    from codex_proxy.responses import foreground
    from codex_proxy.responses.saving import save_response

    save, is_due = save_response, every(3)

    async def lose_some(*arguments: Any) -> None:
        if not is_due():
            await save(*arguments)

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


@dataclass(frozen=True)
class Plant:
    """A fault. `put` plants it in this process. `found_as`: the kind of finding that it must cause. `named`: a text in
    that finding; empty if nothing tells it from others of its kind.
    """

    put: Callable[[], None]
    found_as: str
    named: str = ""

    def is_found_in(self, findings: Mapping[str, Sequence[str]]) -> bool:
        return any(self.named in line for line in findings[self.found_as])


PLANTS = {
    "leak": Plant(leak, "leaked", "wait_for_ever"),
    "lost-webhook": Plant(lose_webhooks, "lost", "webhook"),
    "lost-response": Plant(lose_responses, "lost", "is gone"),
    "slow-loop": Plant(slow_the_loop_down, "held", "plants.py"),
    "crossed-answer": Plant(cross_answers, "crossed"),
}
