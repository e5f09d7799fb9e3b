"""Retention by age, count and size; export; giving pages back."""

from __future__ import annotations

import json

import pytest

from codex_proxy.store.store import Store
from codex_proxy.store.values import ItemReference, PruneResult, Retention
from tests.store.conftest import Make
from tests.store.stored import (
    OTHER,
    OWNER,
    Hands,
    context_ids,
    conversation,
    conversation_ids,
    hidden_item,
    item,
    items,
    record,
    response,
    session,
    turn,
)

DAY = 86400.0
UNLIMITED = Retention(age=None, max_responses=None, max_bytes=None)


async def stored_ids(store: Store, *ids: str) -> list[str]:
    return [id for id in ids if await store.response(OWNER, id) is not None]


async def test_objects_within_the_limits_of_age_number_and_size_stay(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    await turn(store, "resp_1", append="conv_1")
    assert await store.prune() == PruneResult()
    assert await stored_ids(store, "resp_1") == ["resp_1"]


async def test_responses_go_by_age_with_their_items(make: Make, clock: Hands) -> None:
    store = await make(Retention(age=10 * DAY))
    await turn(store, "old", created=clock.now)
    await turn(store, "young", created=clock.now + DAY)
    clock.now += 10 * DAY
    assert await store.prune() == PruneResult(responses=1)
    assert await stored_ids(store, "old", "young") == ["young"]
    assert (await store.stats()).items == 2


async def test_a_chain_that_is_still_continued_keeps_its_beginning(make: Make, clock: Hands) -> None:
    store = await make(Retention(age=10 * DAY))
    await turn(store, "root", created=clock.now)
    await turn(store, "aside", after="root", created=clock.now)
    await turn(store, "leaf", after="root", created=clock.now + 9 * DAY)
    clock.now += 12 * DAY
    await store.prune()
    assert await stored_ids(store, "root", "aside", "leaf") == ["root", "leaf"]
    assert await context_ids(store, "leaf") == ["in-root", "out-root", "in-leaf", "out-leaf"]
    clock.now += 10 * DAY
    assert await store.prune() == PruneResult(responses=2)


async def test_a_long_chain_goes_as_a_whole_when_its_time_has_come(make: Make, clock: Hands) -> None:
    store = await make(Retention(age=10 * DAY))
    for number in range(130):
        await turn(store, f"resp_{number}", after=f"resp_{number - 1}" if number else None)
    clock.now += 10 * DAY
    assert await store.prune() == PruneResult(responses=130)
    assert (await store.stats()).items == 0


async def test_an_unfinished_background_run_is_never_forgotten(make: Make, clock: Hands) -> None:
    store = await make(Retention(age=DAY))
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    clock.now += 30 * DAY
    assert await store.prune() == PruneResult()
    assert await store.response(OWNER, "resp_1") is not None


async def test_responses_go_by_count_the_oldest_first(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_responses=60, spared=60))
    for number in range(200):
        await turn(store, f"resp_{number}", created=clock.now + number / 100)
    clock.now += 120
    assert await store.prune() == PruneResult(responses=140)
    assert await stored_ids(store, "resp_139", "resp_140") == ["resp_140"]


async def test_the_conversation_that_was_continued_the_longest_time_ago_goes_as_a_whole(
    make: Make, clock: Hands
) -> None:
    store = await make(Retention(max_conversations=2))
    for second, (id, after) in enumerate(
        [("a1", None), ("b1", None), ("a2", "a1"), ("b2", "b1"), ("a3", "a2"), ("c1", None)]
    ):
        await turn(store, id, after=after, created=clock.now + second)
    assert await stored_ids(store, "a1", "a2", "a3", "b1", "b2", "c1") == ["a1", "a2", "a3", "c1"]
    assert len(await context_ids(store, "a3")) == 6
    await turn(store, "a2'", after="a2", created=clock.now + 9)
    assert await stored_ids(store, "a1", "a2", "a3", "a2'", "c1") == ["a1", "a2", "a3", "a2'"], (
        "a branch is another"
    )


