"""Images that a client names by their address: fetched for the model where the operator allows it, else refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from openai import BadRequestError

from tests.real.codex_home import MODEL, CodexHome
from tests.real.model_scenarios import items_of
from tests.real.model_server import ModelServer
from tests.real.proxy import proxy as serving
from tests.real.shared import living_on
from tests.real.test_sdk_answers import PNG
from tests.web_application import serve_application


@living_on()
async def address() -> AsyncIterator[str]:
    """Where an image is to be had."""

    async def image(_: web.Request) -> web.Response:
        return web.Response(body=base64.b64decode(PNG), content_type="image/png")

    app = web.Application()
    app.router.add_get("/dot.png", image)
    async with serve_application(app) as port:
        yield f"http://127.0.0.1:{port}"


def images(model_server: ModelServer) -> list[str]:
    """The images that the model was shown."""
    items = [item for item in items_of(model_server.calls[0].body) if item.get("role") == "user"]
    return [part["image_url"] for item in items for part in item["content"] if part["type"] == "input_image"]


def chat_message(url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    return {"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}


def response_item(url: str) -> dict[str, Any]:
    parts = [{"type": "input_text", "text": "What is it?"}, {"type": "input_image", "image_url": url}]
    return {"role": "user", "content": parts}


@pytest.mark.exhaustive
async def test_an_image_from_an_allowed_host_reaches_the_model_as_data(
    codex_home: CodexHome, model_server: ModelServer, address: str
) -> None:
    async with serving(codex_home, image_fetch=address) as proxy:
        message: Any = chat_message(f"{address}/dot.png")
        await proxy.client.chat.completions.create(model=MODEL, messages=[message])
    assert images(model_server) == [f"data:image/png;base64,{PNG}"]


@pytest.mark.exhaustive
async def test_an_image_in_a_response_is_fetched_too(
    codex_home: CodexHome, model_server: ModelServer, address: str
) -> None:
    async with serving(codex_home, image_fetch=address) as proxy:
        item: Any = response_item(f"{address}/dot.png")
        await proxy.client.responses.create(model=MODEL, input=[item])
    assert images(model_server) == [f"data:image/png;base64,{PNG}"]


@pytest.mark.exhaustive
async def test_without_leave_an_image_by_address_is_400_that_names_the_setting(
    codex_home: CodexHome, model_server: ModelServer, address: str
) -> None:
    async with serving(codex_home) as proxy:
        message: Any = chat_message(f"{address}/dot.png")
        with pytest.raises(BadRequestError, match="PROXY_IMAGE_FETCH") as chat:
            await proxy.client.chat.completions.create(model=MODEL, messages=[message])
        item: Any = response_item(f"{address}/dot.png")
        with pytest.raises(BadRequestError, match="PROXY_IMAGE_FETCH") as response:
            await proxy.client.responses.create(model=MODEL, input=[item])
    assert chat.value.param == "messages[0].content[1].image_url.url"
    assert response.value.param == "input[0].content[1].image_url"
    assert model_server.calls == []
