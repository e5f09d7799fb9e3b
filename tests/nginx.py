"""nginx with a configuration of deploy/, in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: nginx-light)")
FRAME = """
daemon off;
{user}
pid {folder}/pid;
error_log stderr error;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/answers;
    fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u;
    scgi_temp_path {folder}/s;
    include {folder}/example.conf;
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as line:
        return int(line.getsockname()[1])


@contextlib.asynccontextmanager
async def nginx(folder: Path, configuration: str) -> AsyncIterator[None]:
    """Runs nginx with a text for its `http` block. It may not listen yet."""
    (folder / "example.conf").write_text(configuration)
    root = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(FRAME.format(folder=folder, user=root))
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"))
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
