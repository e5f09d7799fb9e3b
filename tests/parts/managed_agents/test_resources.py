"""Uploaded files in sessions of the Managed Agents API: in the content of events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests import pdfs
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.files.sending import ANTHROPIC, uploaded
from tests.parts.managed_agents.following import IDLE, ManagedClient, result, said
from tests.pictures import PIXEL, PNG

WORDS = "What the file says."
ECHO = {"type": "text", "text": "[[fake:echo]]"}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> ManagedClient:
    return ManagedClient(proxy)


def naming(id: str, kind: str = "document", **more: Any) -> dict[str, Any]:
    """A content block that names a file."""
    return {"type": kind, "source": {"type": "file", "file_id": id}, **more}


def message_of(*blocks: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": [ECHO, *blocks]}


# --- files in events ------------------------------------------------------------------------------


async def test_a_text_file_in_a_message_is_read(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode(), filename="a.txt")
    told = await client.turn(await client.new_session(), message_of(naming(file)))
    assert told[0]["content"][1] == {"type": "text", "text": f"a.txt\n\n{WORDS}"}
    assert WORDS in said(told)[0]


async def test_a_picture_in_a_message_is_shown(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=PNG, filename="a.png", media_type="image/png")
    told = await client.turn(await client.new_session(), message_of(naming(file, "image")))
    source = told[0]["content"][1]["source"]
    assert (source["type"], f"data:{source['media_type']};base64,{source['data']}") == ("base64", PIXEL)
    assert '"images":1' in said(told)[0]


async def test_initial_events_may_name_a_file(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode())
    id = await client.new_session(initial_events=[message_of(naming(file, title="Said"))])
    assert (await client.events(id))[0]["content"][1]["text"] == f"Said\n\n{WORDS}"


async def test_the_result_of_a_custom_tool_may_name_a_file(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode(), filename="a.txt")
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(
            id, {"type": "user.message", "content": [{"type": "text", "text": "[[fake:tool_call]]"}]}
        )
        waits = await stream.until(IDLE)
        [use] = waits["stop_reason"]["event_ids"]
        [sent] = await client.send(id, result(use) | {"content": [naming(file)]})
        assert sent["content"] == [{"type": "text", "text": f"a.txt\n\n{WORDS}"}]
        await client.until_rest(id, stream)


async def test_a_pdf_in_a_message_is_refused(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=pdfs.pdf(WORDS), media_type="application/pdf")
    id = await client.new_session()
    words = await client.refused(400, f"/sessions/{id}/events", {"events": [message_of(naming(file))]})
    assert words.startswith("events[0].content[1].source: sessions take images")


async def test_a_file_of_another_key_is_unknown_in_a_message(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        file = await uploaded(proxy, {"anthropic-version": "2023-06-01", **key_header("one")})
        two = ManagedClient(proxy)
        two.headers = {**two.headers, **key_header("two")}
        id = await two.new_session()
        for kind in ("document", "image"):
            body = {"events": [message_of(naming(file, kind))]}
            words = await two.refused(404, f"/sessions/{id}/events", body)
            assert words.startswith(f"events[0].content[1].source.file_id: No file '{file}'")
