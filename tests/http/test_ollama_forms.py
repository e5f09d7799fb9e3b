"""Forms of paths, names and values that Ollama itself takes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from pytest_aiohttp.plugin import AiohttpServer

from tests.http.serving import Proxy, fake_proxy
from tests.model_server import proxy_before

ASKED = [{"role": "user", "content": "[[fake:text say=Hi]]"}]
VECTOR = [0.5, 0.25]


@pytest.fixture
async def asked() -> list[dict[str, Any]]:
    """The bodies that the upstream gets."""
    return []


@pytest.fixture
async def proxy(
    tmp_path: Path, asked: list[dict[str, Any]], aiohttp_server: AiohttpServer
) -> AsyncIterator[Proxy]:
    """A proxy whose upstream has the model `small`, and makes embeddings."""

    async def embed(request: web.Request) -> web.Response:
        body = await request.json()
        asked.append(body)
        data = [{"index": index, "embedding": VECTOR} for index in range(len(body["input"]))]
        return web.json_response({"data": data, "usage": {"prompt_tokens": 3}})

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "small"}]})

    app = web.Application()
    app.router.add_post("/v1/embeddings", embed)
    app.router.add_get("/v1/models", models)
    url = (await aiohttp_server(app)).make_url("/v1")
    async with proxy_before(str(url), tmp_path) as made:
        yield made


@pytest.mark.part("upstream")
@pytest.mark.parametrize("name", ["small", "small:latest"])
async def test_embeddings_are_made_for_a_name_with_the_tag_that_clients_add(
    proxy: Proxy, asked: list[dict[str, Any]], name: str
) -> None:
    new = await proxy.send("POST", "/api/embed", {"model": name, "input": ["a", "b"]})
    assert (new.body["model"], new.body["embeddings"]) == (name, [VECTOR, VECTOR])
    old = await proxy.send("POST", "/api/embeddings", {"model": name, "prompt": "a"})
    assert old.body == {"embedding": VECTOR}
    assert [each["model"] for each in asked] == ["small", "small"]


@pytest.mark.part("upstream")
@pytest.mark.parametrize("given", [{"input": []}, {"input": ""}, {"input": None}, {}])
async def test_nothing_to_embed_is_answered_with_nothing(
    proxy: Proxy, asked: list[dict[str, Any]], given: dict[str, Any]
) -> None:
    answer = await proxy.send("POST", "/api/embed", {"model": "small:latest", **given})
    assert (answer.status, answer.body) == (200, {"model": "small:latest", "embeddings": []})
    older = {"prompt": given["input"] or None} if "input" in given else {}
    answer = await proxy.send("POST", "/api/embeddings", {"model": "small", **older})
    assert (answer.status, answer.body) == (200, {"embedding": []})
    assert asked == []


async def test_nothing_to_embed_by_an_agent_that_embeds_nothing_is_an_error(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        answer = await proxy.send("POST", "/api/embed", {"model": "codex-5", "input": []})
        assert answer.status == 404


@pytest.mark.part("upstream")
@pytest.mark.parametrize("wrong", [5, [5], [["a"]], {"a": "b"}])
async def test_an_input_that_is_no_text_is_refused(proxy: Proxy, wrong: Any) -> None:
    answer = await proxy.send("POST", "/api/embed", {"model": "small", "input": wrong})
    assert answer.status == 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/tags/", None),
        ("HEAD", "/api/tags/", None),
        ("GET", "/api/version/", None),
        ("GET", "/api/ps/", None),
        ("POST", "/api/show/", {"model": "codex-5"}),
        ("POST", "/api/chat/", {"model": "codex-5", "messages": ASKED}),
        ("POST", "/api/generate/", {"model": "codex-5", "prompt": "Hi"}),
    ],
)
async def test_a_path_may_end_with_a_slash(
    tmp_path: Path, method: str, path: str, body: dict[str, Any] | None
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        redirected = await proxy.send(method, f"{path}?a=b", body, allow_redirects=False)
        assert redirected.status == (307 if method == "POST" else 301)
        assert redirected.headers["Location"] == f"{path[:-1]}?a=b"
        with_slash = await proxy.send(method, path, body)
        without = await proxy.send(method, path.rstrip("/"), body)
        assert (with_slash.status, without.status) == (200, 200)
        assert with_slash.headers["Content-Type"] == without.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/api/pull/", "/api/tags//", "//api/tags/", "/v1/models/", "/health/"])
async def test_no_other_path_is_redirected(tmp_path: Path, path: str) -> None:
    async with fake_proxy(tmp_path) as proxy:
        assert (await proxy.send("GET", path, allow_redirects=False)).status == 404


async def test_a_key_is_needed_for_a_path_that_ends_with_a_slash_too(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="a-key-of-the-test") as proxy:
        assert (await proxy.send("GET", "/api/tags/")).status == 401


@pytest.mark.parametrize("role", ["User", "USER", "user"])
@pytest.mark.parametrize(
    "options", [{"num_predict": 50.0}, {"num_predict": 50.9, "seed": 1.0, "top_k": 40.0}]
)
async def test_a_role_of_any_case_and_whole_numbers_with_a_fraction_are_taken(
    tmp_path: Path, role: str, options: dict[str, Any]
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        messages = [{"role": "SyStem", "content": "Be brief."}, ASKED[0] | {"role": role}]
        answer = await proxy.send(
            "POST", "/api/chat", {"model": "codex-5", "messages": messages, "options": options}
        )
        assert answer.status == 200, answer.text
        assert json.loads(answer.text.splitlines()[-1])["done_reason"] == "stop"
