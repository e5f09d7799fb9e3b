"""Every field that the official SDKs can send is in exactly one list: served, ignored and named, or refused.

The SDKs' own types of requests are walked beside the wire models. A field that a release of an SDK brings and that is
in no list fails here, until somebody has decided what becomes of it.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from anthropic.types import message_create_params as messages_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import (
    input_token_count_params,
    response_compact_params,
    response_create_params,
)
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typing_extensions import get_type_hints, is_typeddict

from codex_proxy.core.faults import Failure, Fault
from codex_proxy.http.openapi import ALWAYS_REFUSED
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.messages.wire import BLOCK_FIELDS, TOOL_FIELDS, MessagesRequest
from codex_proxy.surfaces.requests.fields import Ignored, Refused
from codex_proxy.surfaces.responses.wire import CompactRequest, ContextFields, ResponseRequest
from tests.surfaces.chat.asking import ask as ask_chat
from tests.surfaces.messages.asking import ask as ask_messages
from tests.surfaces.responses.asking import ask as ask_responses

HEADERS = frozenset({"betas", "user_profile_id", "workspace_id"})
"""Parameters of Anthropic's SDKs that become headers."""

IGNORED_IN_BLOCKS = frozenset(
    {
        *("citations", "caller", "toolset_name", "transformations", "signature", "encrypted_content"),
        "tool_changes",
    }
)
IGNORED_IN_TOOLS = frozenset({"eager_input_streaming", "input_examples"})
"""What is known of Anthropic's blocks and tools and changes nothing. The answer names these as it names any field
that it does not know."""

