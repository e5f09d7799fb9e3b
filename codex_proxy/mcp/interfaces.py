"""What the MCP client needs of its surroundings: a way to start a program, and a report of how a transport
failed.

`mcp_setup` implements `Spawn` by children of the process layer, which end with the proxy even if it is
killed. This package starts no process itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from codex_proxy.mcp.values import McpFault


class StartError(Exception):
    """The program could not be started. The text names it and says what to do."""


class ProcessExit(Protocol):
    """How a process ended: by exit code or by signal."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> str:
        """The last part of what it wrote to stderr."""
        ...


class ProcessListener(Protocol):
    """Receives a process's output. Its methods are called on the event loop, `ended` exactly once and last."""

    def received(self, chunk: bytes) -> None:
        """A chunk of stdout has come."""

    def ended(self, exit: ProcessExit) -> None:
        """The process has ended, and all its output was received."""


class Process(Protocol):
    """A running program with a pipe to its stdin (implemented by `process.child.Child`)."""

    @property
    def unsent(self) -> int:
        """The number of bytes written that the process has not yet read from its stdin."""
        ...

    def write(self, data: bytes) -> None:
        """Sends bytes to stdin. Neither blocks nor raises."""

    def pause(self) -> None:
        """Stops reading its stdout, until `resume`."""

    def resume(self) -> None:
        """Reads its stdout again."""

    async def end(self, *, grace: float | None = None) -> ProcessExit:
        """Ends the process within a bounded time and returns how it ended. Cancelling the call does not stop
        the end.
        """
        ...


class Spawn(Protocol):
    """Starts a program."""

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, listener: ProcessListener
    ) -> Process:
        """`env` is added to the environment of every child. `cwd` None leaves the folder to the
        implementation.

        Raises `StartError`.
        """
        ...


class TransportReport:
    """How a transport failed, beyond what the `mcp` package says itself."""

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused_status: int | None = None
        """The HTTP status with which the server refused the last message; None if it took it."""
        self.session_lost = False
        """The server no longer knows the session, and has not processed the last message."""
        self.ended = asyncio.Event()
        """Set when the server will send nothing more."""