async def test_a_conversation_that_a_turn_continues_is_spared_until_it_is_stored(
    make: Make, clock: Hands
) -> None:
    store = await make(Retention(max_conversations=1, spared=60))
    await turn(store, "a1", created=clock.now)
    await store.context(OWNER, "a1")
    await turn(store, "b1", created=clock.now + 1)
    assert await stored_ids(store, "a1", "b1") == ["a1"], "the other one had to go"
    await turn(store, "a2", after="a1", created=clock.now + 2)
    await store.context(OWNER, "a2")  # of a turn that is never stored
    clock.now += 61
    await turn(store, "c1", created=clock.now)
    assert await stored_ids(store, "a1", "a2", "c1") == ["c1"]


async def test_only_finished_chains_count_as_conversations(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_conversations=1))
    await store.add_conversation(conversation("conv_1"))
    for number in range(3):
        await store.add_response(
            response(f"conv_{number}", conversation="conv_1", created=clock.now + number)
        )
        await store.add_response(
            response(f"back_{number}", background=True, status="in_progress", created=clock.now + number)
        )
    await turn(store, "a1", created=clock.now)
    await turn(store, "b1", created=clock.now + 1)
    kept = await stored_ids(store, "conv_0", "conv_2", "back_0", "back_2", "a1", "b1")
    assert kept == ["conv_0", "conv_2", "back_0", "back_2", "b1"]
    for number in range(3):
        await store.update_response(OWNER, f"back_{number}", status="completed", json=b"{}")
    kept = await stored_ids(store, "back_0", "back_1", "back_2", "b1")
    assert kept == ["back_0", "back_1", "back_2"], "what has just ended is waited for"
    clock.now += 3601
    await turn(store, "c1", created=clock.now)
    assert await stored_ids(store, "back_0", "back_1", "back_2", "c1") == ["c1"]


async def test_count_and_size_spare_what_is_being_worked_on(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_responses=0, max_bytes=0, spared=60))
    await turn(store, "resp_1", created=clock.now)
    await store.add_conversation(conversation("conv_1"))
    clock.now += 59
    assert await store.prune() == PruneResult()
    clock.now += 1
    assert await store.prune() == PruneResult(responses=1, conversations=1)


async def test_size_takes_the_oldest_until_there_is_room(make: Make, clock: Hands) -> None:
    most = 1 << 20
    store = await make(Retention(max_bytes=most, spared=60))
    for number in range(40):
        await turn(store, f"resp_{number}", created=clock.now + number / 100, size=50_000)
    clock.now += 120
    pruned = await store.prune()
    assert (await store.stats()).bytes_used <= most
    assert 20 <= pruned.responses < 30
    first_kept = f"resp_{pruned.responses}"
    assert await stored_ids(store, f"resp_{pruned.responses - 1}", first_kept) == [first_kept]


async def test_size_takes_responses_and_conversations_by_their_last_use(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_bytes=0, spared=0))
    begin = clock.now
    await store.add_conversation(conversation("conv_1"))
    await turn(store, "resp_1", created=begin + 10)
    clock.now = begin + 20
    await store.append_items(OWNER, "conv_1", items("a"))
    assert await store.prune(begin + 15) == PruneResult(responses=1)
    assert await conversation_ids(store, "conv_1") == ["a"]


async def test_steps_and_frames_go_before_responses_for_size(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_bytes=400_000, spared=60))
    await store.add_response(response("resp_1", background=True))
    await store.append_frames(OWNER, "resp_1", [(number, b"x" * 1000) for number in range(1500)])
    await store.remember(OWNER, {b"%d" % number: b"x" * 1000 for number in range(1500)})
    clock.now += 120
    assert await store.prune() == PruneResult(frames=1500, steps=1500)


async def test_frames_of_finished_runs_go_after_their_time_and_those_of_running_ones_stay(
    make: Make, clock: Hands
) -> None:
    store = await make(Retention(frames_age=DAY))
    for id, status in (("done", "completed"), ("running", "in_progress")):
        await store.add_response(response(id, background=True, status=status))
        await store.append_frames(OWNER, id, [(number, b"event") for number in range(2500)])
    clock.now += DAY
    assert await store.prune() == PruneResult(frames=2500)
    assert len(await store.frames(OWNER, "running", limit=9999)) == 2500


