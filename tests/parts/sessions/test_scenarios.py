"""Everything that the fake agent can do, as turns of a session: what streams tell and what lists show are the same, all
of it is as the SDK's types have it, and the session can be used again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

import fake_proto
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import TURN_ENDS, AgentsClient, message, text_of
from tests.waiting import out_of_patience

SCENARIOS = sorted(path.stem for path in (Path(fake_proto.__file__).parent / "scenarios").glob("*.json"))


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as proxy:
        yield proxy


def items_told(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items that a stream has told, each as it was told last."""
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if "item" in event:
            found[event["item"]["id"]] = event["item"]
    return list(found.values())


def check_deltas(events: Iterable[dict[str, Any]]) -> None:
    """The pieces of each text are the whole text, and each item is told of before its pieces, and ends once."""
    texts: dict[tuple[str, int], str] = {}
    open_items: dict[str, int] = {}
    for event in events:
        kind = event["type"].removeprefix("agent.session.turn.")
        if kind == "item.added" and event["output_index"] is not None:
            open_items[event["item"]["id"]] = event["output_index"]
        elif kind == "item.done":
            assert open_items.pop(event["item"]["id"]) == event["output_index"]
        elif "item_id" in event:
            assert open_items[event["item_id"]] == event["output_index"]
            place = event["item_id"], event.get("content_index", event.get("summary_index", 0))
            if kind.endswith(".delta"):
                texts[place] = texts.get(place, "") + event["delta"]
            elif kind.endswith("text.done"):
                assert texts.get(place, "") == event["text"]
    assert not open_items


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_each_scenario_is_a_turn_after_which_the_session_goes_on(proxy: Proxy, scenario: str) -> None:
    client = AgentsClient(proxy)
    events = await client.whole_stream(f"[[fake:{scenario}]]")
    check_deltas(events)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["agent.session.created", "agent.session.turn.created"]
    assert kinds.count("agent.session.idle") == 1
    assert kinds[-1] == "agent.session.idle"
    ended = [event for event in events if event["type"] in TURN_ENDS]
    assert len(ended) == 1
    failed = ended[0]["type"] == "agent.session.turn.failed"
    assert kinds[-2:-1] == (["error"] if failed else [ended[0]["type"]])
    assert (ended[0]["turn"]["error"] is not None) is failed

    id = events[0]["session"]["id"]
    assert await client.get(f"/sessions/{id}") == events[-1]["session"]
    assert await client.all(f"/sessions/{id}/turns") == [ended[0]["turn"]]
    assert await client.all(f"/sessions/{id}/items") == items_told(events)
    assert await client.all(f"/sessions/{id}/turns/{ended[0]['turn_id']}/items") == items_told(events)
    indexes = [event["output_index"] for event in events if event["type"].endswith("item.added")]
    outputs = [index for index in indexes if index is not None]
    assert outputs == list(range(len(outputs)))

    again = await client.turn(id, message("[[fake:text say='I am still here.']]"))
    assert again[-2]["type"] == "agent.session.turn.completed"
    items = await client.all(f"/sessions/{id}/items")
    assert items == [*items_told(events), *items_told(again)]
    assert text_of(items[-1]) == "I am still here."


MISBEHAVIOURS = (
    *("split", "joined", "garbage", "bad_utf8", "crash", "eof_without_end", "torn", "hang", "close_stdout"),
    *(
        "plain_grandchild",
        "flood n=2000",
        "big_line",
        "repeat",
        "unended",
        "same_ids",
        "wrong_types",
        "strangers",
    ),
    *("duplicate", "prefixed", "legacy_shape", "unknown_events", "stderr_flood"),
)


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS)
@pytest.mark.parametrize("scenario", ["course", "tool_calls"])
async def test_a_faulty_agent_ends_its_turn_and_not_its_session(
    proxy: Proxy, scenario: str, misbehaviour: str
) -> None:
    client = AgentsClient(proxy)
    events: list[dict[str, Any]] = []
    async with client.creation(f"[[fake:{scenario} misbehave={misbehaviour}]]") as reader:
        async for event in reader:
            events.append(event)
            await client.answer_call(event)
            if "hang" in misbehaviour and event["type"] == "agent.session.turn.in_progress":
                out_of_patience(proxy.server.runs)
    check_deltas(events)
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "agent.session.idle"
    assert sum(kind in TURN_ENDS for kind in kinds) == 1
    id = events[0]["session"]["id"]
    assert await client.all(f"/sessions/{id}/items") == items_told(events)
    again = await client.turn(id, message("[[fake:text say='I am still here.']]"))
    assert again[-2]["type"] == "agent.session.turn.completed"
