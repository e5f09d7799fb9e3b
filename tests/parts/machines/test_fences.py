"""Every write to PostgreSQL that needs a lease names its epoch, and fails when another node has the lease. The list of
writes is that of the statements: a new one fails here until it says how it is fenced, or why it need not be.
"""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from codex_proxy.parts.machines import postgresql
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.store.rows import item_digest
from codex_proxy.store.values import StoreConflict
from tests.parts.machines.two_servers import test_sessions as sessions
from tests.parts.machines.two_servers import test_stopped as stopped
from tests.store.stored import OWNER, Hands, conversation, conversation_ids, items, response
from tests.waiting import poll

CONVERSATION = stopped.test_the_turn_behind_a_lost_lease_fails_and_stores_nothing
RESPONSE = stopped.test_the_events_and_the_end_behind_a_lost_lease_are_not_stored
RUNNING = stopped.test_a_response_is_not_marked_as_running_behind_a_lost_lease
SESSION = sessions.test_a_server_that_was_stopped_writes_nothing_more_of_a_session
WEBHOOK = stopped.test_an_attempt_behind_a_lost_claim_changes_nothing

FENCED: dict[str, tuple[Callable[..., Awaitable[None]], ...]] = {
    "responses._ADD": (CONVERSATION,),
    "responses._UPDATE": (CONVERSATION, RESPONSE, RUNNING),
    "responses._APPEND_FRAMES": (RESPONSE,),
    "conversations._APPEND": (CONVERSATION,),
    "records._WRITE": (SESSION,),
    "store._RETRY": (WEBHOOK,),
}
"""The tests that stop a server before each of these."""
ANY_NODE = "a client asks for it, at any node, and it locks what it changes"
ONCE = "what it removes is named by a mark or an age: done by two nodes, nothing more is removed"
OWN_LEASES = "takes, renews or gives up leases, with the conditions for that"
UNFENCED = {
    "conversations._ADD": ANY_NODE,
    "conversations._UPDATE": "compares what it replaces with what was read",
    "conversations._DELETE_ITEM": ANY_NODE,
    "store._ADD_USAGE": "adds to sums",
    "store._CLAIM": OWN_LEASES,
    "store._DROP": "the webhook was delivered, or its last attempt made, whoever has claimed it since",
    "store._REMEMBER": "the same output of a tool, by its own key",
    "leases._CLAIM": OWN_LEASES,
    "leases._ENTER": OWN_LEASES,
    "leases._FORGET": ONCE,
    "leases._LEAVE": OWN_LEASES,
    "leases._RELEASE": OWN_LEASES,
    "leases._RENEW": OWN_LEASES,
    "store._TABLES": "in the transaction that holds the lock of migrations",
    "record_leases._FOLLOW": OWN_LEASES,
    "record_leases._LEAVE": OWN_LEASES,
    "record_leases._POST": "a message, which says whom it is from",
    "record_leases._RECEIVE": "removes what this node has read",
    "record_leases._RELEASE": OWN_LEASES,
    "record_leases._RENEW": OWN_LEASES,
    "record_leases._TAKE": OWN_LEASES,
    "record_leases._UNFOLLOW": OWN_LEASES,
    "records._FREE": ONCE,
    "removal.DELETE_CONVERSATION": ANY_NODE,
    "removal.DELETE_RECORD": ANY_NODE,
    "removal.DELETE_RESPONSE": ANY_NODE,
    "removal._FORGET": ONCE,
    "removal._OLDEST": ONCE,
    "removal._PIECES": ONCE,
    "removal._TRIM": ONCE,
    "store._WRITE": "changes nothing",
    "team._EXCHANGE": "the rows of this node alone",
    "team._PUT": ANY_NODE,
    "team._REMOVE": ANY_NODE,
}
WRITE = re.compile(r"\b(INSERT INTO|UPDATE|DELETE FROM) codex_proxy\.")
PARTS = {
    "ENTRIES",
    "LISTED",
    "END_TURN",
    "_DELETE_RESPONSES",
    "_DELETE_CONVERSATIONS",
    "_DELETE_RECORDS",
    "_OLDEST_RESPONSES",
    "_OLDEST_CONVERSATIONS",
    "_OLDEST_RECORDS",
    "_RECORD_PIECES",
    "MARK_RECORD",
    "_CHANGED",
}
"""Texts that are parts of statements."""


def statements() -> Iterator[str]:
    """The names of all statements that write, from the modules themselves."""
    for found in pkgutil.iter_modules(postgresql.__path__):
        module = importlib.import_module(f"{postgresql.__name__}.{found.name}")
        for name, value in vars(module).items():
            texts = (
                value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
            )
            writes = any(isinstance(text, str) and WRITE.search(text) for text in texts)
            if writes and name not in PARTS and name in module.__annotations__:  # else it is imported
                yield f"{found.name}.{name}"


def test_each_statement_that_writes_is_fenced_and_tried_or_says_why_it_need_not_be() -> None:
    assert sorted(statements()) == sorted([*FENCED, *UNFENCED])


Write: TypeAlias = Callable[[PostgresStore, int], Coroutine[Any, Any, None]]


async def add_response(store: PostgresStore, epoch: int) -> None:
    await store.add_response(response("resp_1"), input=items("in"), append="conv_1", turn_epoch=epoch)


