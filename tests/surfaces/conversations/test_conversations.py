"""Conversations in the words of docs/contract.md#conversations and the shapes of the SDK."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.conversations import (
    Conversation,
    ConversationDeletedResource,
    ConversationItem,
)
from pydantic import TypeAdapter

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.surfaces.errors import status_of
from codex_proxy.surfaces.responses import conversations as objects
from codex_proxy.surfaces.responses.conversations import parse_create, parse_items, parse_update
from codex_proxy.surfaces.responses.items import references_of, with_ids
from tests.surfaces.responses.answering import CountedIds
from tests.surfaces.responses.test_history import EVERY_KIND

HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def refusal_of(parse: Any, **fields: Any) -> Failure:
    with pytest.raises(Fault) as raised:
        parse(body(**fields))
    assert raised.value.failure.kind is FaultKind.INVALID_REQUEST
    return raised.value.failure


# --- bodies ---------------------------------------------------------------------------------------


def test_a_conversation_begins_with_metadata_and_items() -> None:
    new, _ = parse_create(body(metadata={"project": "support", "gone": None}, items=[HELLO]))
    assert new.metadata == {"project": "support"}
    assert new.items == ({**HELLO, "status": "completed"},)


@pytest.mark.parametrize("empty", [b"", b"{}", b'{"metadata": null, "items": null}'])
def test_a_conversation_may_begin_with_nothing(empty: bytes) -> None:
    new, _ = parse_create(empty)
    assert (new.metadata, new.items) == ({}, ())


def test_an_update_keeps_its_nulls_which_delete_keys() -> None:
    changes, _ = parse_update(body(metadata={"status": "resolved", "project": None}))
    assert changes == {"status": "resolved", "project": None}


def test_every_kind_of_item_can_be_added_by_value_or_by_reference() -> None:
    items, _ = parse_items(
        body(items=[*EVERY_KIND, {"type": "item_reference", "id": "msg_1"}, {"id": "msg_2"}])
    )
    assert len(items) == len(EVERY_KIND) + 2
    assert references_of(items) == ("msg_1", "msg_2")


@pytest.mark.parametrize(
    ("parse", "fields", "param"),
    [
        (parse_items, {"items": [HELLO] * 21}, "items"),
        (parse_items, {}, "items"),
        (parse_items, {"items": [{"type": "tomorrow"}]}, "items[0].type"),
        (
            parse_items,
            {"items": [{**HELLO, "content": [{"type": "input_file"}]}]},
            "items[0].content[0].file_data",
        ),
        (parse_create, {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        (parse_create, {"metadata": {"a": "x" * 513}}, "metadata.a"),
        (parse_create, {"items": [HELLO] * 21}, "items"),
        (parse_update, {}, "metadata"),
        (parse_update, {"metadata": {"a": 1}}, "metadata.a"),
    ],
)
def test_a_wrong_field_of_a_body_is_named(parse: Any, fields: dict[str, Any], param: str) -> None:
    assert refusal_of(parse, **fields).param == param


def test_20_items_at_once_are_allowed() -> None:
    assert len(parse_items(body(items=[HELLO] * 20))[0]) == 20


# --- objects --------------------------------------------------------------------------------------


def test_a_conversation_has_the_shape_of_the_contract() -> None:
    shown = objects.conversation("conv_1", 1_705_312_345, {"project": "support"})
    Conversation.model_validate(shown, strict=True)
    assert shown == {
        "id": "conv_1",
        "object": "conversation",
        "created_at": 1_705_312_345,
        "metadata": {"project": "support"},
    }


def test_a_deleted_conversation_says_so() -> None:
    shown = objects.deleted_conversation("conv_1")
    ConversationDeletedResource.model_validate(shown, strict=True)
    assert shown == {"id": "conv_1", "object": "conversation.deleted", "deleted": True}


def test_items_have_a_status_and_a_time() -> None:
    item = objects.item({"id": "mcpl_1", "type": "mcp_list_tools", "server_label": "a", "tools": []}, 7)
    assert (item["status"], item["created_at"]) == ("completed", 7)
    kept = objects.item({"id": "msg_1", "type": "message", "status": "incomplete"}, 7)
    assert kept["status"] == "incomplete"


def test_items_of_every_kind_are_the_sdks_own() -> None:
    for item in with_ids(parse_items(body(items=EVERY_KIND))[0], CountedIds()):
        shown = objects.item(item, 7)
        assert ITEM.validate_python(shown).type == item["type"]


def test_a_program_can_print_the_role_and_content_of_items_of_every_kind() -> None:
    for item in with_ids(parse_items(body(items=EVERY_KIND))[0], CountedIds()):
        found = ITEM.validate_python(objects.item(item, 7))
        assert found.role in {"user", "assistant", "system", "developer"}, found.type
        assert found.content is not None or found.type == "reasoning"


@pytest.mark.parametrize("fault", [objects.not_found("x_1"), objects.item_not_found("x_1")])
def test_a_missing_conversation_or_item_is_a_404_that_names_it(fault: Fault) -> None:
    assert status_of(fault.failure, "responses") == 404
    assert "'x_1'" in fault.failure.message
