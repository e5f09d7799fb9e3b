"""What a program is asked about a session that it has stored, outside of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.sessions.session import LineTooLong
from codex_proxy.agents.sessions.shared_process import SharedTransport
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.parts.acp.messages import Message, RpcError, request, request_id
from codex_proxy.parts.acp.process import AcpProcess

REQUEST_SECONDS: Final = 10.0
"""Maximum seconds until the answer; programs that start another one for it take one or two."""
NOT_ANSWERED: Final = Message(error=RpcError(message="the agent did not answer"))


def open_transport(process: AcpProcess) -> SharedTransport[AcpProcess]:
    """Opens a channel for `ask_program`."""
    return SharedTransport(process, process.open_channel())


async def ask_program(
    transport: SharedTransport[AcpProcess], method: str, params: Mapping[str, Any]
) -> Message:
    """Sends a request, the only one on its channel, which is then released. Returns the answer: an error if the process
    ends before. Raises `Fault` UNAVAILABLE if it takes too long.
    """
    finished, answer = False, _Answer()
    try:
        transport.attach(answer)
        transport.process.write(request(request_id(transport.channel, 1), method, params))
        async with asyncio.timeout(REQUEST_SECONDS):
            message = await answer.message
        finished = True
        return message
    except asyncio.CancelledError:
        finished = True  # as below
        raise
    except TimeoutError:
        finished = True  # a late answer is dropped with the channel, and other clients' turns go on
        text = f"The agent did not answer within {REQUEST_SECONDS:g} s. Try again."
        raise Fault.of(FaultKind.UNAVAILABLE, text) from None
    finally:
        await transport.release(finished=finished)


class _Answer:
    """Reads the answer to the only request of a channel."""

    def __init__(self) -> None:
        self.message: asyncio.Future[Message] = asyncio.get_running_loop().create_future()

    def on_messages(self, messages: Sequence[Any], size: int) -> None:
        for message in messages:
            if isinstance(message, Message) and message.method is None:
                self._set(message)

    def on_end(self, ended: Ended) -> None:
        self._set(NOT_ANSWERED)

    def fail(self, failure: Failure) -> None:
        self._set(NOT_ANSWERED)

    def on_long_line(self, fault: LineTooLong) -> None:
        self._set(NOT_ANSWERED)

    def _set(self, message: Message) -> None:
        if not self.message.done():
            self.message.set_result(message)
