"""PDFs in requests: their text reaches the model wherever a file may stand, and none holds anybody else up."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app import server_parts
from codex_proxy.workers import pdf_reader
from tests import pdfs
from tests.http.serving import Answer, Proxy, fake_proxy, until
from tests.waiting import PATIENCE, poll
from tests.weather_tool import RESPONSES_WEATHER

HELLO = pdfs.pdf("Hello from the file.")
FILE_TEXT = '<file name="a.pdf">\n[page 1 of 1]\nHello from the file.\n</file>'
ENCRYPTED_PDF = pdfs.encrypted_pdf("Hello.", "secret")
ECHO = "[[fake:echo]]"


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as running:
        yield running


def in_chat(data: bytes = HELLO) -> dict[str, Any]:
    return {"type": "file", "file": {"filename": "a.pdf", "file_data": data_of(data)}}


def in_responses(data: bytes = HELLO) -> dict[str, Any]:
    return {"type": "input_file", "filename": "a.pdf", "file_data": data_of(data)}


def data_of(data: bytes) -> str:
    return "data:application/pdf;base64," + base64.b64encode(data).decode()


def chat(*parts: Any) -> dict[str, Any]:
    return {"model": "codex-5", "messages": [{"role": "user", "content": [text("text"), *parts]}]}


def response(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "codex-5", "input": [message(*parts)], **fields}


def message(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": [text("input_text"), *parts]}


def text(kind: str, said: str = ECHO) -> dict[str, Any]:
    return {"type": kind, "text": said}


def model_text(answer: Answer) -> str:
    """All that the agent has got, as it echoes it."""
    assert answer.status == 200, answer.text
    return json.dumps(answer.body)


def doubly_escaped(shown: str) -> str:
    """As it stands in an echo within an answer, both of which are JSON."""
    return json.dumps(json.dumps(shown)[1:-1])[1:-1]


async def test_in_chat_the_model_gets_the_text_with_the_files_name(proxy: Proxy) -> None:
    assert doubly_escaped(FILE_TEXT) in model_text(await proxy.ask(chat(in_chat())))


@pytest.mark.exhaustive
async def test_in_responses_too_and_the_text_is_what_is_kept(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/v1/responses", response(in_responses()))
    assert doubly_escaped(FILE_TEXT) in model_text(answer)
    items = await proxy.send("GET", f"/v1/responses/{answer.body['id']}/input_items")
    assert items.body["data"][0]["content"][1] == {"type": "input_text", "text": FILE_TEXT}


@pytest.mark.exhaustive
async def test_in_the_output_of_a_tool(proxy: Proxy) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    asked = chat()
    asked["messages"] += [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [in_chat()]},
    ]
    asked["tools"] = [{"type": "function", "function": {"name": "get_weather"}}]
    assert doubly_escaped(FILE_TEXT) in model_text(await proxy.ask(asked))
    done = {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "call_1", "output": [in_responses()]}
    body = {"model": "codex-5", "input": [message(), done, output], "tools": [RESPONSES_WEATHER]}
    assert doubly_escaped(FILE_TEXT) in model_text(await proxy.send("POST", "/v1/responses", body))


@pytest.mark.exhaustive
async def test_in_a_context_that_is_counted_or_compacted(proxy: Proxy) -> None:
    few, many = pdfs.pdf("Hello."), pdfs.pdf(*["A page of words. " * 50] * 3)
    counts = [
        (await proxy.send("POST", "/v1/responses/input_tokens", response(in_responses(each)))).body
        for each in (few, many)
    ]
    assert counts[1]["input_tokens"] > counts[0]["input_tokens"] + 300
    compacted = await proxy.send("POST", "/v1/responses/compact", response(in_responses()))
    assert compacted.status == 200


async def test_a_pdf_in_a_conversation_is_stored_and_given_as_text(proxy: Proxy) -> None:
    body = {"items": [{"type": "message", **message(in_responses())}]}
    made = await proxy.send("POST", "/v1/conversations", body)
    added = await proxy.send("POST", f"/v1/conversations/{made.body['id']}/items", body)
    assert added.body["data"][0]["content"][1] == {"type": "input_text", "text": FILE_TEXT}
    answer = await proxy.send("POST", "/v1/responses", response(conversation=made.body["id"]))
    assert model_text(answer).count(doubly_escaped(FILE_TEXT)) == 2


@pytest.mark.exhaustive
async def test_a_pdf_sent_on_a_websocket_is_read_or_refused_by_name(proxy: Proxy) -> None:
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", **response(in_responses())})
        event: dict[str, Any] = {}
        while event.get("type") != "response.completed":
            event = await socket.receive_json(timeout=PATIENCE)
        await socket.send_json({"type": "response.create", **response(in_responses(ENCRYPTED_PDF))})
        refused = await socket.receive_json(timeout=PATIENCE)
    assert doubly_escaped(FILE_TEXT) in json.dumps(event)
    assert (refused["status"], refused["error"]["param"]) == (400, "input[0].content[1].file_data")


@pytest.mark.exhaustive
async def test_in_a_response_in_the_background_that_is_run_again(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    held = text("input_text", '[[fake:text say="one two" hold=1]]')
    body = response(background=True, instructions="Be brief.")
    body["input"][0]["content"] = [held, in_responses()]
    async with fake_proxy(tmp_path, environment, background_recovery="rerun") as proxy:
        created = await proxy.send("POST", "/v1/responses", body)
        await until(lambda: proxy.server.runs.running == 1)
    (tmp_path / "go").write_text("go")
    async with fake_proxy(tmp_path, environment, background_recovery="rerun") as proxy:

        async def wait_for_end() -> Any:
            found = (await proxy.send("GET", f"/v1/responses/{created.body['id']}")).body
            return None if found["status"] in ("queued", "in_progress") else found

        assert (await poll(wait_for_end))["status"] == "completed"


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (ENCRYPTED_PDF, "is encrypted"),
        (HELLO[:400], "is damaged"),
        (pdfs.scan(), "has no text"),
        (pdfs.one_page(bytes(100 << 20), pdfs.HELVETICA), "takes too much memory"),
    ],
    ids=["encrypted", "damaged", "scanned", "a bomb"],
)
async def test_a_pdf_that_cannot_be_read_is_a_400_that_names_the_part(
    proxy: Proxy, data: bytes, why: str
) -> None:
    answers = {
        "messages[0].content[2].file.file_data": await proxy.ask(chat(in_chat(), in_chat(data))),
        "input[0].content[2].file_data": await proxy.send(
            "POST", "/v1/responses", response(in_responses(), in_responses(data), stream=True)
        ),
    }
    for param, answer in answers.items():
        assert (answer.status, answer.error["param"]) == (400, param)
        assert answer.error["code"] == "unsupported_file"
        assert f"the PDF {why}" in answer.error["message"]
    assert proxy.server.runs.running == 0


async def test_any_other_error_of_a_request_is_reported_before_a_pdf_is_read(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await proxy.ask({**chat(in_chat(ENCRYPTED_PDF)), "temperature": 3})
    assert answer.error["param"] == "temperature"
    assert proxy.server.pdfs is not None
    assert proxy.server.pdfs.pool.workers == []


async def test_size_and_number_are_bounded(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codex_proxy.core.media.MAX_PDF_BYTES", 2_000)
    monkeypatch.setattr("codex_proxy.core.media.MAX_PDFS", 2)
    assert (await proxy.ask(chat(*[in_chat()] * 3))).status == 200  # one file, three times
    large = await proxy.ask(chat(in_chat(pdfs.pdf(*"abcdefgh"))))
    assert "is larger than" in large.error["message"]
    several = await proxy.ask(chat(*(in_chat(pdfs.pdf(each)) for each in "abc")))
    assert several.error["param"] == "messages[0].content[3].file.file_data"
    assert "at most 2 PDFs" in several.error["message"]


async def test_others_are_served_while_a_pdf_is_read(proxy: Proxy) -> None:
    slow = asyncio.ensure_future(proxy.ask(chat(in_chat(pdfs.bomb("a million texts")))))
    await until(lambda: proxy.server.pdfs is not None and proxy.server.pdfs.pool.workers)
    answer = await proxy.ask({"model": "codex-5", "messages": [{"role": "user", "content": "Hello."}]})
    assert (answer.status, slow.done()) == (200, False)
    slow.cancel()
    await until(lambda: proxy.server.pdfs is not None and not proxy.server.pdfs.pool.workers)


async def test_a_server_that_stops_waits_for_no_pdf(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy:
        slow = asyncio.ensure_future(proxy.ask(chat(in_chat(pdfs.bomb("a million texts")))))
        await until(lambda: proxy.server.pdfs is not None and proxy.server.pdfs.pool.workers)
        await asyncio.wait_for(proxy.server.stop(), PATIENCE)
        assert (await slow).status == 503


async def test_without_what_reads_them_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_parts, "can_read_pdfs", lambda: False)
    async with fake_proxy(tmp_path) as proxy:
        answers = [
            await proxy.ask(chat(in_chat())),
            await proxy.send("POST", "/v1/responses", response(in_responses())),
        ]
    for answer in answers:
        assert (answer.status, answer.error["code"]) == (400, "unsupported_file")
        assert "pip install 'codex-openai-proxy[pdf]'" in answer.error["message"]


def test_the_reader_is_there_where_its_library_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pdf_reader.can_read_pdfs()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert not pdf_reader.can_read_pdfs()
