"""A proxy that is to be killed: starts a server, prints the ids of it and of a process of its, and waits for ever."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from codex_proxy.mcp.servers import McpServers
from tests.mcp.serving import LONG, HandClock, start_child, stdio, texts


async def main() -> None:
    servers = McpServers({"files": stdio("files")}, start_child, clock=HandClock())
    for tool in ("pid", "stray"):
        print(*texts(await servers.call("files", tool, "{}", LONG)), end=" ")
    print(flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
