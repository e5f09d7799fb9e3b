"""Images that clients send as data: whatever the agent would leave out is refused, and the rest reaches the model."""

from __future__ import annotations

import base64
import urllib.parse
from typing import Any

import pytest
from openai import BadRequestError

from codex_proxy.core.media import MAX_PIXEL_BYTES
from tests.pictures import GIF, JPEG, LOSSY_WEBP, PICTURES, PNG, WEBP, png_of, url_of
from tests.real.codex_home import MODEL
from tests.real.model_scenarios import items_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, chat_request

BOTH_MODES = pytest.mark.parametrize("system", [None, "Be brief."], ids=["agent", "plain model"])
TEXT = base64.b64encode(PNG).decode()
LINES = base64.encodebytes(PNG).decode()
NO_IMAGES = {
    "broken base64": "data:image/png;base64,iVBORw0KGgo*",
    "torn png": url_of(PNG[:-12]),
    "torn jpeg": url_of(JPEG[:-2], "image/jpeg"),
    "torn gif": url_of(GIF[:-6], "image/gif"),
    "torn webp": url_of(WEBP[:-2], "image/webp"),
    "svg": url_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
    "bmp": url_of(b"BM" + bytes(60), "image/bmp"),
    "too many pixels": url_of(png_of(60000, MAX_PIXEL_BYTES // 60000 + 1, PNG[41:-16])),
}


def request_with_image(url: str, system: str | None) -> dict[str, Any]:
    """A chat request with this image."""
    request = chat_request("", system=system)
    part = {"type": "image_url", "image_url": {"url": url}}
    request["messages"][-1]["content"] = [{"type": "text", "text": "[[model:text say=Seen.]]"}, part]
    return request


def images_in_last_call(model_server: ModelServer) -> list[str]:
    """The images of the last call of the model."""
    parts = []
    for item in items_of(model_server.calls[-1].body):
        for content in (item.get("content"), item.get("output")):
            parts += content if isinstance(content, list) else []
    return [part["image_url"] for part in parts if part["type"] == "input_image"]


@pytest.mark.exhaustive
@BOTH_MODES
@pytest.mark.parametrize("data", [*PICTURES.values(), LOSSY_WEBP], ids=[*PICTURES, "lossy webp"])
async def test_every_format_that_is_taken_reaches_the_model(
    model_server: ModelServer, proxy: Proxy, system: str | None, data: bytes
) -> None:
    await proxy.client.chat.completions.create(**request_with_image(url_of(data, "image/jpg"), system))
    [url] = images_in_last_call(model_server)
    assert url.startswith("data:image/")


@BOTH_MODES
@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{LINES}",
        f"data:;base64,{base64.urlsafe_b64encode(PNG).decode().rstrip('=')}",
        f"data:image/png;base64,{urllib.parse.quote(TEXT, safe='')}",
    ],
    ids=["lines", "url-safe", "percent"],
)
async def test_base64_of_another_kind_reaches_the_model_as_the_usual_one(
    model_server: ModelServer, proxy: Proxy, system: str | None, url: str
) -> None:
    await proxy.client.chat.completions.create(**request_with_image(url, system))
    assert images_in_last_call(model_server) == [url_of(PNG)]


@BOTH_MODES
@pytest.mark.parametrize("name", NO_IMAGES)
async def test_what_the_agent_would_leave_out_is_400_that_names_the_part(
    model_server: ModelServer, proxy: Proxy, system: str | None, name: str
) -> None:
    request = request_with_image(NO_IMAGES[name], system)
    with pytest.raises(BadRequestError) as chat:
        await proxy.client.chat.completions.create(**request)
    last = len(request["messages"]) - 1
    assert chat.value.param == f"messages[{last}].content[1].image_url.url"
    parts: Any = [{"type": "input_text", "text": "?"}, {"type": "input_image", "image_url": NO_IMAGES[name]}]
    with pytest.raises(BadRequestError) as response:
        await proxy.client.responses.create(
            model=MODEL, input=[{"role": "user", "content": parts}], instructions=system
        )
    assert response.value.param == "input[0].content[1].image_url"
    assert model_server.calls == []


async def test_an_image_in_the_output_of_a_tool_is_held_to_the_same(
    model_server: ModelServer, proxy: Proxy
) -> None:
    def answered(url: str) -> list[Any]:
        call = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}
        output = [{"type": "input_image", "image_url": url}]
        return [
            {"role": "user", "content": "[[model:text say=Seen.]]"},
            call,
            {"type": "function_call_output", "call_id": "call_1", "output": output},
        ]

    tool: Any = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": False}
    with pytest.raises(BadRequestError) as refused:
        await proxy.client.responses.create(model=MODEL, input=answered(url_of(PNG[:-12])), tools=[tool])
    assert refused.value.param == "input[2].output[0].image_url"
    assert model_server.calls == []
    await proxy.client.responses.create(
        model=MODEL, input=answered(f"data:image/jpeg;base64,{LINES}"), tools=[tool]
    )
    assert images_in_last_call(model_server) == [url_of(PNG)]
