"""A proxy for a test to kill: starts a server, prints the pids of it and of its orphan, and waits for ever."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from codex_proxy.parts.mcp.servers import OperatorServers
from tests.mcp.serving import ManualClock
from tests.parts.mcp.definitions import LONG, command_of, stdio, texts


async def main() -> None:
    servers = OperatorServers({"files": stdio("files")}, command_of, clock=ManualClock())
    for tool in ("pid", "orphan"):
        print(*texts(await servers.call("files", tool, "{}", LONG)), end=" ")
    print(flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
