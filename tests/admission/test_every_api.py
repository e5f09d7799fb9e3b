"""What a turn may not do is refused by every API that starts one, by the names that its fields have there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy
from tests.waiting import PATIENCE

Error: TypeAlias = dict[str, Any]
Ask: TypeAlias = Callable[[Proxy, str, str], Awaitable[Error]]
"""Asks for this model with an image at this address, and gives the refusal."""

ELSEWHERE = "https://pictures.example/cat.png"
KEYS: dict[str, dict[str, Any]] = {"some": {"models": ["codex-5"]}}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    """One whose key may ask for one model, and that fetches no images."""
    async with keyed_proxy(tmp_path, KEYS) as running:
        yield running


async def by_chat(proxy: Proxy, model: str, image: str) -> Error:
    parts = [{"type": "image_url", "image_url": {"url": image}}]
    body = {"model": model, "messages": [{"role": "user", "content": parts}]}
    return (await proxy.ask(body, headers=key_header("some"))).error


def with_image(model: str, image: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": image}]
    return {"model": model, "input": [{"role": "user", "content": parts}], **fields}


def by_post(path: str, **fields: Any) -> Ask:
    async def ask(proxy: Proxy, model: str, image: str) -> Error:
        body = with_image(model, image, **fields)
        return (await proxy.send("POST", path, body, headers=key_header("some"))).error

    return ask


async def by_socket(proxy: Proxy, model: str, image: str) -> Error:
    async with proxy.session.ws_connect(proxy.url + "/v1/responses", headers=key_header("some")) as socket:
        await socket.send_json({"type": "response.create", **with_image(model, image)})
        error: Error = (await socket.receive_json(timeout=PATIENCE))["error"]
        return error


APIS: dict[str, tuple[Ask, str]] = {
    "chat": (by_chat, "messages[0].content[0].image_url.url"),
    "response": (by_post("/v1/responses"), "input[0].content[0].image_url"),
    "background": (by_post("/v1/responses", background=True), "input[0].content[0].image_url"),
    "compact": (by_post("/v1/responses/compact"), "input[0].content[0].image_url"),
    "socket": (by_socket, "input[0].content[0].image_url"),
}


@pytest.mark.parametrize("api", APIS)
async def test_an_image_of_a_host_that_is_not_allowed(proxy: Proxy, api: str) -> None:
    ask, field = APIS[api]
    error = await ask(proxy, "codex-5", ELSEWHERE)
    assert (error["code"], error["param"]) == ("invalid_image_url", field)


@pytest.mark.parametrize("api", APIS)
async def test_a_model_that_is_not_the_key_s(proxy: Proxy, api: str) -> None:
    ask, _ = APIS[api]
    error = await ask(proxy, "gpt-other", ELSEWHERE)
    assert (error["code"], error["param"]) == ("not_allowed", "model")