IGNORED_BY_COUNTING = frozenset(
    {
        *("personality", "image", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        "service_tier",
    }
)
"""What changes no count of tokens, and no summary."""


def fields_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a wire model by their names in a request."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def is_marked(field: FieldInfo, *marks: type) -> bool:
    return any(isinstance(each, marks or (Ignored, Refused)) for each in field.metadata)


def members(hint: Any, is_member: Callable[[Any], bool]) -> Iterator[Any]:
    """The types within a type, through unions, lists and annotations, for which `is_member` holds."""
    if is_member(hint):
        yield hint
    elif get_origin(hint) is not None and get_origin(hint) is not Literal:
        for inner in get_args(hint):
            yield from members(inner, is_member)


def is_model(hint: Any) -> bool:
    return isinstance(hint, type) and not isinstance(hint, types.GenericAlias) and issubclass(hint, BaseModel)


def literals(hint: Any) -> set[str]:
    """The strings that a type allows; empty for any."""
    found = set()
    for inner in get_args(hint):
        found |= {inner} if isinstance(inner, str) else literals(inner)
    return found


def kinds_of(hints: dict[str, Any]) -> set[tuple[str, str]]:
    """What tells an object from others: the values of its type, or of its role where it has no type."""
    name = "type" if "type" in hints else "role"
    return {(name, word) for word in literals(hints.get(name))}


def unlisted_fields(sdk: Any, model: type[BaseModel], path: str = "", seen: Any = ()) -> Iterator[str]:
    """The paths of the fields of an SDK's object that the wire model does not have."""
    fields = fields_of(model)
    for name, hint in get_type_hints(sdk).items():
        field = fields.get(name)
        if field is None:
            yield f"{path}{name}"
            continue
        inner = [*members(field.annotation, is_model)]
        if is_marked(field) or not inner:
            continue  # ignored or refused as a whole, or kept as it is
        for part in members(hint, is_typeddict):
            if (part, name) not in seen:
                for other in counterparts(part, inner):
                    if is_taken_whole(other):
                        continue
                    yield from unlisted_fields(part, other, f"{path}{name}.", (*seen, (part, name)))


def is_taken_whole(model: type[BaseModel]) -> bool:
    """Whether objects of a wire model are refused whatever they have, or kept with everything that they have."""
    return model.__name__ in ALWAYS_REFUSED or model.model_config.get("extra") == "allow"


def counterparts(sdk: Any, models: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """The wire models of an SDK's object. An object whose type none of them has is refused by its type."""
    kinds = kinds_of(get_type_hints(sdk))
    named = [
        model for model in models if kinds & kinds_of({n: f.annotation for n, f in fields_of(model).items()})
    ]
    return named if kinds else models[:1]


@pytest.mark.parametrize(
    ("sdk", "model", "apart"),
    [
        (chat_params.CompletionCreateParamsStreaming, ChatRequest, frozenset()),
        (response_create_params.ResponseCreateParamsStreaming, ResponseRequest, frozenset()),
        (input_token_count_params.InputTokenCountParams, ContextFields, IGNORED_BY_COUNTING),
        (response_compact_params.ResponseCompactParams, CompactRequest, IGNORED_BY_COUNTING),
        (messages_params.MessageCreateParamsStreaming, MessagesRequest, HEADERS),
        (beta_params.MessageCreateParamsStreaming, MessagesRequest, HEADERS),
        (beta_count_params.MessageCountTokensParams, MessagesRequest, HEADERS),
    ],
    ids=["chat", "responses", "input_tokens", "compact", "messages", "messages beta", "count_tokens"],
)
def test_every_field_of_the_sdk_is_in_a_list(sdk: Any, model: type[BaseModel], apart: frozenset[str]) -> None:
    assert {path for path in unlisted_fields(sdk, model) if path not in apart} == set()


def objects_in(sdk: Any, seen: dict[Any, None]) -> dict[Any, None]:
    """Every kind of object that an SDK's type refers to."""
    for hint in get_type_hints(sdk).values():
        for part in members(hint, is_typeddict):
            if part not in seen:
                seen[part] = None
                objects_in(part, seen)
    return seen


def test_every_field_of_anthropics_blocks_and_tools_is_in_a_list() -> None:
    hints = {
        part.__name__: get_type_hints(part)
        for part in objects_in(beta_params.MessageCreateParamsStreaming, {})
    }
    found = set()
    for name, fields in hints.items():
        words = {word for field, word in kinds_of(fields) if field == "type"}
        for kind in words & BLOCK_FIELDS.keys():
            if not name.startswith(("BetaToolChange", "BetaPlainText", "BetaWebFetchURL")):
                found |= {
                    f"{kind}.{field}" for field in fields.keys() - BLOCK_FIELDS[kind] - IGNORED_IN_BLOCKS
                }
        if "input_schema" in fields and "strict" in fields:
            found |= {f"tools.{field}" for field in fields.keys() - TOOL_FIELDS - IGNORED_IN_TOOLS}
    assert found == set()


# --- what the lists say is what happens -------------------------------------------------------------

ASK: dict[type[BaseModel], Callable[..., Any]] = {
    ChatRequest: ask_chat,
    ResponseRequest: ask_responses,
    MessagesRequest: ask_messages,
}
MARKED = [
    (model, name, Ignored if is_marked(field, Ignored) else Refused)
    for model in ASK
    for name, field in fields_of(model).items()
    if is_marked(field)
]


def outcome_of(model: type[BaseModel], name: str) -> Any:
    """What becomes of a request with this field, given a value of a type that the field takes."""
    for value in ({"a": "b"}, "b"):
        try:
            return ASK[model](**{name: value})
        except Fault as fault:
            if fault.failure.code != "invalid_type":
                return fault.failure
    raise AssertionError(f"{name} takes neither an object nor a string")


@pytest.mark.parametrize(("model", "name", "mark"), MARKED, ids=lambda each: getattr(each, "__name__", each))
def test_a_field_is_named_or_refused_as_its_list_says(model: type[BaseModel], name: str, mark: type) -> None:
    outcome = outcome_of(model, name)
    if mark is Ignored:
        assert name in outcome.ignored
    else:
        assert isinstance(outcome, Failure)
        assert outcome.param == name
        assert f"'{name}'" in outcome.message
    nothings: list[Any] = [None, "", {}]
    for nothing in nothings:
        assert name not in ignored_or_wrong_type(model, name, nothing)


def ignored_or_wrong_type(model: type[BaseModel], name: str, value: Any) -> tuple[str, ...]:
    """What is named as ignored in a request with this field; nothing where the field takes no such value."""
    try:
        named: tuple[str, ...] = ASK[model](**{name: value}).ignored
    except Fault as fault:
        if fault.failure.code != "invalid_type":
            raise
        return ()
    return named


TEXTS: Any = [{"role": "user", "content": [{"type": "text", "text": "x", "of_tomorrow": 1}]}]
NESTED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (
        ask_chat,
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
    ),
    (
        ask_chat,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "m"}}],
                }
            ]
        },
        "messages[].content[].prompt_cache_breakpoint",
    ),
    (
        ask_chat,
        {"web_search_options": {"user_location": {"type": "approximate"}}},
        "web_search_options.user_location",
    ),
    (ask_responses, {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
    (
        ask_responses,
        {"tools": [{"type": "function", "name": "f", "async": True}]},
        "tools[].async",
    ),
    (
        ask_responses,
        {"tools": [{"type": "web_search", "external_web_access": False}]},
        "tools[].external_web_access",
    ),
    (
        ask_responses,
        {"tools": [{"type": "web_search", "filters": {"allowed_domains": ["a.example"]}}]},
        "tools[].filters",
    ),
    (ask_messages, {"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display"),
    (
        ask_messages,
        {"output_config": {"task_budget": {"type": "tokens", "total": 9}}},
        "output_config.task_budget",
    ),
    (
        ask_messages,
        {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]},
        "tools[].input_examples",
    ),
    (
        ask_messages,
        {"messages": TEXTS},
        "messages[].content[].of_tomorrow",
    ),
    (ask_messages, {"messages": [{"role": "user", "content": "x", "weight": 0.5}]}, "messages[].weight"),
    (ask_chat, {"messages": TEXTS}, "messages[].content[].of_tomorrow"),
    (ask_chat, {"messages": [{"role": "user", "content": "x", "weight": 0.5}]}, "messages[].weight"),
    (
        ask_chat,
        {"tools": [{"type": "function", "function": {"name": "f", "cached": True}}]},
        "tools[].function.cached",
    ),
    (ask_chat, {"response_format": {"type": "text", "style": "terse"}}, "response_format.style"),
    (ask_chat, {"reasoning": {"effort": "low", "max_tokens": 100}}, "reasoning.max_tokens"),
    (ask_responses, {"text": {"format": {"type": "text", "style": "terse"}}}, "text.format.style"),
    (ask_responses, {"reasoning": {"effort": "low", "max_tokens": 100}}, "reasoning.max_tokens"),
    (
        ask_responses,
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "of_tomorrow": 1}]}]},
        "input[].content[].of_tomorrow",
    ),
    (ask_responses, {"tools": [{"type": "function", "name": "f", "cached": True}]}, "tools[].cached"),
]


