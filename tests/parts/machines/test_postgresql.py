"""What only the store in PostgreSQL has to stand: writers elsewhere, a server that stops, a pooler, versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from codex_proxy.parts.machines.postgresql import responses
from codex_proxy.parts.machines.postgresql import store as postgresql_store
from codex_proxy.parts.machines.postgresql.store import FILES, LATEST_VERSION, LOCK, PostgresStore
from codex_proxy.store.rows import checksum
from codex_proxy.store.values import (
    NotStored,
    PageRequest,
    StoreConflict,
    StoredItem,
    StoreRefused,
    StoreUnavailable,
    UnsureWrite,
)
from tests.postgres import PostgresServer, server
from tests.store.stored import (
    OWNER,
    Hands,
    context_ids,
    conversation,
    conversation_ids,
    item,
    record,
    response,
    session,
    turn,
)
from tests.waiting import poll

STORES = 3


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    """The stores of several servers with one database."""
    opened = [await PostgresStore.open(postgres_url, clock=Hands()) for _ in range(STORES)]
    yield opened
    for store in opened:
        await store.close()


@pytest.fixture
async def store(stores: list[PostgresStore]) -> PostgresStore:
    return stores[0]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    with server() as started:
        yield started


async def run_sql(url: str, sql: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(sql)
    await connection.close()


# --- several servers ----------------------------------------------------------------------------


async def test_items_that_many_add_at_once_are_linked_everywhere_and_stored_once(
    stores: list[PostgresStore],
) -> None:
    for round in range(8):
        ids = [f"item_{round}_{number}" for number in range(6)]
        new = [[item(id) for id in (ids if number % 2 else reversed(ids))] for number in range(8 * STORES)]
        names = [f"resp_{round}_{number}" for number in range(len(new))]
        await asyncio.gather(
            *(
                stores[number % STORES].add_response(response(name), input=items)
                for number, (name, items) in enumerate(zip(names, new, strict=True))
            )
        )
        for name in names:
            assert sorted(await context_ids(stores[0], name)) == sorted(ids)
        assert (await stores[0].stats()).items == 6 * (round + 1)


async def test_turns_of_one_conversation_from_everywhere_leave_it_in_one_order(
    stores: list[PostgresStore],
) -> None:
    await stores[0].add_conversation(conversation("conv_1"))
    names = [f"resp_{number}" for number in range(20)]
    await asyncio.gather(*(turn(stores[at % STORES], name, append="conv_1") for at, name in enumerate(names)))
    listed = await conversation_ids(stores[1], "conv_1")
    order = [id.removeprefix("in-") for id in listed[::2]]
    assert sorted(order) == sorted(names)
    assert listed == [f"{side}-{name}" for name in order for side in ("in", "out")]
    known = await stores[2].conversation(OWNER, "conv_1")
    assert known is not None
    assert known.version == 20


async def test_of_turns_with_one_id_from_everywhere_one_is_stored(stores: list[PostgresStore]) -> None:
    await stores[0].add_conversation(conversation("conv_1"))
    done = await asyncio.gather(
        *(turn(store, "resp_1", append="conv_1") for store in stores), return_exceptions=True
    )
    refused = [each for each in done if each is not None]
    assert [getattr(each, "reason", each) for each in refused] == ["id_taken"] * (STORES - 1)
    assert await conversation_ids(stores[0], "conv_1") == ["in-resp_1", "out-resp_1"]


async def test_the_same_item_appended_by_two_turns_at_once_is_in_the_conversation_once(
    stores: list[PostgresStore],
) -> None:
    await stores[0].add_conversation(conversation("conv_1"))
    shared = item("shared")
    await asyncio.gather(
        *(
            stores[at % STORES].add_response(
                response(f"resp_{at}"), input=[shared, item(f"in_{at}")], append="conv_1"
            )
            for at in range(9)
        )
    )
    listed = await conversation_ids(stores[0], "conv_1")
    assert sorted(listed) == sorted(["shared", *(f"in_{at}" for at in range(9))])


async def test_an_item_is_kept_while_one_links_it_and_another_removes_its_last_link(
    stores: list[PostgresStore],
) -> None:
    await turn(stores[0], "resp_0")
    for number in range(20):
        await asyncio.gather(
            stores[0].delete_response(OWNER, f"resp_{number}"),
            stores[1].add_response(
                response(f"resp_{number + 1}"), input=[item("in-resp_0")], output=[item("out-resp_0")]
            ),
            stores[2].sweep(),
        )
        assert await context_ids(stores[2], f"resp_{number + 1}") == ["in-resp_0", "out-resp_0"]
    await stores[0].delete_response(OWNER, "resp_20")
    await stores[0].sweep()
    assert (await stores[0].stats()).items == 0


async def test_an_id_is_given_once_over_all_servers(stores: list[PostgresStore]) -> None:
    done = await asyncio.gather(
        *(store.add_response(response("resp_1")) for store in stores), return_exceptions=True
    )
    assert sum(each is None for each in done) == 1
    assert all(each is None or isinstance(each, StoreConflict) for each in done)


async def test_metadata_that_several_change_at_once_has_all_the_changes(stores: list[PostgresStore]) -> None:
    await stores[0].add_conversation(conversation("conv_1"))
    await asyncio.gather(
        *(store.update_conversation(OWNER, "conv_1", {f"key_{at}": "x"}) for at, store in enumerate(stores))
    )
    known = await stores[0].conversation(OWNER, "conv_1")
    assert known is not None
    assert sorted(known.metadata) == ["key_0", "key_1", "key_2"]


async def test_one_server_at_a_time_applies_the_limits_of_retention(stores: list[PostgresStore]) -> None:
    await turn(stores[0], "resp_1", created=0.0)
    async with stores[1]._database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK + 1)
        assert (await stores[0].prune()).responses == 0
    assert (await stores[0].prune()).responses == 1


# --- statements ---------------------------------------------------------------------------------


async def test_a_stored_turn_takes_two_statements_at_most(store: PostgresStore) -> None:
    statements: list[str] = []
    run_one = store._database._run

    async def counted(sql: str, *arguments: object, **named: bool) -> object:
        statements.append(sql)
        return await run_one(sql, *arguments, **named)  # type: ignore[arg-type]

    await store.add_conversation(conversation("conv_1"))
    await turn(store, "resp_1", append="conv_1")
    store._database._run = counted  # type: ignore[method-assign, assignment]
    await store.context(OWNER, "resp_1")
    await turn(store, "resp_2", after="resp_1", append="conv_1")
    assert len(statements) == 2


async def test_a_chain_longer_than_its_array_is_read_whole(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = responses.CHAIN_OF_CHILD.replace(f"< {responses.MAX_CHAIN}", "< 4")
    monkeypatch.setattr(responses, "CHAIN_OF_CHILD", short)
    for append in (False, True):
        monkeypatch.setitem(responses._ADD, append, responses._add(append))
    for number in range(14):
        await turn(store, f"resp_{number}", after=f"resp_{number - 1}" if number else None)
        chain = await store.context(OWNER, f"resp_{number}")
        assert [each.response_id for each in chain] == [f"resp_{at}" for at in range(number + 1)]
    assert len(await store.response_tree(OWNER, "resp_13")) == 14


@pytest.mark.parametrize("id", ["a\0b", "a\1b", "\0", "\1\2", "\1\1\2\0"])
async def test_ids_may_have_characters_that_postgresql_does_not_know(store: PostgresStore, id: str) -> None:
    await store.add_response(response(id), input=[StoredItem(id, b"{}")])
    known = await store.response(OWNER, id)
    assert known is not None
    assert known.id == id
    assert (await store.input_items(OWNER, id, PageRequest(after=id))).items == ()
    with pytest.raises(NotStored):
        await store.context(OWNER, id + "\0")


# --- a server that comes and goes ---------------------------------------------------------------


async def test_connections_that_were_ended_are_made_again_without_an_error(
    own_server: PostgresServer,
) -> None:
    store = await PostgresStore.open(own_server.url, clock=Hands())
    await turn(store, "resp_1")
    own_server.stop()
    own_server.start()
    assert await store.response(OWNER, "resp_1") is not None
    await turn(store, "resp_2", after="resp_1")
    await store.close()


async def test_writes_wait_for_the_connections_that_there_are_where_the_database_gives_no_more(
    own_server: PostgresServer,
) -> None:
    await run_sql(
        own_server.url, "CREATE ROLE few LOGIN CONNECTION LIMIT 4; GRANT CREATE ON DATABASE postgres TO few"
    )
    store = await PostgresStore.open(own_server.url.replace("tester", "few"), clock=Hands())
    await asyncio.gather(*(turn(store, f"resp_{number}") for number in range(60)))
    assert (await store.stats()).responses == 60
    await store.close()


async def test_a_server_that_does_not_run_makes_the_store_unavailable_until_it_runs_again(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.machines.postgresql.database.RETRY_SECONDS", 0.1)
    store = await PostgresStore.open(own_server.url, clock=Hands())
    await turn(store, "resp_1")
    own_server.stop("immediate")
    for asked in (store.response(OWNER, "resp_1"), turn(store, "resp_2"), store.check_writable()):
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await asked
    own_server.start()
    monkeypatch.undo()
    await store.check_writable()
    await turn(store, "resp_2")
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.response(OWNER, "resp_1")


@pytest.mark.exhaustive
async def test_a_caller_that_is_cancelled_as_the_server_stops_stays_cancelled(
    own_server: PostgresServer,
) -> None:
    store = await PostgresStore.open(own_server.url, clock=Hands())
    asking = asyncio.create_task(store._database.read("SELECT pg_sleep(60)"))
    watching = await asyncpg.connect(own_server.url)

    async def runs() -> bool:
        sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"
        return bool(await watching.fetchval(sleeping))

    await poll(runs)
    own_server.stop("immediate")
    asking.cancel()  # before the event loop sees that the connection is lost
    with pytest.raises(asyncio.CancelledError):
        await asking
    own_server.start()
    await store.close()


async def test_a_write_whose_answer_was_lost_is_stored_once(
    stores: list[PostgresStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = stores[0]._database
    run_one = database._run
    lost = 0

    async def losing(sql: str, *arguments: object, **named: bool) -> object:
        nonlocal lost
        done = await run_one(sql, *arguments, **named)  # type: ignore[arg-type]
        if not named["repeatable"] and not lost:
            lost += 1
            raise UnsureWrite("the connection was lost")
        return done

    monkeypatch.setattr(database, "_run", losing)
    await stores[0].add_conversation(conversation("conv_1"))
    lost = 0
    await turn(stores[0], "resp_1", append="conv_1")
    assert lost == 1
    assert await conversation_ids(stores[1], "conv_1") == ["in-resp_1", "out-resp_1"]
    lost = 0
    assert await stores[0].update_response(
        OWNER, "resp_1", status="failed", json=b"{}", only_from={"completed"}
    )
    known = await stores[1].response(OWNER, "resp_1")
    assert known is not None
    assert known.status == "failed"


# --- a pooler -----------------------------------------------------------------------------------


async def test_a_pooler_that_shares_connections_between_statements_is_noticed(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    async with postgres_server.pooler() as url:
        opened = [await PostgresStore.open(url, clock=Hands()) for _ in range(4)]
        await opened[0].add_conversation(conversation("conv_1"))
        for round in range(4):
            await asyncio.gather(
                *(turn(each, f"resp_{round}_{at}", append="conv_1") for at, each in enumerate(opened))
            )
        assert len(await conversation_ids(opened[0], "conv_1")) == 32
        for store in opened:
            await store.close()


# --- tables -------------------------------------------------------------------------------------


@pytest.mark.exhaustive
async def test_many_servers_may_make_the_tables_at_the_same_moment(own_server: PostgresServer) -> None:
    opened = await asyncio.gather(*(PostgresStore.open(own_server.url, clock=Hands()) for _ in range(8)))
    for number, store in enumerate(opened):
        await turn(store, f"resp_{number}")
    assert (await opened[0].stats()).responses == 8
    for store in opened:
        await store.close()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("version", range(1, LATEST_VERSION))
async def test_a_database_of_every_earlier_version_gets_the_tables_that_it_lacks(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    await run_sql(postgres_url, "DROP SCHEMA IF EXISTS codex_proxy CASCADE")
    with monkeypatch.context() as earlier:
        earlier.setattr(postgresql_store, "FILES", FILES[:version])
        earlier.setattr(postgresql_store, "LATEST_VERSION", version)
        await (await PostgresStore.open(postgres_url, clock=Hands())).close()
    await run_sql(
        postgres_url,
        "INSERT INTO codex_proxy.conversations"
        f" (owner, id, created, touched, version, next_position, metadata, metadata_sum)"
        f" VALUES ('{OWNER}', 'conv_1', 0, 0, 0, 0, '{{}}', {checksum(b'{}')})",
    )
    store = await PostgresStore.open(postgres_url, clock=Hands())
    assert (await store.stats()).schema_version == LATEST_VERSION
    assert await store.conversation(OWNER, "conv_1") is not None
    await turn(store, "resp_1", append="conv_1")
    await store.write_records(OWNER, [session("s"), record("a", parent="s")])
    assert await store.record(OWNER, "item", "a") == record("a", parent="s")
    await store.close()


async def test_a_newer_schema_is_refused_by_name_unless_it_permits_older_programs(
    own_server: PostgresServer,
) -> None:
    await (await PostgresStore.open(own_server.url, clock=Hands())).close()
    newer = LATEST_VERSION + 1
    await run_sql(own_server.url, f"UPDATE codex_proxy.schema SET version = {newer}, min_compatible = 1")
    await (await PostgresStore.open(own_server.url, clock=Hands())).close()
    await run_sql(own_server.url, f"UPDATE codex_proxy.schema SET min_compatible = {newer}")
    with pytest.raises(StoreRefused, match="written by a newer version"):
        await PostgresStore.open(own_server.url, clock=Hands())


async def test_a_schema_of_another_program_is_left_alone(own_server: PostgresServer) -> None:
    await run_sql(own_server.url, "CREATE SCHEMA codex_proxy; CREATE TABLE codex_proxy.theirs ()")
    with pytest.raises(StoreRefused, match="another program's"):
        await PostgresStore.open(own_server.url, clock=Hands())


async def test_a_user_without_rights_on_anything_else_is_enough(own_server: PostgresServer) -> None:
    await run_sql(own_server.url, "CREATE ROLE plain LOGIN; CREATE SCHEMA codex_proxy AUTHORIZATION plain")
    store = await PostgresStore.open(own_server.url.replace("tester@", "plain@"), clock=Hands())
    await turn(store, "resp_1")
    await store.prune()
    await store.close()


async def test_the_error_of_a_user_who_may_not_create_the_schema_says_what_to_grant(
    own_server: PostgresServer,
) -> None:
    await run_sql(own_server.url, "CREATE ROLE plain LOGIN")
    with pytest.raises(StoreUnavailable, match="grant CREATE on the database"):
        await PostgresStore.open(own_server.url.replace("tester@", "plain@"), clock=Hands())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://nobody:secret@/postgres?host={folder}", "refuses the user"),
        ("postgresql://tester:secret@/nowhere?host={folder}", "create the database"),
        ("postgresql://tester:secret@/postgres?host={folder}/nowhere", "cannot be reached"),
    ],
)
async def test_a_database_that_cannot_be_opened_is_named_without_its_password(
    postgres_server: PostgresServer, url: str, reason: str
) -> None:
    with pytest.raises(StoreUnavailable, match=reason) as refused:
        await PostgresStore.open(url.format(folder=postgres_server.folder), clock=Hands())
    assert "secret" not in str(refused.value)


async def test_commits_wait_for_the_disk_whatever_the_user_s_default_is(own_server: PostgresServer) -> None:
    await run_sql(own_server.url, "ALTER ROLE tester SET synchronous_commit = off")
    store = await PostgresStore.open(own_server.url, clock=Hands())
    (row,) = await store._database.read("SHOW synchronous_commit")
    assert row[0] == "on"
    await store.close()
    async with own_server.pooler() as url:
        with pytest.raises(StoreRefused, match="synchronous_commit"):
            await PostgresStore.open(url, clock=Hands())
