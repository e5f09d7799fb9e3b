"""The app-server dialect beside recordings of `codex app-server` (0.163.0, and 0.169.0 for the order)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fake.app_child import AppChild, deltas, is_completed, methods
from tests.fake.child import Message, recorded_lines, shape

FLOW = "stateless_flow_0.163.0"
UNPROMPTED = ("configWarning", "remoteControl/status/changed", "warning", "thread/started")


def without_extras(message: Any) -> Any:
    """The message without what the real child adds for its own book-keeping."""
    if isinstance(message, dict):
        book = "internal_chat_message_metadata_passthrough"
        return {key: without_extras(value) for key, value in message.items() if key != book}
    if isinstance(message, list):
        return [without_extras(inner) for inner in message]
    return message


def without_unprompted(messages: list[Message]) -> list[Message]:
    """The messages that a request caused."""
    return [m for m in messages if m.get("method") not in UNPROMPTED]


def test_the_stateless_flow_has_the_recorded_messages_and_fields_in_the_recorded_order() -> None:
    real = without_unprompted([json.loads(line) for line in recorded_lines("app-server", FLOW)])
    sent = [json.loads(line) for line in recorded_lines("app-server", FLOW, "in")]
    marker = """[[fake:tool_calls_after_text calls=3 say='It is sunny.']] weather?"""
    fake: list[Message] = []
    with AppChild() as child:
        for message in sent[2:10]:
            if message["method"] == "turn/interrupt":
                fake += child.read_until(lambda m: m.get("method") == "rawResponse/completed")
                message["params"]["turnId"] = "turn_1"
            for item in message["params"].get("items", ()):
                for part in item.get("content", ()):
                    part["text"] = marker if "mock" in part["text"] else part["text"]
            if "threadId" in message["params"]:
                message["params"]["threadId"] = "thread_1" if message["id"] < 7 else "thread_2"
            child.send(message)
            if message["method"] == "thread/unsubscribe":
                fake += child.read_until(lambda m: m.get("method") == "thread/closed")
            elif message["method"] == "turn/interrupt":
                fake += child.read_until(is_completed)
        fake += child.read_until(is_completed)
    fake, real = without_unprompted(fake), real[1:]
    real = real[: next(i for i in reversed(range(len(real))) if is_completed(real[i])) + 1]
    # The real child races: an answer may come behind the notifications it causes.
    assert sorted(methods(fake)) == sorted(methods(real))
    in_turns = [[m.get("method") for m in side if m.get("method")] for side in (fake, real)]
    assert in_turns[0] == in_turns[1]
    by_method = {m["method"]: m for m in real if "method" in m}
    for message in fake:
        if message.get("method") in by_method and not message["method"].startswith(("item/", "raw")):
            assert set(shape(message)["params"]) == set(shape(by_method[message["method"]])["params"])
    items = [[m["params"]["item"] for m in side if "item" in m.get("params", {})] for side in (fake, real)]
    for ours, theirs in zip(*items, strict=True):
        assert set(without_extras(ours)) == set(without_extras(theirs))


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("text", "[[fake:text]]"),
        ("reasoning", "[[fake:reasoning_raw]]"),
        ("err_http_500", "[[fake:error_500 retries=2]]"),
        ("err_incomplete_max_tokens", "[[fake:length]]"),
        ("err_drop_once", "[[fake:retry_after_text_same]]"),
        ("refusal", "[[fake:refusal]]"),
        ("shell", "[[fake:command_failed]]"),
    ],
)
def test_a_turn_has_the_recorded_notifications_in_the_recorded_order(name: str, prompt: str) -> None:
    real = [json.loads(line) for line in recorded_lines("app-server", name)]
    real = real[next(i for i, m in enumerate(real) if m.get("method") == "turn/started") :]
    with AppChild() as child:
        raw = "rawResponse" in json.dumps(real)
        child.start_turn(child.start_thread(experimentalRawEvents=raw), prompt)
        fake = child.read_until(is_completed)
    fake = fake[next(i for i, m in enumerate(fake) if m.get("method") == "turn/started") :]
    optional = ("account/rateLimits/updated", "result")
    parts = ("item/reasoning/summaryPartAdded", "item/reasoning/summaryTextDelta")
    ignored = (*optional, *parts) if name == "reasoning" else optional
    wanted = [m for m in methods(without_unprompted(real)) if m not in ignored]
    assert [m for m in methods(fake) if m not in ignored] == wanted
    retries = [
        [m["params"]["willRetry"] for m in each if m.get("method") == "error"] for each in (fake, real)
    ]
    assert retries[0] == retries[1]


def test_the_texts_of_faults_are_the_recorded_ones() -> None:
    for name, scenario in (("err_http_500", "error_500"), ("err_incomplete_max_tokens", "length")):
        real = json.loads(recorded_lines("app-server", name)[-1])["params"]["turn"]["error"]
        with AppChild() as child:
            fake = child.play(f"[[fake:{scenario}]]")[-1]["params"]["turn"]
        assert fake["status"] == "failed"
        assert fake["error"].items() <= real.items()


def test_an_entry_of_the_model_list_has_the_recorded_fields() -> None:
    real = next(
        json.loads(x) for x in recorded_lines("app-server", "model_list") if json.loads(x).get("id") == 2
    )
    with AppChild() as child:
        fake = child.call("model/list", {"includeHidden": True})
        visible = child.call("model/list", {})
    assert set(fake["result"]["data"][0]) == set(real["result"]["data"][0])
    assert [m["id"] for m in visible["result"]["data"]] == ["gpt-5", "gpt-5-mini"]
    assert fake["result"]["data"][-1]["hidden"] is True


def test_the_account_is_signed_in_unless_the_environment_says_otherwise() -> None:
    with AppChild() as child:
        assert child.call("account/read", {})["result"]["account"] == {"type": "apiKey"}
    with AppChild(ACCOUNT="none") as child:
        result = child.call("account/read", {})["result"]
    assert (result["account"], result["requiresOpenaiAuth"]) == (None, True)


def test_ids_of_requests_may_be_texts() -> None:
    with AppChild() as child:
        assert child.call("account/read", {}, "a-1")["id"] == "a-1"


@pytest.mark.parametrize(
    ("method", "params", "text"),
    [
        (
            "nosuch/method",
            {},
            "Invalid request: unknown variant `nosuch/method`, expected one of `initialize`",
        ),
        ("initialize", {"clientInfo": {"name": "x"}}, "Already initialized"),
        ("turn/start", {"threadId": "thread_9", "input": []}, "thread not found: thread_9"),
        ("turn/start", {"input": []}, "Invalid request: missing field `threadId`"),
        ("account/read", None, "Invalid request: missing field `params`"),
    ],
)
def test_a_bad_request_is_refused_in_the_words_of_the_real_child(method: str, params: Any, text: str) -> None:
    with AppChild() as child:
        error = child.call(method, params)["error"]
    assert error["code"] == -32600
    assert error["message"].startswith(text)


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([], "items must not be empty"),
        ([{"role": "user"}], "items[0] is not a valid response item: missing field `type`"),
        (
            [{"type": "message", "content": "plain string"}],
            "items[0] is not a valid response item: invalid type",
        ),
        (
            [{"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}],
            "items[0] is not a valid response item: unknown variant `refusal`",
        ),
        (
            [{"type": "message", "content": [{"type": "input_image", "image_url": "https://x"}]}],
            "remote image URLs are not supported; use an inline data URL instead",
        ),
    ],
)
def test_items_that_the_real_child_refuses_are_refused(items: list[Any], text: str) -> None:
    with AppChild() as child:
        params = {"threadId": child.start_thread(), "items": items}
        assert child.call("thread/inject_items", params)["error"]["message"].startswith(text)


def test_an_interrupt_is_answered_and_ends_the_turn_and_a_second_one_is_refused() -> None:
    real = [json.loads(line) for line in recorded_lines("app-server", "interrupt_mid_text")]
    refusal = next(m["error"] for m in real if m.get("id") == 6)
    with AppChild() as child:
        thread = child.start_thread()
        turn = child.start_turn(thread, "[[fake:text n=1000 delay=20]]")
        child.read_until(lambda m: m.get("method") == "item/agentMessage/delta")
        params = {"threadId": thread, "turnId": turn}
        assert child.call("turn/interrupt", params, 5)["result"] == {}
        end = child.read_until(is_completed)
        assert methods(end) == ["thread/status/changed", "turn/completed"]
        assert end[-1]["params"]["turn"]["status"] == "interrupted"
        assert child.call("turn/interrupt", params, 6)["error"] == refusal


def test_notifications_that_were_opted_out_of_do_not_come() -> None:
    with AppChild("item/agentMessage/delta", "thread/status/changed") as child:
        seen = methods(child.play("[[fake:text]]"))
    assert "item/agentMessage/delta" not in seen
    assert "thread/status/changed" not in seen
    assert "item/completed" in seen


def test_raw_events_come_only_when_asked_for() -> None:
    with AppChild() as child:
        quiet = methods(child.play("[[fake:text]]", experimentalRawEvents=False))
        loud = methods(child.play("[[fake:text]]", experimentalRawEvents=True))
    assert not any(name.startswith("raw") for name in quiet)
    assert {"rawResponseItem/completed", "rawResponse/completed"} <= set(loud)


def test_an_unsubscribed_thread_is_closed_and_gone() -> None:
    with AppChild() as child:
        thread = child.start_thread()
        assert child.call("thread/unsubscribe", {"threadId": thread})["result"] == {"status": "unsubscribed"}
        child.read_until(lambda m: m.get("method") == "thread/closed")
        assert child.call("thread/loaded/list", {})["result"]["data"] == []


def test_the_end_of_stdin_ends_the_child() -> None:
    with AppChild() as child:
        child.close_stdin()
        assert child.exit_status() == 0


def test_a_request_nobody_knows_is_waited_for() -> None:
    with AppChild() as child:
        child.start_turn(child.start_thread(), "[[fake:text misbehave=unknown_request]]")
        asked = child.read_until(lambda m: "method" in m and "id" in m)
        child.send({"id": asked[-1]["id"], "error": {"code": -32601, "message": "unsupported"}})
        rest = child.read_until(is_completed)
    assert deltas(asked) == []
    assert "".join(deltas(rest)) == "Hello from the deterministic fake agent."


def test_a_command_runs_only_when_it_is_accepted() -> None:
    for decision, status in (("accept", "completed"), ("decline", "declined")):
        with AppChild() as child:
            child.start_turn(child.start_thread(), "[[fake:approval]]")
            name = "item/commandExecution/requestApproval"
            asked = child.read_until(lambda m, name=name: m.get("method") == name)  # type: ignore[misc]
            child.send({"id": asked[-1]["id"], "result": {"decision": decision}})
            items = [
                m["params"]["item"] for m in child.read_until(is_completed) if m["method"] == "item/completed"
            ]
        assert [item["status"] for item in items if item["type"] == "commandExecution"] == [status]


# --- turn/steer -------------------------------------------------------------------------------------


def steer_request(thread: str, turn: str, text: str) -> Message:
    """The request by which the user says something while a turn runs."""
    parts = [{"type": "text", "text": text, "text_elements": []}]
    params = {"threadId": thread, "expectedTurnId": turn, "clientUserMessageId": "more", "input": parts}
    return {"id": "steer", "method": "turn/steer", "params": params}


def steered(child: AppChild, thread: str, turn: str, text: str) -> Message:
    """The answer to what the user says while a turn runs."""
    return child.call("turn/steer", steer_request(thread, turn, text)["params"], "steer")


def items_of(messages: list[Message]) -> list[tuple[str, str, str | None]]:
    """The notifications about items: their stage, type and client's id."""
    found = [m for m in messages if str(m.get("method")).startswith("item/") and "item" in m["params"]]
    return [
        (m["method"].removeprefix("item/"), m["params"]["item"]["type"], m["params"]["item"].get("clientId"))
        for m in found
    ]


