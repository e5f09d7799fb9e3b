"""GET /v1/cluster of a server that has its store for itself."""

from __future__ import annotations

import platform
from pathlib import Path

from codex_proxy import __version__
from tests.http.serving import fake_proxy


async def test_a_store_in_a_file_has_one_process_and_it_is_described(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await proxy.send("GET", "/v1/cluster")
    assert answer.status == 200
    body = answer.body
    assert (body["object"], body["name"], body["version"]) == ("cluster", platform.node(), __version__)
    assert 0 <= body["store_seconds"] < 60
    [node] = body["data"]
    assert (node["name"], node["url"], node["version"]) == (platform.node(), proxy.url, __version__)
    assert node["responses"] == 0
    assert node["started_at"] <= node["seen_at"]
    assert node["lag"] < 60


async def test_without_a_store_there_is_no_cluster(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy:
        answer = await proxy.send("GET", "/v1/cluster")
        assert (answer.status, answer.error["code"]) == (400, "store_disabled")


async def test_only_a_key_shows_the_machines(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="right") as proxy:
        assert (await proxy.send("GET", "/v1/cluster")).status == 401
        assert (
            await proxy.send("GET", "/v1/cluster", headers={"Authorization": "Bearer right"})
        ).status == 200
