"""Ends of background responses, told to a receiver on a port: signed, again when it fails, and only those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from structlog.testing import capture_logs

from codex_proxy.app.server import make_server
from codex_proxy.core.faults import UserError
from codex_proxy.http import webhook_sender
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import PendingWebhook
from tests.http.serving import settings_of
from tests.http_responses.asking import create, prompt_for, proxy_and_client
from tests.http_responses.receiving import SECRET, count_undelivered, receiver
from tests.waiting import PATIENCE, eventually


@pytest.mark.parametrize(
    ("prompt", "event"),
    [
        (prompt_for("Hello."), "response.completed"),
        ("[[fake:error_500]]", "response.failed"),
        ("[[fake:truncation]]", "response.incomplete"),
    ],
)
async def test_the_end_of_a_background_response_is_reported_as_the_sdk_unwraps_it(
    tmp_path: Path, prompt: str, event: str
) -> None:
    async with (
        receiver() as target,
        proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _),
    ):
        created = await create(proxy, prompt, background=True)
        ((body, headers),) = await target.deliveries(1)
    told = OpenAI(api_key="no key").webhooks.unwrap(body, headers, secret=SECRET)
    assert (told.type, told.data.id) == (event, created.body["id"])  # type: ignore[union-attr]


async def test_a_later_webhook_does_not_wait_for_the_next_look_at_the_outbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "POLL_SECONDS", 10 * PATIENCE)
    async with (
        receiver() as target,
        proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _),
    ):
        for count in (1, 2):
            await create(proxy, prompt_for("Hello."), background=True)
            assert len(await target.deliveries(count)) == count


async def test_a_cancelled_response_is_reported_too(tmp_path: Path) -> None:
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with receiver() as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        async with proxy_and_client(tmp_path, environment, **settings) as (proxy, client):
            created = await create(proxy, '[[fake:text say="one two" hold=1]]', background=True)
            await client.responses.cancel(created.body["id"])
            ((body, _),) = await target.deliveries(1)
    assert '"response.cancelled"' in body


async def test_a_receiver_that_fails_is_asked_again_with_the_same_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with receiver(500, 302) as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        monkeypatch.setattr(webhook_sender, "DELAYS", (0.01, 0.01))
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            await create(proxy, background=True)
            got = await target.deliveries(3)
    assert len({body for body, _ in got}) == 1
    assert len({headers["webhook-id"] for _, headers in got}) == 1


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed_to_where_no_operator_has_sent_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    async with receiver(status) as target, receiver() as other:
        target.elsewhere = other.url
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        monkeypatch.setattr(webhook_sender, "DELAYS", (0.01,))
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            await create(proxy, background=True)
            await target.deliveries(2)
    assert other.webhooks == []


async def test_what_was_not_taken_when_the_server_stopped_is_reported_after_its_next_start(
    tmp_path: Path,
) -> None:
    async with receiver(503) as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            await create(proxy, background=True)
            await target.deliveries(1)
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            ((first, headers), (second, again)) = await target.deliveries(2)
            store = proxy.server.settings.store_file
            await eventually(lambda: not count_undelivered(store))
        async with proxy_and_client(tmp_path, **settings):
            pass
    assert (first, headers["webhook-id"]) == (second, again["webhook-id"])
    assert len(target.webhooks) == 2


async def test_webhooks_are_sent_though_reading_the_outbox_once_met_a_fault_of_this_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "POLL_SECONDS", 0.01)
    faults, claim = [RuntimeError("a fault")], SqliteStore.claim_webhooks

    async def claim_or_fail(store: SqliteStore, limit: int) -> list[PendingWebhook]:
        if faults:
            raise faults.pop()
        return await claim(store, limit)

    monkeypatch.setattr(SqliteStore, "claim_webhooks", claim_or_fail)
    with capture_logs() as logged:
        async with (
            receiver() as target,
            proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _),
        ):
            await create(proxy, background=True)
            await target.deliveries(1)
    assert (faults, [line["event"] for line in logged].count("webhooks_not_read")) == ([], 1)


async def test_an_attempt_that_another_server_may_have_begun_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sender, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(
        webhook_sender, "START_SECONDS", -1.0
    )  # as if the process had stood still since the claim
    claim, late = SqliteStore.claim_webhooks, list[PendingWebhook]()

    async def claim_again(store: SqliteStore, limit: int) -> list[PendingWebhook]:
        if late:
            monkeypatch.setattr(webhook_sender, "START_SECONDS", 15.0)
            return [late.pop()]
        late.extend(await claim(store, limit))
        return list(late)

    monkeypatch.setattr(SqliteStore, "claim_webhooks", claim_again)
    with capture_logs() as logged:
        async with (
            receiver() as target,
            proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _),
        ):
            await create(proxy, background=True)
            await target.deliveries(1)
            await eventually(lambda: not count_undelivered(proxy.server.settings.store_file))
    assert [line["event"] for line in logged].count("webhook_delivered") == 1


async def test_a_webhook_whose_attempt_is_running_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = SqliteStore.claim_webhooks

    async def claim_twice(store: SqliteStore, limit: int) -> list[PendingWebhook]:
        return 2 * await claim(store, limit)

    monkeypatch.setattr(SqliteStore, "claim_webhooks", claim_twice)
    async with (
        receiver() as target,
        proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _),
    ):
        await create(proxy, background=True)
        await target.deliveries(1)
        await eventually(lambda: not count_undelivered(proxy.server.settings.store_file))
    assert len(target.webhooks) == 1


async def test_a_webhook_for_a_target_that_no_longer_exists_is_dropped(tmp_path: Path) -> None:
    async with receiver(503) as gone, receiver() as target:
        async with proxy_and_client(tmp_path, webhooks={"urls": gone.url, "secret": SECRET}) as (proxy, _):
            await create(proxy, background=True)
            await gone.deliveries(1)
        async with proxy_and_client(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _):
            store = proxy.server.settings.store_file
            await eventually(lambda: not count_undelivered(store))
    assert (len(gone.webhooks), target.webhooks) == (1, [])


async def test_a_response_that_is_not_in_the_background_sends_no_webhook(tmp_path: Path) -> None:
    async with receiver() as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            await create(proxy)
            created = await create(proxy, background=True)
            await target.deliveries(1)
    assert len(target.webhooks) == 1
    assert created.body["id"] in target.webhooks[0][0]


@pytest.mark.parametrize("secret", [None, "whsec_not base64"])
async def test_targets_without_a_good_secret_are_refused_at_the_start(
    tmp_path: Path, secret: str | None
) -> None:
    settings = settings_of(tmp_path, webhooks={"urls": "http://127.0.0.1:1/hook", "secret": secret})
    with pytest.raises(UserError, match="PROXY_WEBHOOKS_SECRET"):
        await make_server(settings, {})


async def test_a_response_that_is_cancelled_when_nobody_runs_it_any_more_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its recovery at the start could not be written."""
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with receiver() as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        async with proxy_and_client(tmp_path, environment, **settings) as (proxy, client):
            created = await create(proxy, '[[fake:text say="one two" hold=1]]', background=True)
            monkeypatch.setattr(proxy.server.background, "find", lambda owner, id: None)
            await client.responses.cancel(created.body["id"])
            ((body, _),) = await target.deliveries(1)
    assert '"response.cancelled"' in body


async def test_more_webhooks_than_may_wait_stay_in_the_outbox_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.http.webhook_sender.MAX_WAITING", 1)
    async with receiver() as target:
        settings: dict[str, Any] = {"webhooks": {"urls": target.url, "secret": SECRET}}
        async with proxy_and_client(tmp_path, **settings) as (proxy, _):
            created = [(await create(proxy, background=True)).body["id"] for _ in range(4)]
            got = await target.deliveries(4)
    assert sorted(json.loads(body)["data"]["id"] for body, _ in got) == sorted(created)
