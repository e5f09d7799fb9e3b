"""Responses, their items, the chains they form and their event frames, over every implementation."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    UNFINISHED,
    ChainTurn,
    Frame,
    NotFinished,
    NotStored,
    PageRequest,
    StoreConflict,
    StoredItem,
    TreeNode,
)
from tests.store.stored import (
    OTHER,
    OWNER,
    Hands,
    context_ids,
    conversation,
    hidden_item,
    item,
    items,
    response,
    turn,
)


async def test_a_response_comes_back_as_it_was_saved(store: Store) -> None:
    saved = response("resp_1", background=True, status="queued")
    await store.add_response(saved)
    assert await store.response(OWNER, "resp_1") == saved


async def test_a_response_that_was_never_saved_is_not_found(store: Store) -> None:
    assert await store.response(OWNER, "resp_1") is None


async def test_an_id_is_given_once(store: Store) -> None:
    await store.add_response(response("resp_1"))
    with pytest.raises(StoreConflict) as conflict:
        await store.add_response(response("resp_1"))
    assert conflict.value.reason == "id_taken"


async def test_two_items_of_one_side_cannot_share_an_id_and_nothing_of_the_response_stays(
    store: Store,
) -> None:
    with pytest.raises(StoreConflict):
        await store.add_response(response("resp_1"), input=[item("a", "one"), item("a", "two")])
    assert await store.response(OWNER, "resp_1") is None
    assert (await store.stats()).items == 0


async def test_another_owner_sees_nothing_of_a_response(store: Store) -> None:
    await turn(store, "resp_1")
    assert await store.response(OTHER, "resp_1") is None
    assert not await store.delete_response(OTHER, "resp_1")
    assert not await store.update_response(OTHER, "resp_1", status="failed", json=b"{}")
    assert await store.find_items(OTHER, ["in-resp_1"]) == {}
    for asked in (
        store.context(OTHER, "resp_1"),
        store.input_items(OTHER, "resp_1", PageRequest()),
        store.frames(OTHER, "resp_1"),
        store.append_frames(OTHER, "resp_1", [(0, b"")]),
        store.add_response(response("resp_2", owner=OTHER, after="resp_1")),
    ):
        with pytest.raises(NotStored):
            await asked


async def test_two_owners_may_have_the_same_ids(store: Store) -> None:
    await store.add_response(response("resp_1"), input=[item("a", "mine")])
    await store.add_response(response("resp_1", owner=OTHER), input=[item("a", "yours")])
    assert (await store.find_items(OWNER, ["a"]))["a"] == item("a", "mine")
    assert await store.delete_response(OWNER, "resp_1")
    assert (await store.find_items(OTHER, ["a"]))["a"] == item("a", "yours")


# --- updates ------------------------------------------------------------------------------------


async def test_an_update_replaces_status_object_and_output(store: Store) -> None:
    await store.add_response(
        response("resp_1", background=True, status="in_progress"), input=items("in"), output=items("half")
    )
    assert await store.update_response(
        OWNER, "resp_1", status="completed", json=b'{"done":1}', output=items("out")
    )
    updated = await store.response(OWNER, "resp_1")
    assert updated is not None
    assert (updated.status, updated.json) == ("completed", b'{"done":1}')
    assert await context_ids(store, "resp_1") == ["in", "out"]
    assert await store.find_items(OWNER, ["half"]) == {}


async def test_an_update_without_output_leaves_it(store: Store) -> None:
    await turn(store, "resp_1")
    await store.update_response(OWNER, "resp_1", status="completed", json=b"{}")
    assert await context_ids(store, "resp_1") == ["in-resp_1", "out-resp_1"]


async def test_an_update_that_expects_another_status_changes_nothing(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    assert await store.update_response(OWNER, "resp_1", status="cancelled", json=b'{"cancelled":1}')
    late = await store.update_response(
        OWNER,
        "resp_1",
        status="completed",
        json=b'{"late":1}',
        output=items("late"),
        only_from={"queued", "in_progress"},
    )
    kept = await store.response(OWNER, "resp_1")
    assert not late
    assert kept is not None
    assert (kept.status, kept.json) == ("cancelled", b'{"cancelled":1}')
    assert await context_ids(store, "resp_1") == []


async def test_an_update_of_a_deleted_response_does_not_bring_it_back(store: Store) -> None:
    await turn(store, "resp_1")
    await turn(store, "resp_2", after="resp_1")
    await store.delete_response(OWNER, "resp_1")
    assert not await store.update_response(OWNER, "resp_1", status="completed", json=b"{}")
    assert await store.response(OWNER, "resp_1") is None


async def test_what_recovery_needs_is_kept_and_dropped_at_the_end(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="queued"))
    await store.update_response(OWNER, "resp_1", status="in_progress", json=b"{}")
    for status, recovery in (("in_progress", b"how to go on"), ("completed", b"")):
        await store.update_response(OWNER, "resp_1", status=status, json=b"{}")
        found = await store.response(OWNER, "resp_1")
        assert found is not None
        assert found.recovery == recovery


# --- chains -------------------------------------------------------------------------------------


async def test_the_context_is_the_whole_chain_from_its_root(store: Store) -> None:
    await turn(store, "resp_1")
    await turn(store, "resp_2", after="resp_1")
    await turn(store, "resp_3", after="resp_2")
    assert await store.context(OWNER, "resp_3") == [
        ChainTurn(id, (item(f"in-{id}"),), (item(f"out-{id}"),)) for id in ("resp_1", "resp_2", "resp_3")
    ]


async def test_a_response_that_has_not_ended_is_not_continued(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    with pytest.raises(NotFinished):
        await store.scan_context(OWNER, "resp_1", print)
    await store.update_response(OWNER, "resp_1", status="completed", json=b"{}", output=items("out"))
    seen: list[str] = []
    await store.scan_context(OWNER, "resp_1", lambda item: seen.append(item.id))
    assert seen == ["out"]


async def test_a_turn_without_items_still_belongs_to_the_chain(store: Store) -> None:
    await store.add_response(response("resp_1"))
    await turn(store, "resp_2", after="resp_1")
    assert [each.response_id for each in await store.context(OWNER, "resp_2")] == ["resp_1", "resp_2"]


async def test_two_continuations_of_one_response_do_not_see_each_other(store: Store) -> None:
    await turn(store, "root")
    await turn(store, "left", after="root")
    await turn(store, "right", after="root")
    await turn(store, "leaf", after="left")
    assert await context_ids(store, "leaf") == [
        "in-root", "out-root", "in-left", "out-left", "in-leaf", "out-leaf",
    ]  # fmt: skip
    assert await context_ids(store, "right") == ["in-root", "out-root", "in-right", "out-right"]


async def test_the_model_sees_raw_and_hidden_items_and_the_client_does_not(store: Store) -> None:
    call = item("call", raw=b'{"encrypted":"x"}')
    await store.add_response(response("resp_1"), input=[hidden_item("secret"), item("in")], output=[call])
    context = await store.context(OWNER, "resp_1")
    assert [each.raw or each.json for each in (*context[0].input, *context[0].output)] == [
        b'{"hidden":"secret"}',
        item("in").json,
        b'{"encrypted":"x"}',
    ]
    assert (await store.input_items(OWNER, "resp_1", PageRequest())).items == (item("in"),)
    assert await store.find_items(OWNER, ["secret"]) == {}


async def test_a_response_cannot_continue_what_does_not_exist(store: Store) -> None:
    with pytest.raises(NotStored) as missing:
        await store.add_response(response("resp_2", after="resp_1"))
    assert (missing.value.kind, missing.value.id) == ("response", "resp_1")
    assert await store.response(OWNER, "resp_2") is None


# --- deleting -----------------------------------------------------------------------------------


async def test_a_deleted_response_is_gone_everywhere(store: Store) -> None:
    await turn(store, "resp_1")
    assert await store.delete_response(OWNER, "resp_1")
    assert not await store.delete_response(OWNER, "resp_1")
    assert await store.response(OWNER, "resp_1") is None
    assert await store.find_items(OWNER, ["in-resp_1"]) == {}
    for asked in (
        store.context(OWNER, "resp_1"),
        store.input_items(OWNER, "resp_1", PageRequest()),
        store.frames(OWNER, "resp_1"),
        store.add_response(response("resp_2", after="resp_1")),
    ):
        with pytest.raises(NotStored):
            await asked
    assert (await store.stats()).items == 0


async def test_what_continues_a_deleted_response_keeps_its_context(store: Store) -> None:
    await turn(store, "resp_1")
    await turn(store, "resp_2", after="resp_1")
    await store.delete_response(OWNER, "resp_1")
    assert await context_ids(store, "resp_2") == ["in-resp_1", "out-resp_1", "in-resp_2", "out-resp_2"]
    assert await store.find_items(OWNER, ["in-resp_1"]) == {}
    with pytest.raises(NotStored):
        await store.input_items(OWNER, "resp_1", PageRequest())
    with pytest.raises(NotStored):
        await store.add_response(response("resp_3", after="resp_1"))


async def test_deleted_responses_leave_with_the_last_one_that_continues_them(store: Store) -> None:
    await turn(store, "root")
    await turn(store, "middle", after="root")
    await turn(store, "left", after="middle")
    await turn(store, "right", after="middle")
    await store.delete_response(OWNER, "root")
    await store.delete_response(OWNER, "middle")
    await store.delete_response(OWNER, "left")
    assert (await store.stats()).items == 6
    await store.delete_response(OWNER, "right")
    assert (await store.stats()).items == 0
    await store.add_response(response("root"))  # even its id is free again


# --- input items --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "ids", "more"),
    [
        (PageRequest(), "edcba", False),
        (PageRequest(limit=2), "ed", True),
        (PageRequest(limit=2, after="d"), "cb", True),
        (PageRequest(limit=2, after="b"), "a", False),
        (PageRequest(limit=5), "edcba", False),
        (PageRequest(limit=2, order="asc"), "ab", True),
        (PageRequest(limit=3, order="asc", after="b"), "cde", False),
        (PageRequest(after="a"), "", False),
    ],
)
async def test_input_items_come_in_pages(store: Store, page: PageRequest, ids: str, more: bool) -> None:
    await store.add_response(response("resp_1"), input=items(*"abcde"), output=items("out"))
    listed = await store.input_items(OWNER, "resp_1", page)
    assert ("".join(each.id for each in listed.items), listed.has_more) == (ids, more)


async def test_hidden_items_never_make_a_page_claim_more(store: Store) -> None:
    await store.add_response(response("resp_1"), input=[hidden_item("x"), item("a"), hidden_item("y")])
    listed = await store.input_items(OWNER, "resp_1", PageRequest(limit=1))
    assert ([each.id for each in listed.items], listed.has_more) == (["a"], False)


@pytest.mark.parametrize("after", ["never", "out", "secret"])
async def test_a_page_after_what_is_not_in_the_list_is_refused(store: Store, after: str) -> None:
    await store.add_response(
        response("resp_1"), input=[item("a"), hidden_item("secret")], output=items("out")
    )
    with pytest.raises(NotStored) as missing:
        await store.input_items(OWNER, "resp_1", PageRequest(after=after))
    assert (missing.value.kind, missing.value.id) == ("item", after)


async def test_an_item_that_many_responses_hold_exists_once(store: Store) -> None:
    for number in range(20):
        await store.add_response(response(f"resp_{number}"), input=items("system", "files"))
    assert (await store.stats()).items == 2
    for number in range(19):
        await store.delete_response(OWNER, f"resp_{number}")
    assert await context_ids(store, "resp_19") == ["system", "files"]


async def test_an_item_sent_back_changed_under_its_id_leaves_the_first_one_as_it_was(store: Store) -> None:
    await store.add_response(response("resp_1"), output=[item("msg", "as it was")])
    await store.add_response(response("resp_2"), input=[item("msg", "changed")])
    assert (await store.context(OWNER, "resp_1"))[0].output == (item("msg", "as it was"),)
    assert await store.find_items(OWNER, ["msg", "nobody"]) == {"msg": item("msg", "changed")}


# --- lists and trees -----------------------------------------------------------------------------


async def list_ids(store: Store, **query: Any) -> tuple[list[str], bool]:
    page = await store.newest_responses(OWNER, **query)
    return [each.id for each in page.items], page.has_more


async def test_responses_are_listed_newest_first_page_by_page_for_their_owner(store: Store) -> None:
    for number in range(5):
        await store.add_response(response(f"resp_{number}"))
    await store.add_response(response("resp_other", owner="another"))
    await store.delete_response(OWNER, "resp_3")
    assert await list_ids(store, limit=2) == (["resp_4", "resp_2"], True)
    assert await list_ids(store, limit=2, after="resp_2") == (["resp_1", "resp_0"], False)
    with pytest.raises(NotStored):
        await list_ids(store, after="resp_other")


@pytest.mark.parametrize(
    ("search", "found"),
    [
        ("resp_a", ["resp_a"]),
        ("RESP_A", ["resp_a"]),
        ("xxx", ["resp_b"]),
        ("%", []),
        ("_\\", []),
        ("a\0", []),
    ],
)
async def test_a_search_finds_ids_and_text_and_takes_every_sign_as_it_is(
    store: Store, search: str, found: list[str]
) -> None:
    await store.add_response(response("resp_a"))
    await store.add_response(response("resp_b", size=3))
    assert await list_ids(store, search=search) == (found, False)


async def test_conversations_are_listed_newest_first_and_found_by_id_and_metadata(store: Store) -> None:
    for number in range(4):
        await store.add_conversation(conversation(f"conv_{number}", topic=f"Trip {number}"))
    await store.add_conversation(conversation("conv_other", owner="another"))
    await store.delete_conversation(OWNER, "conv_2")

    async def listed(**query: Any) -> tuple[list[str], bool]:
        page = await store.newest_conversations(OWNER, **query)
        return [each.id for each in page.items], page.has_more

    assert await listed(limit=2) == (["conv_3", "conv_1"], True)
    assert await listed(limit=2, after="conv_1") == (["conv_0"], False)
    assert await listed(search="trip 1") == (["conv_1"], False)
    assert await listed(search="CONV_3") == (["conv_3"], False)
    assert (await store.newest_conversations(OWNER)).items[0].metadata == {"topic": "Trip 3"}
    with pytest.raises(NotStored):
        await listed(after="conv_2")


async def test_a_tree_has_all_that_continue_the_same_first_response(store: Store) -> None:
    await turn(store, "first")
    await turn(store, "left", after="first")
    await turn(store, "right", after="first")
    await turn(store, "leaf", after="right")
    await turn(store, "apart")
    await store.delete_response(OWNER, "first")
    whole = [
        TreeNode("first", None, True),
        TreeNode("left", "first", False),
        TreeNode("right", "first", False),
        TreeNode("leaf", "right", False),
    ]
    assert await store.response_tree(OWNER, "leaf") == whole
    assert await store.response_tree(OWNER, "left") == whole
    with pytest.raises(NotStored):
        await store.response_tree("another", "leaf")


# --- frames -------------------------------------------------------------------------------------


async def test_frames_are_read_after_a_number_in_order(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    frames = [(number, b"event %d" % number) for number in range(10)]
    await store.append_frames(OWNER, "resp_1", frames[:4])
    await store.append_frames(OWNER, "resp_1", frames[4:])
    assert await store.frames(OWNER, "resp_1") == frames
    assert await store.frames(OWNER, "resp_1", after=6) == frames[7:]
    assert await store.frames(OWNER, "resp_1", after=2, limit=3) == frames[3:6]


async def test_the_first_rows_of_a_log_are_stored_with_the_response_or_not_at_all(store: Store) -> None:
    rows = [(-3, b"head"), (-2, b"event")]
    await store.add_response(response("resp_1", background=True, status="queued"), frames=rows)
    assert await store.frames(OWNER, "resp_1", after=-4) == rows
    with pytest.raises(StoreConflict):
        await store.add_response(response("resp_1"), frames=[(-1, b"another")])
    assert await store.frames(OWNER, "resp_1", after=-4) == rows


async def test_frames_of_no_more_bytes_than_asked_for_are_read_at_a_time_but_one_at_least(
    store: Store,
) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    frames = [(number, b"x" * size) for number, size in enumerate((40, 50, 20, 300, 1))]
    await store.append_frames(OWNER, "resp_1", frames)
    parts: list[list[Frame]] = []
    after = -1
    while part := await store.frames(OWNER, "resp_1", after=after, max_bytes=100):
        parts.append(part)
        after = part[-1][0]
    assert parts == [frames[:2], frames[2:3], frames[3:4], frames[4:]]


@pytest.mark.parametrize(("after", "count"), [(10**30, 0), (-(10**30), 3)])
async def test_a_number_beyond_all_numbers_is_no_fault(store: Store, after: int, count: int) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    await store.append_frames(OWNER, "resp_1", [(number, b"") for number in range(3)])
    assert len(await store.frames(OWNER, "resp_1", after=after)) == count


async def test_frames_that_are_stored_again_after_an_unsure_write_are_there_once(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    frames = [(number, b"event") for number in range(3)]
    await store.append_frames(OWNER, "resp_1", frames[:2])
    await store.append_frames(OWNER, "resp_1", frames)
    assert await store.frames(OWNER, "resp_1") == frames


async def test_the_last_frames_come_with_the_end(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    await store.append_frames(OWNER, "resp_1", [(0, b"first")])
    last = [(1, b"last")]
    await store.update_response(OWNER, "resp_1", status="completed", json=b"{}", frames=last)
    late = await store.update_response(
        OWNER, "resp_1", status="failed", json=b"{}", frames=[(2, b"late")], only_from=UNFINISHED
    )
    assert not late
    assert await store.frames(OWNER, "resp_1") == [(0, b"first"), *last]


async def test_frames_go_with_their_response(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    await turn(store, "resp_2", after="resp_1")
    await store.append_frames(OWNER, "resp_1", [(0, b"first")])
    await store.delete_response(OWNER, "resp_1")
    assert (await store.stats()).frames == 0


async def test_creation_times_of_items_are_kept(store: Store, clock: Hands) -> None:
    said = StoredItem("a", b"{}", created=clock.now + 0.25)
    await store.add_response(response("resp_1"), input=[said])
    assert (await store.input_items(OWNER, "resp_1", PageRequest())).items == (said,)
