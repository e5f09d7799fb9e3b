"""Random walks of clients of one session at two servers, of which each may lose the session to the other."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import combinations
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.parts.machines.two_servers.conftest import let_leases_run_out
from tests.parts.sessions.driving import AgentsClient, Reader
from tests.parts.sessions.test_walks import Walk, _read


class WalkOverTwo(Walk):
    def __init__(self, seed: int, folder: Path, store: str) -> None:
        super().__init__(seed, folder)
        self._store = store
        self._clients: list[AgentsClient] = []
        self._stacks: list[AsyncExitStack] = []
        self._at: dict[Reader, AgentsClient] = {}
        """The server of each reader, also of those that are gone."""
        self._left = False
        """Whether a server may have lost the session without knowing: what it tells until then is nowhere else."""

    async def _serve(self) -> None:
        self._folder.mkdir()
        for _ in range(2):
            client, stack = await self._start()
            self._clients.append(client)
            self._stacks.append(stack)
        self.client = self._clients[0]

    async def _start(self) -> tuple[AgentsClient, AsyncExitStack]:
        stack = await self._stack.enter_async_context(AsyncExitStack())
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        serving = fake_proxy(folder, store=self._store, workdir_roots=str(self._folder.parent))
        return AgentsClient(await stack.enter_async_context(serving)), stack

    async def step(self) -> None:
        self.client = self._random.choice(self._clients)
        await super().step()

    async def open_reader(self) -> None:
        stack = self._stacks[self._clients.index(self.client)]
        reader = await stack.enter_async_context(self.client.following(self.id))
        self._readers.append((reader, asyncio.create_task(_read(reader))))
        self._at[reader] = self.client

    async def restart(self) -> None:
        """Ends a server, and starts another one in its place."""
        number = self._random.randrange(2)
        leaving = [each for each in self._readers if self._at[each[0]] is self._clients[number]]
        for each in leaving:
            each[1].cancel()
            self._readers.remove(each)
        await asyncio.gather(*(task for _, task in leaving), return_exceptions=True)
        await self._stacks[number].aclose()
        self.client, self._stacks[number] = await self._start()
        self._clients[number] = self.client
        await self.open_reader()

    async def kill(self) -> None:
        """Lets the leases run out: whoever is asked next takes the session over, and the other one is as if stopped."""
        self._left = True
        await let_leases_run_out(self._store, ["record_leases", "record_followers"])

    def check_readers(self) -> None:
        """Two readers have seen the same, from where both have begun up to where one of them has ended."""
        assert not [task for _, task in self._readers if not task.cancelled() and task.exception()]
        for one, other in combinations(self._at, 2):
            if self._left and self._at[one] is not self._at[other]:
                continue
            seen, longer = ids_of(one), ids_of(other)
            if seen and seen[0] not in longer:
                seen, longer = longer, seen
            if seen and seen[0] in longer:
                behind = longer[longer.index(seen[0]) :]
                assert all(a == b for a, b in zip(seen, behind, strict=False))


def ids_of(reader: Reader) -> list[str]:
    """The events of the session, without the one that says that the stream was interrupted."""
    return [
        event["event_id"]
        for event in reader.events
        if event["type"] != "error" or event["error"]["code"] != "stream_interrupted"
    ]


@pytest.mark.sampled(every=34)
@pytest.mark.parametrize("seed", range(100))
async def test_a_random_walk_over_two_servers_loses_no_input_and_ends(
    tmp_path: Path, seed: int, postgres_url: str
) -> None:
    async with WalkOverTwo(seed, tmp_path / "walk", postgres_url) as walk:
        for _ in range(12):
            await walk.step()
        await walk.finish()
        await walk.check()
