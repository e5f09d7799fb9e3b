"""Which process of an ACP agent serves a session: the slots for its processes, by what their sessions have in common.

Most programs keep the sessions of one process apart. Where a program does not (`AcpPreset.apart`), a session with
tools of the client gets a process that serves no other session at the same time, and only sessions of one key.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final

import msgspec

from codex_proxy.agents.acp.process import AcpProcess, AcpTransport
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Sandbox

MAX_SESSIONS: Final = 200
"""The most sessions of a process before it is replaced, since not every agent frees sessions that have ended."""
MAX_PROCESSES: Final = 4
"""The most processes without a running turn that are kept. More than one is needed if the processes are confined to
folders, or if a session with tools has a process to itself."""


class ProcessScope(msgspec.Struct, frozen=True):
    """What the sessions of a process have in common. Turns share a process only if all of it is equal: a process that
    this server confines can write to the same folders as long as it runs.
    """

    workdir: str
    sandbox: Sandbox = "danger-full-access"
    owner: str = ""
    """The name of the key whose turns the process serves; empty for all."""
    number: int = 0
    """Tells processes apart that serve one session at a time; 0 for a process that serves many."""
    plain: bool = False
    """Whether the process serves plain-model turns and no others, so that it is kept from reading the user's files."""


class Slot:
    """What an agent keeps for one process scope: its process, or why the last start failed."""

    def __init__(self) -> None:
        self.process: AcpProcess | None = None
        self.starting = asyncio.Lock()
        self.failure: Failure | None = None
        """Why the last start failed, or that nobody is signed in; None if neither."""
        self.failed_at = 0.0
        self.session: AgentSession | None = None
        """The newest session of a process that serves one at a time."""

    @property
    def is_working(self) -> bool:
        """Whether the process is being started, or has a running turn."""
        return self.starting.locked() or (self.process is not None and self.process.turns_running > 0)

    def make_free(self) -> bool:
        """Returns whether the process, which serves one session at a time, can take another one. If its session only
        waits for another message of the client, that session is closed; the program can open it again."""
        if self.is_working:
            return False
        session = self.session
        if session is not None and session.can_resume:
            assert isinstance(session.transport, AcpTransport)
            if not session.transport.dialect.answered:
                return False
            session.close()
        self.session = None
        return True


class ProcessSlots:
    """The slots of one agent, by scope."""

    def __init__(self, default: ProcessScope) -> None:
        """`default` is the scope of turns whose request chooses no folder and no sandbox; its slot always exists."""
        self.default = default
        self._slots: dict[ProcessScope, Slot] = {default: Slot()}
        """The least recently used first."""
        self._reserved: set[ProcessScope] = set()
        self._numbers = itertools.count(1)

    def __getitem__(self, scope: ProcessScope) -> Slot:
        return self._slots[scope]

    def all(self) -> list[Slot]:
        """Returns the slots, the least recently used first."""
        return list(self._slots.values())

    def has(self, scope: ProcessScope, slot: Slot) -> bool:
        """Returns whether this is still the slot of the scope."""
        return self._slots.get(scope) is slot

    def take(self, scope: ProcessScope) -> tuple[Slot, list[Slot]]:
        """Returns the slot of a scope, created if necessary, marked as the most recently used; and the slots that
        were removed to make room for it, the least recently used ones. The default slot, reserved slots and slots
        that are working (see `Slot.is_working`) are never removed.
        """
        slot, removed = self._slots.pop(scope, None), list[Slot]()
        if slot is None:
            slot = Slot()
            for other, unused in list(self._slots.items()):
                if len(self._slots) < MAX_PROCESSES:
                    break
                if other != self.default and other not in self._reserved and not unused.is_working:
                    del self._slots[other]
                    removed.append(unused)
        self._slots[scope] = slot
        return slot, removed

    def reserve(self, scope: ProcessScope) -> ProcessScope:
        """Returns the scope of a process that serves one session at a time, has the other properties of `scope`, and
        is free now. Nobody else gets it before `session_opened` or `give_back` is called."""
        free = (
            each
            for each, slot in reversed(list(self._slots.items()))
            if each.number and msgspec.structs.replace(each, number=scope.number) == scope
            if each not in self._reserved and slot.make_free()
        )
        found = next(free, None) or msgspec.structs.replace(scope, number=next(self._numbers))
        self._reserved.add(found)
        return found

    def session_opened(self, scope: ProcessScope, session: AgentSession) -> None:
        """Ends a reservation, because the process now has this session."""
        self._reserved.discard(scope)
        self._slots[scope].session = session

    def give_back(self, scope: ProcessScope) -> None:
        """Ends a reservation, because no session could be opened."""
        self._reserved.discard(scope)


def takes_sessions(process: AcpProcess) -> bool:
    """Returns whether further sessions may be opened on the process."""
    return process.alive and not process.unhealthy and process.sessions_served < MAX_SESSIONS
