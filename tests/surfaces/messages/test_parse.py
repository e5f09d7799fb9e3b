"""What the fields of a request mean, what is ignored and named, and the little that is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.turn import NamedTools, Turn
from codex_proxy.surfaces.messages.answer import error_body
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.models import ModelCatalog, nearest_effort
from codex_proxy.surfaces.requests.options import RequestHints, model_name
from tests.surfaces.catalogs import catalog_of
from tests.surfaces.chat.asking import CATALOG
from tests.surfaces.messages.asking import HELLO, ask, message_of, parse_body, refusal_of, result, tool, use
from tests.surfaces.messages.test_history import BLOCKS, MESSAGES, VALUES

LONG = "mcp__a_server_with_a_name__a_tool_with_a_name_that_is_longer_than_providers_take"
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
ALL = catalog_of(
    models=(AgentModel(id="gpt-5.5", efforts=("minimal", "low", "medium", "high"), is_default=True),)
)


def turn(catalog: ModelCatalog = CATALOG, **fields: Any) -> Turn:
    return ask(catalog, **fields).turn


# --- the plain fields -----------------------------------------------------------------------------


def test_the_fields_that_every_api_has() -> None:
    answer = ask(stream=True, max_tokens=9000, stop_sequences=["END", "", "END"], model="codex-5")
    assert (answer.stream, answer.turn.max_tokens, answer.turn.stop) == (True, 9000, ("END",))
    assert answer.model_asked == "codex-5"


def test_without_a_model_it_is_the_default_one() -> None:
    assert ask(model=None).model_asked == "codex-5"
    assert refusal_of(model="claude-of-tomorrow").kind is FaultKind.MODEL_NOT_FOUND


def test_parameters_without_effect_are_accepted_and_named() -> None:
    answer = ask(
        temperature=1, top_k=5, service_tier="auto", speed="fast", inference_geo="eu", fallbacks=[{"model": "x"}],
        metadata={"user_id": "{}"}, context_management={"edits": []}, of_tomorrow={"a": 1},
        cache_control={}, nothing=None,
    )  # fmt: skip
    assert set(answer.ignored) == {
        *("service_tier", "speed", "inference_geo", "fallbacks", "metadata", "context_management"),
        "of_tomorrow",
    }
    assert answer.turn.sampling == {"temperature": 1, "top_k": 5}


def test_names_that_are_no_names_do_not_come_into_a_header() -> None:
    odd: dict[str, Any] = {"a\r\nb": 1, "ü": 1, "x" * 65: 1, **{f"f{number}": 1 for number in range(50)}}
    answer = ask(CATALOG, None, **odd)
    assert len(answer.ignored) == 20
    assert all(name.startswith("f") for name in answer.ignored)


def test_who_brings_tools_or_instructions_wants_the_plain_model() -> None:
    assert turn().mode == "agent"
    assert turn(system="Be brief.").mode == "model"
    assert turn(tools=[tool()]).mode == "model"
    assert turn(tools=[tool(defer_loading=True)]).mode == "model"
    assert turn(how={"headers": RequestHints(mode="model")}).mode == "model"


def test_who_has_called_tools_stays_with_the_plain_model_without_them() -> None:
    called = [HELLO, message_of("assistant", use("a", "Bash")), message_of("user", result("a", "done"))]
    assert turn(messages=called).mode == "model"
    gone = {"role": "system", "content": [{"type": "tool_removal", "tool": {"type": "t", "name": "Bash"}}]}
    assert turn(messages=[HELLO, gone]).mode == "model"
    assert turn(messages=[HELLO, message_of("system", "Be brief.")]).mode == "model"


def test_a_folder_may_be_named_in_the_metadata() -> None:
    answer = ask(metadata={"workdir": "/x", "user_id": "me"})
    assert (answer.turn.workdir, answer.workdir_param) == ("/x", "metadata.workdir")


# --- thinking and effort --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        ({}, None),
        ({"output_config": {"effort": "low"}}, "low"),
        ({"output_config": {"effort": "max"}}, "high"),
        ({"output_config": {"effort": "xhigh"}}, "high"),
        ({"output_config": {"effort": "of_tomorrow"}}, None),
        ({"thinking": {"type": "adaptive"}}, None),
        (
            {"thinking": {"type": "adaptive", "display": "updates"}, "output_config": {"effort": "medium"}},
            "medium",
        ),
        ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "low"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2049}}, "medium"),
        ({"thinking": {"type": "enabled", "budget_tokens": 24576}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100_000}}, "high"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "high"}},
            "high",
        ),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "minimal"),
        ({"model": "gpt-5.5-low"}, "low"),
        ({"model": "gpt-5.5-low", "output_config": {"effort": "high"}}, "high"),
    ],
)
def test_the_effort_comes_from_thinking_output_config_or_the_models_name(
    fields: dict[str, Any], effort: str | None
) -> None:
    assert turn(ALL, **fields).effort == effort


def test_the_newest_message_that_names_an_effort_decides() -> None:
    messages = [
        HELLO,
        message_of("system", "x", output_config={"effort": "low"}),
        message_of("assistant", "y"),
        HELLO,
    ]
    assert turn(ALL, messages=messages, output_config={"effort": "high"}).effort == "low"


def test_an_effort_that_is_unknown_here_is_named() -> None:
    assert ask(output_config={"effort": "of_tomorrow"}).ignored == ("output_config.effort",)


def test_of_a_model_that_nobody_lists_the_usual_efforts_are_asked() -> None:
    assert nearest_effort("max", ()) == "high"
    assert nearest_effort("none", ()) == "low"
    assert nearest_effort("none", ("none", "low")) == "none"


def test_thinking_is_shown_to_who_asks_for_it() -> None:
    assert (ask().thinking, ask().turn.summary) == (False, None)
    shown = ask(thinking={"type": "adaptive"})
    assert (shown.thinking, shown.turn.summary) == (True, "auto")
    assert not ask(thinking={"type": "disabled"}).thinking
    assert not ask(thinking={"type": "of_tomorrow"}).thinking


# --- the answer's format --------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_format_is_the_schema_of_the_answer(field: str) -> None:
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    given: dict[str, Any] = {field: {"format": wanted} if field == "output_config" else wanted}
    assert turn(**given).output_schema == msgspec.Raw(b'{"type":"object"}')


def test_a_format_that_is_none_is_refused_by_its_field() -> None:
    assert refusal_of(output_config={"format": {"type": "xml"}}).param == "output_config.format.type"
    assert refusal_of(output_format={"type": "json_schema"}).param == "output_format.schema"


# --- tools ----------------------------------------------------------------------------------------


def test_tools_of_the_client_become_functions_of_the_turn() -> None:
    extra = {"cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "input_examples": [{}]}
    one, other = turn(tools=[tool("a", strict=True, **extra), {"name": "b", "type": "custom"}]).tools
    assert (one.name, one.description, one.strict) == ("a", "Does it.", True)
    assert one.parameters == msgspec.Raw(b'{"type":"object"}')
    assert (other.description, other.strict) == ("", False)


def test_a_name_that_is_too_long_is_shortened_for_the_model_and_given_back() -> None:
    answer = ask(tools=[tool(LONG), tool("get.weather")], tool_choice={"type": "tool", "name": LONG})
    short, dotted = (each.name for each in answer.turn.tools)
    assert len(short) == 64
    assert short.startswith("mcp__a_server_with_a_name__")
    assert dotted.startswith("get_weather_")
    assert answer.client_names == {short: LONG, dotted: "get.weather"}
    assert answer.turn.tool_choice == NamedTools((short,), required=True)
    call = ask(
        messages=[message_of("assistant", use("a", LONG)), message_of("user", result("a"))]
    ).turn.history[0]
    assert call.name == short  # type: ignore[union-attr]


@given(st.text(max_size=200), st.text(max_size=200))
def test_two_names_never_become_one(one: str, other: str) -> None:
    assert (model_name(one) == model_name(other)) is (one == other)
    assert len(model_name(one)) <= 64


def test_a_deferred_tool_is_offered_once_the_history_refers_to_it() -> None:
    tools = [
        tool("ToolSearch"),
        tool("a", defer_loading=True),
        tool("b", defer_loading=True),
        tool("c", defer_loading=True),
    ]
    found = {"type": "tool_reference", "tool_name": "a"}
    messages = [
        message_of("assistant", use("1", "ToolSearch"), use("2", "b")),
        message_of("user", result("1", [found]), result("2"), "Tool loaded."),
    ]
    assert [each.name for each in turn(tools=tools).tools] == ["ToolSearch"]
    assert [each.name for each in turn(tools=tools, messages=messages).tools] == ["ToolSearch", "a", "b"]
    chosen = turn(tools=tools, tool_choice={"type": "tool", "name": "c"})
    assert [each.name for each in chosen.tools] == ["ToolSearch", "c"]


def test_where_anthropics_servers_would_search_for_tools_all_are_offered() -> None:
    answer = ask(
        tools=[{"type": "tool_search_tool_regex_20251119", "name": "s"}, tool("a", defer_loading=True)]
    )
    assert [each.name for each in answer.turn.tools] == ["a"]
    assert answer.ignored == ("tools[0]",)


@pytest.mark.parametrize(
    ("choice", "means", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "get_weather"}, NamedTools(("get_weather",), required=True), True),
        ({"type": "none"}, "none", True),
    ],
)
def test_tool_choice_becomes_the_turns_own_form(choice: dict[str, Any], means: Any, parallel: bool) -> None:
    made = turn(tools=[tool()], tool_choice=choice)
    assert (made.tool_choice, made.parallel_tool_calls) == (means, parallel)


def test_a_web_search_is_the_agents_own() -> None:
    answer = ask(tools=[SEARCH], tool_choice={"type": "auto"})
    assert (answer.web_search, answer.turn.web_search, answer.turn.tools) == (True, True, ())
    assert answer.ignored == ("tools[0].max_uses",)
    assert not ask(tools=[SEARCH], tool_choice={"type": "none"}).turn.web_search
    assert ask(tools=[SEARCH], tool_choice={"type": "any"}).turn.tool_choice == "auto"
    assert ask(
        tools=[SEARCH, tool()], tool_choice={"type": "tool", "name": "web_search"}
    ).turn.tool_choice == NamedTools(())


def test_a_choice_of_a_tool_without_its_name_is_refused_by_that_name() -> None:
    with pytest.raises(Fault, match=r"tool_choice\.name") as refused:
        turn(tools=[tool()], tool_choice={"type": "tool"})
    assert "Missing required parameter" in refused.value.failure.message
    chosen = ask(tools=[tool("web_search")], tool_choice={"type": "tool", "name": "web_search"})
    assert chosen.turn.tool_choice == NamedTools(("web_search",), required=True)


@pytest.mark.parametrize(
    ("given", "name", "words"),
    [
        ({"type": "bash_20250124", "name": "bash"}, "bash", "bash session"),
        (
            {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}},
            "memory",
            "notes",
        ),
        (
            {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 99},
            "str_replace_based_edit_tool",
            "at most 99 characters",
        ),
        (
            {"type": "computer_20251124", "name": "computer", "display_width_px": 8, "display_height_px": 6},
            "computer",
            "8 x 6 pixels",
        ),
    ],
)
def test_a_tool_of_anthropic_that_the_client_runs_is_offered_with_its_schema(
    given: dict[str, Any], name: str, words: str
) -> None:
    answer = ask(tools=[given], tool_choice={"type": "tool", "name": name})
    (offered,) = answer.turn.tools
    assert (offered.name, offered.kind, words in offered.description) == (name, "function", True)
    assert b'"properties"' in bytes(offered.parameters or b"")
    assert answer.turn.tool_choice == NamedTools((name,), required=True)
    assert answer.ignored == ()
    assert refusal_of(tools=[{**given, "name": "other"}]).param == "tools[0].name"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("code_execution_20250825", "Anthropic's own servers"),
        ("web_fetch_20250910", "Anthropic's own servers"),
        ("mcp_toolset", "Anthropic's own servers"),
        ("function", "No tool of type 'function' is known here"),
        ("bash_20990101", "input_schema"),
        ("text_editor_20990101", "input_schema"),
        ("memory_20990101", "input_schema"),
        ("computer_toolset_20260801", "input_schema"),
    ],
)
def test_a_tool_that_is_not_here_is_refused_with_what_to_do(kind: str, words: str) -> None:
    failure = refusal_of(tools=[tool(), {"type": kind, "name": "x"}])
    assert failure.param == "tools[1]"
    assert words in failure.message
    assert "custom tool" in failure.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [tool(), tool()]}, "tools[1].name"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": []}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "tool", "name": "b"}}, "tool_choice.name"),
        ({"tools": [tool()], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tools": [{"name": ["a"]}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "description": 5}]}, "tools[0].description"),
        ({"system": [{"type": "text", "text": 5}]}, "system[0].text"),
        ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**30}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"top_k": 10**30}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": ["x" * 1001]}, "stop_sequences[0]"),
    ],
)
def test_a_wrong_field_is_refused_and_named(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(**fields).param == param


# --- whatever comes in ----------------------------------------------------------------------------

BODIES = st.dictionaries(st.sampled_from([*MessagesRequest.model_fields, "of_tomorrow"]), VALUES, max_size=6)
TOOLS = st.lists(
    st.dictionaries(
        st.sampled_from(["name", "type", "input_schema", "defer_loading", "description", "strict"]), VALUES
    ),
    max_size=3,
)


def outcome(body: bytes) -> None:
    """Any other exception than the client's fault fails the test."""
    try:
        parse_body(body)
        return
    except Fault as raised:
        failure = raised.failure
    assert json.loads(error_body(failure, "req_1"))["type"] == "error"
    assert failure.kind in (FaultKind.INVALID_REQUEST, FaultKind.MODEL_NOT_FOUND)


@settings(deadline=None)
@given(st.binary(max_size=60) | BODIES.map(lambda body: json.dumps(body).encode()))
def test_bytes_are_a_request_or_a_fault(body: bytes) -> None:
    outcome(body)


@settings(deadline=None)
@given(st.lists(MESSAGES, min_size=1, max_size=4), BODIES, TOOLS, st.lists(BLOCKS, max_size=2))
def test_any_request_is_taken_or_refused(
    messages: list[Any], body: dict[str, Any], tools: list[Any], system: list[Any]
) -> None:
    outcome(json.dumps({"system": system, "tools": tools, **body, "messages": messages}).encode())
