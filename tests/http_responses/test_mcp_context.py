"""A conversation with MCP calls, kept and told again: the model sees what it has seen, each half of a call once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, RawHistoryItem
from codex_proxy.responses.context import Context, ContextItem, context_item, turn_in_context
from codex_proxy.responses.saving import stored_output
from codex_proxy.runs.model_items import ModelItem
from codex_proxy.surfaces.responses.items import with_ids
from tests.surfaces.responses.asking import ask

MODEL = "codex-5@openai"
HELLO = {"type": "message", "role": "user", "content": "hello"}


class NumberedIds:
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers):032}"


# --- what the model said, and what its client saw of it -------------------------------------------


def reasoning_item(id: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": id, "summary": [], "encrypted_content": "gA"}


def call_item(call_id: str, name: str = "files__read") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def gave(call_id: str, text: str = "done") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def message(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": content, "status": "completed"}


def mcp_call(call_id: str, request: str | None = None) -> dict[str, Any]:
    return {
        "type": "mcp_call",
        "id": f"mcp_0123456789ab-{call_id}",
        "server_label": "files",
        "name": "read",
        "arguments": "{}",
        "output": "done",
        "error": None,
        "status": "completed",
        "approval_request_id": request,
    }


def call(call_id: str) -> dict[str, Any]:
    return {
        "type": "mcp_approval_request",
        "id": f"mcpr_0123456789ab-{call_id}",
        "server_label": "files",
        "name": "read",
        "arguments": "{}",
    }


def approval(call_id: str) -> dict[str, Any]:
    return {
        "type": "mcp_approval_response",
        "approval_request_id": f"mcpr_0123456789ab-{call_id}",
        "approve": True,
    }


class Talk:
    """A conversation that is kept as it goes."""

    def __init__(self) -> None:
        self._ids = NumberedIds()
        self._earlier: list[ContextItem] = []
        self._fresh: list[ContextItem] = []

    def asks(self, *items: dict[str, Any]) -> Talk:
        """The client's input."""
        parsed = ask(input=list(items))
        self._fresh = [ContextItem(item) for item in with_ids(parsed.input_items, self._ids)]
        return self

    def answers(self, shown: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]]) -> Talk:
        """The answer, as the client saw it, and as the model gave it."""
        raw = [ModelItem(MODEL, msgspec.Raw(json.dumps(item).encode())) for item in own]
        kept = stored_output(with_ids(shown, self._ids), raw, self._ids, 0.0)
        self._earlier += [*self._fresh, *map(context_item, kept)]
        self._fresh = []
        return self

    def model_input(self, model: str = MODEL) -> tuple[HistoryItem, ...]:
        context = Context(tuple(self._earlier), tuple(self._fresh))
        turn, native = turn_in_context(ask(), context, lambda: model)
        return turn.history if native is None else native


def brief(history: Sequence[HistoryItem]) -> list[str]:
    """Each item in a word; what came from the model itself is marked."""
    out = []
    for item in history:
        if isinstance(item, RawHistoryItem):
            raw = json.loads(item.json)
            kind = {"function_call": "call", "function_call_output": "output"}.get(raw["type"], raw["type"])
            out.append(f"{kind} {raw['call_id']}*" if "call_id" in raw else f"{kind}*")
        elif isinstance(item, HistoryCall):
            out.append(f"call {item.call_id}")
        elif isinstance(item, HistoryOutput):
            out.append(f"output {item.call_id}" + (" to run" if item.approved_by else ""))
        elif isinstance(item, HistoryMessage):
            out.append(item.role)
    return out


# --- the flows ------------------------------------------------------------------------------------


def test_calls_that_ran_side_by_side_come_back_in_the_models_order() -> None:
    own = [reasoning_item("rs_1"), call_item("a"), call_item("b"), gave("a"), gave("b"), message("Done.")]
    talk = Talk().asks(HELLO).answers([mcp_call("a"), mcp_call("b"), message("Done.")], own).asks(HELLO)
    assert brief(talk.model_input()) == [
        "user", "reasoning*", "call a*", "call b*", "output a*", "output b*", "message*", "user",
    ]  # fmt: skip


def test_outputs_that_the_agent_did_not_keep_come_from_what_was_shown() -> None:
    talk = (
        Talk()
        .asks(HELLO)
        .answers([mcp_call("a"), message("Done.")], [call_item("a"), message("Done.")])
        .asks(HELLO)
    )
    assert brief(talk.model_input()) == ["user", "call a*", "output a", "message*", "user"]


