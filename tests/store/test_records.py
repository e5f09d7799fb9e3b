"""Records of parts: found by kind and id, listed below their parents, and removed with them."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from codex_proxy.commands.store import check_rows
from codex_proxy.store import records
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    MAX_SEARCHED_BYTES,
    NotStored,
    PageRequest,
    Record,
    Retention,
    StoreDamaged,
    TextSearch,
)
from tests.store.conftest import Make, Overwrite
from tests.store.stored import OTHER, OWNER, Hands, record, session, turn

RISING = PageRequest(limit=100_000, order="asc")


def items_of(parent: str, *ids: str) -> list[Record]:
    return [record(id, parent=parent) for id in ids]


async def ids(store: Store, kind: str = "item", page: PageRequest = RISING, *, parent: str = "") -> list[str]:
    return [each.id for each in (await store.records(OWNER, kind, page, parent=parent)).items]


# --- writing and reading ------------------------------------------------------------------------


async def test_a_record_is_found_by_its_kind_and_id(store: Store) -> None:
    one, other = session("a", "one", busy=True), record("a", "other", kind="agent")
    await store.write_records(OWNER, [one, other])
    assert await store.record(OWNER, "session", "a") == one
    assert await store.record(OWNER, "agent", "a") == other
    assert await store.record(OWNER, "item", "a") is None


async def test_a_record_that_is_written_again_keeps_its_place_its_parent_and_when_it_was_made(
    store: Store, clock: Hands
) -> None:
    await store.write_records(OWNER, [session("s"), session("t"), *items_of("s", "a", "b")])
    again = msgspec.structs.replace(record("a", "new", parent="t", busy=True), created=5.0)
    await store.write_records(OWNER, [again])
    expected = msgspec.structs.replace(again, created=1_700_000_000.0, parent="s")
    assert await store.record(OWNER, "item", "a") == expected
    assert await ids(store, parent="s") == ["a", "b"]
    assert await ids(store, parent="t") == []


async def test_records_of_one_write_may_be_below_each_other(store: Store) -> None:
    below = record("turn", kind="turn", parent="s")
    await store.write_records(OWNER, [session("s"), below, *items_of("turn", "a", "b")])
    assert await store.record(OWNER, "turn", "turn") == below
    assert await ids(store, parent="turn") == ["a", "b"]
    assert await ids(store) == []


async def test_of_a_record_that_is_twice_in_a_write_the_last_counts(store: Store) -> None:
    await store.write_records(OWNER, [session("s", "first"), record("a", parent="s"), session("s", "last")])
    assert await store.record(OWNER, "session", "s") == session("s", "last")
    assert await ids(store, parent="s") == ["a"]


async def test_nothing_is_written_without_the_parent_of_one(store: Store) -> None:
    with pytest.raises(NotStored) as error:
        await store.write_records(OWNER, [session("s"), record("a", parent="gone"), record("b", parent="s")])
    assert (error.value.kind, error.value.id) == ("record", "gone")
    assert await ids(store, "session") == []


async def test_a_parent_comes_before_what_is_below_it(store: Store) -> None:
    with pytest.raises(NotStored):
        await store.write_records(OWNER, [record("a", parent="s"), session("s")])
    with pytest.raises(NotStored):
        await store.write_records(OWNER, [record("a", parent="a")])
    assert await ids(store, "session") == []


async def test_what_was_deleted_does_not_come_back_by_a_late_write(store: Store) -> None:
    await store.write_records(OWNER, [session("s", busy=True), record("a", parent="s")])
    await store.delete_record(OWNER, "session", "s")
    late = [session("s"), record("a", "late", parent="s"), record("b", parent="s")]
    with pytest.raises(NotStored):
        await store.write_records(OWNER, late[1:])
    with pytest.raises(NotStored):
        await store.write_records(OWNER, late, require=("session", "s"))
    assert await ids(store, "session") == []
    assert await store.record(OWNER, "item", "a") is None


async def test_a_write_changes_and_deletes_together(store: Store) -> None:
    await store.write_records(OWNER, [session("s"), *items_of("s", "a", "b")])
    await store.write_records(
        OWNER, [session("s", "new"), record("c", parent="s")], gone=[("item", "a"), ("item", "x")]
    )
    assert await store.record(OWNER, "session", "s") == session("s", "new")
    assert await ids(store, parent="s") == ["b", "c"]
    with pytest.raises(NotStored):
        await store.write_records(OWNER, [record("d", parent="gone")], gone=[("item", "b")])
    assert await ids(store, parent="s") == ["b", "c"]


async def test_a_record_that_a_write_has_and_deletes_is_gone(store: Store) -> None:
    await store.write_records(OWNER, [session("s"), session("t")], gone=[("session", "s")])
    assert await ids(store, "session") == ["t"]


async def test_ids_and_kinds_are_any_text(store: Store) -> None:
    strange = record("a\0'#1 é", kind="k'?1 $1 @", parent="")
    await store.write_records(OWNER, [strange, record("below", parent=strange.id)])
    assert await store.record(OWNER, strange.kind, strange.id) == strange
    assert await ids(store, parent=strange.id) == ["below"]


# --- lists --------------------------------------------------------------------------------------


async def test_a_list_is_read_in_pages_in_both_orders(store: Store) -> None:
    await store.write_records(
        OWNER, [session("s"), *items_of("s", *"abcde"), record("x", kind="turn", parent="s")]
    )
    await store.write_records(OWNER, [record("b", "again", parent="s")])
    page = await store.records(OWNER, "item", PageRequest(limit=2, order="asc"), parent="s")
    assert ([each.id for each in page.items], page.has_more) == (["a", "b"], True)
    page = await store.records(OWNER, "item", PageRequest(limit=3, order="asc", after="b"), parent="s")
    assert ([each.id for each in page.items], page.has_more) == (["c", "d", "e"], False)
    assert await ids(store, page=PageRequest(limit=2), parent="s") == ["e", "d"]
    assert await ids(store, page=PageRequest(limit=2, after="d"), parent="s") == ["c", "b"]
    assert await ids(store, page=PageRequest(after="a"), parent="s") == []


async def test_records_without_a_parent_are_listed_alone(store: Store) -> None:
    await store.write_records(OWNER, [session("s"), session("t"), record("u", kind="session", parent="s")])
    assert await ids(store, "session") == ["s", "t"]
    assert await ids(store, "session", PageRequest(limit=1)) == ["t"]
    assert await ids(store, "session", PageRequest(after="t")) == ["s"]
    assert await ids(store, "session", parent="s") == ["u"]


@pytest.mark.parametrize("after", ["unknown", "t", "other", "deeper"])
async def test_a_page_behind_what_is_not_in_the_list_is_an_error(store: Store, after: str) -> None:
    await store.write_records(
        OWNER, [session("s"), session("t"), *items_of("s", "a", "b"), *items_of("t", "other")]
    )
    await store.write_records(OWNER, items_of("a", "deeper"))
    with pytest.raises(NotStored) as error:
        await store.records(OWNER, "item", PageRequest(after=after), parent="s")
    assert (error.value.kind, error.value.id) == ("record", after)


# --- deletion -----------------------------------------------------------------------------------


async def test_a_record_is_deleted_with_everything_below_it(store: Store) -> None:
    written = [session("s"), *items_of("s", "a"), *items_of("a", "b"), *items_of("b", "c"), session("t")]
    await store.write_records(OWNER, written)
    assert await store.delete_record(OWNER, "session", "s")
    assert not await store.delete_record(OWNER, "session", "s")
    assert await ids(store, "session") == ["t"]
    await store.sweep()
    assert (await store.stats()).records == 1


async def test_a_large_record_is_gone_at_once_and_its_rows_later(store: Store) -> None:
    await store.write_records(OWNER, [session("s", busy=True), record("a", parent="s", busy=True)])
    await store.write_records(OWNER, items_of("a", *(f"item {number}" for number in range(3000))))
    await store.write_records(OWNER, items_of("s", *(f"more {number}" for number in range(3000))))
    assert await store.delete_record(OWNER, "session", "s")
    for parent in ("s", "a"):
        assert await ids(store, parent=parent) == []
    for id in ("a", "item 2999", "more 2999"):
        assert await store.record(OWNER, "item", id) is None
        assert not await store.delete_record(OWNER, "item", id)
    assert await store.busy_records("item") == []
    exported: list[bytes] = []
    assert await store.export(exported.append) == 0
    await store.sweep()
    assert (await store.stats()).records == 0


async def test_what_is_below_a_deleted_record_can_be_written_again_at_once(store: Store) -> None:
    many = items_of("s", *(f"item {number}" for number in range(4000)))
    await store.write_records(OWNER, [session("s"), *many])
    await store.delete_record(OWNER, "session", "s")
    again = [session("s", "new"), *many[-2:]]
    await store.write_records(OWNER, again)
    await store.sweep()
    assert await store.record(OWNER, "session", "s") == again[0]
    assert await ids(store, parent="s") == ["item 3998", "item 3999"]
    assert (await store.stats()).records == 3


async def test_only_what_is_below_a_deleted_record_goes_with_it(store: Store) -> None:
    await store.write_records(
        OWNER, [session("s"), *items_of("s", "a", "b"), *items_of("a", "c"), *items_of("b", "d")]
    )
    assert await store.delete_record(OWNER, "item", "a")
    await store.sweep()
    assert await ids(store, parent="s") == ["b"]
    assert await ids(store, parent="b") == ["d"]
    assert (await store.stats()).records == 3


async def test_a_deletion_and_late_writes_at_once_leave_nothing_or_all(store: Store) -> None:
    """Of twenty sessions: what was written was deleted, or was refused."""

    async def write(id: str) -> None:
        for number in range(5):
            await store.write_records(OWNER, [record(f"{id} {number}", parent=id)], require=("session", id))

    async def delete(id: str) -> None:
        await asyncio.sleep(0)
        await store.delete_record(OWNER, "session", id)

    sessions = [session(f"s{number}") for number in range(20)]
    await store.write_records(OWNER, sessions)
    said = await asyncio.gather(
        *(do(each.id) for each in sessions for do in (write, delete)), return_exceptions=True
    )
    assert {type(each) for each in said} <= {type(None), NotStored}
    await store.sweep()
    assert (await store.stats()).records == 0


# --- owners -------------------------------------------------------------------------------------


async def test_owners_never_meet_each_others_records(store: Store) -> None:
    await store.write_records(OWNER, [session("s"), record("a", parent="s")])
    await store.write_records(OTHER, [session("s", "other"), session("t")])
    with pytest.raises(NotStored):
        await store.write_records(OWNER, [record("b", parent="t")])
    with pytest.raises(NotStored):
        await store.write_records(OTHER, [record("b", parent="a")])
    with pytest.raises(NotStored):
        await store.write_records(OTHER, [], require=("item", "a"))
    await store.write_records(OTHER, [], gone=[("item", "a")])
    assert not await store.delete_record(OTHER, "item", "a")
    assert await store.record(OTHER, "item", "a") is None
    assert (await store.records(OTHER, "item", RISING, parent="s")).items == ()
    with pytest.raises(NotStored):
        await store.records(OTHER, "item", PageRequest(after="a"), parent="s")
    await store.delete_record(OTHER, "session", "s")
    assert await store.record(OWNER, "session", "s") == session("s")
    assert await ids(store, parent="s") == ["a"]


async def test_what_is_busy_is_found_for_all_owners(store: Store) -> None:
    await store.write_records(
        OWNER, [session("s", busy=True), session("t"), record("a", parent="s", busy=True)]
    )
    await store.write_records(OTHER, [session("u", busy=True), session("v", busy=True)])
    await store.write_records(OTHER, [session("v")])
    assert await store.busy_records("session") == [
        (OWNER, session("s", busy=True)),
        (OTHER, session("u", busy=True)),
    ]
    assert [each.parent for _, each in await store.busy_records("item")] == ["s"]


# --- retention ----------------------------------------------------------------------------------


async def test_records_are_kept_for_their_age_after_the_last_use_of_anything_below(
    make: Make, clock: Hands
) -> None:
    store = await make(Retention(conversation_age=100.0))
    await store.write_records(
        OWNER, [session("old"), session("busy", busy=True), session("used"), *items_of("used", "a")]
    )
    clock.now += 60
    await store.write_records(OWNER, items_of("a", "b"))
    clock.now += 60
    assert (await store.prune()).records == 1
    assert await ids(store, "session") == ["busy", "used"]
    clock.now += 60
    await store.write_records(OWNER, [session("busy")])
    assert (await store.prune()).records == 1
    assert await ids(store, "session") == ["busy"]
    assert (await store.stats()).records == 1


async def test_the_least_used_records_are_removed_above_the_bytes(make: Make, clock: Hands) -> None:
    store = await make(Retention(max_bytes=2_000_000, spared=0.0, age=None))
    for number in range(5):
        clock.now += 1
        text = "x" * 500_000
        await store.write_records(
            OWNER, [session(f"s{number}"), record(f"i{number}", text, parent=f"s{number}")]
        )
    await store.write_records(OWNER, [session("s0", busy=True)])
    clock.now += 1
    await turn(store, "resp", created=clock.now)
    assert (await store.prune()).records == 2
    assert await ids(store, "session") == ["s0", "s3", "s4"]


async def test_the_use_of_a_record_is_a_use_of_the_store(store: Store, clock: Hands) -> None:
    assert await store.last_use() is None
    await store.write_records(OWNER, [session("s")])
    clock.now += 50
    await store.write_records(OWNER, items_of("s", "a"))
    assert await store.last_use() == clock.now


# --- the operator's commands --------------------------------------------------------------------


async def test_damaged_records_are_found_and_not_returned(store: Store, overwrite: Overwrite) -> None:
    await store.write_records(OWNER, [session("s"), record("a", parent="s")])
    assert (await check_rows(store)).damaged == ()
    await overwrite("records", "json", b"{}")
    with pytest.raises(StoreDamaged, match="the record a"):
        await store.records(OWNER, "item", RISING, parent="s")
    assert (await check_rows(store)).damaged == ("the record s", "the record a")


async def test_an_export_has_a_line_for_each_record(store: Store) -> None:
    await store.write_records(OWNER, [session("s"), *items_of("s", "a")])
    await store.write_records(OTHER, [session("t"), session("gone")], gone=[("session", "gone")])
    lines: list[bytes] = []
    assert await store.export(lines.append) == 3
    exported = [msgspec.json.decode(line) for line in lines]
    assert [(each["owner"], each["kind"], each["id"], each["parent"]) for each in exported] == [
        (OWNER, "session", "s", None), (OWNER, "item", "a", "s"), (OTHER, "session", "t", None)
    ]  # fmt: skip
    assert exported[1]["record"] == {"id": "a", "text": ""}
    assert {each["type"] for each in exported} == {"record"}


# --- searching ------------------------------------------------------------------------------------


def said(id: str, parent: str, text: str, *, type: str = "said", kind: str = "item") -> Record:
    json = msgspec.json.encode({"type": type, "text": text})
    return Record(kind=kind, id=id, json=json, created=1.0, parent=parent)


async def found(store: Store, text: bytes, owner: str = OWNER) -> list[tuple[str, str]]:
    search = TextSearch("session", "item", b'"Said"', text)
    return [(each.parent, each.id) for each in await store.records_with_text(owner, search)]


async def test_a_search_finds_records_of_a_kind_by_text_and_marker_newest_first(store: Store) -> None:
    await store.write_records(OWNER, [session("a"), session("b"), record("c", kind="agent")])
    texts = [
        said("one", "a", "the Roof"),
        said("other", "b", 'a "roof" 100% \u00e4'),
        said("agents", "a", "roof", type="told"),
        said("kind", "a", "roof", kind="turn"),
        said("above", "c", "roof"),
        said("large", "a", "roof" + "x" * MAX_SEARCHED_BYTES),
    ]
    await store.write_records(OWNER, texts)
    await store.write_records(OTHER, [session("a"), said("theirs", "a", "roof")])
    assert await found(store, b"ROOF") == [("b", "other"), ("a", "one")]
    assert await found(store, "100% \u00e4".encode()) == [("b", "other")]
    assert await found(store, b"%") == [("b", "other")]
    assert await found(store, b"roof", OTHER) == [("a", "theirs")]
    assert await found(store, b"r__f") == []
    await store.delete_record(OWNER, "session", "b")
    assert await found(store, b"roof") == [("a", "one")]


async def test_a_search_looks_below_the_newest_only(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_PARENTS_SEARCHED", 1)
    await store.write_records(
        OWNER, [session("a"), session("b"), said("one", "a", "x"), said("two", "b", "x")]
    )
    assert await found(store, b"x") == [("b", "two")]
