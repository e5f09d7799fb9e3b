"""nginx with the example of deploy/ in front of two servers of one database, which get the requests in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.deployment.examples import example, replace_all
from tests.nginx import free_port, nginx
from tests.waiting import poll

KEY = "a-key-of-some-length"
SETTINGS = {"api_key": KEY, "trusted_proxies": "127.0.0.1"}
"""Those of a server behind the balancer."""


@contextlib.asynccontextmanager
async def balancer(folder: Path, ports: Sequence[int]) -> AsyncIterator[str]:
    """The URL of nginx in front of servers on two ports of this machine."""
    one, two = ports
    port = free_port()
    changes = (
        ("listen 80;", f"listen 127.0.0.1:{port};"),
        ("server one:11435 ", f"server 127.0.0.1:{one} "),
        ("server two:11435 ", f"server 127.0.0.1:{two} "),
    )
    async with nginx(folder, replace_all(example("balancer.conf"), *changes)):

        async def listens() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await poll(listens)
        yield f"http://127.0.0.1:{port}"
