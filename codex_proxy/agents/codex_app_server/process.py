"""One `codex app-server` process for many threads, each on a channel."""

from __future__ import annotations

from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.processes.shared_process import SharedProcess, SharedTransport
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.process.child import Command


class AppServerProcess(SharedProcess[AppServerConnection]):
    def __init__(self, *, parallel_calls: bool = True, serves_once: bool = False) -> None:
        """`parallel_calls`: the program reports the end of a model's answer. `serves_once`: it serves one turn."""
        super().__init__(AppServerConnection())
        self.serves_once = serves_once
        self.parallel_calls = parallel_calls

    async def start(self, command: Command, *, timeout_seconds: float) -> None:
        """Starts and initializes the program. Raises `Fault`, and ends it, if that fails or takes too long."""
        connection = self.connection
        await self._start_and_ask(
            command, (connection.open(), lambda: connection.ready and self.exit is None, timeout_seconds)
        )

    @property
    def signed_in(self) -> bool:
        return self.connection.signed_in

    @property
    def is_taken(self) -> bool:
        return self.serves_once and self.turns_served > 0

    def _refusal(self, fault: str) -> Failure:
        return Failure(FaultKind.SPAWN_FAILED, fault, quoted=fault.partition(": ")[2])

    def open_channel(self) -> ThreadTransport:
        kind = OnlyThreadTransport if self.serves_once else ThreadTransport
        transport = kind(self, self.connection.open_channel())
        self._serve(transport.channel)
        return transport

    def forget(self, channel: int) -> None:
        """Lets go of the ended process and its only channel."""
        self._child = None  # each of them holds the other
        self.close_channel(channel)

    def ask_limits(self) -> None:
        """Asks for the account's limits: `on_limits` gets them as JSON, empty after an error."""
        self.write(self.connection.limits_request())


class ThreadTransport(SharedTransport[AppServerProcess]):
    def __init__(self, process: AppServerProcess, channel: int) -> None:
        super().__init__(process, channel)
        self.dialect = AppServerTurn(channel, parallel_calls=process.parallel_calls)

    def send(self, writes: bytes) -> None:
        self.process.write(self.process.connection.send(self.channel, writes))


class OnlyThreadTransport(ThreadTransport):
    """The transport of a process that serves one turn, and ends with it."""

    exclusive = True

    def pause_reading(self) -> None:
        self.process.pause_reading()

    def resume_reading(self) -> None:
        self.process.resume_reading()

    async def release(self, *, finished: bool) -> None:
        process = self.process
        process.completed_turn = self.has_begun and finished and process.alive
        try:
            await process.end()
        finally:
            process.forget(self.channel)
