"""What large chains and conversations cost: counted in statements and in steps of SQLite's machine, not in time."""

from __future__ import annotations

import asyncio
import sqlite3

from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import PageRequest
from tests.store.conftest import Connections
from tests.store.stored import OWNER, conversation, item, record, response, session, turn


class Effort:
    """How many statements a store's connections ran, and how many thousand steps of SQLite's machine."""

    def __init__(self, connections: list[sqlite3.Connection]) -> None:
        self.statements = 0
        self.steps = 0
        for connection in connections:
            connection.set_trace_callback(self._statement)
            connection.set_progress_handler(self._thousand_steps, 1000)

    def _statement(self, text: str) -> None:
        self.statements += text not in ("BEGIN", "ROLLBACK")

    def _thousand_steps(self) -> int:
        self.steps += 1
        return 0


async def test_a_chain_of_a_thousand_turns_is_read_by_one_statement(
    file_store: SqliteStore, connections: Connections
) -> None:
    for number in range(1000):
        await turn(file_store, f"resp_{number}", after=f"resp_{number - 1}" if number else None)
    assert len(await file_store.context(OWNER, "resp_0")) == 1  # opens the reading connection
    effort = Effort(connections)
    chain = await file_store.context(OWNER, "resp_999")
    assert [each.response_id for each in chain] == [f"resp_{number}" for number in range(1000)]
    assert effort.statements == 1
    assert effort.steps < 200  # 200 steps for each turn, all the way up and down


async def test_the_end_of_a_turn_costs_the_same_at_any_length_of_its_chain(
    file_store: SqliteStore, connections: Connections
) -> None:
    costs = []
    for number in range(300):
        effort = Effort(connections)
        await turn(file_store, f"resp_{number}", after=f"resp_{number - 1}" if number else None)
        costs.append((effort.statements, effort.steps))
    assert costs[299][0] == costs[1][0]
    assert costs[299][1] <= costs[1][1] + 1


async def test_pages_of_ten_thousand_items_cost_the_same_everywhere(
    file_store: SqliteStore, connections: Connections
) -> None:
    everything = [item(f"item_{number}") for number in range(10_000)]
    await file_store.add_conversation(conversation("conv_1"))
    for start in range(0, 10_000, 1000):
        await file_store.append_items(OWNER, "conv_1", everything[start : start + 1000])
    seen: list[str] = []
    costs: list[int] = []
    after, more = None, True
    while more:
        effort = Effort(connections)
        page = await file_store.items(OWNER, "conv_1", PageRequest(limit=100, order="asc", after=after))
        seen += [each.id for each in page.items]
        after, more = seen[-1], page.has_more
        costs.append(effort.statements * 1000 + effort.steps)
    assert seen == [each.id for each in everything]
    assert len(costs) == 100
    assert max(costs[1:]) <= 1000 + 10  # one statement, and 100 steps for each item
    effort = Effort(connections)
    await turn(file_store, "resp_1", append="conv_1")
    assert (await file_store.item(OWNER, "conv_1", "item_5000")) == item("item_5000")
    assert effort.statements < 40
    assert effort.steps <= 5


async def test_input_items_of_a_long_request_are_found_through_an_index(
    file_store: SqliteStore, connections: Connections
) -> None:
    await file_store.add_response(
        response("resp_1"), input=[item(f"item_{number}") for number in range(5000)]
    )
    await file_store.response(OWNER, "resp_1")
    effort = Effort(connections)
    page = await file_store.input_items(OWNER, "resp_1", PageRequest(limit=1, after="item_2500"))
    assert [each.id for each in page.items] == ["item_2499"]
    assert (effort.statements, effort.steps) == (1, 0)


async def test_pages_of_ten_thousand_records_and_their_deletion_cost_the_same_everywhere(
    file_store: SqliteStore, connections: Connections
) -> None:
    await file_store.write_records(OWNER, [session(f"s{number}") for number in range(3000)])
    for start in range(0, 10_000, 1000):
        below = [record(f"item_{number}", parent="s1500") for number in range(start, start + 1000)]
        await file_store.write_records(OWNER, below)
    await file_store.record(OWNER, "session", "s1500")  # opens the reading connection
    for after in ("item_100", "item_5000", "item_9800"):
        effort = Effort(connections)
        request = PageRequest(limit=100, order="asc", after=after)
        page = await file_store.records(OWNER, "item", request, parent="s1500")
        assert page.items[0].id == f"item_{int(after.removeprefix('item_')) + 1}"
        assert (effort.statements, effort.steps < 10) == (1, True)  # 100 steps for each record
    effort = Effort(connections)
    assert (await file_store.records(OWNER, "session", PageRequest(limit=1, after="s1501"))).items[
        0
    ].id == "s1500"
    assert await file_store.busy_records("session") == []
    await file_store.write_records(OWNER, [record("more", parent="s1500"), session("s1500", busy=True)])
    assert (effort.statements < 20, effort.steps <= 1) == (True, True)
    effort = Effort(connections)
    assert await file_store.delete_record(OWNER, "session", "s1500")
    assert effort.statements < 100  # what was below it is removed later, in small writes
    assert await file_store.record(OWNER, "item", "item_9999") is None


async def test_deleting_among_many_costs_what_is_deleted(
    file_store: SqliteStore, connections: Connections
) -> None:
    await file_store.add_conversation(
        conversation("many"), [item(f"item_{number}") for number in range(3000)]
    )
    await file_store.add_conversation(conversation("one"), [item("alone")])
    await file_store.write_records(OWNER, [session(f"s{number}") for number in range(3000)])
    await asyncio.gather(*(turn(file_store, f"resp_{number}") for number in range(3000)))
    await turn(file_store, "next", after="resp_200")
    await turn(file_store, "last", after="resp_0")
    for deleting in (
        file_store.delete_response(OWNER, "last"),
        file_store.delete_response(OWNER, "resp_200"),  # stays as the context of `next`
        file_store.delete_item(OWNER, "many", "item_1500"),
        file_store.delete_conversation(OWNER, "one"),
        file_store.delete_record(OWNER, "session", "s1500"),
    ):
        effort = Effort(connections)
        await deleting
        assert effort.statements < 30
        assert effort.steps <= 1
