"""Every form of schema is offered to agents in one that their MCP clients accept: one bad form would hide all tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.acp import client_tools
from codex_proxy.agents.claude_code import tool_names
from codex_proxy.core.items import Tool

FORMS: list[Any] = [
    {},
    {"properties": {}},
    {"anyOf": [{"type": "object"}]},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object"}}},
    {"type": "object", "properties": None, "required": None, "additionalProperties": None},
    {"type": ["object", "null"]},
    {"type": None},
    {"type": "object", "properties": {"a": True, "b": False, "c": None}, "required": ["a", 1]},
    {"type": "object", "required": True},
    True,
]


@pytest.mark.parametrize("entry", [client_tools.tool_entry, tool_names.tool_entry])
@pytest.mark.parametrize("form", FORMS, ids=json.dumps)
def test_a_schema_of_any_form_is_offered_as_one_of_an_object(
    entry: Callable[[Tool], dict[str, Any]], form: Any
) -> None:
    raw = msgspec.Raw(json.dumps(form).encode())
    schema = json.loads(msgspec.json.encode(entry(Tool("t", "", raw))["inputSchema"]))
    assert schema["type"] == "object"
    assert all(isinstance(each, dict) for each in schema.get("properties", {}).values())
    assert all(isinstance(each, str) for each in schema.get("required", []))
    assert None not in schema.values()
