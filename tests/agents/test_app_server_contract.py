"""The contract is held against the schema that a binary writes: what is gone is found, by its name."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.contract import (
    CAPABILITIES,
    CONTRACT,
    DEFINITIONS,
    ContractCheck,
    Missing,
    SchemaError,
    check_contract,
)
from tests.codex_schemas import NEWEST, ONE_CALL_AT_A_TIME, TOO_OLD, schema

LISTS = {
    "request": "ClientRequest",
    "answer": "ClientRequest",
    "notification": "ServerNotification",
    "question": "ServerRequest",
    "reply": "ServerRequest",
}
FIELDS = [(index, path) for index, clause in enumerate(CONTRACT) for path in clause.fields]
TYPED = [(index, path) for index, path in FIELDS if CONTRACT[index].fields[path] != "any"]


def check(document: dict[str, Any]) -> ContractCheck:
    return check_contract(json.dumps(document).encode())


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a document."""
    if isinstance(node, dict):
        yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(each)


def rename_everywhere(document: dict[str, Any], field: str) -> None:
    """Every field of this name gets another one, as when a release renames it."""
    for node in nodes(document):
        properties = node.get("properties")
        if isinstance(properties, dict) and field in properties:
            properties[f"{field}Renamed"] = properties.pop(field)


def retype_everywhere(document: dict[str, Any], field: str) -> None:
    """Every field of this name is a null from now on."""
    for node in nodes(document):
        properties = node.get("properties")
        if isinstance(properties, dict) and field in properties:
            properties[field] = {"type": "null"}


def without(document: dict[str, Any], method: str) -> dict[str, Any]:
    """The same without a message."""
    doctored = copy.deepcopy(document)
    definitions = doctored["definitions"]
    for name in set(LISTS.values()):
        definitions[name]["oneOf"] = [
            each for each in definitions[name]["oneOf"] if method not in each["properties"]["method"]["enum"]
        ]
    definitions["v2"].pop(DEFINITIONS.get(method, ""), None)
    return doctored


def test_a_release_that_was_tested_lacks_nothing() -> None:
    found = check(schema(NEWEST))
    assert found == ContractCheck()
    assert (found.refusal, found.missing_features, found.capabilities) == (None, {}, CAPABILITIES)


def test_what_an_earlier_release_lacks_is_off_and_the_rest_is_served() -> None:
    found = check(schema(ONE_CALL_AT_A_TIME))
    assert found.missing_features == {
        "parallel_calls": ("rawResponse/completed",),
        "imported_turns": ("thread/items/list.data[].item",),
    }
    assert (found.refusal, found.capabilities) == (None, CAPABILITIES - {"parallel_calls"})


def test_a_release_that_lacks_what_every_turn_needs_is_refused_by_its_name() -> None:
    found = check(schema(TOO_OLD))
    assert found.needed == ("thread/inject_items",)
    assert "needs thread/inject_items" in (found.refusal or "")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("index", "path"), FIELDS, ids=[f"{CONTRACT[i].method}.{p}" for i, p in FIELDS])
def test_every_field_of_the_contract_is_missed_when_it_is_renamed(index: int, path: str) -> None:
    clause, document = CONTRACT[index], schema()
    field = path.split(".")[-1].partition("[")[0].partition("<")[0]
    rename_everywhere(document, field)
    found = check(document).missing
    assert (
        any(
            each.feature == clause.feature
            and each.name.startswith(f"{clause.method}.")
            and field in each.name
            for each in found
        )
        or Missing(f"the answer to {clause.method}", clause.feature) in found
    )


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("index", "path"), TYPED, ids=[f"{CONTRACT[i].method}.{p}" for i, p in TYPED])
def test_every_field_of_the_contract_is_missed_when_its_type_is_another_one(index: int, path: str) -> None:
    clause, document = CONTRACT[index], schema()
    field = path.split(".")[-1].partition("[")[0].partition("<")[0]
    retype_everywhere(document, field)
    assert any(
        each.feature == clause.feature and each.name.startswith(f"{clause.method}.{path}")
        for each in check(document).missing
    )


@pytest.mark.parametrize("method", sorted({clause.method for clause in CONTRACT}))
def test_every_message_of_the_contract_is_missed_when_it_is_gone(method: str) -> None:
    clauses = [clause for clause in CONTRACT if clause.method == method]
    found = check(without(schema(), method)).missing
    for clause in clauses:
        name = f"the answer to {method}" if clause.kind == "answer" else method
        assert Missing(name, clause.feature) in found


def test_a_needed_field_that_is_renamed_is_named_in_the_refusal() -> None:
    document = schema()
    params = document["definitions"]["v2"]["ThreadInjectItemsParams"]
    params["properties"]["entries"] = params["properties"].pop("items")
    params["required"] = ["entries", "threadId"]
    found = check(document)
    assert found.needed == (
        "thread/inject_items.items",
        "thread/inject_items.entries (it requires that, and this server does not send it)",
    )
    assert "thread/inject_items.items" in (found.refusal or "")


def test_without_an_optional_field_only_what_needs_it_is_off() -> None:
    document = schema()
    del document["definitions"]["v2"]["TurnStartParams"]["properties"]["outputSchema"]
    found = check(document)
    assert found.missing_features == {"structured_output": ("turn/start.outputSchema",)}
    assert found.refusal is None
    assert found.capabilities == CAPABILITIES - {"structured_output"}


def test_without_tools_of_the_client_a_turn_cannot_go_on_with_their_outputs_either() -> None:
    found = check(without(schema(), "item/tool/call"))
    assert found.missing_features.keys() == {"client_tools", "tool_replies", "parallel_calls"}
    assert found.capabilities == CAPABILITIES - {"client_tools", "tool_replies", "parallel_calls"}


def test_a_field_that_a_new_release_requires_of_us_is_missed() -> None:
    document = schema()
    turn_start = document["definitions"]["v2"]["TurnStartParams"]
    turn_start["properties"]["consent"] = {"type": "boolean"}
    turn_start["required"].append("consent")
    [name] = check(document).needed
    assert name.startswith("turn/start.consent ")


def test_a_value_that_an_enumeration_has_no_more_is_missed() -> None:
    document = schema()
    statuses = document["definitions"]["v2"]["TurnStatus"]["enum"]
    statuses[statuses.index("completed")] = "done"
    assert check(document).needed == ('turn/completed.turn.status "completed"',)


def test_further_messages_fields_and_types_change_nothing() -> None:
    document = schema()
    definitions = document["definitions"]
    definitions["ServerNotification"]["oneOf"].append(
        {"properties": {"method": {"enum": ["turn/sang"]}, "params": True}, "required": ["method"]}
    )
    for node in list(nodes(definitions["v2"])):
        properties = node.get("properties")
        if isinstance(properties, dict):
            properties["brandNew"] = {"type": "string"}
            for field in properties.values():
                if isinstance(field, dict) and field.get("type") == "string" and "enum" not in field:
                    field["type"] = ["string", "null"]
    assert check(document) == ContractCheck()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b"{}",
        b'{"definitions": {}}',
        b'{"definitions": {"ClientRequest": {}}}',
    ],
)
def test_what_is_no_schema_is_reported_and_nothing_else_is_raised(text: bytes) -> None:
    with pytest.raises(SchemaError):
        check_contract(text)


def test_a_schema_that_refers_to_itself_is_read_all_the_same() -> None:
    document = schema()
    document["definitions"]["v2"]["Turn"] = {"$ref": "#/definitions/v2/Turn"}
    assert "turn/start.turn.id" in check(document).needed
