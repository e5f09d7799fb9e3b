"""The list of models that Codex reads when it is a client of the proxy: its own entries, in its own shape."""

from __future__ import annotations

import aiohttp
import pytest

from tests.real.proxy import Proxy


@pytest.mark.exhaustive
async def test_codex_as_a_client_gets_its_own_entries_in_its_own_shape(proxy: Proxy) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{proxy.url}/v1/models", params={"client_version": "0.163.0"}) as reply,
    ):
        models = (await reply.json())["models"]
    # The model of config.toml is not in Codex's catalog, and so has no entry in Codex's shape.
    listed = [model.id for model in proxy.server.agent.models() if model.id != "scripted-model"]
    assert [model["slug"] for model in models] == listed
    assert all(model["base_instructions"] and model["context_window"] for model in models)
