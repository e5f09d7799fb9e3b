"""What docs/tools.md says of the transcripts of `test-results/tools/`, which `test_transcripts` compares with live
conversations.

Each is a whole conversation, in the app-server dialect of the fake agent and, where that can play it, in its proto
dialect. The last words of the fake model are often `{outputs}`: what it was told of its calls, hidden ones too.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.tools.policy import DEFERRED
from scripts.golden import DYNAMIC_ID, TIMESTAMP, manifest_of, transcript

NAMES = (
    *("single-call", "parallel-calls", "parallel-calls-swapped-outputs", "two-rounds"),
    *("text-before-calls", "error-output", "parts-output", "image-output", "custom-tool"),
    *("forbidden-names", "strict-violation-hidden", "strict-violation-handed-on"),
    *("strict-violation-beside-a-valid-call", "one-call-at-a-time", "bad-json"),
    *("bad-json-never-learned", "tool-not-offered", "tool-not-offered-beside-a-valid-call"),
    *("tool-choice-none", "tool-choice-required", "tool-choice-required-not-honoured"),
    *(
        "tool-choice-named",
        "tool-choice-allowed-tools",
        "json-schema-outside-the-subset",
        "json-schema-not-kept",
    ),
    *("output-of-an-unknown-call", "output-missing", "output-given-twice", "output-without-a-call"),
)
STREAMED = (
    *("single-call", "parallel-calls", "text-before-calls", "custom-tool", "strict-violation-hidden"),
    *("tool-choice-required-not-honoured",),
)
"""Of which there is a transcript with streams as well."""

UNKNOWN_TO_THE_SDK = "custom-tool-streamed.json"
"""Its type of a chunk has no custom calls, though OpenAI streams them."""

FILES = [entry["file"] for entry in manifest_of("tools")]
EACH = pytest.mark.parametrize("file", FILES)
HIDDEN = (
    *("strict-violation-hidden", "strict-violation-hidden-streamed", "strict-violation-handed-on"),
    *("strict-violation-beside-a-valid-call", "one-call-at-a-time", "bad-json"),
    *("tool-not-offered", "tool-not-offered-beside-a-valid-call"),
)
"""The conversations with calls that the client does not see, and that are answered in the end."""


def committed(name: str, dialect: str = "app-server") -> dict[str, Any]:
    return transcript("tools", f"{dialect}/{name}.json")


def echo_of(exchange: dict[str, Any]) -> dict[str, Any]:
    """The assistant's message as a client says it again: that of the answer, or folded from its stream."""
    if "response" in exchange:
        message = exchange["response"]["choices"][0]["message"]
        return {key: message[key] for key in ("role", "content", "tool_calls") if key in message}
    content, calls = "", dict[int, dict[str, Any]]()
    for frame in exchange["stream"]:
        for choice in frame.get("choices", ()) if frame != "[DONE]" else ():
            content += choice["delta"].get("content") or ""
            for piece in choice["delta"].get("tool_calls", ()):
                fold(calls.setdefault(piece["index"], {}), piece)
    echo = {"role": "assistant", "content": content or None}
    return {**echo, "tool_calls": list(calls.values())} if calls else echo


def fold(call: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        if isinstance(value, dict):
            fold(call.setdefault(key, {}), value)
        elif key in ("arguments", "input"):
            call[key] = call.get(key, "") + value
        elif key != "index":
            call[key] = value


def messages(name: str, dialect: str = "app-server") -> list[dict[str, Any]]:
    """What the model said in each answer of a committed transcript."""
    return [echo_of(exchange) for exchange in committed(name, dialect)["exchanges"]]


def called(message: dict[str, Any]) -> list[Any]:
    """The arguments of a message's calls."""
    return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]


@EACH
def test_every_request_begins_with_the_one_before_and_the_echo_of_its_answer(file: str) -> None:
    exchanges = transcript("tools", file)["exchanges"]
    for before, after in pairwise(exchanges):
        said = [*before["request"]["messages"], echo_of(before)]
        assert after["request"]["messages"][: len(said)] == said
        assert len(after["request"]["messages"]) > len(said)


@EACH
def test_ids_and_times_are_replaced_and_the_rest_are_the_sdks_own_types(file: str) -> None:
    recorded = transcript("tools", file)
    for exchange, status in zip(recorded["exchanges"], recorded["metadata"]["status"], strict=True):
        streams = exchange["request"].get("stream") and status == 200
        assert set(exchange) == {"request", "stream" if streams else "response"}
        for frame in exchange.get("stream") or [exchange["response"]]:
            if frame == "[DONE]" or "error" in frame:
                continue
            assert (frame["id"], frame["created"]) == (DYNAMIC_ID, TIMESTAMP)
            if not file.endswith(UNKNOWN_TO_THE_SDK):
                kind = ChatCompletionChunk if "stream" in exchange else ChatCompletion
                kind.model_validate({**frame, "created": 1})
    assert "chatcmpl-" not in json.dumps(recorded)


