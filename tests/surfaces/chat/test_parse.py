"""The rest of a chat request: ranges, nulls, mode, folder, format, and what is ignored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import SaidMessage
from codex_proxy.surfaces.base import RequestHints
from codex_proxy.surfaces.chat.parse import ChatSettings
from codex_proxy.surfaces.chat.wire import ChatRequest
from tests.surfaces.chat.asking import HELLO, STRUCTURED, ask, function_tool, refused

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
        ("stop", ["a", "b", "c", "d", "e"]),
        ("seed", 10**30),
        ("seed", 1.5),
        ("metadata", []),
        ("metadata", {str(n): "" for n in range(17)}),
        ("modalities", ["text", "audio"]),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("web_search_options", {}),
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
    fault = refused(**{field: value})
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
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"logit_bias": {"50256": 101}}, "logit_bias.50256"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_field_deep_inside_is_named_as_openai_writes_it(fields: dict[str, Any], param: str) -> None:
    assert refused(**fields).param == param


def test_the_message_says_what_is_wrong_and_what_is_accepted() -> None:
    assert refused(n="2").message == "Invalid type for 'n': expected an integer, but got a string instead."
    assert refused(n=9).message == "Invalid value for 'n': expected an integer from 1 to 5."
    assert "'low', 'medium' or 'high'" in refused(verbosity="chatty").message
    assert refused(messages=None).message == "Missing required parameter: 'messages'."


def test_an_explicit_null_is_the_same_as_nothing() -> None:
    optional = [name for name in ChatRequest.model_fields if name not in ("messages", "model")]
    nulls: dict[str, Any] = dict.fromkeys(optional)
    assert ask(**nulls) == ask()
    nested: dict[str, Any] = {
        "stream_options": {"include_usage": None},
        "reasoning": {"effort": None, "summary": None},
    }
    assert ask(stream=True, **nested) == ask(stream=True)


def test_unknown_fields_are_accepted_and_change_nothing() -> None:
    assert ask(top_k=40, extra={"a": [1]}, messages=[{**HELLO, "mood": "good"}]) == ask()


def test_a_request_without_a_model_is_answered_as_codex_5() -> None:
    parsed = ask(model=None)
    assert (parsed.model_asked, parsed.turn.model) == ("codex-5", "gpt-5.5")


def test_ignored_parameters_are_named() -> None:
    sampling: dict[str, Any] = {
        "temperature": 0,
        "top_p": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "logit_bias": {},
    }
    parsed = ask(**sampling, seed=1, prediction={"type": "content", "content": "x"})
    assert parsed.ignored == (*sampling, "seed", "prediction")
    assert parsed.turn == ask().turn


def test_stop_is_one_sequence_or_up_to_four_and_the_empty_one_means_none() -> None:
    assert ask(stop="END").stop == ("END",)
    assert ask(stop=["a", "", "b", "a"]).turn.stop == ("a", "b")
    assert ask(stop="").stop == ask(stop=[]).stop == ()


def test_the_newer_name_of_a_token_limit_wins() -> None:
    assert ask(max_tokens=5).turn.max_tokens == 5
    assert ask(max_tokens=5, max_completion_tokens=7).turn.max_tokens == 7


def test_knobs_that_agents_have_reach_the_turn() -> None:
    turn = ask(verbosity="low", service_tier="flex", reasoning={"summary": "detailed"}).turn
    assert (turn.verbosity, turn.service_tier, turn.summary) == ("low", "flex", "detailed")


def test_the_flat_effort_wins_over_the_nested_one_and_both_over_the_name() -> None:
    assert (
        ask(model="codex-5-low", reasoning_effort="high", reasoning={"effort": "medium"}).turn.effort
        == "high"
    )
    assert ask(model="codex-5-low", reasoning={"effort": "medium"}).turn.effort == "medium"


def test_stream_options_need_a_stream() -> None:
    assert refused(stream_options={"include_usage": True}).param == "stream_options"


def test_one_choice_is_the_policy_where_the_operator_says_so() -> None:
    fault = refused(ChatSettings(max_choices=1), n=2)
    assert (fault.param, fault.message) == ("n", "Invalid value for 'n': only 1 is accepted.")


def test_metadata_and_user_are_handed_on() -> None:
    parsed = ask(metadata={"a": "b", "none": None}, user="me")
    assert (parsed.metadata, parsed.user) == ({"a": "b"}, "me")
    assert ask(safety_identifier="you").user == "you"


def test_letters_of_the_prompt_are_counted_for_an_estimate() -> None:
    assert ask(messages=[SYSTEM, HELLO]).prompt_letters == len("be brief" + "hello")


# --- structured output ----------------------------------------------------------------------------


def test_with_structured_output_a_json_schema_is_the_turns_output_schema() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    assert ask(STRUCTURED, response_format=wanted).turn.output_schema == msgspec.Raw(b'{"type":"object"}')


def test_with_structured_output_a_json_object_is_asked_for_in_words() -> None:
    parsed = ask(STRUCTURED, response_format={"type": "json_object"})
    first = parsed.turn.history[0]
    assert parsed.json_object
    assert isinstance(first, SaidMessage)
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
    assert refused(STRUCTURED, response_format=wanted).param == param


# --- plain model or agent -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "agent"),
        ({"response_format": {"type": "text"}}, "agent"),
        ({"tools": [function_tool()]}, "model"),
        ({"functions": [{"name": "f"}]}, "model"),
        ({"messages": [SYSTEM, HELLO]}, "model"),
        ({"response_format": {"type": "json_object"}}, "model"),
        ({"model": "codex-5:model"}, "model"),
        ({"tools": [function_tool()], "model": "codex-5:agent"}, "agent"),
    ],
)
def test_auto_is_the_plain_model_when_the_client_is_the_agent(fields: dict[str, Any], mode: str) -> None:
    assert ask(STRUCTURED, **fields).turn.mode == mode


def test_the_operator_can_settle_the_mode() -> None:
    assert ask(ChatSettings(builtin_tools="always"), tools=[function_tool()]).turn.mode == "agent"
    assert ask(ChatSettings(builtin_tools="never")).turn.mode == "model"


def test_the_header_names_the_mode_and_of_two_wishes_the_narrower_wins() -> None:
    assert ask(hints=RequestHints(mode="Model")).turn.mode == "model"
    assert ask(hints=RequestHints(mode="agent"), model="codex-5:model").turn.mode == "model"
    assert ask(hints=RequestHints(mode="model"), model="codex-5:agent").turn.mode == "model"
    assert ask(hints=RequestHints(mode="")).turn.mode == "agent"
    assert refused(hints=RequestHints(mode="robot")).param == "X-Codex-Mode"


@pytest.mark.parametrize(
    ("name", "header", "param"), [("codex-5:agent", None, "model"), ("codex-5", "agent", "X-Codex-Mode")]
)
def test_a_request_cannot_widen_what_the_server_allows(name: str, header: str | None, param: str) -> None:
    fault = refused(ChatSettings(builtin_tools="never"), hints=RequestHints(mode=header), model=name)
    assert (fault.kind, fault.param) == (FaultKind.NOT_ALLOWED, param)


def test_the_folder_is_the_headers_then_the_metadatas_then_the_servers() -> None:
    settings = ChatSettings(workdir="/srv")
    hints = RequestHints(workdir="/a")
    by_header = ask(settings, hints=hints, metadata={"workdir": "/b"})
    by_metadata = ask(settings, metadata={"workdir": "/b"})
    by_server = ask(settings)
    assert (by_header.turn.workdir, by_header.workdir_param) == ("/a", "X-Codex-Workdir")
    assert (by_metadata.turn.workdir, by_metadata.workdir_param) == ("/b", "metadata.workdir")
    assert (by_server.turn.workdir, by_server.workdir_param) == ("/srv", None)


def test_the_sandbox_is_the_operators() -> None:
    assert ask().turn.sandbox == "read-only"
    assert ask(ChatSettings(sandbox="workspace-write")).turn.sandbox == "workspace-write"
