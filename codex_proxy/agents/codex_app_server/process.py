"""One `codex app-server` process for many threads, each on a channel."""

from __future__ import annotations

from codex_proxy.agents.codex_app_server.connection import AppServerConnection
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.processes.shared_process import SharedProcess, SharedTransport
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.process.child import Command


class AppServerProcess(SharedProcess[AppServerConnection]):
    def __init__(self, *, parallel_calls: bool = True) -> None:
        """`parallel_calls`: the program reports the end of a model's answer."""
        super().__init__(AppServerConnection())
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

    def _refusal(self, fault: str) -> Failure:
        return Failure(FaultKind.SPAWN_FAILED, fault, quoted=fault.partition(": ")[2])

    def open_channel(self) -> ThreadTransport:
        transport = ThreadTransport(self, self.connection.open_channel())
        self._serve(transport.channel)
        return transport

    def ask_limits(self) -> None:
        """Asks for the account's limits: `on_limits` gets them as JSON, empty after an error."""
        self.write(self.connection.limits_request())


class ThreadTransport(SharedTransport[AppServerProcess]):
    def __init__(self, process: AppServerProcess, channel: int) -> None:
        super().__init__(process, channel)
        self.dialect = AppServerTurn(channel, parallel_calls=process.parallel_calls)

    def send(self, writes: bytes) -> None:
        self.process.write(self.process.connection.send(self.channel, writes))