async def end_response(store: PostgresStore, epoch: int) -> None:
    await store.update_response(
        OWNER,
        "resp_0",
        status="completed",
        json=b"{}",
        output=items("out"),
        append="conv_1",
        turn_epoch=epoch,
    )


async def append_items(store: PostgresStore, epoch: int) -> None:
    await store.append_items(OWNER, "conv_1", items("in"), turn_epoch=epoch)


@pytest.fixture
async def nodes(postgres_url: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    one, two = [await PostgresStore.open(postgres_url, clock=Hands()) for _ in range(2)]
    await one.add_conversation(conversation("conv_1"))
    await one.add_response(response("resp_0", background=True, status="queued"))
    yield one, two
    for store in (one, two):
        await store.close()


EXPIRE = "UPDATE codex_proxy.conversation_turns SET lease_until = '-infinity'"
OLD_ENTER = """
INSERT INTO codex_proxy.conversation_turns AS held (conversation, node, lease_until)
SELECT seq, 'old', clock_timestamp() + interval '30 seconds' FROM codex_proxy.conversations
ON CONFLICT (conversation) DO UPDATE SET node = excluded.node, lease_until = excluded.lease_until
WHERE held.node = excluded.node OR held.lease_until < clock_timestamp()"""
"""As servers of the release before epochs enter a conversation."""
OLD_LEAVE = "DELETE FROM codex_proxy.conversation_turns WHERE node = 'old'"
writes = pytest.mark.parametrize("write", [add_response, end_response, append_items])


@writes
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("old", [False, True])
async def test_a_turn_whose_conversation_another_node_has_entered_is_not_stored(
    nodes: tuple[PostgresStore, PostgresStore],
    connection: asyncpg.Connection,
    write: Write,
    ended: bool,
    old: bool,
) -> None:
    one, two = nodes
    lost = await one.leases.enter_conversation(OWNER, "conv_1")
    await connection.execute(EXPIRE)
    if old:
        await connection.execute(OLD_ENTER)
        await connection.execute(OLD_LEAVE if ended else "SELECT")
    else:
        lease = await two.leases.enter_conversation(OWNER, "conv_1")
        if ended:
            lease.release()
            await poll(lambda: connection.fetchval("SELECT count(*) = 0 FROM codex_proxy.conversation_turns"))
    await one.leases.renew(())
    with pytest.raises(StoreConflict) as raised:
        await write(one, lost.epoch)
    assert raised.value.reason == "turn"
    assert await conversation_ids(one, "conv_1") == []
    assert await one.response(OWNER, "resp_1") is None


@writes
async def test_a_turn_whose_lease_has_run_out_is_stored_if_nobody_has_taken_it(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection, write: Write
) -> None:
    one, _ = nodes
    lease = await one.leases.enter_conversation(OWNER, "conv_1")
    await connection.execute(EXPIRE)
    await write(one, lease.epoch)
    assert len(await conversation_ids(one, "conv_1")) == 1


@writes
async def test_an_earlier_turn_of_the_same_node_is_not_stored(
    nodes: tuple[PostgresStore, PostgresStore], write: Write
) -> None:
    one, _ = nodes
    earlier = await one.leases.enter_conversation(OWNER, "conv_1")
    earlier.release()
    await one.leases.enter_conversation(OWNER, "conv_1")
    with pytest.raises(StoreConflict):
        await write(one, earlier.epoch)


@writes
async def test_no_other_turn_begins_before_the_write_of_this_one_is_committed(
    nodes: tuple[PostgresStore, PostgresStore],
    connection: asyncpg.Connection,
    postgres_url: str,
    write: Write,
) -> None:
    one, two = nodes
    lease = await one.leases.enter_conversation(OWNER, "conv_1")
    await connection.execute(EXPIRE)
    (same,) = items("out" if write is end_response else "in")
    held = connection.transaction()
    await held.start()
    digest = item_digest(same.json, same.raw)
    await connection.execute(SAME_ITEM, OWNER, same.id, digest, same.json)  # for which the write waits
    writing = asyncio.create_task(write(one, lease.epoch))
    watching = await asyncpg.connect(postgres_url)
    await poll(lambda: watching.fetchval(WAITING, 1))
    entering = asyncio.create_task(two.leases.enter_conversation(OWNER, "conv_1"))
    await poll(lambda: watching.fetchval(WAITING, 2))
    await held.rollback()
    await writing
    await entering
    assert len(await conversation_ids(two, "conv_1")) == 1
    await watching.close()


SAME_ITEM = (
    "INSERT INTO codex_proxy.items (owner, id, digest, created, json, raw) VALUES ($1, $2, $3, 0, $4, '')"
)
WAITING = "SELECT count(*) = $1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


async def test_a_server_of_the_release_before_goes_on_with_the_new_tables(
    nodes: tuple[PostgresStore, PostgresStore], connection: asyncpg.Connection
) -> None:
    one, _ = nodes
    await connection.execute(OLD_ENTER)
    await connection.execute(OLD_ENTER)  # renewed by entering again
    await connection.execute(EXPIRE)
    await append_items(one, (await one.leases.enter_conversation(OWNER, "conv_1")).epoch)
    assert len(await conversation_ids(one, "conv_1")) == 1
