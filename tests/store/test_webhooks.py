"""Webhooks that nobody has taken yet: kept in order, once for each target, until they are dropped."""

from __future__ import annotations

from codex_proxy.store.base import Store
from codex_proxy.store.webhooks import PendingWebhook

ONE = PendingWebhook("evt_1", "https://a.example/hook", b"{}")
ELSEWHERE = PendingWebhook("evt_1", "https://b.example/hook", b"{}")
TWO = PendingWebhook("evt_2", "https://a.example/hook", b'{"n": 2}', tries=3)


async def test_what_was_put_is_there_the_oldest_first_and_no_more_than_was_asked_for(store: Store) -> None:
    for each in (ONE, ELSEWHERE, TWO):
        await store.put_webhook(each)
    assert await store.webhooks(10) == [ONE, ELSEWHERE, TWO]
    assert await store.webhooks(2) == [ONE, ELSEWHERE]


async def test_put_again_it_has_its_new_number_of_tries_and_its_old_place(store: Store) -> None:
    await store.put_webhook(ONE)
    await store.put_webhook(TWO)
    again = PendingWebhook(ONE.event_id, ONE.url, ONE.body, tries=2)
    await store.put_webhook(again)
    assert await store.webhooks(10) == [again, TWO]


async def test_one_that_is_dropped_is_gone_for_its_target_alone(store: Store) -> None:
    await store.put_webhook(ONE)
    await store.put_webhook(ELSEWHERE)
    await store.drop_webhook(ONE.event_id, ONE.url)
    await store.drop_webhook("evt_unknown", ONE.url)
    assert await store.webhooks(10) == [ELSEWHERE]