@pytest.mark.parametrize(("ask", "fields", "named"), NESTED, ids=[named for _, _, named in NESTED])
def test_an_ignored_field_of_an_inner_object_is_named(
    ask: Callable[..., Any], fields: dict[str, Any], named: str
) -> None:
    assert named in ask(**fields).ignored


@pytest.mark.parametrize(
    ("ask", "fields", "param"),
    [
        (
            ask_responses,
            {"tools": [{"type": "function", "name": "f", "allowed_callers": ["programmatic"]}]},
            "tools[0].allowed_callers",
        ),
        (
            ask_responses,
            {"tools": [{"type": "mcp", "server_label": "s", "tunnel_id": "t"}]},
            "tools[0].tunnel_id",
        ),
        (
            ask_messages,
            {"tools": [{"name": "f", "input_schema": {}, "allowed_callers": ["code_execution_20260120"]}]},
            "tools[0].allowed_callers",
        ),
    ],
    ids=["function", "mcp", "messages"],
)
def test_a_tool_that_the_model_may_not_call_is_refused(
    ask: Callable[..., Any], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(Fault) as raised:
        ask(**fields)
    assert raised.value.failure.param == param


# --- fields that nobody knows -----------------------------------------------------------------------

OWN_IDS = [
    "resp_0123456789abcdef0123456789abcdef",
    "conv_1a2b",
    "msg_013Zva2CMHLNnXjNJJKqJ2EF",
    "chatcmpl-9f8e7d6c",
    "rs_0123456789abcdef0123456789abcdef",
]


@pytest.mark.parametrize("ask", ASK.values(), ids=["chat", "responses", "messages"])
@pytest.mark.parametrize("id", OWN_IDS)
@pytest.mark.parametrize(
    "wrap", [lambda id: id, lambda id: {"type": "continue", "id": id}, lambda id: [[id]]]
)
def test_an_unknown_field_that_holds_an_id_of_this_server_is_refused(ask: Any, id: str, wrap: Any) -> None:
    with pytest.raises(Fault) as raised:
        ask(continue_from=wrap(id))
    failure = raised.value.failure
    assert (failure.param, failure.code) == ("continue_from", "unknown_parameter")
    assert id in failure.message


WITHIN: list[tuple[Callable[..., Any], Callable[[Any], dict[str, Any]], str]] = [
    (ask_chat, lambda it: {"messages": [{"role": "user", "content": "x", **it}]}, "messages[]"),
    (
        ask_chat,
        lambda it: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **it}]}]},
        "messages[].content[]",
    ),
    (
        ask_chat,
        lambda it: {"tools": [{"type": "function", "function": {"name": "f", **it}}]},
        "tools[].function",
    ),
    (ask_responses, lambda it: {"input": [{"role": "user", "content": "x", **it}]}, "input[]"),
    (ask_responses, lambda it: {"reasoning": {"effort": "low", **it}}, "reasoning"),
    (ask_responses, lambda it: {"text": {"verbosity": "low", **it}}, "text"),
    (ask_messages, lambda it: {"messages": [{"role": "user", "content": "x", **it}]}, "messages[]"),
    (
        ask_messages,
        lambda it: {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **it}]}]},
        "messages[].content[]",
    ),
    (ask_messages, lambda it: {"tools": [{"name": "f", "input_schema": {}, **it}]}, "tools[]"),
]


