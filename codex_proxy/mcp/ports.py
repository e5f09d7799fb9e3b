"""What the MCP client needs of others: a way to start a process, and what a transport knows of its end.

`app` fills `Spawn` with children of the process layer, which live under its warden: so no server outlives the
proxy, also where that is killed. This package itself starts nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from codex_proxy.mcp.values import McpFault


class StartError(Exception):
    """A `Spawn` could not start the program. The text names the program and says what to do."""


class Ended(Protocol):
    """How a process ended."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> str:
        """The end of what it wrote to stderr."""
        ...


class Output(Protocol):
    """Who hears from a process. Called synchronously on the event loop, `ended` exactly once and last."""

    def received(self, chunk: bytes) -> None: ...
    def ended(self, exit: Ended) -> None: ...


class Process(Protocol):
    """A running process, as `process.child.Child` is one."""

    @property
    def unsent(self) -> int:
        """The bytes written that it has not taken from its stdin yet."""
        ...

    def write(self, data: bytes) -> None:
        """Never blocks or raises."""

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    async def end(self, *, grace: float | None = None) -> Ended:
        """Ends it, within a bound; the ending goes on when a call is cancelled."""
        ...


class Spawn(Protocol):
    """Starts a program. `env` comes beside what every child gets; without a `cwd`, where it likes."""

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, output: Output
    ) -> Process:
        """Raises `StartError`."""
        ...


class Report:
    """What a transport knows of how it failed, since the `mcp` package tells only that it did."""

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused: int | None = None
        """The status with which the server refused the last message, if it did."""
        self.forgotten = False
        """The server does not know the session any more, and has done nothing with the last message."""
        self.ended = asyncio.Event()
        """Nothing more will come."""
