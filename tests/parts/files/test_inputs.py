"""Requests that name an uploaded file: the agent gets what it would get of the file itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.http import stored_files
from tests import pdfs
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Answer, Proxy, fake_proxy
from tests.parts.files.sending import ANTHROPIC, OPENAI, uploaded
from tests.pictures import PIXEL, PNG

ECHO = "[[fake:echo]]"
UNKNOWN = "file-" + 32 * "0"
WORDS = "What the file says."
ONE_IMAGE = json.dumps('"images":1')[1:-1]
"""What the echo says of a message with an image, within an answer."""


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as running:
        yield running


def chat(*parts: Any) -> dict[str, Any]:
    return {
        "model": "codex-5",
        "messages": [{"role": "user", "content": [{"type": "text", "text": ECHO}, *parts]}],
    }


def response(*parts: Any, **more: Any) -> dict[str, Any]:
    said = {"type": "input_text", "text": ECHO}
    return {"model": "codex-5", "input": [{"role": "user", "content": [said, *parts]}], **more}


def messages(*parts: Any) -> dict[str, Any]:
    return chat(*parts) | {"max_tokens": 1_000}


def echoed(answer: Answer) -> str:
    """All that the agent has got."""
    assert answer.status == 200, answer.text
    return json.dumps(answer.body)


async def ask(proxy: Proxy, api: str, body: Any, headers: Any = OPENAI) -> Answer:
    return await proxy.send("POST", f"/v1/{api}", body, headers=headers)


async def test_in_every_api_a_text_file_is_read(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode(), filename="a.txt")
    asked = {
        "chat/completions": chat({"type": "file", "file": {"file_id": id}}),
        "responses": response({"type": "input_file", "file_id": id}),
        "messages": messages({"type": "document", "source": {"type": "file", "file_id": id}}),
    }
    for api, body in asked.items():
        got = echoed(await ask(proxy, api, body, ANTHROPIC if api == "messages" else OPENAI))
        assert WORDS in got, api
        assert "a.txt" in got, api


@pytest.mark.parametrize("media_type", ["application/pdf", "application/octet-stream"])
async def test_in_every_api_a_pdf_is_read_as_its_text(proxy: Proxy, media_type: str) -> None:
    id = await uploaded(proxy, ANTHROPIC, data=pdfs.pdf(WORDS), filename="a", media_type=media_type)
    for api, body in {
        "chat/completions": chat({"type": "file", "file": {"file_id": id}}),
        "responses": response({"type": "input_file", "file_id": id}),
        "messages": messages({"type": "document", "source": {"type": "file", "file_id": id}}),
    }.items():
        assert WORDS in echoed(await ask(proxy, api, body, ANTHROPIC if api == "messages" else OPENAI)), api


async def test_a_picture_is_shown_in_responses_and_messages(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=PNG, filename="a.png", media_type="image/png")
    shown = await ask(proxy, "responses", response({"type": "input_image", "file_id": id}))
    assert ONE_IMAGE in echoed(shown)
    items = await proxy.send("GET", f"/v1/responses/{shown.body['id']}/input_items")
    assert items.body["data"][0]["content"][1]["image_url"] == PIXEL
    body = messages({"type": "image", "source": {"type": "file", "file_id": id}})
    assert ONE_IMAGE in echoed(await ask(proxy, "messages", body, ANTHROPIC))


async def test_a_second_source_beside_a_file_is_refused_by_its_name(proxy: Proxy) -> None:
    text = await uploaded(proxy, data=WORDS.encode(), filename="a.txt")
    for api, body, param in (
        (
            "responses",
            response({"type": "input_image", "file_id": text, "image_url": "x"}),
            "input[0].content[1].image_url",
        ),
        (
            "responses",
            response({"type": "input_file", "file_id": text, "file_data": "YQ=="}),
            "input[0].content[1].file_data",
        ),
        (
            "chat/completions",
            chat({"type": "file", "file": {"file_id": text, "file_data": "YQ=="}}),
            "messages[0].content[1].file.file_data",
        ),
    ):
        answer = await ask(proxy, api, body)
        assert (answer.status, answer.error["param"]) == (400, param), answer.text


async def test_a_file_of_the_wrong_kind_is_refused_by_the_field_that_was_sent(proxy: Proxy) -> None:
    text = await uploaded(proxy, data=WORDS.encode(), filename="a.txt")
    noise = await uploaded(proxy, data=b"\0\xff", filename="a.bin")
    for api, body, param in (
        ("responses", response({"type": "input_image", "file_id": text}), "input[0].content[1].file_id"),
        ("responses", response({"type": "input_file", "file_id": noise}), "input[0].content[1].file_id"),
        (
            "chat/completions",
            chat({"type": "file", "file": {"file_id": noise}}),
            "messages[0].content[1].file.file_id",
        ),
    ):
        answer = await ask(proxy, api, body)
        assert (answer.status, answer.error["param"]) == (400, param), answer.text


async def test_in_every_api_an_empty_text_file_is_read(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=b"", filename="empty.txt")
    asked = {
        "chat/completions": chat({"type": "file", "file": {"file_id": id}}),
        "responses": response({"type": "input_file", "file_id": id}),
        "messages": messages({"type": "document", "source": {"type": "file", "file_id": id}}),
    }
    for api, body in asked.items():
        assert "empty.txt" in echoed(await ask(proxy, api, body, ANTHROPIC if api == "messages" else OPENAI))


async def test_a_file_in_the_result_of_a_tool_is_read(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode())
    document = {"type": "document", "source": {"type": "file", "file_id": id}}
    body = messages()
    body["messages"] += [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [document]}],
        },
    ]
    body["tools"] = [{"name": "read", "input_schema": {"type": "object"}}]
    assert WORDS in echoed(await ask(proxy, "messages", body, ANTHROPIC))


async def test_what_looks_like_a_file_in_the_arguments_of_a_call_stays_as_it_is(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode())
    given = {"content": {"type": "document", "source": {"type": "file", "file_id": id}}}
    body = messages()
    body["messages"] += [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_1", "name": "read", "input": given}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": ECHO}]},
    ]
    body["tools"] = [{"name": "read", "input_schema": {"type": "object"}}]
    got = echoed(await ask(proxy, "messages", body, ANTHROPIC))
    assert id in got
    assert WORDS not in got


async def test_a_response_keeps_the_content_when_the_file_is_deleted(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode(), filename="a.txt")
    first = await ask(proxy, "responses", response({"type": "input_file", "file_id": id}))
    assert (await proxy.send("DELETE", f"/v1/files/{id}")).status == 200
    items = await proxy.send("GET", f"/v1/responses/{first.body['id']}/input_items")
    assert items.body["data"][0]["content"][1] == {
        "type": "input_text",
        "text": f'<file name="a.txt">\n{WORDS}\n</file>',
    }
    more = response(previous_response_id=first.body["id"])
    assert WORDS in echoed(await ask(proxy, "responses", more))


async def test_items_of_a_conversation_may_name_a_file(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode())
    item = response({"type": "input_file", "file_id": id})["input"][0]
    made = await ask(proxy, "conversations", {"items": [item]})
    assert made.status == 200, made.text
    listed = await proxy.send("GET", f"/v1/conversations/{made.body['id']}/items")
    assert WORDS in listed.text


async def test_a_turn_on_a_websocket_may_name_a_file(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=WORDS.encode())
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:
        await socket.send_json(response({"type": "input_file", "file_id": id}) | {"type": "response.create"})
        text = ""
        async for frame in socket:
            text += frame.data
            if frame.json()["type"] in ("response.completed", "response.failed", "error"):
                break
    assert WORDS in text


@pytest.mark.parametrize(
    ("api", "part", "param", "status"),
    [
        (
            "chat/completions",
            {"type": "file", "file": {"file_id": UNKNOWN}},
            "messages[0].content[1].file.file_id",
            400,
        ),
        ("responses", {"type": "input_file", "file_id": UNKNOWN}, "input[0].content[1].file_id", 400),
        ("responses", {"type": "input_image", "file_id": UNKNOWN}, "input[0].content[1].file_id", 400),
        ("messages", {"type": "document", "source": {"type": "file", "file_id": UNKNOWN}}, "", 404),
        ("messages", {"type": "image", "source": {"type": "file", "file_id": UNKNOWN}}, "", 404),
    ],
)
async def test_an_unknown_file_is_the_apis_own_error(
    proxy: Proxy, api: str, part: Any, param: str, status: int
) -> None:
    body = messages(part) if api == "messages" else response(part) if api == "responses" else chat(part)
    answer = await ask(proxy, api, body, ANTHROPIC if api == "messages" else OPENAI)
    assert answer.status == status, answer.text
    assert UNKNOWN in answer.error["message"]
    if api == "messages":
        assert answer.error["type"] == "not_found_error"
    else:
        assert answer.error["param"] == param


@pytest.mark.parametrize("kind", ["document", "image"])
async def test_tokens_of_an_unknown_file_are_not_counted(proxy: Proxy, kind: str) -> None:
    part = {"type": kind, "source": {"type": "file", "file_id": UNKNOWN}}
    in_result = messages()
    in_result["messages"] += [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "x", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [part]}]},
    ]
    in_result["tools"] = [{"name": "x", "input_schema": {"type": "object"}}]
    for body in (messages(part), in_result):
        sent = await ask(proxy, "messages", body, ANTHROPIC)
        counted = await ask(proxy, "messages/count_tokens", body, ANTHROPIC)
        assert (counted.status, counted.error) == (404, sent.error), counted.text
    earlier = messages(part)
    earlier["messages"] += [{"role": "assistant", "content": "Ah."}, {"role": "user", "content": ECHO}]
    assert (await ask(proxy, "messages/count_tokens", earlier, ANTHROPIC)).status == 200


async def test_a_file_that_is_gone_from_an_earlier_message_is_left_out(proxy: Proxy) -> None:
    body = messages({"type": "document", "source": {"type": "file", "file_id": UNKNOWN}})
    body["messages"] += [{"role": "assistant", "content": "Ah."}, {"role": "user", "content": ECHO}]
    assert "this model cannot read it" in echoed(await ask(proxy, "messages", body, ANTHROPIC))


async def test_another_keys_file_is_as_unknown_as_none(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        id = await uploaded(proxy, key_header("one"), data=WORDS.encode())
        body = response({"type": "input_file", "file_id": id})
        answer = await ask(proxy, "responses", body, key_header("two"))
        assert answer.status == 400
        assert WORDS not in answer.text
        assert answer.error["message"].replace(id, "X") == (
            await ask(
                proxy, "responses", response({"type": "input_file", "file_id": UNKNOWN}), key_header("two")
            )
        ).error["message"].replace(UNKNOWN, "X")


async def test_a_request_names_a_limited_number_of_files(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_files, "MAX_FILES", 2)
    ids = [await uploaded(proxy) for _ in range(3)]
    parts = [{"type": "input_file", "file_id": id} for id in ids]
    assert (await ask(proxy, "responses", response(*parts[:2], *parts[:2]))).status == 200
    answer = await ask(proxy, "responses", response(*parts))
    assert (answer.status, "names 3 files" in answer.error["message"]) == (413, True)


async def test_with_its_files_a_request_has_the_limit_of_a_body(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, body_limit=20_000) as proxy:
        large = await uploaded(proxy, data=b"a" * 16_000)
        small = await uploaded(proxy, data=b"a" * 4_000)
        for ids in ([large], [small] * 4):
            body = response(*({"type": "input_file", "file_id": id} for id in ids))
            answer = await ask(proxy, "responses", body)
            assert answer.status == 413, answer.text
            assert "PROXY_BODY_LIMIT" in answer.error["message"]
        body = response(*({"type": "input_file", "file_id": small} for _ in range(2)))
        assert (await ask(proxy, "responses", body)).status == 200
