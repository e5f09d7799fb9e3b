"""Webhooks that nobody has taken yet: written with the end that they tell of, kept in order until they are dropped."""

from __future__ import annotations

import msgspec
import pytest

from codex_proxy.store.store import Store
from codex_proxy.store.values import UNFINISHED, NotStored, PendingWebhook, Record
from tests.store.stored import OWNER, response

ONE = PendingWebhook("evt_1", "https://a.example/hook", b"{}")
ELSEWHERE = PendingWebhook("evt_1", "https://b.example/hook", b"{}")
TWO = PendingWebhook("evt_2", "https://a.example/hook", b'{"n": 2}', tries=3)


async def end_response(store: Store, *webhooks: PendingWebhook, status: str = "completed") -> bool:
    """Ends a response, which is made where there is none, with these webhooks."""
    if await store.response(OWNER, "resp_1") is None:
        await store.add_response(response("resp_1", status="queued", background=True))
    return await store.update_response(
        OWNER, "resp_1", status=status, json=b"{}", only_from=UNFINISHED, webhooks=webhooks
    )


async def due_webhooks(store: Store) -> list[PendingWebhook]:
    """What is in the outbox and due, which stays so."""
    found = await store.claim_webhooks(10)
    for each in found:
        await store.retry_webhook(each, 0.0)
    return without_claims(found)


async def claim(store: Store, limit: int = 10) -> list[PendingWebhook]:
    return without_claims(await store.claim_webhooks(limit))


def without_claims(webhooks: list[PendingWebhook]) -> list[PendingWebhook]:
    return [msgspec.structs.replace(each, claim=None) for each in webhooks]


async def test_webhooks_come_with_the_end_the_oldest_first_and_no_more_than_was_asked_for(
    store: Store,
) -> None:
    assert await end_response(store, ONE, ELSEWHERE, TWO)
    assert await due_webhooks(store) == [ONE, ELSEWHERE, TWO]
    assert await claim(store, 2) == [ONE, ELSEWHERE]


async def test_webhooks_come_with_records_or_not_at_all(store: Store) -> None:
    record = Record(kind="a", id="one", json=b"{}", created=1.0)
    await store.write_records(OWNER, [record], webhooks=[ONE, ELSEWHERE])
    with pytest.raises(NotStored):
        await store.write_records(OWNER, [record], require=("a", "two"), webhooks=[TWO])
    assert await due_webhooks(store) == [ONE, ELSEWHERE]


async def test_a_webhook_is_given_to_one_claim_only(store: Store) -> None:
    assert await end_response(store, ONE, ELSEWHERE)
    assert await claim(store, 1) == [ONE]
    assert await claim(store, 10) == [ELSEWHERE]
    assert await claim(store, 10) == []


async def test_a_webhook_that_waits_for_its_next_attempt_is_claimed_by_nobody(store: Store) -> None:
    assert await end_response(store, ONE, TWO)
    assert await claim(store, 1) == [ONE]
    await store.retry_webhook(ONE, 3600.0)
    assert await claim(store, 10) == [TWO]


async def test_an_end_that_comes_too_late_sends_nothing(store: Store) -> None:
    assert await end_response(store, ONE)
    assert not await end_response(store, TWO, status="cancelled")
    assert await due_webhooks(store) == [ONE]


async def test_a_target_that_is_named_twice_gets_one_webhook(store: Store) -> None:
    assert await end_response(store, ONE, ONE)
    assert await due_webhooks(store) == [ONE]


async def test_a_delivery_attempt_is_counted_and_the_webhook_keeps_its_place(store: Store) -> None:
    await end_response(store, ONE, TWO)
    tried = msgspec.structs.replace(ONE, tries=2)
    await store.retry_webhook(tried, 0.0)
    assert await due_webhooks(store) == [tried, TWO]


async def test_an_attempt_at_a_dropped_webhook_does_not_bring_it_back(store: Store) -> None:
    await end_response(store, ONE)
    await store.drop_webhook(ONE.event_id, ONE.url)
    await store.retry_webhook(ONE, 0.0)
    assert await due_webhooks(store) == []


async def test_a_webhook_that_is_dropped_is_gone_for_its_target_alone(store: Store) -> None:
    await end_response(store, ONE, ELSEWHERE)
    await store.drop_webhook(ONE.event_id, ONE.url)
    await store.drop_webhook("evt_unknown", ONE.url)
    assert await due_webhooks(store) == [ELSEWHERE]