def test_a_turn_that_does_not_run_cannot_be_steered() -> None:
    with AppChild() as child:
        thread = child.start_thread()
        assert steered(child, thread, "turn_1", "More.")["error"]["message"] == "no active turn to steer"
        turn = child.start_turn(thread, "[[fake:count delay=50]]")
        refused = steered(child, thread, "turn_9", "More.")["error"]
        assert refused == {
            "code": -32600,
            "message": f"expected active turn id `turn_9` but found `{turn}`",
        }


def play_steered(first: str, then: str) -> list[Message]:
    """What the child says to a prompt, and to what the user says before the model has begun to answer it."""
    with AppChild() as child:
        thread = child.start_thread()
        parts = [{"type": "text", "text": first, "text_elements": []}]
        start = {"id": "start", "method": "turn/start", "params": {"threadId": thread, "input": parts}}
        child.send(start, steer_request(thread, "turn_1", then))
        return child.read_until(is_completed)


def test_what_the_user_says_cuts_a_text_and_is_answered_in_the_same_turn() -> None:
    told = play_steered("[[fake:count]]", "[[fake:text say=Yes.]]")
    assert items_of(told)[2:] == [
        ("started", "agentMessage", None),
        ("started", "userMessage", "more"),
        ("completed", "userMessage", "more"),
        ("started", "agentMessage", None),
        ("completed", "agentMessage", None),
    ]
    assert deltas(told)[-1] == "Yes."
    assert told[-1]["params"]["turn"]["id"] == "turn_1"


def test_what_the_user_says_is_taken_up_behind_a_command() -> None:
    told = play_steered("[[fake:work]]", "[[fake:text say=Yes.]]")
    assert items_of(told)[3:6] == [
        ("completed", "commandExecution", None),
        ("started", "userMessage", "more"),
        ("completed", "userMessage", "more"),
    ]
    assert deltas(told) == ["Yes."]
