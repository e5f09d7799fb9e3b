"""Every form of schema is offered to agents in one that all programs and providers take: one bad form would hide all
tools, or fail the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pytest
from jsonschema_rs import Draft202012Validator, ValidationError, meta

from codex_proxy.agents.codex_app_server.calls import dynamic_tools
from codex_proxy.agents.shared.tool_schemas import MAX_KNOWN, object_parameters, plain_parameters
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import ForwardedRequest, Turn
from codex_proxy.parts.acp import reported_calls
from codex_proxy.parts.claude_code import calls as claude_calls
from codex_proxy.parts.upstream.openai_chat.chat_dialects import forwarded_fields
from codex_proxy.parts.upstream.openai_chat.request_body import request_fields as chat_fields
from codex_proxy.parts.upstream.openai_responses.request_body import request_fields as responses_fields
from codex_proxy.parts.upstream.turn import TOOL_SCHEMAS, Forms
from tests.growth import assert_linear
from tests.schema_forms import CITY, schemas
from tests.surfaces.chat import asking as chat
from tests.surfaces.messages import asking as messages
from tests.surfaces.ollama import asking as ollama
from tests.surfaces.responses import asking as responses

PLAIN: Final = frozenset({TOOL_SCHEMAS})
"""The form in which an upstream gets the tools after it has refused the usual one."""
NOT_AT_THE_ROOT: Final = {"$ref", "allOf", "anyOf", "oneOf", "enum", "const", "not"}
MOST = pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.exhaustive)])
"""How many of the schemas are tried."""


def raw(schema: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(schema).encode())


def tool_of(schema: Any) -> Tool:
    return Tool("t", "", raw(schema))


def decoded(value: Any) -> Any:
    return json.loads(msgspec.json.encode(value))


def chat_parameters(tool: Tool, form: Forms = PLAIN) -> Any:
    (told,) = chat_fields(Turn(model="m", history=(), tools=(tool,)), "m", (), form)["tools"]
    return told["function"]["parameters"]


def responses_parameters(tool: Tool, form: Forms = PLAIN) -> Any:
    (told,) = responses_fields(Turn(model="m", history=(), tools=(tool,)), "m", (), form)["tools"]
    return told["parameters"]


def forwarded_parameters(tool: Tool, form: Forms = PLAIN) -> Any:
    tools = [{"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}]
    fields = {"messages": raw([]), "tools": msgspec.Raw(msgspec.json.encode(tools))}
    request = ForwardedRequest(fields=fields, stream=False, include_usage=False, model_asked="m")
    (told,) = decoded(forwarded_fields(request, "m", form)["tools"])
    return told["function"]["parameters"]


AGENTS: Final[dict[str, Callable[[Tool], Any]]] = {
    "claude-code": lambda tool: claude_calls.tool_entry(tool)["inputSchema"],
    "ACP": lambda tool: reported_calls.tool_entry(tool)["inputSchema"],
    "claude-acp": lambda tool: reported_calls.tool_entry(tool, for_claude=True)["inputSchema"],
    "codex-app-server": lambda tool: dynamic_tools([tool])[0]["inputSchema"],
    "openai-chat": chat_parameters,
    "openai-chat, unchanged": forwarded_parameters,
    "openai-responses": responses_parameters,
}
ANY_NAME: Final = {"ACP", "codex-app-server"}
"""Agents that take properties of any name."""


def wrong_in(schema: Any, *, any_name: bool) -> str:
    """What a program or provider would refuse, if anything."""
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        return "no object with properties"
    if schema.keys() & NOT_AT_THE_ROOT:
        return "alternatives at the root"
    if not any_name and not all(re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name) for name in schema["properties"]):
        return "the name of a property"
    if not all(isinstance(each, dict) for each in schema["properties"].values()):
        return "a boolean in place of a schema"
    try:
        meta.validate(schema)
        Draft202012Validator(schema, offline=True)
    except (ValidationError, ValueError) as error:
        return str(error)
    return "a large number" if re.search("[0-9]{20}", json.dumps(schema).replace('"', "")) else ""


@MOST
@pytest.mark.parametrize("agent", AGENTS)
def test_a_schema_of_any_form_is_offered_in_one_that_all_programs_take(agent: str, every: int) -> None:
    found = {}
    for schema in list(schemas())[::every]:
        offered = decoded(AGENTS[agent](tool_of(schema)))
        if wrong := wrong_in(offered, any_name=agent in ANY_NAME):
            found[json.dumps(schema)[:200]] = (wrong, offered)
    assert found == {}


def functions(tools: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": name, "parameters": schema} for name, schema in tools]


def nested(tools: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": each} for each in functions(tools)]


APIS: Final[dict[str, Callable[..., Any]]] = {
    "chat": lambda *tools: chat.ask(tools=nested(tools)),
    "responses": lambda *tools: responses.ask(
        tools=[{"type": "function", **each} for each in functions(tools)]
    ),
    "messages": lambda *tools: messages.ask(
        tools=[{"name": name, "input_schema": schema} for name, schema in tools]
    ),
    "ollama": lambda *tools: ollama.chat(tools=nested(tools)),
}


@MOST
@pytest.mark.parametrize("api", APIS)
def test_a_tool_of_any_form_is_offered_beside_others_or_refused_by_its_name(api: str, every: int) -> None:
    wrong: dict[str, str] = {}
    odd: Any
    for odd in [*list(schemas())[::every], None, True, False, [], "x", 1]:
        try:
            parsed = APIS[api](("good", CITY), ("odd", odd), ("last", CITY))
        except Fault as fault:
            if not (fault.failure.param or "").startswith("tools[1]"):
                wrong[json.dumps(odd)[:200]] = str(fault.failure)
        else:
            if [tool.name for tool in parsed.turn.tools] != ["good", "odd", "last"]:
                wrong[json.dumps(odd)[:200]] = "not offered"
    assert wrong == {}


USUAL: Final = (
    {"type": "object", "properties": {}},
    CITY,
    {**CITY, "required": ["city"], "additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"},
    {
        "type": "object",
        "title": "Order",
        "properties": {
            "kind": {"enum": ["a", None], "default": None},
            "of": {"anyOf": [{"$ref": "#/$defs/Of"}, {"type": "null"}], "description": "What."},
            "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3, "uniqueItems": True},
            "code": {"type": ["string", "null"], "pattern": "^[A-Z]{2}(?:-[0-9]+)?$", "format": "x"},
            "more": {"type": "object", "additionalProperties": {"type": "number", "multipleOf": 0.5}},
        },
        "$defs": {"Of": {"type": "object", "properties": {"of": {"$ref": "#/$defs/Of"}}}},
        "x-of-the-client": {"a": 1},
    },
)  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("schema", USUAL, ids=range(len(USUAL)))
def test_a_schema_of_the_usual_form_is_offered_byte_for_byte(schema: Any, agent: str) -> None:
    given = json.dumps(schema).encode()
    offered = AGENTS[agent](Tool("t", "", msgspec.Raw(given)))
    assert offered == (schema if agent == "openai-chat, unchanged" else msgspec.Raw(given))


@pytest.mark.parametrize("parameters", [chat_parameters, responses_parameters, forwarded_parameters])
def test_an_upstream_gets_a_schema_as_it_is_until_it_refuses_it(parameters: Callable[..., Any]) -> None:
    for schema in list(schemas())[::101]:
        assert decoded(parameters(tool_of(schema), frozenset())) == schema


def test_alternatives_at_the_root_become_properties_of_which_those_of_all_are_required() -> None:
    text, number = {"type": "string"}, {"type": "integer"}
    branches = [
        {"properties": {"id": text, "kind": {"const": "a"}}, "required": ["kind", "id"]},
        {"$ref": "#/$defs/B"},
        {"type": "null"},
    ]
    b = {"type": "object", "properties": {"size": number, "kind": {"const": "b"}}, "required": ["kind"]}
    schema = {"description": "Of both.", "properties": {"all": text}, "required": ["all"]}
    form = decoded(object_parameters(tool_of(schema | {"oneOf": branches, "$defs": {"B": b}})))
    assert form == {
        "type": "object",
        "description": "Of both.",
        "properties": {"all": text, "id": text, "kind": {"anyOf": [{"const": "a"}, {"const": "b"}]}, "size": number},
        "required": ["all", "kind"],
        "$defs": {"B": b},
    }  # fmt: skip


def test_what_a_root_refers_to_and_all_of_its_parts_are_joined() -> None:
    base = {"properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}
    more = {"properties": {"id": {"minLength": 1}, "n": {}}, "required": ["n"]}
    form = decoded(
        object_parameters(tool_of({"$ref": "#/definitions/B", "allOf": [more], "definitions": {"B": base}}))
    )
    assert form["properties"] == {"id": {"allOf": [{"type": "string"}, {"minLength": 1}]}, "n": {}}
    assert (form["required"], form["additionalProperties"]) == (["id", "n"], False)


def test_the_form_of_a_short_schema_is_made_once_and_that_of_a_long_one_each_time() -> None:
    short: dict[str, Any] = {"oneOf": [{"properties": {"a": {}}}]}
    assert object_parameters(tool_of(short)) is object_parameters(tool_of(short))
    long = {**short, "description": "x" * MAX_KNOWN}
    assert object_parameters(tool_of(long)) is not object_parameters(tool_of(long))
    assert object_parameters(tool_of(long)) == object_parameters(tool_of(long))


def test_what_no_program_reads_is_left_out_or_said_otherwise() -> None:
    given = {
        "a": {"type": "STRING", "description": None, "pattern": "(?i)x", "default": None},
        "b": {"type": "array", "items": [{"type": "string"}, True], "minItems": "2"},
        "c": {"$ref": "other.json#/X", "title": "C"},
        "d": {"anyOf": [None, {"type": "any"}], "required": True, "minimum": 1 << 64},
        "$e": False,
    }
    form = decoded(plain_parameters(tool_of({"properties": given, "required": ["$e", 1, "$e"]})))
    assert form == {
        "type": "object",
        "properties": {
            "a": {"type": "string", "default": None},
            "b": {"type": "array", "prefixItems": [{"type": "string"}, {}]},
            "c": {"title": "C"},
            "d": {"anyOf": [{}], "minimum": float(1 << 64)},
        },
        "patternProperties": {r"^\$e$": {"not": {}}},
        "required": ["$e"],
    }


LARGE: Final[dict[str, Callable[[int], Any]]] = {
    "properties": lambda n: {"properties": {f"p{i}": {"type": None} for i in range(n)}},
    "branches": lambda n: {"anyOf": [{"properties": {"kind": {"const": i}}} for i in range(n)]},
    "references": lambda n: {"anyOf": [{"$ref": "#/$defs/A"}] * n, "$defs": {"A": {"anyOf": [{"$ref": "#"}] * n}}},
    "names": lambda n: {"required": [f"p{i % 100}" for i in range(n)], "enum": []},
    "patterns": lambda n: {"properties": {f"p{i}": {"pattern": f"^(a|b){{{i}}}["} for i in range(n)}},
}  # fmt: skip


@pytest.mark.parametrize("form", LARGE)
def test_a_large_schema_costs_in_proportion_to_its_size(form: str) -> None:
    assert_linear(lambda size: tool_of(LARGE[form](size)), plain_parameters, 1600)
