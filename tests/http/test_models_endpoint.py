"""GET /v1/models: which names are listed, and that every one of them can be asked for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from openai import AsyncOpenAI
from pytest_aiohttp.plugin import AiohttpClient

from codex_proxy.http.app_keys import CATALOG, CLIENTS
from codex_proxy.http.endpoint import add_endpoints
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.server import application
from tests.http.serving import Proxy, fake_agent, fake_proxy, proxy_of, user
from tests.surfaces.catalogs import catalog_of

EFFORTS = ("minimal", "low", "medium", "high")


async def ids(proxy: Proxy) -> list[str]:
    body = (await proxy.send("GET", "/v1/models")).body
    assert body["object"] == "list"
    return [entry["id"] for entry in body["data"]]


@pytest.mark.parametrize(("env", "base"), [("prod", "codex-5"), ("dev", "codev-5")])
async def test_models_advertises_codev_5_in_dev_stacks_and_codex_5_in_prod_hosts(
    tmp_path: Path, env: str, base: str
) -> None:
    async with fake_proxy(tmp_path, env=env) as proxy:
        listed = await ids(proxy)
    assert listed[:6] == ["default", base, *(f"{base}-{effort}" for effort in EFFORTS)]
    assert not any(name.startswith("codev-5" if env == "prod" else "codex-5") for name in listed)


@pytest.mark.exhaustive
async def test_both_sets_of_aliases_are_accepted_everywhere_and_answered_by_the_name_asked_for(
    proxy: Proxy,
) -> None:
    for name in ("codex-5", "codev-5", "codex-5-high", "codev-5-low", "CODEX-5"):
        assert (await proxy.ask({**user(), "model": name})).body["model"] == name
        frames = (await proxy.ask({**user(stream=True), "model": name})).frames
        assert {frame["model"] for frame in frames[:-1]} == {name}
        assert (await proxy.send("GET", f"/v1/models/{name}")).body["id"] == name


async def test_every_name_that_is_listed_can_be_asked_for(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, model_aliases="gpt-4o=codex-5, mine=codex-5-high") as proxy:
        listed = await ids(proxy)
        assert {"gpt-4o", "mine", "fake-model"} <= set(listed)
        for name in listed:
            assert (await proxy.ask({**user(), "model": name})).body["model"] == name


async def test_the_official_sdk_lists_and_retrieves_models(proxy: Proxy) -> None:
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
        listed = [model.id async for model in client.models.list()]
        assert "codex-5" in listed
        assert (await client.models.retrieve("codex-5")).object == "model"


async def test_codex_as_a_client_gets_the_agents_own_entries_in_its_own_shape(
    proxy: Proxy, aiohttp_client: AiohttpClient
) -> None:
    native = msgspec.Raw(b'{"slug": "fake-model", "shell_type": "unified_exec"}')
    app = application(body_limit=1 << 20)
    app.update(proxy.app)
    catalog = app[CATALOG]
    with_native = tuple(msgspec.structs.replace(model, native=native) for model in catalog.models)
    clients = app[CLIENTS]
    clients.everybody = msgspec.structs.replace(clients.everybody, catalog=catalog_of(models=with_native))
    add_endpoints(app, ENDPOINTS)
    reply = await (await aiohttp_client(app)).get("/v1/models?client_version=0.163.0")
    (entry,) = [each for each in (await reply.json())["models"] if each["slug"] == "fake-model"]
    assert entry["shell_type"] == "unified_exec"


async def test_codex_gets_each_name_that_a_client_may_use_in_its_own_shape(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, model_aliases="gpt-4o=codex-5") as proxy:
        listed = await ids(proxy)
        body = (await proxy.send("GET", "/v1/models?client_version=0.163.0")).body
    assert {entry["slug"] for entry in body["models"]} == set(listed)
    assert all(entry["apply_patch_tool_type"] for entry in body["models"])


async def test_a_name_that_is_nearly_that_of_a_model_is_answered_with_that(proxy: Proxy) -> None:
    answer = await proxy.ask({**user(), "model": "codex5"})
    assert answer.status == 404
    assert "Is 'codex-5' or" in answer.error["message"]
    assert "meant?" not in (await proxy.ask({**user(), "model": "gemini-pro"})).error["message"]


async def test_an_unknown_model_is_404_model_not_found(tmp_path: Path) -> None:
    """Where the agent's list is complete. A custom provider judges names itself."""
    agent = fake_agent()
    agent.any_model = False
    async with proxy_of(agent, tmp_path) as proxy:
        for answer in (
            await proxy.ask({**user(), "model": "no-such-model"}),
            await proxy.ask({**user(stream=True), "model": "no-such-model"}),
            await proxy.send("GET", "/v1/models/no-such-model"),
        ):
            assert answer.status == 404
            assert answer.error["code"] == "model_not_found"
            assert answer.error["param"] == "model"
