"""What a client or a model has sent costs what it weighs to be stored, read and removed, whatever its shape.

The functions of the store run here on a connection of this thread, so that their CPU time can be measured.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from codex_proxy.core.tokens import Figures
from codex_proxy.store import queries
from codex_proxy.store import records as record_queries
from codex_proxy.store.retention import Removed
from codex_proxy.store.sqlite import conversations, records, removal, responses, statements
from codex_proxy.store.sqlite.opening import open_in_memory
from codex_proxy.store.sqlite.statements import DIALECT, ask
from codex_proxy.store.usage import UsageEntry, UsageQuery
from codex_proxy.store.values import (
    ContextLimits,
    PageRequest,
    PendingWebhook,
    RecordWrite,
    StoredItem,
)
from tests.growth import assert_linear
from tests.store.stored import OWNER, conversation, item, record, response, session

NOW: Final = 1_800_000_000.0
BY_DAY: Final = UsageQuery(owner=OWNER, start=0, end=1 << 40, width=86400)
Connection = sqlite3.Connection


_opened: Final[list[Connection]] = []


@pytest.fixture(autouse=True)
def close_databases() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def database_maker(write: Callable[[Connection, int], object]) -> Callable[[int], Connection]:
    """Makes a new database in which this has been written."""

    def make(count: int) -> Connection:
        connection = open_in_memory()
        _opened.append(connection)
        connection.execute("BEGIN")
        write(connection, count)
        connection.execute("COMMIT")
        return connection

    return make


# --- rows -----------------------------------------------------------------------------------------


def many_items(count: int, side: str) -> list[StoredItem]:
    return [item(f"{side}_{number}", raw=b'{"type":"message"}') for number in range(count)]


def one_response(connection: Connection, count: int) -> None:
    responses.add(connection, response("resp"), many_items(count, "in"), many_items(count, "out"), None, NOW)


def one_item_each(connection: Connection, count: int) -> None:
    """A chain in which each response has an item more."""
    for number in range(count):
        after = f"resp_{number - 1}" if number else None
        given = response(f"resp_{number}", after=after)
        responses.add(connection, given, [item(f"in_{number}")], [item(f"out_{number}")], None, NOW)


def last_of(connection: Connection) -> str:
    return str(connection.execute("SELECT id FROM responses ORDER BY seq DESC").fetchone()[0])


def add_unconnected_responses(connection: Connection, count: int, *, background: bool = False) -> None:
    for number in range(count):
        given = response(f"resp_{number}", background=background)
        responses.add(connection, given, [item(f"in_{number}")], [], None, NOW)


def same_item(connection: Connection, count: int) -> None:
    for number in range(count):
        responses.add(connection, response(f"resp_{number}"), [item("item")], [], None, NOW)


def add_conversation_turns(connection: Connection, count: int) -> None:
    conversations.add(connection, conversation("conv"), [], ContextLimits(), NOW)
    for start in range(0, count, 20):
        given = [item(f"item_{number}") for number in range(start, min(count, start + 20))]
        conversations.append(connection, OWNER, "conv", given, ContextLimits(), NOW)


def one_record(connection: Connection, count: int) -> None:
    given = [session("s"), *(record(f"item_{number}", parent="s") for number in range(count))]
    records.write(connection, OWNER, RecordWrite(given), NOW)


def records_in_steps(connection: Connection, count: int) -> None:
    records.write(connection, OWNER, RecordWrite([session("s")]), NOW)
    for number in range(count):
        given = [record(f"item_{number}", parent="s"), session("s")]
        records.write(connection, OWNER, RecordWrite(given, require=("session", "s")), NOW)


def unconnected_records(connection: Connection, count: int) -> None:
    given = RecordWrite([session(f"s_{number}") for number in range(count)])
    records.write(connection, OWNER, given, NOW)


def pages(read: Callable[[PageRequest], object]) -> Callable[[], None]:
    def all_pages() -> None:
        after = None
        while True:
            page = read(PageRequest(limit=100, order="asc", after=after))
            if not page.has_more:  # type: ignore[attr-defined]
                return
            after = page.items[-1].id  # type: ignore[attr-defined]

    return all_pages


# --- frames ---------------------------------------------------------------------------------------


def add_stream(connection: Connection, count: int, *, at_once: int = 1) -> None:
    responses.add(connection, response("resp", background=True), [], [], None, NOW)
    for start in range(0, count, at_once):
        frames = [(number, b"data: x" * 20) for number in range(start, min(count, start + at_once))]
        responses.append_frames(connection, OWNER, "resp", frames)


def frames_in_parts(connection: Connection) -> None:
    after = -1
    while found := ask(connection, queries.frames(OWNER, "resp", after, 100, 1 << 12)):
        after = found[-1][0]


# --- entries --------------------------------------------------------------------------------------


def entries(connection: Connection, count: int) -> None:
    for number in range(count):
        statements.remember(connection, OWNER, {b"key %d" % number: b"value" * 20}, NOW)


def one_entry_again(connection: Connection, count: int) -> None:
    for _ in range(count):
        statements.remember(connection, OWNER, {b"key": b"value" * 20}, NOW)


def keys(connection: Connection) -> object:
    count = connection.execute("SELECT count(*) FROM steps").fetchone()[0]
    return ask(connection, queries.steps(OWNER, [b"key %d" % number for number in range(count)], 0.0))


def record_turns(connection: Connection, count: int) -> None:
    given = [UsageEntry(OWNER, "m", 3600 * number, Figures(turns=1)) for number in range(count)]
    for start in range(0, count, 50):
        statements.add_usage(connection, given[start : start + 50])


def to_send(connection: Connection, count: int) -> None:
    statements.put_webhooks(
        connection, [PendingWebhook(f"evt_{number}", "https://x", b"{}") for number in range(count)]
    )


def take_all_webhooks(connection: Connection) -> None:
    while found := statements.oldest_webhooks(connection, 50):
        for each in found:
            statements.drop_webhook(connection, each.event_id, each.url)


# --- removal --------------------------------------------------------------------------------------


def swept(connection: Connection) -> None:
    while removal.piece(connection):
        pass


def delete_response(connection: Connection, id: str = "resp") -> None:
    removal.delete(connection, responses.mark_deleted, OWNER, id)
    swept(connection)


def delete_record(connection: Connection) -> None:
    removal.delete(connection, records.mark_deleted, OWNER, "session", "s")
    swept(connection)


def remove_all(what: Removed) -> Callable[[Connection], None]:
    def until_nothing_is_left(connection: Connection) -> None:
        while removal.remove(connection, what, NOW + 1, 50):
            swept(connection)

    return until_nothing_is_left


def shrunk(connection: Connection) -> None:
    while removal.remove(connection, ask(connection, queries.older_kind(DIALECT, NOW + 1)), NOW + 1, 1):
        swept(connection)


WRITES: Final[dict[str, tuple[int, Callable[[Connection, int], object]]]] = {
    "items of a response": (1000, one_response),
    "a chain of responses": (750, one_item_each),
    "responses with the same item": (750, same_item),
    "items of a conversation": (1500, add_conversation_turns),
    "frames, one at a time": (2000, add_stream),
    "frames, many at once": (7500, lambda connection, n: add_stream(connection, n, at_once=250)),
    "entries of the step memory": (2500, entries),
    "one entry again and again": (2500, one_entry_again),
    "records below one": (1500, one_record),
    "records, one at a time": (750, records_in_steps),
    "sums of usage": (3750, record_turns),
    "webhooks": (3750, to_send),
}

READS: Final[dict[str, tuple[int, Callable[[Connection, int], object], Callable[[Connection], object]]]] = {
    "the context of one response": (400, one_response, lambda c: ask(c, queries.context(DIALECT, OWNER, "resp"))),
    "the context of a chain": (
        400,
        one_item_each,
        lambda c: ask(c, queries.context(DIALECT, OWNER, last_of(c))),
    ),
    "a chain, item by item": (
        400,
        one_item_each,
        lambda c: responses.scan(c, OWNER, last_of(c), ContextLimits(), id),
    ),
    "pages of input items": (
        800,
        one_response,
        lambda c: pages(lambda page: ask(c, queries.page_of("response", OWNER, "resp", page)))(),
    ),
    "pages of a conversation": (
        800,
        add_conversation_turns,
        lambda c: pages(lambda page: ask(c, queries.page_of("conversation", OWNER, "conv", page)))(),
    ),
    "a conversation, item by item": (
        800,
        add_conversation_turns,
        lambda c: ask(c, queries.scan_conversation(OWNER, "conv", ContextLimits(), id)),
    ),
    "items by their ids": (
        400,
        add_conversation_turns,
        lambda c: ask(c, queries.find(OWNER, [id for (id,) in c.execute("SELECT id FROM items")])),
    ),
    "pages of records": (
        800,
        one_record,
        lambda c: pages(lambda page: ask(c, record_queries.page_of(OWNER, "item", page, "s")))(),
    ),
    "frames in parts": (3000, add_stream, frames_in_parts),
    "usage": (1500, record_turns, lambda c: ask(c, queries.usage(BY_DAY))),
    "entries by their keys": (1500, entries, keys),  # in the default run, which is all that newer Pythons run
}  # fmt: skip

REMOVALS: Final[
    dict[str, tuple[int, Callable[[Connection, int], object], Callable[[Connection], object]]]
] = {
    "a response of many items": (400, one_response, delete_response),
    "a response of many frames": (4000, add_stream, delete_response),
    "a record of many": (400, one_record, delete_record),
    "records by their age": (300, unconnected_records, remove_all("records")),
    "responses by their age": (300, add_unconnected_responses, remove_all("responses")),
    "a chain by its age": (300, one_item_each, remove_all("responses")),
    "frames by their age": (2500, add_stream, remove_all("frames")),
    "entries by their age": (2500, entries, remove_all("steps")),
    "the oldest objects": (300, add_unconnected_responses, shrunk),
    "webhooks that were sent": (1000, to_send, take_all_webhooks),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("what", WRITES)
def test_what_is_stored_takes_time_proportional_to_its_size_to_be_written(what: str) -> None:
    size, write = WRITES[what]
    assert_linear(lambda count: count, database_maker(write), size)


@pytest.mark.sampled(every=4, first=1)
@pytest.mark.parametrize("what", READS)
def test_what_is_stored_takes_time_proportional_to_its_size_to_be_read(what: str) -> None:
    size, write, read = READS[what]
    assert_linear(database_maker(write), read, size)


@pytest.mark.sampled(every=4, first=2)
@pytest.mark.parametrize("what", REMOVALS)
def test_what_is_stored_takes_time_proportional_to_its_size_to_be_removed(what: str) -> None:
    size, write, remove = REMOVALS[what]

    def made_and_removed(connection: Connection) -> None:
        connection.execute("SAVEPOINT before")
        remove(connection)
        connection.execute("ROLLBACK TO before")
        connection.execute("RELEASE before")

    assert_linear(database_maker(write), made_and_removed, size)
