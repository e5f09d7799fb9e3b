"""The official SDK reads our bytes off the wire: whole, as a stream, and through its helpers."""

from __future__ import annotations

from collections.abc import Sequence

import httpx2
import openai
import pytest
from pydantic import BaseModel

from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.surfaces.responses.events import socket_error
from tests.surfaces.chat.turns import (
    activity,
    approval,
    failed_turn,
    gave,
    open_call,
    reasoning_item,
    text_item,
    tool_call,
    tool_list,
    turn,
    usage,
)
from tests.surfaces.responses.answering import renderer

TALK = turn(
    reasoning_item("Hm."),
    activity("ls"),
    text_item("Hel", "lo!"),
    tool_call('{"city":', '"Nashville"}'),
    usage(),
)


class Person(BaseModel):
    name: str


def client(events: Sequence[Event], *, stream: bool) -> openai.OpenAI:
    """A client of a server that gives this one answer."""
    answer = renderer(stream=stream)
    body = answer.feed(events) or answer.result()
    kind = "text/event-stream" if stream else "application/json"

    def give(_: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"content-type": kind})

    transport = httpx2.MockTransport(give)
    return openai.OpenAI(
        api_key="x", base_url="http://localhost/v1", http_client=httpx2.Client(transport=transport)
    )


def test_openais_sdk_reads_a_whole_answer() -> None:
    response = client(TALK, stream=False).responses.create(model="codex-5", input="hi")
    assert (response.output_text, response.status) == ("Hello!", "completed")
    assert response.usage is not None
    assert response.usage.total_tokens == 18


def test_openais_sdk_reads_a_stream_to_its_last_event() -> None:
    with client(TALK, stream=True).responses.create(model="codex-5", input="hi", stream=True) as stream:
        events = list(stream)
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello!"
    assert events[-1].type == "response.completed"


def test_the_stream_helper_comes_to_the_same_response() -> None:
    with client(TALK, stream=True).responses.stream(model="codex-5", input="hi") as stream:
        snapshots = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    whole = client(TALK, stream=False).responses.create(model="codex-5", input="hi")
    assert snapshots == ["Hel", "Hello!"]
    assert [item.type for item in final.output] == ["reasoning", "reasoning", "message", "function_call"]
    assert final.output_text == whole.output_text
    assert final.usage == whole.usage


def test_the_stream_helper_takes_the_items_of_mcp_servers() -> None:
    events = turn(tool_list(), open_call(), gave("hi"), open_call("b"), gave("no", "b", "failed"), approval())
    with client(events, stream=True).responses.stream(model="codex-5", input="hi") as stream:
        names = [event.type for event in stream]
        final = stream.get_final_response()
    assert names.count("response.mcp_call.completed") == names.count("response.mcp_call.failed") == 1
    tools, call, failed_call, request = final.output
    assert tools.type == "mcp_list_tools"
    assert [tool.name for tool in tools.tools] == ["read"]
    assert call.type == failed_call.type == "mcp_call"
    assert (call.output, call.error) == ("hi", None)
    assert failed_call.error is not None
    assert failed_call.error.type == "mcp_tool_execution_error"
    assert request.type == "mcp_approval_request"
    assert request.arguments == '{"path":"x"}'


def test_structured_output_is_parsed() -> None:
    events = turn(text_item('{"name":', ' "Ada"}'))
    response = client(events, stream=False).responses.parse(model="codex-5", input="hi", text_format=Person)
    assert response.output_parsed == Person(name="Ada")


def test_a_failure_in_a_stream_is_an_error_of_the_sdk() -> None:
    with (
        client(failed_turn(text_item("x")), stream=True).responses.create(
            model="codex-5", input="hi", stream=True
        ) as stream,
        pytest.raises(openai.APIError, match="The agent took too long"),
    ):
        list(stream)


def test_a_cut_stream_ends_incomplete() -> None:
    events = turn(text_item("x"), stop="length")
    with client(events, stream=True).responses.stream(model="codex-5", input="hi") as stream:
        last = list(stream)[-1]
    assert last.type == "response.incomplete"


def test_an_error_of_a_websocket_has_its_status() -> None:
    error = socket_error(Failure(kind=FaultKind.NOT_FOUND, message="It is not there."))
    assert error == (
        b'{"type":"error","status":404,"error":{"message":"It is not there.","type":"not_found_error",'
        b'"param":null,"code":"not_found"}}'
    )
