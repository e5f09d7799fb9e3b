"""What a Responses request means, field by field, and what is wrong with a wrong one. Source:
docs/contract.md#fields-of-a-request.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import ClientName, HistoryMessage, TextPart, Tool
from codex_proxy.core.tool_names import ListedTool
from codex_proxy.core.turn import NamedTools
from codex_proxy.surfaces.errors import error_body, status_of
from codex_proxy.surfaces.requests.options import RequestHints, RequestSettings
from codex_proxy.surfaces.responses.mcp import allowed_names, allows, needs_approval
from codex_proxy.surfaces.responses.tools import McpChoice
from tests.surfaces.responses.asking import HELLO, ask, ask_bytes, function_tool, refusal_of, turn

MCP = {"type": "mcp", "server_label": "files", "server_url": "http://localhost:8080/mcp"}
READ = ListedTool("read", annotations=b'{"readOnlyHint":true}')
WRITE = ListedTool("write")
PRINTED = {"stdout": "a.py", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def history_texts(parsed: Any) -> list[str]:
    """`role: text` of every message of a turn."""
    return [f"{item.role}: {''.join(part.text for part in item.parts)}" for item in parsed.history]


# --- the fields of a request ----------------------------------------------------------------------


def test_a_string_is_what_the_user_says() -> None:
    assert ask(input="hello").input_items == (
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "hello"}],
            "status": "completed",
        },
    )
    assert turn(input="hello").history == (HistoryMessage("user", (TextPart("hello"),)),)


def test_the_structured_input_of_the_contract_is_the_same_as_its_string() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
    assert ask(input=[item]).input_items == ask(input="Hello!").input_items


def test_instructions_come_first_and_are_for_this_request_only() -> None:
    assert history_texts(turn(instructions="Be brief.", input="hi")) == ["developer: Be brief.", "user: hi"]
    assert ask(instructions="Be brief.").echo["instructions"] == "Be brief."
    assert ask().echo["instructions"] is None


@pytest.mark.parametrize("field", ["model", "input"])
def test_model_and_input_are_required(field: str) -> None:
    missing: dict[str, Any] = {field: None}
    failure = refusal_of(**missing)
    assert (failure.param, failure.code) == (field, "missing_required_parameter")
    with pytest.raises(Fault) as raised:
        ask_bytes(json.dumps({name: "x" for name in ("model", "input") if name != field}).encode())
    assert raised.value.failure.param == field


def test_a_model_that_is_not_there_is_a_404() -> None:
    failure = refusal_of(model="nothing")
    assert (failure.kind, failure.param) == (FaultKind.MODEL_NOT_FOUND, "model")


def test_the_names_effort_counts_unless_the_request_gives_one() -> None:
    assert turn(model="codex-5-high").effort == "high"
    assert ask(model="codex-5-high").echo["reasoning"] == {"effort": "high", "summary": None}
    assert turn(model="codex-5-high", reasoning={"effort": "low"}).effort == "low"


def test_fields_that_are_left_out_have_openais_defaults() -> None:
    parsed = ask()
    assert (parsed.store, parsed.background, parsed.stream) == (True, False, False)
    assert (parsed.truncation, parsed.turn.parallel_tool_calls) == ("disabled", True)
    assert parsed.turn.choices == 1


def test_the_response_repeats_the_fields_of_the_request() -> None:
    asked: dict[str, Any] = {
        "max_output_tokens": 500,
        "max_tool_calls": 3,
        "temperature": 0.7,
        "top_p": 0.9,
        "store": False,
        "parallel_tool_calls": False,
        "previous_response_id": "resp_0",
        "metadata": {"a": "b"},
        "user": "me",
        "truncation": "auto",
        "prompt_cache_key": "key",
        "safety_identifier": "id",
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
    }
    shown = ask(**asked).echo
    assert {**shown, **asked} == shown


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        (None, "default"),
        ("default", "default"),
        ("auto", "default"),
        ("fast", "priority"),
        ("flex", "flex"),
        ("priority", "priority"),
    ],
)
def test_the_service_tier_is_shown_as_the_effective_one(asked: str | None, shown: str) -> None:
    parsed = ask(service_tier=asked)
    given = None if asked == "auto" else asked
    assert (parsed.turn.service_tier, parsed.echo["service_tier"], parsed.ignored) == (given, shown, ())


@pytest.mark.parametrize("asked", ["scale", "ultrafast"])
def test_a_service_tier_that_the_model_is_not_served_in_is_named_and_not_claimed(asked: str) -> None:
    parsed = ask(service_tier=asked)
    assert (parsed.echo["service_tier"], parsed.ignored) == ("default", ("service_tier",))


def test_every_option_may_be_null() -> None:
    fields = [
        "instructions", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "stream", "store",
        "tools", "tool_choice", "parallel_tool_calls", "previous_response_id", "conversation", "reasoning",
        "text", "metadata", "user", "background", "include", "truncation", "service_tier", "prompt",
        "prompt_cache_key", "safety_identifier", "top_logprobs", "stream_options", "top_k", "min_p",
        "repetition_penalty", "frequency_penalty", "presence_penalty", "stop",
    ]  # fmt: skip
    nulls: dict[str, Any] = dict.fromkeys(fields)
    assert ask(**nulls) == ask()


def test_fields_that_nobody_knows_are_named_and_change_nothing() -> None:
    answer = ask(a_field_of_tomorrow={"deep": [1]})
    assert answer == msgspec.structs.replace(ask(), ignored=("a_field_of_tomorrow",))


def test_extensions_are_sampling_for_agents_that_take_it() -> None:
    sampling: dict[str, Any] = {
        "top_k": 50,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.0,
    }
    sampling |= {"presence_penalty": 0.0, "temperature": 1.0}
    parsed = ask(**sampling)
    assert (parsed.turn.sampling, parsed.ignored) == (sampling, ())
    assert ask().turn.sampling == {}


@pytest.mark.parametrize(("given", "stops"), [("END", ("END",)), (["a", "", "b", "a"], ("a", "b")), ("", ())])
def test_stop_sequences_are_limits_of_the_turn(given: Any, stops: tuple[str, ...]) -> None:
    assert turn(stop=given).stop == stops
    assert "stop" not in ask(stop=given).ignored


def test_max_output_tokens_is_the_turns_limit() -> None:
    assert turn(max_output_tokens=7).max_tokens == 7


@pytest.mark.parametrize("given", [None, {}, {"effort": None, "summary": None}])
def test_reasoning_that_is_all_null_is_none(given: Any) -> None:
    parsed = ask(reasoning=given)
    assert (parsed.turn.effort, parsed.turn.summary, parsed.echo["reasoning"]) == (None, None, None)


def test_reasoning_has_an_effort_and_a_summary() -> None:
    parsed = ask(reasoning={"effort": "medium", "summary": "auto"})
    assert (parsed.turn.effort, parsed.turn.summary) == ("medium", "auto")
    assert parsed.echo["reasoning"] == {"effort": "medium", "summary": "auto"}
    assert ask(reasoning={"generate_summary": "concise"}).turn.summary == "concise"


def test_a_json_schema_goes_to_the_agent_and_is_shown_whole() -> None:
    wanted = {"type": "json_schema", "name": "user_info", "schema": SCHEMA, "strict": True}
    parsed = ask(text={"format": wanted, "verbosity": "low"})
    assert parsed.turn.output_schema is not None
    assert json.loads(bytes(parsed.turn.output_schema)) == {"title": "user_info", **SCHEMA}
    assert parsed.turn.verbosity == "low"
    assert parsed.echo["text"] == {"format": {**wanted, "description": None}, "verbosity": "low"}


def test_for_a_json_object_the_prompt_begins_with_the_instruction() -> None:
    told = turn(text={"format": {"type": "json_object"}}, instructions="Be brief.")
    assert history_texts(told)[0].startswith("developer: Answer with exactly one JSON object")
    assert ask(text={"format": {"type": "json_object"}}).format.kind == "json_object"


def test_the_conversation_is_an_id_or_an_object() -> None:
    assert ask(conversation="conv_1").conversation == "conv_1"
    parsed = ask(conversation={"id": "conv_1"})
    assert (parsed.conversation, parsed.echo["conversation"]) == ("conv_1", {"id": "conv_1"})
    assert "conversation" not in ask().echo


def test_the_values_of_include_are_kept() -> None:
    assert ask(include=["reasoning.encrypted_content"]).include == {"reasoning.encrypted_content"}


# --- the errors of the contract -------------------------------------------------------------------


def wire_error(failure: Any) -> Any:
    return json.loads(error_body(failure, "responses"))["error"]


def test_an_id_that_is_not_a_conversations_is_refused_in_the_contracts_words() -> None:
    failure = refusal_of(conversation="invalid-id")
    assert status_of(failure, "responses") == 400
    assert wire_error(failure) == {
        "message": "Invalid 'conversation': 'invalid-id'. Expected an ID that begins with 'conv_'.",
        "type": "invalid_request_error",
        "param": "conversation",
        "code": "invalid_conversation_id",
    }


@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}, "invalid-id"])
def test_conversation_and_previous_response_exclude_each_other_in_the_contracts_words(
    conversation: Any,
) -> None:
    failure = refusal_of(conversation=conversation, previous_response_id="resp_1")
    assert wire_error(failure) == {
        "message": "Mutually exclusive parameters. Ensure you are only providing one of: "
        "'previous_response_id' or 'conversation'.",
        "type": "invalid_request_error",
        "param": None,
        "code": "mutually_exclusive_parameters",
    }


def test_a_long_wrong_id_is_not_repeated_whole() -> None:
    assert len(refusal_of(conversation="x" * 10_000).message) < 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": -1}, "repetition_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x" * 1_001]}, "stop[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": True}, "max_output_tokens"),
        ({"max_output_tokens": 10**30}, "max_output_tokens"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"truncation": "middle"}, "truncation"),
        ({"include": ["everything"]}, "include[0]"),
        ({"include": ["message.output_text.logprobs"]}, "include[0]"),
        ({"service_tier": "free"}, "service_tier"),
        ({"reasoning": {"effort": "enormous"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "yaml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"type": "tomorrow"}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "video"}]}]}, "input[0].content[0].type"),
        ({"input": "x" * 10_485_761}, "input"),
        ({"conversation": 5}, "conversation"),
        ({"conversation": {}}, "conversation.id"),
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_response_is_named(fields: dict[str, Any], param: str) -> None:
    failure = refusal_of(**fields)
    assert (failure.kind, failure.param) == (FaultKind.INVALID_REQUEST, param)


def test_a_refused_field_is_named_before_a_missing_one() -> None:
    with pytest.raises(Fault) as raised:
        ask_bytes(b'{"model":"codex-5","prompt":{"id":"pmpt_1"}}')
    assert raised.value.failure.param == "prompt"


def test_an_empty_input_is_enough_where_something_comes_before() -> None:
    assert ask(input=[], previous_response_id="resp_1").input_items == ()
    assert ask(input=[], conversation="conv_1").input_items == ()


# --- tools ----------------------------------------------------------------------------------------


def test_a_function_is_a_tool_of_the_turn_and_is_shown_with_every_key() -> None:
    parsed = ask(tools=[function_tool()])
    assert parsed.turn.tools == (Tool("get_weather"),)
    assert parsed.echo["tools"] == [
        {"type": "function", "name": "get_weather", "description": None, "parameters": None, "strict": False}
    ]


def test_a_schema_goes_to_the_agent_as_it_came() -> None:
    (tool,) = turn(tools=[function_tool(parameters={"minimum": 10**30}, strict=True)]).tools
    assert tool.parameters is not None
    assert json.loads(bytes(tool.parameters)) == {"minimum": 10**30}
    assert tool.strict


def test_a_custom_tool_has_its_grammar_in_the_description() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    parsed = ask(tools=[{"type": "custom", "name": "say", "description": "Says.", "format": grammar}])
    (tool,) = parsed.turn.tools
    assert (tool.kind, tool.description) == (
        "custom",
        "Says.\n\nThe input must follow this lark grammar:\nstart: WORD",
    )
    assert parsed.echo["tools"][0]["format"] == grammar


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
def test_web_search_turns_on_the_agents_own(kind: str) -> None:
    parsed = ask(tools=[{"type": kind, "search_context_size": "low"}])
    assert ("tools[web_search]" in parsed.ignored, parsed.turn.web_search, parsed.turn.tools) == (
        False,
        True,
        (),
    )
    assert parsed.echo["tools"] == [{"type": kind, "search_context_size": "low"}]
    assert not ask().turn.web_search
    forbidden = ask(tools=[{"type": kind}], settings=RequestSettings(web_search=False))
    assert ("tools[web_search]" in forbidden.ignored, forbidden.turn.web_search) == (True, False)


@pytest.mark.parametrize("kind", ["programmatic_tool_calling", "computer_use_preview", "computer"])
def test_tools_of_openais_own_servers_are_refused_by_name(kind: str) -> None:
    failure = refusal_of(tools=[function_tool(), {"type": kind}])
    assert (failure.param, failure.code) == ("tools[1]", "unsupported_tool")
    assert f"'{kind}'" in failure.message
    assert ("give a function with the actions" in failure.message) == kind.startswith("computer")


@pytest.mark.parametrize("kind", ["code_interpreter", "file_search", "image_generation"])
def test_tools_of_the_model_server_are_for_admission_to_judge(kind: str) -> None:
    parsed = ask(tools=[function_tool(), {"type": kind, "tomorrow": {"file_ids": ["f"]}}], tool_choice="none")
    (offer,) = parsed.hosted
    assert (offer.type, offer.param, offer.own_object()) == (kind, "tools[1]", "tools[1].tomorrow.file_ids")
    assert parsed.turn.hosted is None
    assert not parsed.ignored


@pytest.mark.parametrize("environment", [{"type": "container_auto"}, {"type": "container_reference"}])
def test_a_shell_in_a_container_of_openais_is_refused(environment: dict[str, Any]) -> None:
    failure = refusal_of(tools=[function_tool(), {"type": "shell", "environment": environment}])
    assert (failure.param, failure.code) == ("tools[1].environment", "unsupported_tool")
    assert "environment 'local'" in failure.message
    brought = {"type": "additional_tools", "tools": [{"type": "shell", "environment": environment}]}
    assert turn(input=[brought, HELLO]).tools == ()


@pytest.mark.parametrize("environment", [None, {"type": "local"}, {"type": "local", "skills": []}])
def test_a_shell_is_the_clients_own_where_no_container_is_named(environment: Any) -> None:
    given = {"type": "shell", "environment": environment}
    brought = {"type": "additional_tools", "tools": [given]}
    (tool,) = turn(tools=[given]).tools
    assert turn(input=[brought, HELLO]).tools == (tool,)
    assert (tool.name, tool.kind, tool.strict) == ("shell", "function", False)


def test_the_model_is_told_of_a_shells_skills() -> None:
    skill = {"name": "releases", "description": "How to release.", "path": "/skills/releases"}
    parsed = ask(tools=[{"type": "shell", "environment": {"type": "local", "skills": [skill]}}])
    (tool,) = parsed.turn.tools
    assert tool.description.endswith("\n- releases (/skills/releases): How to release.")
    assert parsed.ignored == ()
    refused = refusal_of(tools=[{"type": "shell", "environment": {"type": "local", "skills": [{}]}}])
    assert refused.param == "tools[0].environment.skills[0].name"


def test_an_mcp_server_is_kept_for_whoever_runs_its_tools() -> None:
    parsed = ask(
        tools=[
            {
                **MCP,
                "server_description": "Files.",
                "headers": {"X-Key": "k"},
                "authorization": "secret",
                "require_approval": "always",
                "allowed_tools": ["read"],
            }
        ]
    )
    (offer,) = parsed.mcp
    assert (offer.server.server_label, offer.server.server_url) == ("files", "http://localhost:8080/mcp")
    assert (offer.server.headers, offer.server.authorization) == ({"X-Key": "k"}, "secret")
    assert allowed_names(offer) == ["read"]
    assert [allows(offer, tool) for tool in (READ, WRITE)] == [True, False]
    assert needs_approval(offer, READ)
    assert offer.param == "tools[0]"


def test_secrets_of_an_mcp_server_are_not_shown() -> None:
    parsed = ask(tools=[{**MCP, "headers": {"X-Key": "hidden"}, "authorization": "hidden"}])
    assert "hidden" not in json.dumps(parsed.echo)
    assert parsed.echo["tools"] == [{**MCP, "require_approval": "never"}]


def test_approval_can_be_asked_for_some_tools() -> None:
    always, never = {"tool_names": ["write"]}, {"read_only": True}
    (offer,) = ask(tools=[{**MCP, "require_approval": {"always": always, "never": never}}]).mcp
    assert [needs_approval(offer, tool) for tool in (READ, WRITE)] == [False, True]


def test_tools_that_no_filter_names_need_approval_where_others_are_freed_from_it() -> None:
    some = {"tool_names": ["a"]}
    for filters, rest in (({"never": some}, True), ({"always": some}, False), ({}, False)):
        (offer,) = ask(tools=[{**MCP, "require_approval": filters}]).mcp
        assert needs_approval(offer, WRITE) is rest


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"type": "mcp", "server_label": "a"}, "tools[0].server_url"),
        ({"type": "mcp", "server_label": "a", "connector_id": "connector_gmail"}, "tools[0].connector_id"),
        ({"type": "function", "name": "a b"}, "tools[0].name"),
        ({"type": "function"}, "tools[0].name"),
        ({"type": "tomorrow"}, "tools[0].type"),
        ({**MCP, "allowed_tools": 5}, "tools[0].allowed_tools"),
        ({**MCP, "require_approval": "sometimes"}, "tools[0].require_approval"),
    ],
)
def test_a_wrong_field_of_a_tool_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(tools=[fields]).param == param


def test_two_servers_of_one_label_are_refused_since_a_call_names_its_server_by_that() -> None:
    assert refusal_of(tools=[MCP, function_tool(), MCP]).param == "tools[2].server_label"


def test_two_tools_of_one_name_are_refused() -> None:
    assert refusal_of(tools=[function_tool(), MCP, function_tool()]).param == "tools[2].name"


# --- tool_choice ----------------------------------------------------------------------------------

TOOLS = [
    function_tool("one"),
    function_tool("two"),
    {"type": "custom", "name": "three"},
    MCP,
    {"type": "web_search"},
]


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
def test_tool_choice_can_be_a_word(choice: str) -> None:
    parsed = ask(tools=TOOLS, tool_choice=choice)
    assert (parsed.turn.tool_choice, parsed.echo["tool_choice"]) == (choice, choice)
    assert parsed.turn.web_search == (choice != "none")


@pytest.mark.parametrize(("kind", "name"), [("function", "two"), ("custom", "three")])
def test_tool_choice_by_name_leaves_no_other_tool(kind: str, name: str) -> None:
    choice = {"type": kind, "name": name}
    parsed = ask(tools=TOOLS, tool_choice=choice)
    assert parsed.turn.tool_choice == NamedTools((name,), required=True)
    assert (parsed.echo["tool_choice"], parsed.turn.web_search) == (choice, False)


def test_tool_choice_can_be_the_agents_web_search_if_it_is_given() -> None:
    choice = {"type": "web_search"}
    parsed = ask(tools=TOOLS, tool_choice=choice)
    assert (parsed.turn.web_search, parsed.turn.tool_choice) == (True, NamedTools(()))
    failure = refusal_of(tools=[function_tool("one")], tool_choice=choice)
    assert (failure.param, failure.message) == ("tool_choice.type", "No tool 'web_search' was given.")


@pytest.mark.parametrize("kind", ["code_interpreter", "file_search", "image_generation"])
@pytest.mark.parametrize("among", [False, True])
def test_tool_choice_of_a_tool_of_the_model_server_needs_that_tool(kind: str, among: bool) -> None:
    choice: dict[str, Any] = {"type": kind}
    if among:
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    failure = refusal_of(tools=TOOLS, tool_choice=choice)
    param = "tool_choice.tools[0].type" if among else "tool_choice.type"
    assert (failure.param, failure.message) == (param, f"No tool '{kind}' was given.")


def test_tool_choice_can_name_a_tool_of_an_mcp_server() -> None:
    choice = {"type": "mcp", "server_label": "files", "name": "read"}
    parsed = ask(tools=TOOLS, tool_choice=choice)
    assert parsed.mcp_choice == (McpChoice("files", "read", required=True),)
    assert parsed.turn.tool_choice == NamedTools(())


def test_tools_of_a_namespace_keep_the_names_by_which_the_client_knows_them() -> None:
    inside = [{"type": "function", "name": "read"}, {"type": "custom", "name": "write"}]
    tools = ask(tools=[{"type": "namespace", "name": "files", "tools": inside}]).turn.tools
    assert [tool.client_name for tool in tools] == [ClientName(name, "files") for name in ("read", "write")]


def test_tool_choice_allowed_tools_limits_and_does_not_change_what_is_shown() -> None:
    choice: dict[str, Any] = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "one"}, {"type": "mcp", "server_label": "files"}],
    }
    parsed = ask(tools=TOOLS, tool_choice=choice)
    assert parsed.turn.tool_choice == NamedTools(("one",), required=True)
    assert parsed.mcp_choice == (McpChoice("files", None, required=True),)
    assert not parsed.turn.web_search
    assert (parsed.echo["tool_choice"], len(parsed.echo["tools"])) == (choice, len(TOOLS))
    one, files = choice["tools"]
    twice = ask(tools=TOOLS, tool_choice={**choice, "tools": [one, one]})
    assert twice.turn.tool_choice == NamedTools(("one",), required=True)
    servers_alone = ask(tools=TOOLS, tool_choice={**choice, "tools": [files]})
    assert servers_alone.turn.tool_choice == NamedTools(())


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "name": "four"}, "tool_choice.name"),
        ({"type": "custom", "name": "one"}, "tool_choice.name"),
        ({"type": "mcp", "server_label": "other"}, "tool_choice.server_label"),
        ({"type": "computer"}, "tool_choice"),
        ({"type": "tomorrow"}, "tool_choice.type"),
        ("always", "tool_choice"),
        ({"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice.tools"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "four"}]},
            "tool_choice.tools[0].name",
        ),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(choice: Any, param: str) -> None:
    assert refusal_of(tools=TOOLS, tool_choice=choice).param == param


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "one"}])
def test_tool_choice_needs_tools(choice: Any) -> None:
    assert refusal_of(tool_choice=choice).param == "tool_choice"


# --- plain model or agent -------------------------------------------------------------------------


def test_calls_of_the_clients_tools_are_for_the_plain_model_without_tools_too() -> None:
    for kind, field in (("function_call", "arguments"), ("custom_tool_call", "input")):
        call = {"type": kind, "call_id": "c", "name": "f", field: "{}"}
        output = {"type": f"{kind}_output", "call_id": "c", "output": "x"}
        assert turn(input=[call, output]).mode == "model"
    assert turn(tools=[{"type": "tool_search"}]).mode == "model"


def test_a_plain_question_is_for_the_agent() -> None:
    assert turn().mode == "agent"
    assert turn(tools=[{"type": "web_search"}]).mode == "agent"
    assert turn(text={"format": {"type": "text"}}).mode == "agent"


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [function_tool()]},
        {"tools": [MCP]},
        {"instructions": "Be brief."},
        {"text": {"format": {"type": "json_object"}}},
        {"input": [{"role": "system", "content": "Be brief."}]},
        {"model": "codex-5:model"},
        {"hints": RequestHints(mode="model")},
        {"settings": RequestSettings(builtin_tools="never")},
    ],
)
def test_a_client_that_acts_gets_the_plain_model(fields: dict[str, Any]) -> None:
    assert turn(**fields).mode == "model"


def test_the_agent_where_it_is_switched_off_is_not_allowed() -> None:
    failure = refusal_of(RequestSettings(builtin_tools="never"), model="codex-5:agent")
    assert failure.kind is FaultKind.NOT_ALLOWED


def test_the_folder_comes_from_header_metadata_or_settings() -> None:
    settings = RequestSettings(workdir="/default", sandbox="workspace-write")
    by_header = ask(settings, RequestHints(workdir="/header"), metadata={"workdir": "/metadata"})
    assert (by_header.turn.workdir, by_header.workdir_param) == ("/header", "X-Codex-Workdir")
    by_metadata = ask(settings, metadata={"workdir": "/metadata"})
    assert (by_metadata.turn.workdir, by_metadata.workdir_param) == ("/metadata", "metadata.workdir")
    assert (ask(settings).turn.workdir, ask(settings).workdir_param) == ("/default", None)
    assert ask(settings).turn.sandbox == "workspace-write"


def test_activity_is_shown_as_the_operator_and_the_header_say() -> None:
    assert ask().activity == "summaries"
    assert ask(RequestSettings(show_activity=False)).activity == "off"
    assert ask(hints=RequestHints(activity="items")).activity == "items"


# --- what is shown is the SDK's -------------------------------------------------------------------


@pytest.mark.parametrize("choice", ["auto", {"type": "mcp", "server_label": "files", "name": "read"}])
def test_the_response_object_is_one_of_the_sdks_own_type(choice: Any) -> None:
    shown = ask(tools=TOOLS, tool_choice=choice, reasoning={"effort": "low"}, metadata={"a": "b"}).echo
    Response.model_validate(
        {"id": "resp_1", "object": "response", "created_at": 1, "output": [], **shown}, strict=True
    )


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "image_generation_call"}, "input[0].id"),
        (
            {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": 5},
            "input[0].result",
        ),
        ({"type": "local_shell_call", "status": "completed", "action": {"type": "exec"}}, "input[0].action"),
        ({"type": "web_search_call", "action": "search"}, "input[0].action"),
        ({"type": "shell_call", "action": {"commands": []}}, "input[0].call_id"),
        ({"type": "shell_call", "call_id": "c", "action": {"commands": "ls"}}, "input[0].action.commands"),
        ({"type": "shell_call_output", "call_id": "c", "output": "a.py"}, "input[0].output"),
        (
            {
                "type": "shell_call_output",
                "call_id": "c",
                "output": [{**PRINTED, "outcome": {"type": "exit"}}],
            },
            "input[0].output[0].outcome.exit_code",
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "move_file", "path": "a"}},
            "input[0].operation.type",
        ),
        (
            {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "create_file", "path": "a"}},
            "input[0].operation.diff",
        ),
        ({"type": "apply_patch_call_output", "call_id": "c", "output": "Done."}, "input[0].status"),
        ({"type": "shell_call_output", "call_id": "unknown", "output": [PRINTED]}, "input[0].call_id"),
    ],
)
def test_a_malformed_item_with_a_tool_s_own_fields_is_the_client_s_fault(
    item: dict[str, Any], param: str
) -> None:
    fault = refusal_of(input=[item])
    assert (fault.kind, fault.param) == (FaultKind.INVALID_REQUEST, param)


def test_log_probabilities_are_refused_or_ignored_as_the_operator_has_it() -> None:
    included = {"include": ["message.output_text.logprobs"]}
    for fields, param, named in (
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs"),
        (included, "include[0]", "message.output_text.logprobs"),
    ):
        assert refusal_of(**fields).param == param
        assert ask(settings=RequestSettings(logprobs="ignore"), **fields).ignored == (named,)


@pytest.mark.parametrize("format", [{"type": "grammar"}, {"type": "grammar", "syntax": "lark"}])
def test_a_custom_tool_with_a_grammar_format_has_a_grammar(format: dict[str, Any]) -> None:
    fault = refusal_of(tools=[{"type": "custom", "name": "f", "format": format}])
    assert fault.code == "missing_required_parameter"


def test_parameters_that_are_no_object_are_a_400() -> None:
    fault = refusal_of(tools=[{"type": "function", "name": "f", "parameters": {"type": "string"}}])
    assert (fault.code, fault.param) == ("invalid_function_parameters", "tools[0].parameters")


def test_a_model_s_name_of_blanks_is_a_400() -> None:
    assert refusal_of(model=" ").param == "model"


def test_a_field_that_no_agent_supports_is_named() -> None:
    fields: dict[str, Any] = {"prompt_cache_retention": "24h", "context_management": [{"type": "compaction"}]}
    assert ask(**fields).ignored == tuple(fields)
