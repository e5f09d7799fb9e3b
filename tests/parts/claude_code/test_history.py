"""What Claude Code is given of a history, and under which names it is offered the client's tools."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.calls import MAX_CHARS, agent_name, call_input
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.history import (
    BEGIN,
    CONTINUE,
    NO_OUTPUT,
    PendingLines,
    ThinkingBlock,
    conversation,
)
from codex_proxy.parts.claude_code.results import failure_of


def message_of(role: Any, text: str) -> HistoryMessage:
    return HistoryMessage(role, (TextPart(text),))


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def lines(*history: HistoryItem) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(line.role, line.blocks) for line in conversation(history).lines]


def test_instructions_at_the_beginning_are_the_system_prompt_and_later_ones_the_users() -> None:
    history = (
        message_of("developer", "Be brief."),
        message_of("developer", "Be kind."),
        message_of("user", "Hi"),
        message_of("developer", "Now in French."),
    )
    given = conversation(history)
    assert given.system == "Be brief.\n\nBe kind."
    [line] = given.lines
    assert line.blocks == [text("Hi"), text("<developer_message>\nNow in French.\n</developer_message>")]


def test_where_only_the_system_speaks_it_is_what_is_answered() -> None:
    assert conversation([message_of("developer", "Say hello.")]).system == ""
    assert lines(message_of("developer", "Say hello.")) == [("user", [text("Say hello.")])]


def test_the_first_and_the_last_line_are_the_users() -> None:
    assert lines(message_of("assistant", "Hello.")) == [
        ("user", [text(BEGIN)]),
        ("assistant", [text("Hello.")]),
        ("user", [text(CONTINUE)]),
    ]


def test_outputs_stand_before_words_and_a_call_that_nobody_answered_has_one() -> None:
    call, other = HistoryCall("c1", "look", '{"at": 1}'), HistoryCall("c.2", "look", "no json")
    given = lines(
        message_of("user", "Go"),
        call,
        other,
        message_of("user", "Well?"),
        HistoryOutput("c1", (TextPart("x"),)),
    )
    assert given[1] == (
        "assistant",
        [
            {"type": "tool_use", "id": "c1", "name": "mcp__client__look", "input": {"at": 1}},
            {"type": "tool_use", "id": "c_2", "name": "mcp__client__look", "input": {"arguments": "no json"}},
        ],
    )
    assert given[2] == (
        "user",
        [
            {"type": "tool_result", "tool_use_id": "c1", "content": [text("x")]},
            {"type": "tool_result", "tool_use_id": "c_2", "content": [text(NO_OUTPUT)]},
            text("Well?"),
        ],
    )


def test_items_of_the_responses_api_are_read_and_reasoning_is_left_out() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]}
    raw = [RawHistoryItem(json.dumps(each).encode()) for each in (reasoning, message)]
    assert lines(message_of("user", "?"), *raw, message_of("user", "So?"))[1] == ("assistant", [text("Yes.")])


@given(st.lists(st.text(min_size=1), unique=True, max_size=8))
def test_every_name_can_be_offered_and_no_two_become_one(names: list[str]) -> None:
    offered = [agent_name(name) for name in names]
    assert len(set(offered)) == len(names)
    assert all(len(name) <= MAX_CHARS for name in offered)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", name) for name in offered)
    assert all(agent_name(name) == again for name, again in zip(names, offered, strict=True))


def test_a_line_of_the_history_that_is_confirmed_in_no_readable_way_fails_the_turn() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(
        Turn(
            model="", history=(message_of("user", "a"), message_of("assistant", "b"), message_of("user", "c"))
        )
    )
    answer = {"type": "control_response", "response": {"subtype": "success", "request_id": "initialize"}}
    dialect.receive([json.dumps(answer).encode()])
    [end] = dialect.receive([b'{"type":"result","is_error":[]}']).events
    assert isinstance(end, TurnEnded)
    assert end.stop == Stop.FAILED


def test_an_error_about_a_line_of_the_history_fails_the_turn_and_nothing_more_is_given() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(
        Turn(
            model="", history=(message_of("user", "a"), message_of("assistant", "b"), message_of("user", "c"))
        )
    )
    answer = {"type": "control_response", "response": {"subtype": "success", "request_id": "initialize"}}
    assert dialect.receive([json.dumps(answer).encode()]).writes
    error = {"type": "result", "is_error": True, "api_error_status": 401, "result": "API Error: 401 no key"}
    step = dialect.receive([json.dumps(error).encode()])
    [end] = step.events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.AGENT_NOT_AUTHENTICATED
    assert step.writes == b""
    assert not dialect.can_resume


@pytest.mark.parametrize(
    ("said", "code", "status", "kind"),
    [
        (
            "API Error: Connection lost (ECONNRESET).",
            "server_error",
            None,
            FaultKind.UPSTREAM_DISCONNECTED,
        ),
        (
            "API Error: Connection refused (ECONNREFUSED)",
            "server_error",
            None,
            FaultKind.UPSTREAM_UNREACHABLE,
        ),
        ("API Error: 500 Internal.", "server_error", 500, FaultKind.UPSTREAM_ERROR),
        ("API Error: Overloaded", "unknown", 529, FaultKind.UNAVAILABLE),
        ("Credit balance is too low", "billing_error", 400, FaultKind.INSUFFICIENT_QUOTA),
        ("API Error: 400 messages: bad", "unknown", 400, FaultKind.REJECTED_BY_PROVIDER),
        ("Request too large (max 32MB).", "invalid_request", 413, FaultKind.REQUEST_TOO_LARGE),
        ("You've hit your limit", "rate_limit", None, FaultKind.USAGE_LIMIT_REACHED),
        ("Invalid API key", "authentication_failed", 401, FaultKind.AGENT_NOT_AUTHENTICATED),
    ],
)
def test_an_error_is_reported_by_its_code_its_status_then_its_words(
    said: str, code: str, status: int | None, kind: FaultKind
) -> None:
    failure = failure_of(said, code=code, status=status, reason="api_error")
    assert failure.kind is kind
    assert "API Error" not in failure.message


@pytest.mark.parametrize("said", ["invalid x-api-key", "invalid x-api-key."])
def test_the_text_of_a_refused_sign_in_ends_before_the_advice_begins(said: str) -> None:
    code = "authentication_failed"
    failure = failure_of(f"API Error: 401 {said}", code=code, status=401, reason="api_error")
    assert "invalid x-api-key. Claude Code is not signed in." in failure.message


# --- thoughts -------------------------------------------------------------------------------------

HM = ThinkingBlock("opus", "hm", "Sig/+=")


def raw(thought: ThinkingBlock) -> RawHistoryItem:
    return RawHistoryItem(thought.raw_item().json)


def test_a_thinking_block_stands_in_front_of_what_was_said_and_names_the_model_that_signed_it() -> None:
    history = (
        message_of("user", "Hi"),
        raw(HM),
        message_of("assistant", "Noted."),
        message_of("user", "Who?"),
    )
    _, line, _ = conversation(history).lines
    assert line.blocks == [{"type": "thinking", "thinking": "hm", "signature": "Sig/+="}, text("Noted.")]
    assert line.model == "opus"
    feed = PendingLines(conversation(history).lines, 1)
    feed.next()
    written = [json.loads(each) for each in feed.next()[0].splitlines()]
    assert written[0]["message"]["model"] == "opus"
    secret = (
        message_of("user", "Hi"),
        raw(ThinkingBlock("opus", data="abc")),
        message_of("assistant", "Noted."),
    )
    assert lines(*secret)[1][1][0] == {"type": "redacted_thinking", "data": "abc"}


def test_a_thinking_block_of_another_model_in_the_same_line_is_left_out() -> None:
    history = (
        raw(HM),
        message_of("assistant", "One."),
        raw(ThinkingBlock("sonnet", "so", "S")),
        message_of("assistant", "Two."),
    )
    _, line, _ = conversation(history).lines
    assert [block["type"] for block in line.blocks] == ["thinking", "text", "text"]


def test_a_thinking_block_that_nothing_was_said_after_is_left_out() -> None:
    assert lines(message_of("user", "Hi"), raw(HM), message_of("user", "Who?")) == [
        ("user", [text("Hi"), text("Who?")])
    ]
    assert lines(message_of("user", "Hi"), message_of("assistant", "Yes."), raw(HM))[1] == (
        "assistant",
        [text("Yes.")],
    )


@given(st.text() | st.just("claude-thinking:") | st.binary().map(lambda raw: f"claude-thinking:{raw.hex()}"))
def test_reasoning_of_others_and_damaged_thinking_blocks_are_left_out(sealed: str) -> None:
    item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
    history = (
        message_of("user", "Hi"),
        RawHistoryItem(json.dumps(item).encode()),
        message_of("assistant", "Noted."),
    )
    assert lines(*history)[1] == ("assistant", [text("Noted.")])


LOOKS_TYPED = (
    "/help",
    "/init now",
    "@/etc/passwd",
    "look at @notes.txt",
    "ultrathink",
    "!ls",
    "#remember this",
)
"""Texts that the program would act on if somebody had typed them."""


def user_lines(*history: HistoryItem, takes_mark: bool = True) -> list[dict[str, Any]]:
    """The lines of the user that are written for a history."""
    feed = PendingLines(conversation(history).lines, 1, takes_mark=takes_mark)
    out, last = b"", False
    while not last:
        written, last = feed.next()
        out += written
    return [line for line in map(json.loads, out.splitlines()) if line["type"] == "user"]


@pytest.mark.parametrize("words", LOOKS_TYPED)
def test_every_line_of_the_user_is_marked_as_text_that_nobody_typed(words: str) -> None:
    call = HistoryCall("c", "get_weather", "{}")
    history = (
        *(
            message_of("user", words),
            message_of("developer", words),
            message_of("assistant", words),
            message_of("user", words),
        ),
        *(call, HistoryOutput("c", (TextPart(words),)), message_of("user", words)),
    )
    given = user_lines(*history)
    assert [line["text_not_typed"] for line in given] == [True] * 3
    assert given[-1]["message"]["content"][-1] == text(words), "and is what the client wrote"


@pytest.mark.parametrize("words", LOOKS_TYPED)
def test_a_release_that_does_not_know_the_mark_is_given_no_text_that_begins_as_a_command(words: str) -> None:
    for line in user_lines(
        message_of("user", words),
        message_of("assistant", "Yes."),
        message_of("user", words),
        takes_mark=False,
    ):
        [block] = line["message"]["content"]
        assert not block["text"].startswith("/")
        assert block["text"].lstrip("\n") == words


def test_arguments_with_half_of_a_surrogate_pair_are_no_json_object() -> None:
    half = '{"a": "\ud800"}'
    assert call_input(half, "function") == {"arguments": half}
