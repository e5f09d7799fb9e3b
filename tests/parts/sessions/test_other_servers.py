"""What a server does with the messages of the others that have its store."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from codex_proxy.parts.sessions.messages import Told, encode_message
from codex_proxy.parts.sessions.other_servers import OtherServers
from codex_proxy.responses.service import ServerTasks
from codex_proxy.store.leases import Leases
from codex_proxy.store.record_leases import SingleNodeRecords

TOLD = Told("owner", "sess_1", 1, 0, ())


class Records(SingleNodeRecords):
    """Messages, of which the first reading fails for a reason that nobody has foreseen."""

    def __init__(self) -> None:
        self.answers: list[Any] = [RuntimeError("unforeseen"), [encode_message(TOLD)]]

    async def receive(self) -> list[bytes]:
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return cast("list[bytes]", answer)


class OneNode:
    def __init__(self) -> None:
        self.records = Records()

    def watch(self, id: str) -> OneNode:
        return self

    async def wait(self) -> None:
        await asyncio.sleep(0)


async def test_a_server_goes_on_receiving_after_an_error_that_nobody_has_foreseen() -> None:
    told: asyncio.Future[Told] = asyncio.get_running_loop().create_future()

    async def do(owner: str, session: str, command: object) -> None:
        raise AssertionError("nobody asks")

    leases = cast("Leases", OneNode())
    others = OtherServers(leases, ServerTasks(), lambda prefix: prefix, do, told.set_result)
    listening = asyncio.create_task(others.listen())
    waited: set[asyncio.Future[Any]] = {told, listening}
    done, _ = await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    assert done == {told}
    assert await told == TOLD
    listening.cancel()
