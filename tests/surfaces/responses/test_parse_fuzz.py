"""Whatever comes in: a request that is understood, or a `Fault`, and never another exception."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.surfaces.errors import error_body
from codex_proxy.surfaces.responses.conversations import parse_create, parse_items, parse_update
from codex_proxy.surfaces.responses.history import history_of
from codex_proxy.surfaces.responses.parse import turn_of
from codex_proxy.surfaces.responses.wire import ResponseRequest
from tests.surfaces.responses.answering import renderer
from tests.surfaces.responses.asking import ask_bytes
from tests.surfaces.responses.test_history import EVERY_KIND
from tests.surfaces.responses.test_parse import TOOLS

SCALARS: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, 0, -1, 1.5, 10**30, "", "x", "auto", "message", "function", "conv_1", "call_1", [], {}]
)
VALUES = st.recursive(
    SCALARS | st.sampled_from([*EVERY_KIND, *TOOLS]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "id", "call_id", "name", "output", "text", "format"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.sampled_from(list(ResponseRequest.model_fields)), VALUES, max_size=6)
LIKELY = {"model": "codex-5", "input": "hello"}


def understood_or_refused(body: bytes) -> None:
    """Any other exception fails the test; what was understood can be shown."""
    try:
        parsed = ask_bytes(body)
        turn_of(parsed, history_of(parsed.input_items))
    except Fault as raised:
        fault = raised
    else:
        renderer(echo=parsed.echo, stream=True).open()
        return
    json.loads(error_body(fault.failure, "responses"))
    assert fault.failure.kind in (FaultKind.INVALID_REQUEST, FaultKind.MODEL_NOT_FOUND)


@settings(deadline=None)
@given(REQUESTS)
def test_any_fields_are_understood_or_refused(fields: dict[str, Any]) -> None:
    understood_or_refused(json.dumps({**LIKELY, **fields}).encode())


@settings(deadline=None)
@given(st.lists(st.sampled_from(EVERY_KIND), max_size=6), st.data())
def test_any_order_of_any_items_is_understood_or_refused(items: list[Any], data: st.DataObject) -> None:
    changed = [
        {**item, **data.draw(st.dictionaries(st.sampled_from(list(item)), VALUES, max_size=1))}
        for item in items
    ]
    understood_or_refused(json.dumps({**LIKELY, "input": changed}).encode())


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_refused_with_grace(body: bytes) -> None:
    with pytest.raises(Fault):
        ask_bytes(body)


@settings(deadline=None)
@given(
    st.sampled_from([parse_create, parse_update, parse_items]),
    st.dictionaries(st.sampled_from(["metadata", "items"]), VALUES | st.lists(st.sampled_from(EVERY_KIND))),
)
def test_any_body_about_conversations_is_understood_or_refused(
    parse: Callable[[bytes], object], fields: dict[str, Any]
) -> None:
    with contextlib.suppress(Fault):
        parse(json.dumps(fields).encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"codex-5","input":"hi","temperature":NaN}',
        b'{"model":"codex-5","input":"hi","temperature":1e999}',
        b'{"model":"codex-5","input":"\\ud800"}',
        b'{"model":"codex-5","input":"\xff"}',
        b'{"model":"codex-5","input":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"model":"codex-5","input":"hi","tools":[{"type":"function","name":"a","parameters":'
        + b'{"a":' * 200
        + b"1"
        + b"}" * 200
        + b"}]}",
        b"[]",
        b"",
        b'{"model":"codex-5","input":"hi"',
    ],
)
def test_bodies_that_break_parsers_are_a_400(body: bytes) -> None:
    with pytest.raises(Fault) as raised:
        ask_bytes(body)
    assert raised.value.failure.kind is FaultKind.INVALID_REQUEST
