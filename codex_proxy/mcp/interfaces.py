"""What the MCP client needs from its caller: a function that starts a program; and the report of a transport's failure.
`app/mcp_tools.py` implements `Spawn` with children that end with the proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from codex_proxy.mcp.values import McpFault


class ProgramStartError(Exception):
    """The program could not be started; the message names it and what to do."""


class ProcessExit(Protocol):
    """How a process ended: exit code or signal; the other one is None."""

    @property
    def code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stderr_tail(self) -> str:
        """The last part of what the process wrote to stderr."""
        ...


class ProcessListener(Protocol):
    """Receives a process's output on the event loop; `ended` is called once, last."""

    def received(self, chunk: bytes) -> None:
        """Handles a chunk of the process's stdout."""

    def ended(self, exit: ProcessExit) -> None:
        """Called when the process has ended and all its output was received."""


class Process(Protocol):
    """A running program with a pipe to its stdin, such as `process.child.Child`."""

    @property
    def unsent(self) -> int:
        """Bytes written that the process has not read."""
        ...

    def write(self, data: bytes) -> None:
        """Writes to stdin. Neither blocks nor raises, even after the end."""

    def pause(self) -> None:
        """Stops reading the process's stdout until `resume` is called."""

    def resume(self) -> None:
        """Continues to read the process's stdout after `pause`."""

    async def end(self, *, grace: float | None = None) -> ProcessExit:
        """Ends the process in bounded time, even if cancelled, and returns how it ended. `grace`: seconds to end by
        itself (None: the default).
        """
        ...


class Spawn(Protocol):
    """The interface of a function that starts a program."""

    async def __call__(
        self, argv: tuple[str, ...], env: Mapping[str, str], cwd: str | None, listener: ProcessListener
    ) -> Process:
        """Starts `argv` in `cwd` (None: a default) with `env` beside every child's variables. Raises
        `ProgramStartError`.
        """
        ...


class TransportReport:
    """How a transport failed, which the `mcp` package does not report. `fault` is the last failure; None if the server
    has accepted a message since.
    """

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused_status: int | None = None
        """The status with which the server refused the last message, or None."""
        self.session_lost = False
        """Whether the server no longer knows the session, and has not processed the last message."""
        self.ended = asyncio.Event()
        """Set when the server will send nothing more."""