async def test_conversations_stay_unless_an_age_is_given(make: Make, clock: Hands) -> None:
    store = await make(UNLIMITED)
    await store.add_conversation(conversation("conv_1"), items("a"))
    clock.now += 10_000 * DAY
    assert await store.prune() == PruneResult()


async def test_conversations_go_when_nobody_has_touched_them(make: Make, clock: Hands) -> None:
    store = await make(Retention(conversation_age=10 * DAY))
    for id in ("left", "appended", "renamed", "shortened"):
        await store.add_conversation(conversation(id), [item(f"{id}-1"), item(f"{id}-2")])
    clock.now += 9 * DAY
    await store.append_items(OWNER, "appended", [ItemReference("left-1")])
    await store.update_conversation(OWNER, "renamed", {"title": "new"})
    await store.delete_item(OWNER, "shortened", "shortened-1")
    clock.now += DAY
    assert await store.prune() == PruneResult(conversations=1)
    assert await store.conversation(OWNER, "left") is None
    assert set(await store.find_items(OWNER, ["left-1", "left-2"])) == {"left-1"}


async def test_time_given_to_prune_stands_for_the_clock(make: Make, clock: Hands) -> None:
    store = await make(Retention(age=DAY))
    await turn(store, "resp_1", created=clock.now)
    assert await store.prune(clock.now + DAY) == PruneResult(responses=1)


# --- the operator -------------------------------------------------------------------------------


async def test_stats_count_what_is_there(store: Store, clock: Hands) -> None:
    assert (await store.stats()).oldest is None
    await store.add_response(response("resp_1", background=True, status="queued"), input=items("a", "b"))
    await store.append_frames(OWNER, "resp_1", [(0, b"")])
    await store.add_conversation(conversation("conv_1"), items("c"))
    await store.remember(OWNER, {b"1": b""})
    await store.remember(OWNER, {b"2": b""}, durable=False)
    await store.write_records(OWNER, [session("s"), record("a", parent="s")])
    stats = await store.stats()
    counted = (stats.responses, stats.unfinished, stats.conversations, stats.items, stats.frames, stats.steps)
    assert (*counted, stats.records) == (1, 1, 1, 3, 1, 2, 2)
    assert stats.oldest == clock.now
    assert stats.bytes_used > 0


async def test_export_gives_every_object_of_every_owner_as_a_line_of_json(store: Store) -> None:
    for number in range(50):
        await turn(store, f"resp_{number}")
    await store.add_response(response("theirs", owner=OTHER), output=[hidden_item("secret")])
    await store.delete_response(OWNER, "resp_0")
    await store.add_conversation(conversation("conv_1", topic="cats"), items("a"))
    lines: list[bytes] = []
    assert await store.export(lines.append) == 51
    assert all(line.endswith(b"\n") for line in lines)
    exported = {each["id"]: each for each in map(json.loads, lines)}
    assert len(exported) == 51
    assert exported["resp_1"]["input"][0]["item"] == {"id": "in-resp_1", "text": ""}
    assert exported["resp_1"]["response"]["id"] == "resp_1"
    assert exported["theirs"]["owner"] == OTHER
    assert exported["theirs"]["output"][0]["item"] is None
    assert exported["theirs"]["output"][0]["raw"] == {"hidden": "secret"}
    assert exported["conv_1"]["metadata"] == {"topic": "cats"}
    assert [each["id"] for each in exported["conv_1"]["items"]] == ["a"]


async def test_empty_pages_are_given_back_to_the_file_system(file_store: Store) -> None:
    for number in range(20):
        await turn(file_store, f"resp_{number}", size=500_000)
    for number in range(20):
        await file_store.delete_response(OWNER, f"resp_{number}")
    free = (await file_store.stats()).bytes_free
    assert free > 9_000_000
    assert await file_store.vacuum() == pytest.approx(free, rel=0.02)
    assert (await file_store.stats()).bytes_free == 0
