"""Leases: who runs a background response, who writes for it, and whose turn it is in a conversation."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.store.leases import FIRST_EPOCH, Node, ResponseLease
from codex_proxy.store.store import Store
from codex_proxy.store.values import UNFINISHED, NotStored, StoreConflict
from tests.store.stored import OTHER, OWNER, response

MINE = ResponseLease(OWNER, "resp_1", FIRST_EPOCH)


async def add_running_response(store: Store, id: str = "resp_1", owner: str = OWNER) -> None:
    await store.add_response(response(id, owner=owner, background=True, status="in_progress"))


async def finish(store: Store, epoch: int | None, status: str = "completed") -> bool:
    return await store.update_response(
        OWNER, "resp_1", status=status, json=b"{}", only_from=UNFINISHED, epoch=epoch
    )


async def take_over(store: Store) -> ResponseLease:
    """The response is given up, and claimed again."""
    await add_running_response(store)
    await store.leases.release()
    (lease,) = await store.leases.claim_responses(10)
    return lease


async def test_a_response_is_held_by_the_node_that_has_added_it(store: Store) -> None:
    await add_running_response(store)
    assert await store.leases.claim_responses(10) == []
    assert await store.leases.renew([MINE]) == []


async def test_unfinished_background_responses_of_all_owners_are_claimed_and_no_others(store: Store) -> None:
    await add_running_response(store, "first")
    await add_running_response(store, "theirs", OTHER)
    await store.add_response(response("foreground", status="in_progress"))
    await store.add_response(response("finished", background=True, status="completed"))
    await add_running_response(store)
    await finish(store, None)
    await add_running_response(store, "deleted")
    await store.delete_response(OWNER, "deleted")
    await store.leases.release()
    claimed = [*await store.leases.claim_responses(1), *await store.leases.claim_responses(10)]
    assert [(each.owner, each.id) for each in claimed] == [(OWNER, "first"), (OTHER, "theirs")]
    assert await store.leases.claim_responses(10) == []


async def test_the_holder_may_write_and_end_the_response(store: Store) -> None:
    await add_running_response(store)
    await store.append_frames(OWNER, "resp_1", [(0, b"event")], epoch=FIRST_EPOCH)
    assert await finish(store, FIRST_EPOCH)
    assert not await finish(store, FIRST_EPOCH)


async def test_what_an_earlier_holder_writes_is_refused_and_changes_nothing(store: Store) -> None:
    lease = await take_over(store)
    assert lease.epoch > FIRST_EPOCH
    for write in (
        finish(store, FIRST_EPOCH),
        store.append_frames(OWNER, "resp_1", [(0, b"late")], epoch=FIRST_EPOCH),
    ):
        with pytest.raises(StoreConflict) as conflict:
            await write
        assert conflict.value.reason == "lease"
    assert await store.frames(OWNER, "resp_1") == []
    assert await finish(store, lease.epoch)


async def test_an_earlier_holder_learns_at_the_renewal_that_it_has_lost_the_response(store: Store) -> None:
    lease = await take_over(store)
    assert await store.leases.renew([MINE, lease]) == [MINE]


@pytest.mark.parametrize("deleted", [False, True])
async def test_whoever_runs_a_response_that_others_have_ended_loses_it_and_adds_no_frame(
    store: Store, deleted: bool
) -> None:
    await add_running_response(store)
    if deleted:
        await store.delete_response(OWNER, "resp_1")
    else:
        await finish(store, None, "cancelled")
    assert await store.leases.renew([MINE]) == [MINE]
    assert not await finish(store, FIRST_EPOCH)
    with pytest.raises((StoreConflict, NotStored)):
        await store.append_frames(OWNER, "resp_1", [(0, b"late")], epoch=FIRST_EPOCH)


async def test_turns_of_a_conversation_enter_one_after_the_other_and_others_do_not_wait(store: Store) -> None:
    first = await store.leases.enter_conversation(OWNER, "conv_1")
    (await store.leases.enter_conversation(OWNER, "conv_2")).release()
    (await store.leases.enter_conversation(OTHER, "conv_1")).release()
    second = asyncio.create_task(store.leases.enter_conversation(OWNER, "conv_1"))
    done, _ = await asyncio.wait({second}, timeout=0.05)
    assert not done
    first.release()
    first.release()
    (await second).release()


async def test_a_turn_that_no_longer_waits_delays_no_other(store: Store) -> None:
    first = await store.leases.enter_conversation(OWNER, "conv_1")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await store.leases.enter_conversation(OWNER, "conv_1")
    first.release()
    (await store.leases.enter_conversation(OWNER, "conv_1")).release()


async def test_a_node_is_listed_with_what_it_holds_until_it_gives_up_all(store: Store) -> None:
    await store.leases.announce(Node(name="here", url="http://127.0.0.1:1", version="1", started=1.0))
    await add_running_response(store)
    (found,) = await store.leases.nodes()
    assert (found.name, found.url, found.version, found.responses) == ("here", "http://127.0.0.1:1", "1", 1)
    await store.leases.release()
    assert await store.leases.nodes() == []
