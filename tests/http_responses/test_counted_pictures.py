"""A picture counts in an input, by its size, on every agent and on both APIs that count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.model_server import proxy_before, upstream
from tests.pictures import JPEG, png_of, url_of

PATH = "/v1/responses/input_tokens"
PICTURES = {
    "small": url_of(png_of()),
    "jpeg": url_of(JPEG, "image/jpeg"),
    "large": url_of(png_of(2048, 2048)),
}
TEXT = {"type": "input_text", "text": "What is this?"}
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}


def message(*urls: str) -> dict[str, Any]:
    return {"role": "user", "content": [TEXT, *({"type": "input_image", "image_url": url} for url in urls)]}


def output(*urls: str) -> dict[str, Any]:
    parts = [TEXT, *({"type": "input_image", "image_url": url} for url in urls)]
    return {"type": "function_call_output", "call_id": "c", "output": parts}


async def counted(proxy: Proxy, *items: dict[str, Any], **more: Any) -> int:
    answer = await proxy.send("POST", PATH, {"model": "codex-5", "input": [*items], **more})
    assert answer.status == 200, answer.text
    tokens: int = answer.body["input_tokens"]
    return tokens


async def counted_by_messages(proxy: Proxy, url: str) -> int:
    """What `count_tokens` adds for a picture."""
    head, _, data = url.partition(";base64,")
    source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
    found = []
    for blocks in ([], [{"type": "image", "source": source}]):
        content = [{"type": "text", "text": "What is this?"}, *blocks]
        body = {"model": "codex-5", "messages": [{"role": "user", "content": content}]}
        answer = await proxy.send("POST", "/v1/messages/count_tokens", body)
        found.append(answer.body["input_tokens"])
    without, with_it = found
    return int(with_it - without)


async def check(proxy: Proxy) -> None:
    without = await counted(proxy, message())
    for name, url in PICTURES.items():
        more = await counted(proxy, message(url)) - without
        assert more == pytest.approx(await counted_by_messages(proxy, url), abs=10), name
        assert await counted(proxy, message(url, url)) - without == 2 * more
        assert await counted(proxy, CALL, output(url)) - await counted(proxy, CALL, output()) == more
    assert (
        await counted(proxy, message(PICTURES["large"]))
        > await counted(proxy, message(PICTURES["small"])) + 500
    )


@pytest.mark.parametrize("agent", ["proto", "app-server", "acp"])
async def test_a_picture_counts_by_its_size(tmp_path: Path, agent: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=agent) as proxy:
        await check(proxy)


@pytest.mark.part("claude_code")
async def test_a_picture_counts_for_claude_code(tmp_path: Path) -> None:
    async with claude_proxy(tmp_path) as proxy:
        await check(proxy)


@pytest.mark.parametrize("agent", ["openai-chat", "openai-responses"])
async def test_a_picture_counts_before_an_upstream(tmp_path: Path, agent: str) -> None:
    async with upstream() as served, proxy_before(served.url, tmp_path, agent=agent) as proxy:
        await check(proxy)


async def test_a_picture_in_an_earlier_response_counts_too(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        found = []
        for urls in ((), (PICTURES["large"],)):
            body = {"model": "codex-5", "input": [message(*urls)]}
            first = await proxy.send("POST", "/v1/responses", body)
            found.append(await counted(proxy, message(), previous_response_id=first.body["id"]))
        without, with_it = found
        assert with_it > without + 500


async def test_a_picture_counts_in_an_estimated_usage(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        found = []
        for urls in ((), (PICTURES["large"],)):
            text = {"type": "text", "text": "[[fake:usage_missing]]"}
            content = [text, *({"type": "image_url", "image_url": {"url": url}} for url in urls)]
            answer = await proxy.ask({"model": "codex-5", "messages": [{"role": "user", "content": content}]})
            assert answer.body["usage"]["estimated"] is True
            found.append(answer.body["usage"]["prompt_tokens"])
        without, with_it = found
        assert with_it > without + 500
