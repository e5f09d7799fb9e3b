"""The rest of a chat request: ranges, nulls, mode, folder, format, and what is ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.surfaces.chat.parse import ParsedChat
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.requests.options import RequestHints, RequestSettings
from tests.pictures import PIXEL
from tests.surfaces.chat.asking import HELLO, STRUCTURED_OUTPUT, ask, function_tool, refusal_of

SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("temperature", True),
        ("temperature", "warm"),
        ("top_p", -0.1),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.5),
        ("logit_bias", []),
        ("logprobs", "yes"),
        ("logprobs", 1.5),
        ("logprobs", ""),
        ("max_tokens", 0),
        ("max_tokens", 10**30),
        ("max_completion_tokens", 1.5),
        ("max_completion_tokens", True),
        ("parallel_tool_calls", "no"),
        ("stream", "true"),
        ("stream_options", True),
        ("stop", 3),
        ("stop", "x" * 1_001),
        ("stop", ["a", "b", "c", "d", "e"]),
        ("seed", 10**30),
        ("seed", 1.5),
        ("metadata", []),
        ("metadata", {str(n): "" for n in range(17)}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("reasoning_effort", "huge"),
        ("verbosity", "chatty"),
        ("service_tier", "gold"),
        ("response_format", "text"),
        ("user", 7),
        ("model", 5),
        ("store", 1),
    ],
)
def test_a_field_that_is_wrong_is_named(field: str, value: Any) -> None:
    fault = refusal_of(**{field: value})
    assert (fault.kind, fault.param) == (FaultKind.INVALID_REQUEST, field)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [HELLO, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"stop": ["a", "x" * 900_000]}, "stop[1]"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logit_bias": {"50256": 101}}, "logit_bias.50256"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_field_deep_inside_is_named_as_openai_writes_it(fields: dict[str, Any], param: str) -> None:
    assert refusal_of(**fields).param == param


def test_the_message_says_what_is_wrong_and_what_is_accepted() -> None:
    assert refusal_of(n="2").message == "Invalid type for 'n': expected an integer, but got a string instead."
    assert refusal_of(n=9).message == (
        "Invalid 'n': integer above maximum value. Expected a value <= 5, but got 9 instead."
    )
    assert "'low', 'medium' or 'high'" in refusal_of(verbosity="chatty").message
    assert refusal_of(messages=None).message == "Missing required parameter: 'messages'."


def test_an_explicit_null_is_the_same_as_nothing() -> None:
    optional = [name for name in ChatRequest.model_fields if name not in ("messages", "model")]
    nulls: dict[str, Any] = dict.fromkeys(optional)
    assert ask(**nulls) == ask()
    nested: dict[str, Any] = {
        "stream_options": {"include_usage": None},
        "reasoning": {"effort": None, "summary": None},
    }
    assert ask(stream=True, **nested) == ask(stream=True)


def test_unknown_fields_are_named_and_change_nothing() -> None:
    answer = ask(top_a=40, extra={"a": [1]}, messages=[{**HELLO, "mood": "good"}])
    assert answer == msgspec.structs.replace(ask(), ignored=("top_a", "extra", "messages[].mood"))


def test_a_request_without_a_model_is_answered_as_codex_5() -> None:
    parsed = ask(model=None)
    assert (parsed.model_asked, parsed.turn.model) == ("codex-5", "gpt-5.5")


def test_sampling_is_kept_for_an_agent_that_can_set_it() -> None:
    sampling: dict[str, Any] = {
        "temperature": 0,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "logit_bias": {},
    }
    sampling |= {"seed": 1, "prediction": {"type": "content", "content": "x"}}
    parsed = ask(**sampling)
    assert parsed.turn == msgspec.structs.replace(ask().turn, sampling=sampling)


def test_stop_is_one_sequence_or_up_to_four_and_the_empty_one_means_none() -> None:
    assert ask(stop="END").turn.stop == ("END",)
    assert ask(stop=["a", "", "b", "a"]).turn.stop == ("a", "b")
    assert ask(stop="").turn.stop == ask(stop=[]).turn.stop == ()


def test_max_tokens_and_max_completion_tokens_are_one_limit() -> None:
    assert ask(max_tokens=5).turn.max_tokens == 5
    assert ask(max_completion_tokens=7).turn.max_tokens == 7
    fault = refusal_of(max_tokens=5, max_completion_tokens=7)
    assert (fault.param, fault.message) == (
        "max_tokens",
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
    )


def test_fields_that_agents_support_reach_the_turn() -> None:
    turn = ask(verbosity="low", service_tier="flex", reasoning={"summary": "detailed"}).turn
    assert (turn.verbosity, turn.service_tier, turn.summary) == ("low", "flex", "detailed")


def test_the_flat_effort_wins_over_the_nested_one_and_both_over_the_name() -> None:
    assert (
        ask(model="codex-5-low", reasoning_effort="high", reasoning={"effort": "medium"}).turn.effort
        == "high"
    )
    assert ask(model="codex-5-low", reasoning={"effort": "medium"}).turn.effort == "medium"


def test_stream_options_need_a_stream() -> None:
    assert refusal_of(stream_options={"include_usage": True}).param == "stream_options"


def test_one_choice_is_the_policy_where_the_operator_says_so() -> None:
    fault = refusal_of(RequestSettings(max_choices=1), n=2)
    assert (fault.param, fault.message) == ("n", "Invalid value for 'n': only 1 is accepted.")


# --- structured output ----------------------------------------------------------------------------


def test_with_structured_output_a_json_schema_is_the_turns_output_schema() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    given = ask(STRUCTURED_OUTPUT, response_format=wanted).turn.output_schema
    assert given == msgspec.Raw(b'{"title":"x","type":"object"}')


def test_the_name_and_the_description_of_a_schema_reach_the_model() -> None:
    named = {"name": "place", "description": "Where it is.", "schema": {"type": "object", "title": "Spot"}}
    given = ask(
        STRUCTURED_OUTPUT, response_format={"type": "json_schema", "json_schema": named}
    ).turn.output_schema
    assert given == msgspec.Raw(b'{"title":"Spot","description":"Where it is.","type":"object"}')


def test_with_structured_output_a_json_object_is_asked_for_in_words() -> None:
    parsed = ask(STRUCTURED_OUTPUT, response_format={"type": "json_object"})
    first = parsed.turn.history[0]
    assert isinstance(first, HistoryMessage)
    assert first.role == "developer"


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        (None, "response_format.json_schema"),
        ({"name": "x"}, "response_format.json_schema.schema"),
        ({"name": "x", "schema": []}, "response_format.json_schema.schema"),
        ({"name": "a b", "schema": {}}, "response_format.json_schema.name"),
    ],
)
def test_a_schema_that_is_none_is_named(schema: Any, param: str) -> None:
    wanted = {"type": "json_schema", "json_schema": schema}
    assert refusal_of(STRUCTURED_OUTPUT, response_format=wanted).param == param


# --- plain model or agent -------------------------------------------------------------------------

CALLING = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
ANSWERED = {"role": "tool", "tool_call_id": "a", "content": "x"}


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "agent"),
        ({"response_format": {"type": "text"}}, "agent"),
        ({"tools": [function_tool()]}, "model"),
        ({"functions": [{"name": "f"}]}, "model"),
        ({"messages": [SYSTEM, HELLO]}, "model"),
        ({"response_format": {"type": "json_object"}}, "model"),
        ({"messages": [HELLO, CALLING, ANSWERED]}, "model"),
        ({"model": "codex-5:model"}, "model"),
        ({"tools": [function_tool()], "model": "codex-5:agent"}, "agent"),
    ],
)
def test_auto_is_the_plain_model_when_the_client_is_the_agent(fields: dict[str, Any], mode: str) -> None:
    assert ask(STRUCTURED_OUTPUT, **fields).turn.mode == mode


def test_the_operator_can_settle_the_mode() -> None:
    assert ask(RequestSettings(builtin_tools="always"), tools=[function_tool()]).turn.mode == "agent"
    assert ask(RequestSettings(builtin_tools="never")).turn.mode == "model"


def test_the_header_names_the_mode_and_of_two_wishes_the_narrower_wins() -> None:
    assert ask(hints=RequestHints(mode="Model")).turn.mode == "model"
    assert ask(hints=RequestHints(mode="agent"), model="codex-5:model").turn.mode == "model"
    assert ask(hints=RequestHints(mode="model"), model="codex-5:agent").turn.mode == "model"
    assert ask(hints=RequestHints(mode="")).turn.mode == "agent"
    assert refusal_of(hints=RequestHints(mode="robot")).param == "X-Codex-Mode"


@pytest.mark.parametrize(
    ("name", "header", "param"), [("codex-5:agent", None, "model"), ("codex-5", "agent", "X-Codex-Mode")]
)
def test_a_request_cannot_widen_what_the_server_allows(name: str, header: str | None, param: str) -> None:
    fault = refusal_of(RequestSettings(builtin_tools="never"), hints=RequestHints(mode=header), model=name)
    assert (fault.kind, fault.param) == (FaultKind.NOT_ALLOWED, param)


def test_the_folder_is_the_headers_then_the_metadatas_then_the_servers() -> None:
    settings = RequestSettings(workdir="/srv")
    hints = RequestHints(workdir="/a")
    by_header = ask(settings, hints=hints, metadata={"workdir": "/b"})
    by_metadata = ask(settings, metadata={"workdir": "/b"})
    by_server = ask(settings)
    assert (by_header.turn.workdir, by_header.workdir_param) == ("/a", "X-Codex-Workdir")
    assert (by_metadata.turn.workdir, by_metadata.workdir_param) == ("/b", "metadata.workdir")
    assert (by_server.turn.workdir, by_server.workdir_param) == ("/srv", None)


def test_the_sandbox_is_the_operators() -> None:
    assert ask().turn.sandbox == "read-only"
    assert ask(RequestSettings(sandbox="workspace-write")).turn.sandbox == "workspace-write"


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        (
            {"temperature": 3},
            "decimal_above_max_value",
            "decimal above maximum value. Expected a value <= 2, but got 3",
        ),
        (
            {"top_p": -0.5},
            "decimal_below_min_value",
            "decimal below minimum value. Expected a value >= 0, but got -0.5",
        ),
        (
            {"n": 9},
            "integer_above_max_value",
            "integer above maximum value. Expected a value <= 5, but got 9",
        ),
        (
            {"n": 0},
            "integer_below_min_value",
            "integer below minimum value. Expected a value >= 1, but got 0",
        ),
        (
            {"seed": 2**63},
            "integer_above_max_value",
            "integer above maximum value. Expected a value <= 9223372036854775807, but got 9223372036854775808",
        ),
        (
            {"max_tokens": 0},
            "integer_below_min_value",
            "integer below minimum value. Expected a value >= 1, but got 0",
        ),
        (
            {"stop": ["a"] * 5},
            "array_above_max_length",
            "array too long. Expected an array with maximum length 4, but got an array with length 5",
        ),
        (
            {"messages": []},
            "empty_array",
            "empty array. Expected an array with minimum length 1, but got an empty array",
        ),
    ],
)
def test_a_value_out_of_range_has_openais_code_and_openais_words(
    fields: dict[str, Any], code: str, message: str
) -> None:
    fault = refusal_of(**fields)
    (param,) = fields
    assert (fault.param, fault.code) == (param, code)
    assert fault.message == f"Invalid '{param}': {message} instead."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"temperature": "hot"},
            "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        ),
        (
            {"prompt_cache_key": 5},
            "Invalid type for 'prompt_cache_key': expected a string, but got an integer instead.",
        ),
        ({"n": 1.5}, "Invalid type for 'n': expected an integer, but got a decimal instead."),
    ],
)
def test_a_wrong_type_is_reported_in_openais_words(fields: dict[str, Any], message: str) -> None:
    fault = refusal_of(**fields)
    assert (fault.code, fault.message) == ("invalid_type", message)


def test_an_invalid_value_is_repeated_up_to_eighty_characters() -> None:
    fault = refusal_of(verbosity="x" * 5000)
    assert fault.message.startswith(f"Invalid value: '{'x' * 80}...'. Supported values are: 'low'")
    fault = refusal_of(metadata={"k" * 5000: "v"})
    assert len(fault.message) < 300
    assert len(fault.param or "") < 200


@pytest.mark.parametrize("kind", ["string", "array", ["string", "null"], 5])
@pytest.mark.parametrize("generation", ["tools", "functions"])
def test_parameters_that_are_no_object_are_a_400(kind: Any, generation: str) -> None:
    function = {"name": "f", "parameters": {"type": kind}}
    given: Any = {"tools": [{"type": "function", "function": function}], "functions": [function]}
    fault = refusal_of(**{generation: given[generation]})
    assert fault.code == "invalid_function_parameters"
    assert fault.param == (
        "tools[0].function.parameters" if generation == "tools" else "functions[0].parameters"
    )


def test_a_custom_tool_with_a_grammar_format_has_a_grammar() -> None:
    fault = refusal_of(tools=[{"type": "custom", "custom": {"name": "f", "format": {"type": "grammar"}}}])
    assert (fault.param, fault.code) == ("tools[0].custom.format.grammar", "missing_required_parameter")


def test_a_model_s_name_of_blanks_is_a_400() -> None:
    fault = refusal_of(model=" ")
    assert (fault.kind, fault.param) == (FaultKind.INVALID_REQUEST, "model")


def test_log_probabilities_are_refused_or_ignored_as_the_operator_has_it() -> None:
    for fields in (
        {"logprobs": True},
        {"logprobs": 2},
        {"top_logprobs": 3},
        {"logprobs": True, "top_logprobs": 2},
    ):
        assert refusal_of(**fields).param == next(iter(fields))
        assert ask(settings=RequestSettings(logprobs="ignore"), **fields).ignored == tuple(fields)
    assert ask(settings=RequestSettings(logprobs="ignore"), logprobs=False).ignored == ()


def test_the_name_of_who_speaks_stands_in_front_of_the_text() -> None:
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    turn = ask(
        messages=[
            {"role": "system", "name": "rules", "content": "Be brief."},
            {"role": "user", "name": "ann", "content": "Hello."},
            {"role": "assistant", "name": "bot", "content": "Hi."},
            {"role": "user", "name": "bob", "content": [picture]},
        ]
    )
    texts = [[part.text for part in item.parts if isinstance(part, TextPart)] for item in messages_in(turn)]
    assert texts == [["rules: Be brief."], ["ann: Hello."], ["Hi."], ["bob:"]]
    assert turn.ignored == ("messages[].name",)


def messages_in(parsed: ParsedChat) -> list[HistoryMessage]:
    return [item for item in parsed.turn.history if isinstance(item, HistoryMessage)]


def test_a_field_that_no_agent_supports_is_named() -> None:
    fields: dict[str, Any] = {
        "prompt_cache_retention": "24h",
        "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        "store": True,
    }
    assert set(ask(**fields).ignored) == set(fields)
    assert ask(store=False).ignored == ()


@pytest.mark.parametrize(("allowed", "searches"), [(True, True), (False, False)])
def test_web_search_options_switch_on_the_agents_own_search(allowed: bool, searches: bool) -> None:
    parsed = ask(
        settings=RequestSettings(web_search=allowed), web_search_options={"search_context_size": "low"}
    )
    assert (parsed.turn.web_search, "web_search_options" in parsed.ignored) == (searches, not searches)
    assert not ask().turn.web_search
    assert refusal_of(web_search_options={"search_context_size": "huge"}).param == (
        "web_search_options.search_context_size"
    )


@pytest.mark.parametrize(
    ("asked", "shown"), [(None, None), ("auto", "default"), ("fast", "priority"), ("flex", "flex")]
)
def test_a_service_tier_is_shown_where_one_was_asked_for(asked: str | None, shown: str | None) -> None:
    assert ask(service_tier=asked).service_tier == shown
    assert ask(service_tier=asked).ignored == ()


def test_a_service_tier_that_the_model_is_not_served_in_is_named_and_not_claimed() -> None:
    parsed = ask(service_tier="scale")
    assert (parsed.service_tier, parsed.ignored) == ("default", ("service_tier",))
