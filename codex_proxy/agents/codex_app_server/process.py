"""One `codex app-server` process, which serves many threads at once. Each thread has a channel, to whose reader the
messages about the thread are passed.

The dialect interprets the messages; the pool decides which process serves a turn.
"""

from __future__ import annotations

import asyncio

from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.shared_process import SharedProcess, SharedTransport
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Command


class AppServerProcess(SharedProcess[AppServerConnection]):
    """A process that serves many turns at once. Call `start`, then `open_channel` for each thread; it returns the
    transport of the thread.
    """

    def __init__(self, client_name: str, client_version: str, *, parallel_calls: bool = True) -> None:
        """`client_name` and `client_version` are sent in `initialize`. `parallel_calls`: whether the model may call
        several tools in one answer, which needs a program that reports the end of each answer of the model.
        """
        super().__init__(AppServerConnection(client_name, client_version))
        self.parallel_calls = parallel_calls

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts the process and initializes the connection. Raises `Fault` if the process cannot be started, ends,
        refuses the connection, or does not answer within `timeout_seconds`; the process is ended then.
        """
        child = await self._spawn(command)
        child.write(self.connection.open())
        try:
            await self._until(lambda: self.connection.ready and self.exit is None, timeout_seconds)
        except Fault:
            await self.end()
            raise
        except asyncio.CancelledError:
            self.kill()
            raise
        self._note_agent(child)

    @property
    def signed_in(self) -> bool:
        return self.connection.signed_in

    def _refusal(self, fault: str) -> Failure:
        return Failure(kind=FaultKind.SPAWN_FAILED, message=fault, quoted=fault.partition(": ")[2])

    def open_channel(self) -> ThreadTransport:
        """Opens a channel for a thread, and returns its transport."""
        self.turns_served += 1
        channel = self.connection.open_channel()
        self._turn_began(channel)
        return ThreadTransport(self, channel)

    def send(self, channel: int, writes: bytes) -> None:
        self._write(self.connection.send(channel, writes))

    def ask_limits(self) -> None:
        """Requests the rate limits of the account, and returns at once. The answer is passed to `on_limits` as
        JSON; empty bytes if the agent answers with an error.
        """
        self._write(self.connection.limits_request())


class ThreadTransport(SharedTransport[AppServerProcess]):
    """The `Transport` of one thread (one channel) of a process that also serves other threads."""

    def __init__(self, process: AppServerProcess, channel: int) -> None:
        super().__init__(process, channel)
        self.dialect = AppServerTurn(channel, parallel_calls=process.parallel_calls)

    def send(self, writes: bytes) -> None:
        self.process.send(self.channel, writes)
