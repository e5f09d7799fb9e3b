"""What clients send to a session: all of a batch or nothing, each result once, no message lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from codex_proxy.admission.images import ImageFetcher
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.parts.sessions import commits
from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.store.record_leases import WrittenRecords
from tests.access.keyed import key_of, keyed_proxy, look_now, write_keys
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import (
    CANCEL,
    TURN_ENDS,
    AgentsClient,
    Reader,
    message,
    result,
    session_body,
    text_of,
)
from tests.pictures import PIXEL


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with fake_proxy(tmp_path, release) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> AgentsClient:
    return AgentsClient(proxy)


async def waiting(reader: Reader) -> tuple[str, list[dict[str, Any]]]:
    """The id of the session of a creation stream, and its open calls, once it waits for them."""
    event = await reader.until("agent.session.requires_action")
    return event["session"]["id"], event["session"]["required_actions"]


async def state_of(client: AgentsClient, id: str) -> tuple[Any, ...]:
    """All that clients can read of a session."""
    return (
        await client.get(f"/sessions/{id}"),
        await client.all(f"/sessions/{id}/items"),
        await client.all(f"/sessions/{id}/turns"),
    )


# --- batches ----------------------------------------------------------------------------------------


async def test_a_batch_with_one_wrong_event_does_nothing(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_calls]]") as reader:
        id, (one, two) = await waiting(reader)
        before = await state_of(client, id)
        for wrong, status in (
            (result(two | {"call_id": "call_x"}), 400),
            (result(two | {"turn_id": "turn_x"}), 400),
            ({"type": "agent.session.input.sing"}, 400),
            (result(one, "rainy"), 409),
            (message("x") | {"input": []}, 400),
        ):
            answer = await client.refused(id, result(one), message("More."), wrong)
            assert answer.status == status, answer.text
            assert await state_of(client, id) == before
        await client.send(id, result(one), result(two))
        told = await reader.rest()
        assert [event["type"] for event in told].count("agent.session.turn.completed") == 1


async def test_a_batch_is_applied_in_its_order(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_calls]]") as reader:
        id, calls = await waiting(reader)
        await client.send(
            id, *map(result, calls), message("[[fake:text say=One.]]"), message("[[fake:text say=Two.]]")
        )
        await reader.rest()
    assert [turn["status"] for turn in await client.all(f"/sessions/{id}/turns")] == ["completed"] * 3
    items = await client.all(f"/sessions/{id}/items")
    assert [text_of(item) for item in items if item["type"] == "message"][-3::2] == ["One.", "Two."]


async def test_messages_of_one_event_are_one_turn(client: AgentsClient) -> None:
    id = await client.idle_session()
    events = await client.turn(id, message("One.", "[[fake:echo]]"))
    assert [event["type"] for event in events].count("agent.session.turn.created") == 1
    added = [event["item"] for event in events if event["type"] == "agent.session.turn.item.added"]
    assert [item["role"] for item in added] == ["user", "user", "assistant"]


async def test_no_events_do_nothing(client: AgentsClient) -> None:
    id = await client.idle_session()
    before = await state_of(client, id)
    await client.send(id)
    assert await state_of(client, id) == before
    answer = await client.ask("POST", f"/sessions/{id}/events", {"events": None})
    assert (answer.status, answer.error["param"]) == (400, "events")
    assert (await client.ask("POST", f"/sessions/{id}/events", {})).status == 400


async def test_wrong_events_are_named_with_their_place(client: AgentsClient) -> None:
    id = await client.idle_session()
    call = {"turn_id": "turn_1", "call_id": "call_1"}
    approval = {"type": "agent.session.input.mcp_approval_request_result", "request_id": "r"}
    decision = {"type": "mcp_tool_call", "decision": "approve"}
    for event, param in (
        ({"type": "agent.session.input.cancel", "more": 1}, "events[0].more"),
        ({"type": "x"}, "events[0].type"),
        ({}, "events[0].type"),
        ({**message("x"), "more": 1}, "events[0].more"),
        ({**result(call), "success": "yes"}, "events[0].success"),
        ({k: v for k, v in result(call).items() if k != "success"}, "events[0].success"),
        ({**result(call), "output": 1}, "events[0].output"),
        ({**result(call), "output": [{"type": "output_text", "text": "x"}]}, "events[0].output[0].type"),
        ({**result(call), "turn_id": ""}, "events[0].turn_id"),
        ({**approval, "response": {**decision, "decision": "maybe"}}, "events[0].response.decision"),
        ({**approval, "response": decision}, "events"),
        (
            {"type": "agent.session.input.computer_use_approval_request_result", "request_id": "r"},
            "events[0].type",
        ),
    ):
        answer = await client.refused(id, event)
        assert (answer.status, answer.error["param"]) == (400, param), answer.text


# --- keys of repeated requests ------------------------------------------------------------------------


async def test_a_batch_under_a_key_is_accepted_once(client: AgentsClient) -> None:
    id = await client.idle_session()
    key = {"Idempotency-Key": "k1"}
    async with client.following(id) as reader:
        for _ in range(3):
            await client.send(id, message("Once."), **key)
        await reader.until("agent.session.idle")
        await client.send(id, message("Once."), **key)
    assert len(await client.all(f"/sessions/{id}/turns")) == 2


async def test_a_key_with_other_events_is_a_conflict(client: AgentsClient) -> None:
    id, other = await client.idle_session(), await client.idle_session()
    key = {"Idempotency-Key": "k1"}
    await client.turn(id, CANCEL, message("Once."))
    await client.send(id, CANCEL, **key)
    answer = await client.refused(id, message("Other."), **key)
    assert (answer.status, answer.error["type"], answer.headers["x-should-retry"]) == (
        409,
        "conflict_error",
        "false",
    )
    await client.send(other, message("Other."), **key)  # a key is of its session


async def test_a_batch_that_was_refused_leaves_its_key_free(client: AgentsClient) -> None:
    id = await client.idle_session()
    key = {"Idempotency-Key": "k1"}
    await client.refused(id, message("x"), result({"turn_id": "t", "call_id": "c"}), **key)
    await client.send(id, CANCEL, **key)


async def test_a_key_has_a_limit_of_characters(client: AgentsClient) -> None:
    id = await client.idle_session()
    await client.send(id, CANCEL, **{"Idempotency-Key": "k" * 256})
    for key in ("k" * 257, ""):
        answer = await client.refused(id, CANCEL, **{"Idempotency-Key": key})
        assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")


async def test_a_key_whose_bytes_are_no_text_is_refused(client: AgentsClient) -> None:
    id = await client.idle_session()
    answer = await client.refused(id, CANCEL, **{"Idempotency-Key": "\udcff"})
    assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")


async def test_the_same_batch_sent_many_times_at_once_is_accepted_once(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as reader:
        await asyncio.gather(
            *(client.send(id, message("Once."), **{"Idempotency-Key": "k1"}) for _ in range(8))
        )
        await reader.until("agent.session.idle")
    assert len(await client.all(f"/sessions/{id}/turns")) == 2


# --- results ----------------------------------------------------------------------------------------


async def test_a_result_for_no_call_has_the_words_that_the_sdks_know(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call]]") as reader:
        id, (call,) = await waiting(reader)
        answer = await client.refused(id, result(call | {"call_id": "call_x"}))
        assert (answer.status, answer.error["code"]) == (400, "invalid_request_error")
        assert answer.error["message"] == "Unknown pending tool call: call_x"
        await client.send(id, result(call))
        await reader.rest()
    answer = await client.refused(id, result(call | {"call_id": "call_x"}))
    assert answer.error["message"] == "Unknown pending tool call: call_x"


async def test_the_same_result_again_is_accepted_and_another_one_is_not(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_calls]]") as reader:
        id, (one, two) = await waiting(reader)
        await client.send(id, result(one))
        before = await state_of(client, id)
        await client.send(id, result(one))
        assert await state_of(client, id) == before
        answer = await client.refused(id, result(one, "rainy"))
        assert (answer.status, answer.headers["x-should-retry"]) == (409, "false")
        await client.send(id, result(two))
        await reader.rest()
    before = await state_of(client, id)
    await client.send(id, result(one), result(two))
    assert await state_of(client, id) == before
    assert (await client.refused(id, result(one, "rainy"))).status == 409


async def test_two_clients_that_answer_at_once_are_one_result(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call say='{outputs}']]") as reader:
        id, (call,) = await waiting(reader)
        answers = await asyncio.gather(
            *(
                client.ask("POST", f"/sessions/{id}/events", {"events": [result(call, f"answer {n}")]})
                for n in range(6)
            )
        )
        await reader.rest()
    assert sorted(answer.status for answer in answers) == [202, *[409] * 5]
    winner = next(n for n, answer in enumerate(answers) if answer.status == 202)
    items = await client.all(f"/sessions/{id}/items")
    assert f"answer {winner}" in text_of(items[-1])


async def test_a_result_after_a_cancel_is_a_conflict(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call]]") as reader:
        id, (call,) = await waiting(reader)
        await client.send(id, CANCEL)
        told = await reader.rest()
    assert [event["type"] for event in told] == [
        "agent.session.turn.item.done",
        "agent.session.turn.cancelled",
        "agent.session.idle",
    ]
    assert told[0]["item"]["status"] == "incomplete"
    assert (await client.refused(id, result(call))).status == 409
    again = await client.turn(id, message("[[fake:text]]"))
    assert again[-2]["type"] == "agent.session.turn.completed"


async def test_a_result_of_an_earlier_turn_is_none_of_this_one(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call]]") as reader:
        id, (call,) = await waiting(reader)
        await client.send(id, CANCEL)
        await reader.rest()
    async with client.following(id) as follower:
        await client.send(id, message("[[fake:tool_call]]"))
        event = await follower.until("agent.session.requires_action")
        (new,) = event["session"]["required_actions"]
        assert (await client.refused(id, result(new | {"turn_id": call["turn_id"]}))).status == 409
        assert (await client.refused(id, result(call | {"turn_id": new["turn_id"]}))).status == 400
        await client.send(id, result(new))
        await follower.until("agent.session.idle")


async def test_parts_of_an_output_reach_the_model(client: AgentsClient) -> None:
    output = [{"type": "input_text", "text": "sunny"}, {"type": "input_text", "text": "and warm"}]
    events = await client.whole_stream("[[fake:tool_call say='{outputs}']]", lambda call: output)
    given = next(e["item"] for e in events if e.get("item", {}).get("type") == "function_call_output")
    assert given["output"] == output
    text = text_of(events[-3]["item"])
    assert "sunny" in text
    assert "and warm" in text


async def test_the_error_of_a_call_reaches_the_model(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call say='{outputs}']]") as reader:
        id, (call,) = await waiting(reader)
        await client.send(id, result(call, None, success=False, error="no such city"))
        told = await reader.rest()
    assert "no such city" in text_of(told[-3]["item"])


@pytest.mark.parametrize("output", ["Paris only", [{"type": "input_text", "text": "Paris only"}]])
async def test_the_output_of_a_call_with_an_error_reaches_the_model_too(
    client: AgentsClient, output: Any
) -> None:
    async with client.creation("[[fake:tool_call say='{outputs}']]") as reader:
        id, (call,) = await waiting(reader)
        await client.send(id, result(call, output, success=False, error="no such city"))
        told = await reader.rest()
    assert "no such city" in text_of(told[-3]["item"])
    assert "Paris only" in text_of(told[-3]["item"])


# --- messages and cancels at work ---------------------------------------------------------------------


async def test_messages_at_work_become_the_next_turns(client: AgentsClient, tmp_path: Path) -> None:
    async with client.creation("[[fake:text hold=1]]") as reader:
        created = await reader.next()
        assert created is not None
        id = created["session"]["id"]
        await reader.until("agent.session.turn.output_text.delta")
        for word in ("One", "Two"):
            await client.send(id, message(f"[[fake:text say={word}.]]"))
        assert len(await client.all(f"/sessions/{id}/items")) == 1
        (tmp_path / "go").touch()
        told = await reader.rest()
    kinds = [event["type"] for event in told]
    assert kinds.count("agent.session.turn.completed") == 3
    assert kinds.count("agent.session.idle") == 1
    texts = [text_of(item) for item in await client.all(f"/sessions/{id}/items")]
    assert texts[3::2] == ["One.", "Two."]


async def test_a_cancel_at_work_ends_the_turn_and_not_the_session(client: AgentsClient) -> None:
    async with client.creation("[[fake:text hold=1]]") as reader:
        created = await reader.next()
        assert created is not None
        id = created["session"]["id"]
        await reader.until("agent.session.turn.output_text.delta")
        await client.send(id, CANCEL)
        told = await reader.rest()
    assert [event["type"] for event in told][-3:] == [
        "agent.session.turn.item.done",
        "agent.session.turn.cancelled",
        "agent.session.idle",
    ]
    assert told[-3]["item"]["status"] == "incomplete"
    assert (await client.turn(id, message("[[fake:text]]")))[-2]["type"] == "agent.session.turn.completed"


async def test_a_cancel_before_the_agent_has_begun_ends_the_turn(client: AgentsClient) -> None:
    for _ in range(3):
        session = await client.new_session("[[fake:text hold=1]]")
        async with client.following(session["id"]) as reader:
            await client.send(session["id"], CANCEL)
            await reader.until("agent.session.idle")
        (turn,) = await client.all(f"/sessions/{session['id']}/turns")
        assert turn["status"] == "cancelled"


async def test_a_cancel_and_a_message_in_one_batch_are_a_new_turn(client: AgentsClient) -> None:
    async with client.creation("[[fake:text hold=1]]") as reader:
        created = await reader.next()
        assert created is not None
        id = created["session"]["id"]
        await reader.until("agent.session.turn.output_text.delta")
        await client.send(id, CANCEL, message("[[fake:text say=New.]]"))
        told = await reader.rest()
    assert [event["type"] for event in told if event["type"] in TURN_ENDS] == [TURN_ENDS[2], TURN_ENDS[0]]
    assert text_of(told[-3]["item"]) == "New."


async def test_the_end_of_each_turn_is_in_the_log_without_its_words(client: AgentsClient) -> None:
    with structlog.testing.capture_logs() as lines:
        async with client.creation("[[fake:tool_call]] the word") as reader:
            id, _ = await waiting(reader)
            await client.send(id, CANCEL)
            await reader.rest()
        await client.turn(id, message("[[fake:text misbehave=crash]]"))
    found = [line for line in lines if line["event"] == "session_turn_ended"]
    assert [(line["session"], line["status"], line.get("error")) for line in found] == [
        (id, "cancelled", None),
        (id, "failed", "internal_error"),
    ]
    assert "the word" not in repr(lines)


async def test_a_cancel_of_an_idle_session_is_accepted_and_tells_nothing(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as reader:
        await client.send(id, CANCEL)
        await client.send(id, message("[[fake:text]]"))
        first = await reader.next()
        assert first is not None
        assert first["type"] == "agent.session.turn.created"
        await reader.until("agent.session.idle")


async def test_changed_settings_are_those_of_the_next_turn(client: AgentsClient) -> None:
    async with client.creation("[[fake:tool_call]]") as reader:
        id, (call,) = await waiting(reader)
        await client.post(f"/sessions/{id}", {"agent": {"tools": None}, "metadata": {"a": "b"}})
        await client.send(id, result(call))
        await reader.rest()
    events = await client.turn(id, message("[[fake:echo]]"))
    assert "get_weather" not in text_of(events[-3]["item"]).partition("tools")[2].partition("]")[0]


# --- keys of clients --------------------------------------------------------------------------------


async def test_a_key_that_is_removed_ends_the_turn_and_the_streams(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        client, other = AgentsClient(proxy, key_of("one")), AgentsClient(proxy, key_of("two"))
        async with client.creation("[[fake:text misbehave=hang]]") as reader:
            created = await reader.next()
            assert created is not None
            await reader.until("agent.session.turn.in_progress")
            id = await other.idle_session()
            write_keys(tmp_path, two={})
            look_now(proxy.server)
            await other.get(f"/sessions/{id}")
            told = await reader.rest()
        await proxy.settled()
        assert told[-1]["type"] in ("error", "agent.session.idle")
        write_keys(tmp_path, one={}, two={})
        look_now(proxy.server)
        await other.get(f"/sessions/{id}")
        found = await client.get(f"/sessions/{created['session']['id']}")
        assert found["status"] == "idle"
        (turn,) = await client.all(f"/sessions/{found['id']}/turns")
        assert turn["status"] == "failed"
        again = await client.turn(found["id"], message("[[fake:text]]"))
        assert again[-2]["type"] == "agent.session.turn.completed"


async def test_sessions_at_work_have_the_limit_of_their_key(tmp_path: Path) -> None:
    async with keyed_proxy(
        tmp_path, {"one": {"concurrency": 1}}, {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    ) as proxy:
        client = AgentsClient(proxy, key_of("one"))
        idle = await client.idle_session()
        async with client.creation("[[fake:text hold=1]]") as reader:
            await reader.until("agent.session.turn.output_text.delta")
            answer = await client.ask(
                "POST", "/sessions", {"environment": {"type": "none"}, "agent": {"model": "m"}, "input": "x"}
            )
            assert answer.status == 429
            assert (await client.refused(idle, message("x"))).status == 429
            (tmp_path / "go").touch()
            await reader.rest()
        await client.turn(idle, message("x"))


# --- a store that fails -----------------------------------------------------------------------------


async def test_what_could_not_be_stored_has_not_happened(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise Fault.of(FaultKind.UNAVAILABLE, "The store cannot be written.")

    async with client.creation("[[fake:tool_calls]]") as reader:
        id, (one, two) = await waiting(reader)
        before = await state_of(client, id)
        with monkeypatch.context() as patched:
            patched.setattr(SessionStore, "write", fail)
            for events in ([result(one)], [CANCEL], [message("More.")], [result(one), result(two)]):
                assert (await client.refused(id, *events)).status == 503
            assert (await client.ask("POST", f"/sessions/{id}", {"metadata": {"a": "b"}})).status == 503
            assert (await client.ask("POST", "/sessions", session_body("Hello."))).status == 503
        assert await state_of(client, id) == before
        await client.send(id, result(two), result(one))
        told = await reader.rest()
        assert told[0]["type"] == "agent.session.requires_action"
    assert len(await client.all("/sessions")) == 1
    ids = [item["id"] for item in await client.all(f"/sessions/{id}/items")]
    assert len(set(ids)) == len(ids) == 6


async def test_a_turn_waits_for_the_store_and_then_goes_on(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write, failed = SessionStore.write, 0

    async def fail(*given: Any, **more: Any) -> WrittenRecords:
        nonlocal failed
        failed += 1
        if failed <= 5:
            raise Fault.of(FaultKind.UNAVAILABLE, "The store cannot be written.")
        return await write(*given, **more)

    monkeypatch.setattr(commits, "RETRY_SECONDS", 0.0)
    async with client.creation("[[fake:text hold=1]]") as reader:
        await reader.until("agent.session.turn.output_text.delta")
        monkeypatch.setattr(SessionStore, "write", fail)
        (tmp_path / "go").touch()
        told = await reader.rest()
    assert [event["type"] for event in told][-2:] == ["agent.session.turn.completed", "agent.session.idle"]
    assert failed > 5


async def test_clients_are_refused_at_once_while_a_turn_waits_for_the_store(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write, tries, is_there = SessionStore.write, asyncio.Event(), asyncio.Event()

    async def fail(*given: Any, **more: Any) -> WrittenRecords:
        tries.set()
        if not is_there.is_set():
            raise Fault.of(FaultKind.UNAVAILABLE, "The store cannot be written.")
        return await write(*given, **more)

    monkeypatch.setattr(commits, "RETRY_SECONDS", 0.0)
    async with client.creation("[[fake:text hold=1]]") as reader:
        id = (await reader.until("agent.session.created"))["session"]["id"]
        await reader.until("agent.session.turn.output_text.delta")
        monkeypatch.setattr(SessionStore, "write", fail)
        (tmp_path / "go").touch()
        await tries.wait()
        assert (await client.ask("POST", f"/sessions/{id}", {"metadata": {"a": "b"}})).status == 503
        assert (await client.ask("DELETE", f"/sessions/{id}")).status == 503
        assert (await client.refused(id, message("More."))).status == 503
        is_there.set()
        await reader.rest()
    await client.post(f"/sessions/{id}", {"metadata": {"a": "b"}})


async def test_an_image_that_is_gone_from_the_web_spoils_no_later_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "https://pictures.example/a.png"
    is_there = True

    async def fetch(*_: Any) -> str:
        if not is_there:
            raise bad_request("The image is not there.")
        return PIXEL

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    async with fake_proxy(tmp_path, image_fetch="pictures.example") as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        picture = message("Look.")
        picture["input"][0]["content"].append({"type": "input_image", "image_url": url})
        await client.turn(id, picture)
        is_there = False
        told = await client.turn(id, message("[[fake:echo]]"))
        assert told[-2]["type"] == "agent.session.turn.completed"
        assert (await client.refused(id, picture)).status == 400


async def test_an_image_that_cannot_be_read_is_refused_and_spoils_no_later_turn(client: AgentsClient) -> None:
    id = await client.idle_session()
    broken = {"type": "input_image", "image_url": "data:image/png;base64,!!!"}
    event = {
        "type": "agent.session.input.message",
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Look."}, broken]}],
    }
    answer = await client.ask("POST", f"/sessions/{id}/events", {"events": [message("Hello."), event]})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["param"] == "events[1].input[0].content[1].image_url"
    await client.turn(id, message("[[fake:text say=Seen.]]"))
    turns = await client.all(f"/sessions/{id}/turns")
    assert [turn["status"] for turn in turns] == ["completed", "completed"]


async def test_a_model_of_another_agent_is_refused_for_a_session_that_is_there(tmp_path: Path) -> None:
    agents = {"two": {"agent": "fake"}}
    async with fake_proxy(tmp_path, agents=agents) as proxy:
        client = AgentsClient(proxy)
        session = await client.idle_session(agent={"model": "codex-5"})
        answer = await client.ask("POST", f"/sessions/{session}", {"agent": {"model": "two/fake-model"}})
        assert (answer.status, answer.error["code"]) == (400, "unsupported_by_agent")
        assert answer.error["param"] == "agent.model"
        assert (await client.get(f"/sessions/{session}"))["agent"]["model"] == "codex-5"
