"""The interfaces that the MCP client needs: a way to start a program, and a report of how a transport failed.

This package starts no process itself. `mcp_tools` implements `Spawn` with child processes that end with the proxy,
even if it is killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from codex_proxy.mcp.values import McpFault


class ProgramStartError(Exception):
    """The program could not be started. The text names it and says what to do."""


class ProcessExit(Protocol):
    """The interface of the record how a process ended: its exit code or its signal."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> str:
        """The last part of what the process wrote to stderr."""
        ...


class ProcessListener(Protocol):
    """Receives a process's output. Its methods are called on the event loop, `ended` exactly once and last."""

    def received(self, chunk: bytes) -> None:
        """Handles a chunk of the process's stdout."""

    def ended(self, exit: ProcessExit) -> None:
        """Called when the process has ended and all its output was received."""


class Process(Protocol):
    """The interface of a running program with a pipe to its stdin. `process.child.Child` implements it."""

    @property
    def unsent(self) -> int:
        """The number of bytes written that the process has not yet read from its stdin."""
        ...

    def write(self, data: bytes) -> None:
        """Sends bytes to stdin. Neither blocks nor raises."""

    def pause(self) -> None:
        """Stops reading the process's stdout, until `resume`."""

    def resume(self) -> None:
        """Reads the process's stdout again."""

    async def end(self, *, grace: float | None = None) -> ProcessExit:
        """Ends the process within a bounded time and returns how it ended. Cancelling the call does not stop the
        end. `grace`: the seconds that it gets to end by itself; None for the default.
        """
        ...


class Spawn(Protocol):
    """Starts a program, and returns the running process. `ProgramStartError` is raised if it cannot be started."""

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, listener: ProcessListener
    ) -> Process:
        """`env` is added to the environment of every child. `cwd` None leaves the folder to the
        implementation.

        Raises `ProgramStartError`.
        """
        ...


class TransportReport:
    """How a transport has failed, as far as the `mcp` package does not report it. The transport writes it, the
    connection reads it.
    """

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused_status: int | None = None
        """The HTTP status with which the server refused the last message; None if it accepted it."""
        self.session_lost = False
        """Whether the server no longer knows the session, and so has not processed the last message."""
        self.ended = asyncio.Event()
        """Set when the server will send nothing more."""
