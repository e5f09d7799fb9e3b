"""What a server imports without a part of it has that part when it is needed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model_server import upstream
from tests.waiting import PATIENCE

ASK = """
import asyncio, sys
from codex_proxy.commands.lean_imports import import_aiohttp

import_aiohttp()
import aiohttp
from aiohttp import connector

contexts = connector._SSL_CONTEXT_VERIFIED, connector._SSL_CONTEXT_UNVERIFIED
print(*(context.cert_store_stats()["x509"] for context in contexts))

async def ask():
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(sys.argv[1]) as answer:
                print("answered")
        except aiohttp.ClientConnectorCertificateError:
            print("not trusted")

asyncio.run(ask())
"""
"""Imports aiohttp, says how many certificates it has read, and asks an address."""


@pytest.mark.parametrize(("trusted", "end"), [(True, "answered"), (False, "not trusted")])
async def test_certificates_are_read_for_the_first_connection_that_needs_them(
    tmp_path: Path, *, trusted: bool, end: str
) -> None:
    pytest.importorskip("cryptography", reason="makes the certificates")
    from tests.certificates import certificate

    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    files = certificate(own, "localhost"), certificate(other, "localhost")
    async with upstream(Path(files[0])) as served:
        address = served.url.replace("127.0.0.1", "localhost")
        told = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", ASK, address],
            env=os.environ | {"SSL_CERT_FILE": files[not trusted], "SSL_CERT_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        )
    assert told.stdout.splitlines() == ["0 0", end]
