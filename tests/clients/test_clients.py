"""Every client that is installed does what the table in docs/clients.md says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.clients import RESULTS
from tests.clients.running import CLIENTS, Client, run_client
from tests.http.serving import fake_proxy

pytestmark = pytest.mark.exhaustive
"""The programs of others are slow, and have to be installed first."""


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_does_what_the_table_says(client: Client, tmp_path: Path) -> None:
    if client.missing:
        pytest.skip(client.missing)
    home, own = tmp_path / "home", tmp_path / "proxy"
    home.mkdir()
    own.mkdir()
    async with fake_proxy(own) as proxy:
        told = await run_client(client, proxy.url, home)
        await proxy.settled()  # also behind a client that has left
    (row,) = [row for row in json.loads(RESULTS.read_text()) if row["name"] == client.name]
    assert told["results"] == dict.fromkeys(row["works"], "yes")