def test_the_cases_are_all_there_and_no_others() -> None:
    names = {*NAMES, *(f"{name}-streamed" for name in STREAMED)}
    assert {file for file in FILES if file.startswith("app-server/")} == {
        f"app-server/{name}.json" for name in names
    }
    assert {file.partition("/")[2] for file in FILES} == {f"{name}.json" for name in names}


# --- what docs/tools.md says of the single transcripts ------------------------------------------------


@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_conversation_says_what_the_whole_one_says(name: str) -> None:
    whole, streamed = committed(name), committed(f"{name}-streamed")
    assert whole["metadata"]["status"] == streamed["metadata"]["status"]
    if whole["metadata"]["status"] == [502]:
        assert whole["exchanges"][0]["response"] == streamed["exchanges"][0]["response"]
    else:
        assert messages(name) == messages(f"{name}-streamed")


def test_swapped_outputs_reach_the_model_in_the_order_of_its_calls() -> None:
    request = committed("parallel-calls-swapped-outputs")["exchanges"][1]["request"]
    outputs = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    assert outputs == ["wet in Rome", "sunny in Paris"]
    for dialect in ("app-server", "proto"):
        assert messages("parallel-calls-swapped-outputs", dialect)[-1]["content"] == (
            "sunny in Paris; wet in Rome"
        )


@pytest.mark.parametrize("name", HIDDEN)
def test_the_model_and_not_the_client_gets_the_error_of_a_hidden_call(name: str) -> None:
    told = {"strict": "The arguments break", "one": DEFERRED, "bad": "failed to parse", "tool": "unsupported"}
    words = told[name.partition("-")[0]]
    *steps, last = messages(name)
    assert words in last["content"]
    assert words not in json.dumps(steps)
    assert all(len(called(step)) == 1 for step in steps)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("strict-violation-hidden", {"city": "Paris"}),
        ("strict-violation-handed-on", {"town": "Paris"}),
        ("strict-violation-beside-a-valid-call", {"city": "Rome"}),
        ("one-call-at-a-time", {"city": "Paris"}),
        ("bad-json", {"city": "Paris"}),
        ("tool-not-offered-beside-a-valid-call", {"city": "Rome"}),
    ],
)
def test_the_client_sees_the_one_call_that_it_may_answer(name: str, seen: Any) -> None:
    first, last = messages(name)
    assert called(first) == [seen]
    assert last.get("tool_calls") is None


def test_usage_counts_the_steps_that_the_client_did_not_see() -> None:
    hidden = [each["response"]["usage"] for each in committed("strict-violation-hidden")["exchanges"]]
    assert [usage["total_tokens"] for usage in hidden] == [240, 120]


def test_forbidden_names_come_back_as_they_were_and_the_model_has_others() -> None:
    calls, _, echo = messages("forbidden-names")
    names = ["exec_command", "mcp__files__read", "client_side"]
    assert [call["function"]["name"] for call in calls["tool_calls"]] == names
    seen = json.loads(echo["content"])
    mapped = [f"client_{name}" for name in names]
    assert seen["tools"] == mapped
    assert [item["name"] for item in seen["history"] if "name" in item] == mapped


def test_a_custom_call_carries_its_input_and_the_image_of_an_output_reaches_the_model() -> None:
    [call] = messages("custom-tool")[0]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "run_sql", "input": "select 1;"})
    assert messages("image-output")[-1]["content"] == "The tool said: look [image]"


@pytest.mark.parametrize("dialect", ["app-server", "proto"])
def test_tool_choice_offers_no_tool_the_allowed_ones_or_the_named_one_alone(dialect: str) -> None:
    assert json.loads(messages("tool-choice-none", dialect)[0]["content"])["tools"] == []
    assert json.loads(messages("tool-choice-allowed-tools", dialect)[0]["content"])["tools"] == ["get_time"]
    [call] = messages("tool-choice-named", dialect)[0]["tool_calls"]
    assert call["function"]["name"] == "get_time"


@pytest.mark.parametrize(
    ("name", "status", "code", "param"),
    [
        ("tool-choice-required-not-honoured", 502, "tool_choice_not_honoured", None),
        ("bad-json-never-learned", 502, "invalid_tool_calls", None),
        ("json-schema-not-kept", 502, "invalid_structured_output", None),
        ("output-of-an-unknown-call", 400, None, "messages[3].tool_call_id"),
        ("output-missing", 400, None, "messages[1].tool_calls"),
        ("output-given-twice", 400, None, "messages[3].tool_call_id"),
        ("output-without-a-call", 400, None, "messages[0].role"),
    ],
)
def test_what_cannot_be_answered_is_an_error_that_says_why(
    name: str, status: int, code: str | None, param: str | None
) -> None:
    transcript = committed(name)
    error = transcript["exchanges"][-1]["response"]["error"]
    assert transcript["metadata"]["status"][-1] == status
    assert (error["code"], error["param"]) == (code, param)
