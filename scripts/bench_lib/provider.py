"""A scripted model server of the tests as a process of its own: prints its base URL, serves until stdin ends. With the
argument `apis` it is that of four model APIs, else that of Codex's provider.

It is apart from the measuring process, so that neither side of a measurement shares a thread with it.
"""

from __future__ import annotations

import asyncio
import sys

from tests.real.model_server import model_server
from tests.real.scripted_apis import scripted_apis


async def main() -> None:
    if sys.argv[1:] == ["apis"]:
        async with scripted_apis() as apis:
            print(apis.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
        return
    async with model_server() as server:
        print(server.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
