"""What the dialect of `codex proto` writes: its arguments, the turn, answers and the interrupt."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.codex.process_config import ProviderConfig, exclude_pairs, provider_pairs
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.codex_proto.proto_setup import proto_argv
from codex_proxy.agents.dialect import NOTHING, Decision, Ended, ToolReply
from codex_proxy.agents.shared.history_items import PREAMBLE
from codex_proxy.core import events as ev
from codex_proxy.core.items import (
    HistoryItem,
    HistoryMessage,
    ImagePart,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import Turn
from tests.agents.proto_child import (
    ALL,
    FAKE,
    HISTORY,
    PROMPT,
    begin_turn,
    end_of,
    event_line,
)

# --- what we write --------------------------------------------------------------------------------


def ops(written: bytes) -> list[dict[str, Any]]:
    return [json.loads(line)["op"] for line in written.splitlines()]


def test_a_turn_is_written_at_once_with_all_that_a_user_turn_takes() -> None:
    schema = msgspec.Raw(b'{"type":"object"}')
    parts = (TextPart("look"), ImagePart("data:image/png;base64,AA"))
    turn = Turn(
        model="gpt-5",
        history=(HistoryMessage("user", parts),),
        effort="xhigh",
        output_schema=schema,
        workdir="/w",
    )
    (op,) = ops(CodexProto().begin(turn).writes)
    assert op == {
        "type": "user_turn",
        "items": [
            {"type": "text", "text": "look"},
            {"type": "image", "image_url": "data:image/png;base64,AA"},
        ],
        "cwd": "/w",
        "approval_policy": "never",
        "sandbox_policy": {"mode": "read-only"},
        "model": "gpt-5",
        "effort": "high",
        "summary": "auto",
        "final_output_json_schema": {"type": "object"},
    }


def test_without_a_model_the_settings_go_ahead_and_the_childs_own_model_serves() -> None:
    context, turn = ops(
        CodexProto().begin(Turn(model="", history=(PROMPT,), workdir="/w", effort="low")).writes
    )
    assert context["type"] == "override_turn_context"
    assert (context["cwd"], context["effort"], "model" in context) == ("/w", "low", False)
    assert turn == {"type": "user_input", "items": [{"type": "text", "text": "go"}]}


def test_a_schema_without_a_model_waits_for_the_childs_model() -> None:
    dialect = CodexProto()
    assert dialect.begin(Turn(model="", history=(PROMPT,), output_schema=msgspec.Raw(b"{}"))) == NOTHING
    step = dialect.receive([event_line("session_configured", "", session_id="s", model="gpt-5")])
    assert step.events == [ev.TurnStarted("s", "gpt-5")]
    (op,) = ops(step.writes)
    assert (op["type"], op["model"], op["final_output_json_schema"]) == ("user_turn", "gpt-5", {})
    assert dialect.receive([event_line("task_started")]) == NOTHING


def test_a_history_becomes_one_labelled_transcript_with_its_images_behind_it() -> None:
    (op,) = ops(CodexProto().begin(Turn(model="m", history=HISTORY)).writes)
    text, *images = op["items"]
    assert text["text"].split("\n\n")[1:] == [
        "[system]\nBe brief.",
        "[user]\nWhat is it?\n[image 1]",
        '[assistant calls tool look, call_1]\n{"x":1}',
        "[tool output, call_1]\na cat\n[image 2]",
        "[assistant]\nA cat.",
        "[user]\nSure?",
    ]
    assert [image["image_url"] for image in images] == ["data:a", "data:b"]


def test_only_a_single_user_message_goes_in_unflattened() -> None:
    def text_of(*history: HistoryItem) -> str:
        (op,) = ops(CodexProto().begin(Turn(model="m", history=history)).writes)
        (item,) = op["items"]
        return str(item["text"])

    (part,) = PROMPT.parts
    assert isinstance(part, TextPart)
    assert text_of(PROMPT) == part.text
    assert text_of(PROMPT, PROMPT).startswith(PREAMBLE)
    assert text_of(HistoryMessage("developer", (TextPart("x"),))).startswith(PREAMBLE)


def test_the_fake_agent_gets_roles_tools_and_choices_beside_the_turn() -> None:
    tool = Tool("look", parameters=msgspec.Raw(b'{"type":"object"}'))
    turn = Turn(model="m", history=HISTORY, tools=(tool,), choices=3, parallel_tool_calls=False)
    (op,) = ops(CodexProto(extended=True).begin(turn).writes)
    assert op["items"] == [{"type": "text", "text": "Sure?"}]
    assert [item.get("role") or item["type"] for item in op["history"]] == [
        "developer",
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
        "assistant",
    ]
    assert [(t["name"], t["parameters"]) for t in op["tools"]] == [("look", {"type": "object"})]
    assert (op["choices"], op["parallel_tool_calls"]) == (3, False)


@pytest.mark.parametrize(("approve", "decision"), [(True, "approved"), (False, "denied")])
@pytest.mark.parametrize(
    ("name", "op_type", "text"),
    [
        ("approval_on_request", "exec_approval", "touch q (mock wants it)"),
        ("approval_patch_denied", "patch_approval", "add <CWD>/a.txt"),
    ],
)
def test_an_approval_is_asked_and_answered_by_the_events_id(
    name: str, op_type: str, text: str, approve: bool, decision: str
) -> None:
    dialect = begin_turn()
    events = [event for line in ALL[name][0][:4] for event in dialect.receive([line]).events]
    (asked,) = (event for event in events if isinstance(event, ev.ApprovalRequested))
    assert asked.text == text
    step = dialect.answer(asked.request_id, Decision(approve=approve))
    assert ops(step.writes) == [{"type": op_type, "id": "1", "decision": decision}]
    assert step.events == [ev.RequestClosed(asked.request_id)]
    assert dialect.answer(asked.request_id, Decision(approve=approve)) == NOTHING


def test_every_submission_of_a_turn_has_an_id_of_its_own() -> None:
    dialect = CodexProto()
    written = dialect.begin(Turn(model="m", history=(PROMPT,))).writes
    (asked,) = dialect.receive([event_line("exec_approval_request", call_id="c", command="ls")]).events
    assert isinstance(asked, ev.ApprovalRequested)
    written += dialect.answer(asked.request_id, Decision(approve=True)).writes + dialect.interrupt().writes
    ids = [json.loads(line)["id"] for line in written.splitlines()]
    assert len(set(ids)) == len(ids) == 3


def test_a_reply_that_is_no_decision_denies() -> None:
    dialect = begin_turn()
    (asked,) = dialect.receive([event_line("exec_approval_request", call_id="c", command="ls")]).events
    assert isinstance(asked, ev.ApprovalRequested)
    (op,) = ops(dialect.answer(asked.request_id, ToolReply((TextPart("yes"),))).writes)
    assert op["decision"] == "denied"


def test_an_interrupt_is_written_once_and_ends_the_turn_as_interrupted_even_if_the_child_dies_of_it() -> None:
    dialect = begin_turn()
    assert ops(dialect.interrupt().writes) == [{"type": "interrupt"}]
    assert dialect.interrupt() == NOTHING
    assert end_of(dialect.eof(Ended(signal=15)).events).stop == "interrupted"


# --- launch ---------------------------------------------------------------------------------------


def test_the_arguments_are_json() -> None:
    provider = ProviderConfig("mine", custom=True, env_names=("MY_KEY",))
    pairs = [*provider_pairs(provider), *exclude_pairs(provider, ["OTHER"])]
    argv = proto_argv(("codex",), pairs, parallel_tool_calls=True)
    assert argv[:2] == ("codex", "proto")
    assert argv[-2:] == ("--config", "parallel_tool_calls=true")
    assert set(argv[3:-2:2]) == {
        "tools.view_image=false",
        "model_providers.mine.request_max_retries=0",
        "model_providers.mine.stream_max_retries=0",
        'shell_environment_policy.exclude=["MY_KEY","OTHER"]',
    }


def test_the_program_may_be_several_words() -> None:
    assert proto_argv(FAKE) == (*FAKE, "proto", "-c", "tools.view_image=false")
