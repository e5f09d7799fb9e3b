"""Files of text reach the model as text with their names, in both APIs; the others are refused by their field."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart
from tests.pictures import PNG
from tests.surfaces.chat import asking as chat
from tests.surfaces.responses import asking as responses

NOTES = "# Notes\nÄ first line.\n"
FILE_TEXT = f'<file name="notes.md">\n{NOTES}\n</file>'


def data_url(data: bytes) -> str:
    return base64.b64encode(data).decode()


def in_chat(**file: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "Read."}, {"type": "file", "file": file}]}


def in_responses(**file: Any) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "input_text", "text": "Read."}, {"type": "input_file", **file}],
    }


def histories(**file: Any) -> list[tuple[HistoryItem, ...]]:
    return [chat.ask(messages=[in_chat(**file)]).turn.history, responses.history(in_responses(**file))]


def refusals(**file: Any) -> list[tuple[str | None, str | None, str]]:
    faults = chat.refusal_of(messages=[in_chat(**file)]), responses.refusal_of(input=[in_responses(**file)])
    return [(fault.param, fault.code, fault.message) for fault in faults]


@pytest.mark.parametrize(
    "data",
    [
        data_url(NOTES.encode()),
        "data:text/markdown;base64," + data_url(NOTES.encode()),
        "data:application/octet-stream;base64," + base64.encodebytes(NOTES.encode()).decode(),
        base64.urlsafe_b64encode(NOTES.encode()).decode().rstrip("="),
        data_url(b"\xef\xbb\xbf" + NOTES.encode()),
        data_url(NOTES.encode("utf-16")),
    ],
    ids=["base64", "data url", "lines", "url-safe", "utf-8 with mark", "utf-16"],
)
def test_a_file_of_text_reaches_the_model_as_text_with_its_name(data: str) -> None:
    for history in histories(file_data=data, filename="notes.md"):
        assert history == (HistoryMessage("user", (TextPart("Read."), TextPart(FILE_TEXT))),)


@pytest.mark.parametrize(
    ("name", "shown"), [(None, "file"), ("", "file"), ('a"><b\n.md', "a___b_.md"), ("x" * 300, "x" * 200)]
)
def test_a_name_is_never_more_than_a_name(name: str | None, shown: str) -> None:
    for history in histories(file_data=data_url(b"a"), filename=name):
        assert history == (
            HistoryMessage("user", (TextPart("Read."), TextPart(f'<file name="{shown}">\na\n</file>'))),
        )


def test_a_file_in_the_output_of_a_tool_is_text_too() -> None:
    part = {"type": "input_file", "file_data": data_url(NOTES.encode()), "filename": "notes.md"}
    (_, output) = responses.history(responses.call(), responses.output(text=[part]))
    assert isinstance(output, HistoryOutput)
    assert output.parts == (TextPart(FILE_TEXT),)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (PNG, "it is neither a PDF nor text"),
        (b"a\0b", "it is neither a PDF nor text"),
        (b"\xff\xfea", "it is neither a PDF nor text"),
        (b"caf\xe9", "it is neither a PDF nor text"),
        (b"%PDF-1.7\n", "does not read PDFs"),
        (b"\xff\n%PDF-1.7\n", "does not read PDFs"),
    ],
)
def test_a_file_that_is_no_text_is_refused_and_the_field_named(data: bytes, why: str) -> None:
    chats, response = refusals(file_data=data_url(data), filename="a.pdf")
    assert chats[:2] == ("messages[0].content[1].file.file_data", "unsupported_file")
    assert response[:2] == ("input[0].content[1].file_data", "unsupported_file")
    assert why in chats[2]
    assert why in response[2]


@pytest.mark.parametrize(
    ("file", "field", "word"),
    [
        ({"file_id": "file-1"}, "file_id", "POST /v1/files"),
        ({"file_data": "no base64!"}, "file_data", "not valid base64"),
        ({"file_data": "data:text/plain,hello"}, "file_data", "not valid base64"),
        ({}, "file_data", "must be given"),
    ],
)
def test_a_file_that_is_not_there_is_refused_by_its_field(
    file: dict[str, Any], field: str, word: str
) -> None:
    chats, response = refusals(**file)
    assert (chats[0], response[0]) == (f"messages[0].content[1].file.{field}", f"input[0].content[1].{field}")
    assert word in chats[2]
    assert word in response[2]


def test_a_file_by_address_is_refused() -> None:
    failure = responses.refusal_of(input=[in_responses(file_url="https://example.com/a.txt")])
    assert failure.param == "input[0].content[1].file_url"


def test_the_assistant_has_no_files() -> None:
    part = {"type": "input_file", "file_data": data_url(b"a")}
    assert (
        responses.refusal_of(input=[{"role": "assistant", "content": [part]}]).param == "input[0].content[0]"
    )
