"""The field whose schema a model server has to compile is named by each API's own name."""

from __future__ import annotations

import msgspec
import pytest

from codex_proxy.admission.admit import _schema_field
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import ForwardedRequest, Turn
from codex_proxy.surfaces.chat import parse as chat
from codex_proxy.surfaces.messages import parse as messages
from codex_proxy.surfaces.requests.options import FieldNames
from codex_proxy.surfaces.responses import parse as responses

SCHEMA = msgspec.Raw(b'{"type":"object"}')
TOOLS = (Tool("a", parameters=SCHEMA), Tool("b", parameters=SCHEMA, strict=True))
FORMAT = msgspec.Raw(b'{"type":"json_schema","json_schema":{"name":"a","schema":{}}}')


def turn(**fields: object) -> Turn:
    return Turn(**{"model": "m", "history": (), **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "answer", "tool"),
    [
        (chat.FIELDS, "response_format.json_schema.schema", "tools[1].function.parameters"),
        (messages.FIELDS, "output_config.format.schema", "tools[1].input_schema"),
        (responses.FIELDS, "text.format.schema", "tools[1].parameters"),
    ],
    ids=["chat", "messages", "responses"],
)
def test_the_schema_of_the_answer_goes_before_that_of_a_strict_tool(
    fields: FieldNames, answer: str, tool: str
) -> None:
    assert _schema_field(turn(output_schema=SCHEMA, tools=TOOLS), fields) == answer
    assert _schema_field(turn(tools=TOOLS), fields) == tool
    assert _schema_field(turn(tools=TOOLS[:1]), fields) == ""


def test_the_schema_of_a_request_that_is_passed_on_is_named_too() -> None:
    def forwarded(**fields: msgspec.Raw) -> Turn:
        request = ForwardedRequest(fields=fields, stream=False, include_usage=False, model_asked="m")
        return turn(forwarded=request)

    assert (
        _schema_field(forwarded(response_format=FORMAT), chat.FIELDS) == "response_format.json_schema.schema"
    )
    assert _schema_field(forwarded(response_format=msgspec.Raw(b'{"type":"text"}')), chat.FIELDS) == ""
