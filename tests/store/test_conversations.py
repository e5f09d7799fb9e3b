"""Conversations and their items, over every implementation."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Awaitable

import pytest

from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    MAX_METADATA_KEYS,
    ContextLimits,
    ContextTooLarge,
    ItemReference,
    NotStored,
    PageRequest,
    StoreConflict,
    StoredConversation,
    StoredItem,
)
from tests.store.conftest import Make
from tests.store.stored import (
    OTHER,
    OWNER,
    conversation,
    conversation_ids,
    hidden_item,
    item,
    items,
    response,
    turn,
)


async def test_a_conversation_comes_back_as_it_was_made(store: Store) -> None:
    made = conversation("conv_1", topic="cats")
    await store.add_conversation(made)
    assert await store.conversation(OWNER, "conv_1") == made


async def test_items_of_a_conversation_and_of_a_chain_are_visited_in_a_worker_thread(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), [item("item_1")])
    await turn(store, "resp_1")
    threads: list[int] = []
    await store.scan_conversation(OWNER, "conv_1", lambda _: threads.append(threading.get_ident()))
    await store.scan_context(OWNER, "resp_1", lambda _: threads.append(threading.get_ident()))
    assert len(threads) == 3
    assert threading.get_ident() not in threads


async def test_a_conversation_is_made_with_its_first_items(store: Store) -> None:
    given = await store.add_conversation(conversation("conv_1"), items("a", "b"))
    assert given == (item("a"), item("b"))
    assert await conversation_ids(store, "conv_1") == ["a", "b"]


async def test_a_conversation_whose_first_items_cannot_be_is_not_made(store: Store) -> None:
    with pytest.raises(NotStored):
        await store.add_conversation(conversation("conv_1"), [item("a"), ItemReference("nobody")])
    assert await store.conversation(OWNER, "conv_1") is None


async def test_a_conversation_id_is_given_once(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    with pytest.raises(StoreConflict) as conflict:
        await store.add_conversation(conversation("conv_1"))
    assert conflict.value.reason == "id_taken"


async def test_another_owner_sees_nothing_of_a_conversation(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    assert await store.conversation(OTHER, "conv_1") is None
    assert not await store.delete_conversation(OTHER, "conv_1")
    for asked in (
        store.update_conversation(OTHER, "conv_1", {"a": "b"}),
        store.append_items(OTHER, "conv_1", items("b")),
        store.items(OTHER, "conv_1", PageRequest()),
        store.item(OTHER, "conv_1", "a"),
        store.delete_item(OTHER, "conv_1", "a"),
        store.scan_conversation(OTHER, "conv_1", print),
        store.add_response(response("resp_1", owner=OTHER), append="conv_1"),
        store.add_conversation(conversation("conv_2", owner=OTHER), [ItemReference("a")]),
    ):
        with pytest.raises(NotStored):
            await asked
    assert await conversation_ids(store, "conv_1") == ["a"]


# --- metadata -----------------------------------------------------------------------------------


async def test_metadata_merges_and_null_deletes_a_key(store: Store) -> None:
    await store.add_conversation(conversation("conv_1", project="support", user="1"))
    updated = await store.update_conversation(
        OWNER, "conv_1", {"status": "resolved", "project": None, "no": None}
    )
    assert updated.metadata == {"user": "1", "status": "resolved"}
    assert await store.conversation(OWNER, "conv_1") == updated


async def test_metadata_has_no_more_keys_after_a_merge_than_it_may(store: Store) -> None:
    full = {f"key{number}": "" for number in range(MAX_METADATA_KEYS)}
    await store.add_conversation(conversation("conv_1", **full))
    with pytest.raises(StoreConflict) as conflict:
        await store.update_conversation(OWNER, "conv_1", {"more": ""})
    assert conflict.value.reason == "too_many_keys"
    exchanged = await store.update_conversation(OWNER, "conv_1", {"more": "", "key0": None})
    assert len(exchanged.metadata) == MAX_METADATA_KEYS


async def test_metadata_does_not_move_the_version(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    updated = await store.update_conversation(OWNER, "conv_1", {"a": "b"})
    assert updated.version == 1


# --- items --------------------------------------------------------------------------------------


async def test_items_stay_in_the_order_of_appending(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    await store.append_items(OWNER, "conv_1", items("b", "a"))
    await store.append_items(OWNER, "conv_1", items("c"))
    assert await conversation_ids(store, "conv_1") == ["b", "a", "c"]


async def test_items_are_appended_all_or_none(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    with pytest.raises(StoreConflict) as conflict:
        await store.append_items(OWNER, "conv_1", items("b", "a"))
    assert conflict.value.reason == "id_taken"
    with pytest.raises(NotStored) as missing:
        await store.append_items(OWNER, "conv_1", [item("c"), ItemReference("nobody")])
    assert (missing.value.kind, missing.value.id) == ("item", "nobody")
    assert await conversation_ids(store, "conv_1") == ["a"]
    assert (await store.stats()).items == 1


@pytest.mark.parametrize(
    ("page", "ids", "more"),
    [
        (PageRequest(), "edcba", False),
        (PageRequest(limit=2, after="d"), "cb", True),
        (PageRequest(limit=2, after="b"), "a", False),
        (PageRequest(limit=5), "edcba", False),
        (PageRequest(limit=4, order="asc"), "abcd", True),
        (PageRequest(limit=4, order="asc", after="a"), "bcde", False),
    ],
)
async def test_items_come_in_pages(store: Store, page: PageRequest, ids: str, more: bool) -> None:
    await store.add_conversation(conversation("conv_1"), items(*"abcde"))
    listed = await store.items(OWNER, "conv_1", page)
    assert ("".join(each.id for each in listed.items), listed.has_more) == (ids, more)


async def test_a_listing_that_was_begun_goes_on_right_when_items_come_and_go(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items(*"abcd"))
    await store.delete_item(OWNER, "conv_1", "a")
    await store.append_items(OWNER, "conv_1", items("e"))
    assert await conversation_ids(store, "conv_1", PageRequest(order="asc", after="b")) == ["c", "d", "e"]


async def test_a_page_after_an_item_of_nobody_is_refused(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    with pytest.raises(NotStored) as missing:
        await store.items(OWNER, "conv_1", PageRequest(after="b"))
    assert (missing.value.kind, missing.value.id) == ("item", "b")


async def test_one_item_is_read_by_its_id(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), [item("a"), hidden_item("secret")])
    assert await store.item(OWNER, "conv_1", "a") == item("a")
    assert await store.item(OWNER, "conv_1", "secret") is None
    assert await store.item(OWNER, "conv_1", "nobody") is None


async def test_the_model_sees_hidden_items_and_a_list_does_not(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), [item("a"), hidden_item("secret"), item("b")])
    seen: list[StoredItem] = []
    await store.scan_conversation(OWNER, "conv_1", seen.append)
    assert [each.id for each in seen] == ["a", "secret", "b"]
    assert await conversation_ids(store, "conv_1") == ["a", "b"]


# --- shared items -------------------------------------------------------------------------------


async def test_a_reference_gives_the_item_and_shares_it(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    await store.add_conversation(conversation("conv_2"))
    assert await store.append_items(OWNER, "conv_2", [ItemReference("a"), item("b")]) == (
        item("a"),
        item("b"),
    )
    assert (await store.stats()).items == 2


@pytest.mark.parametrize("use", ["named by a request", "added to a conversation", "in a new conversation"])
async def test_items_that_are_too_large_together_are_refused_before_they_are_fetched(
    use: str, make: Make
) -> None:
    mib = 1 << 20
    store = await make(limits=ContextLimits(max_bytes=2 * mib))
    names = [f"item_{number}" for number in range(12)]
    for name in names:
        await store.add_conversation(conversation(f"conv_{name}"), [item(name, "x" * mib)])
    await store.add_conversation(conversation("conv_1"))
    named = [ItemReference(name) for name in names]

    def ask() -> Awaitable[object]:
        if use == "named by a request":
            return store.find_items(OWNER, names, limited=True)
        if use == "added to a conversation":
            return store.append_items(OWNER, "conv_1", named)
        return store.add_conversation(conversation("conv_2"), named)

    tracemalloc.start()
    try:
        with pytest.raises(ContextTooLarge):
            await ask()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < mib
    assert set(await store.find_items(OWNER, names[:1], limited=True)) == {names[0]}
    assert await store.append_items(OWNER, "conv_1", named[:1]) == (item(names[0], "x" * mib),)


async def test_a_deleted_item_stays_where_another_conversation_refers_to_it(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a", "b"))
    await store.add_conversation(conversation("conv_2"), [ItemReference("a")])
    after = await store.delete_item(OWNER, "conv_1", "a")
    assert after == StoredConversation(owner=OWNER, id="conv_1", created=after.created, version=2)
    assert await conversation_ids(store, "conv_1") == ["b"]
    assert await conversation_ids(store, "conv_2") == ["a"]
    await store.delete_item(OWNER, "conv_2", "a")
    assert (await store.stats()).items == 1


async def test_an_item_is_deleted_once(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), [item("a"), hidden_item("secret")])
    await store.delete_item(OWNER, "conv_1", "a")
    for id in ("a", "secret"):
        with pytest.raises(NotStored) as missing:
            await store.delete_item(OWNER, "conv_1", id)
        assert missing.value.kind == "item"


async def test_a_deleted_conversation_takes_only_what_nobody_else_holds(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a", "b", "c"))
    await store.add_conversation(conversation("conv_2"), [ItemReference("a")])
    await store.add_response(response("resp_1"), input=items("b"))
    assert await store.delete_conversation(OWNER, "conv_1")
    assert not await store.delete_conversation(OWNER, "conv_1")
    assert set(await store.find_items(OWNER, ["a", "b", "c"])) == {"a", "b"}


async def test_a_deleted_response_leaves_its_items_to_the_conversation(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    await turn(store, "resp_1", append="conv_1")
    await store.delete_response(OWNER, "resp_1")
    assert await conversation_ids(store, "conv_1") == ["in-resp_1", "out-resp_1"]


# --- turns --------------------------------------------------------------------------------------


async def test_a_conversation_takes_both_sides_of_a_turn_with_its_response(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("a"))
    await turn(store, "resp_1", append="conv_1")
    assert await conversation_ids(store, "conv_1") == ["a", "in-resp_1", "out-resp_1"]


async def test_a_background_turn_is_appended_when_it_completes(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    await store.add_response(
        response("resp_1", background=True, status="in_progress", conversation="conv_1"), input=items("in")
    )
    assert await conversation_ids(store, "conv_1") == []
    await store.update_response(
        OWNER, "resp_1", status="completed", json=b"{}", output=items("out"), append="conv_1"
    )
    assert await conversation_ids(store, "conv_1") == ["in", "out"]


async def test_an_update_that_cannot_be_appended_changes_nothing(store: Store) -> None:
    await store.add_response(response("resp_1", background=True, status="in_progress"))
    with pytest.raises(NotStored):
        await store.update_response(
            OWNER, "resp_1", status="completed", json=b"{}", output=items("out"), append="conv_1"
        )
    found = await store.response(OWNER, "resp_1")
    assert found is not None
    assert found.status == "in_progress"


async def test_a_turn_that_sends_known_items_again_appends_only_the_new_ones(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"), items("call"))
    await store.add_response(
        response("resp_1"), input=items("call", "output"), output=items("answer"), append="conv_1"
    )
    assert await conversation_ids(store, "conv_1") == ["call", "output", "answer"]


async def test_of_an_input_and_an_output_with_one_id_a_turn_appends_the_input(store: Store) -> None:
    await store.add_conversation(conversation("conv_1"))
    await store.add_response(
        response("resp_1"), input=[item("a", "asked")], output=[item("a", "answered")], append="conv_1"
    )
    assert await conversation_ids(store, "conv_1") == ["a"]
    listed = await store.items(OWNER, "conv_1", PageRequest())
    assert listed.items == (item("a", "asked"),)