@pytest.mark.parametrize(("ask", "fields", "place"), WITHIN, ids=[place for _, _, place in WITHIN])
def test_an_unknown_field_of_an_inner_object_that_holds_an_id_of_this_server_is_refused(
    ask: Any, fields: Callable[[Any], dict[str, Any]], place: str
) -> None:
    with pytest.raises(Fault) as raised:
        ask(**fields({"after": {"item": OWN_IDS[0]}}))
    failure = raised.value.failure
    assert (failure.param, failure.code) == (f"{place}.after", "unknown_parameter")
    assert f"{place}.id" in ask(**fields({"id": "msg_013Zva2CMHLNnXjNJJKqJ2EF", "after": 1})).ignored or (
        place == "input[]"  # an item has an id
    )


@pytest.mark.parametrize(("ask", "fields", "place"), WITHIN, ids=[place for _, _, place in WITHIN])
def test_unknown_fields_of_inner_objects_are_named_up_to_a_number_and_without_what_no_header_takes(
    ask: Any, fields: Callable[[Any], dict[str, Any]], place: str
) -> None:
    many = {f"f{number}": 1 for number in range(50)} | {"nothing": None}
    named = ask(**fields({"a\r\nb": 1, "x" * 65: 1, **many})).ignored
    assert named == tuple(f"{place}.f{number}" for number in range(20))


@pytest.mark.parametrize("ask", ASK.values(), ids=["chat", "responses", "messages"])
def test_an_unknown_field_is_ignored_and_named(ask: Any) -> None:
    given = {
        "of_tomorrow": {"deep": [1]},
        "session": "my_session_1",
        "responses": "resp_format",
        "nothing": None,
    }
    answer = ask(**given)
    assert answer.ignored == ("of_tomorrow", "session", "responses")
    assert len(ask(**{f"f{number}": 1 for number in range(50)}, **{"a\r\nb": 1, "x" * 65: 1}).ignored) == 20


def test_the_lists_do_not_change_what_a_request_without_these_fields_means() -> None:
    assert json.dumps([ask(stream=False).ignored for ask in ASK.values()]) == "[[], [], []]"