def test_a_step_with_a_call_of_the_clients_has_both_outputs_in_the_order_of_the_calls() -> None:
    client = call_item("c", "get_weather")
    own = [client, call_item("a"), gave("a")]
    shown = [mcp_call("a"), client | {"id": "fc_1", "status": "completed"}]
    talk = Talk().asks(HELLO).answers(shown, own).asks(gave("c", "sunny"))
    assert brief(talk.model_input()) == ["user", "call c*", "call a*", "output c", "output a*"]


def test_an_approved_call_is_where_the_model_made_it_and_its_output_at_the_approval() -> None:
    talk = Talk().asks(HELLO).answers([call("a")], [reasoning_item("rs_1"), call_item("a")])
    talk.asks(approval("a"), HELLO)
    assert brief(talk.model_input()) == ["user", "reasoning*", "call a*", "output a to run", "user"]
    talk.answers([mcp_call("a", call("a")["id"]), message("Done.")], [message("Done.")]).asks(HELLO)
    assert brief(talk.model_input()) == [
        "user",
        "reasoning*",
        "call a*",
        "output a",
        "user",
        "message*",
        "user",
    ]


def test_an_approved_call_whose_output_the_agent_reports_too_has_one_output() -> None:
    talk = Talk().asks(HELLO).answers([call("a")], [call_item("a")]).asks(approval("a"))
    talk.answers([mcp_call("a", call("a")["id"]), message("Done.")], [gave("a"), message("Done.")]).asks(
        HELLO
    )
    assert brief(talk.model_input()) == ["user", "call a*", "output a*", "message*", "user"]


def test_a_call_that_the_client_did_not_answer_is_still_a_call_of_the_models() -> None:
    talk = Talk().asks(HELLO).answers([call("a")], [call_item("a")]).asks(HELLO)
    assert brief(talk.model_input()) == ["user", "call a*", "output a", "user"]


def test_calls_that_a_provider_numbers_anew_in_every_answer_are_all_sent_back() -> None:
    talk = Talk()
    for number in range(2):
        shown = mcp_call("a") | {"id": f"mcp_00000000000{number}-a"}
        talk.asks(HELLO).answers([shown, message("Done.")], [call_item("a"), gave("a"), message("Done.")])
    talk.asks(HELLO).answers([call("a")], [call_item("a")]).asks(approval("a"))
    once = ["user", "call a*", "output a*", "message*"]
    assert brief(talk.model_input()) == [*once, *once, "user", "call a*", "output a to run"]


def test_another_model_gets_all_but_reasoning() -> None:
    own = [reasoning_item("rs_1"), call_item("a"), gave("a"), message("Done.")]
    talk = Talk().asks(HELLO).answers([mcp_call("a"), message("Done.")], own).asks(HELLO)
    assert brief(talk.model_input("gpt-4@other")) == ["user", "call a*", "output a*", "message*", "user"]


# --- any conversation -----------------------------------------------------------------------------

STEPS = st.lists(st.sampled_from(["own", "ask", "client", "say"]), min_size=1, max_size=3)


@given(st.lists(STEPS, min_size=1, max_size=4), st.booleans(), st.booleans())
def test_every_call_is_reported_once_with_one_output_whatever_was_kept(
    turns: list[list[str]], keeps_outputs: bool, keeps_calls: bool
) -> None:
    numbers, talk, answers = itertools.count(), Talk(), [HELLO]
    calls: list[str] = []
    for kinds in turns:
        talk.asks(*answers)
        shown, own, outputs, answers = _step(kinds, numbers, calls)
        talk.answers(shown, (own if keeps_calls else []) + (outputs if keeps_outputs and keeps_calls else []))
    told = [word.rstrip("*") for word in brief(talk.asks(*answers).model_input())]
    assert [word for word in told if word.startswith("call")] == [f"call {call}" for call in calls]
    for call in calls:
        answered = [index for index, word in enumerate(told) if word.startswith(f"output {call}")]
        assert len(answered) == 1
        assert answered[0] > told.index(f"call {call}")


def _step(kinds: list[str], numbers: itertools.count[int], calls: list[str]) -> tuple[list[Any], ...]:
    """What is shown of a step, what the model said in it, the outputs that it got, and the client's answers."""
    shown: list[Any] = []
    own: list[Any] = []
    outputs: list[Any] = []
    answers: list[Any] = []
    for kind in kinds:
        id = f"c{next(numbers)}."
        if kind == "say":
            shown.append(message(id))
            own.append(message(id))
            continue
        calls.append(id)
        own.append(call_item(id))
        if kind == "own":
            shown.append(mcp_call(id))
            outputs.append(gave(id))
        elif kind == "ask":
            shown.append(call(id))
            answers.append(approval(id))
        else:
            shown.append(call_item(id))
            answers.append(gave(id))
    return shown, own, outputs, answers or [HELLO]
