"""What the fake agents that serve many turns have in common: the process, and JSON-RPC with its client."""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from fake_proto.faults import Faults
    from fake_proto.loop import Loop
    from fake_proto.settings import Settings
    from fake_proto.wire import Wire

    Params = dict[str, Any]

    class Asker(Protocol):
        """A turn that waits for the answer to its request."""

        def on_answer(self, message: Params) -> None:
            """Takes the client's answer, and continues the turn."""


class Agent:
    """A process of an agent. `faults`: those of the whole process."""

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        self.settings = settings
        self.loop = loop
        self.faults = faults
        self.responses = 0
        """The number of answers of the model so far, which is part of the ids of items."""
        self._wire = wire

    def receive(self, line: bytes) -> None:
        """Handles one line of stdin."""
        raise NotImplementedError

    def end_of_input(self) -> int | None:
        """Called when stdin has ended. Returns the exit status, or None to keep running (fault `ignore_sigterm`)."""
        return None if self.faults.has("ignore_sigterm") else 0

    def send(self, message: Params, faults: Faults | None = None) -> None:
        """Writes one message as a line. `faults`: those of the turn; by default those of the process."""
        self._wire.send(message, faults or self.faults)


class RpcError(Exception):
    """A request of the client is answered with a JSON-RPC error. `code`: by default the agent's usual one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class RpcAgent(Agent):
    """An agent that speaks JSON-RPC in both directions. `faults` of its methods are as for `send`."""

    usual_code = -32600

    def __init__(self, settings: Settings, wire: Wire, loop: Loop, faults: Faults) -> None:
        super().__init__(settings, wire, loop, faults)
        self._next_request = 0
        self._askers: dict[int, Asker] = {}

    def receive(self, line: bytes) -> None:
        """Handles one line from the client: a request, a notification, or the answer to a request of the agent."""
        try:
            message = json.loads(line)
        except ValueError as error:
            sys.stderr.write(f"ERROR fake_proto: failed to parse message: {error}\n")
            sys.stderr.flush()
            return
        if "method" not in message:
            asker = self._askers.pop(message.get("id"), None)
            if asker is not None:
                asker.on_answer(message)
        elif "id" in message:
            try:
                self.handle(message["id"], message["method"], message.get("params"))
            except KeyError as error:
                missing = f"Invalid request: missing field `{error.args[0]}`"
                self.fail(message["id"], missing, self.usual_code)
            except RpcError as error:
                self.fail(message["id"], str(error), error.code or self.usual_code)
        else:
            self.on_notification(message["method"], message.get("params") or {})

    def handle(self, identifier: Any, method: str, params: Any) -> None:
        """Handles a request of the client. Raises `RpcError`, or `KeyError` for a missing parameter."""
        raise NotImplementedError

    def on_notification(self, method: str, params: Params) -> None:
        """Handles a notification of the client: by default not at all."""

    def ask(self, asker: Asker, method: str, params: Params, faults: Faults) -> int:
        """Sends a request to the client, and returns its id. The answer is passed to `asker.on_answer`."""
        identifier = self._next_request
        self._next_request += 1
        self._askers[identifier] = asker
        self.send({"method": method, "id": identifier, "params": params}, faults)
        return identifier

    def answer(self, identifier: Any, result: Params, faults: Faults | None = None) -> None:
        """Answers the client's request with the id `identifier`."""
        self.send({"id": identifier, "result": result}, faults)

    def fail(self, identifier: Any, message: str, code: int, faults: Faults | None = None) -> None:
        """Answers the client's request with the id `identifier` with an error."""
        self.send({"id": identifier, "error": {"code": code, "message": message}}, faults)
