"""A server that is a process of its own, to be killed from outside or behind one of its commits.

`python -m tests.http_responses.killing COMMIT serve ...` runs `codex-proxy serve ...` and kills itself with SIGKILL
when its store's commit with that number is on disk, before anybody in the process hears of it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from codex_proxy.store.sqlite.connections import Writer, _Write
from tests.waiting import PATIENCE

ADDRESS = re.compile(r"serves on (http://\S+)/v1")


@asynccontextmanager
async def server_process(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    port: int = 0,
    dies_at_commit: int | None = None,
    code: Path = Path(__file__).parents[2],
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """The server's address and its process, which is gone at the end. `settings` are environment variables;
    `code` is the folder of the code that runs.
    """
    module = (
        ("codex_proxy",) if dies_at_commit is None else ("tests.http_responses.killing", str(dies_at_commit))
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *module, "serve", "--agent", "fake", "--port", str(port)),
        *("--workdir", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={
            "PATH": os.defpath,
            "HOME": str(folder),
            "PROXY_STATE_DIR": str(folder / "state"),
            **(settings or {}),
        },
        cwd=code,
    )
    assert process.stdout is not None
    reading = None
    try:
        async with asyncio.timeout(PATIENCE):
            while not (found := ADDRESS.search((line := await process.stdout.readline()).decode())):
                assert line, "the server died before it served"
        reading = asyncio.create_task(process.stdout.read())
        yield found[1], process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


def die_at_commit(number: int) -> None:
    """Kills this process when so many transactions of the store are on disk."""
    transaction = Writer._transaction
    left = number

    def counted(self: Writer, batch: list[_Write]) -> None:
        nonlocal left
        transaction(self, batch)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    Writer._transaction = counted  # type: ignore[method-assign]


if __name__ == "__main__":
    from codex_proxy.cli import main

    die_at_commit(int(sys.argv[1]))
    main(sys.argv[2:], prog_name="codex-proxy")
