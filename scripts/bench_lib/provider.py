"""The scripted model server of the tests as a process of its own: prints its base URL, serves until stdin ends.

It is apart from the measuring process, so that neither side of a measurement shares a thread with it.
"""

from __future__ import annotations

import asyncio
import sys

from tests.real.model_server import model_server


async def main() -> None:
    async with model_server() as server:
        print(server.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
