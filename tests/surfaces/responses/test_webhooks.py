"""Webhooks that the SDK's own `unwrap` accepts, and that nobody can forge."""

from __future__ import annotations

import time

import openai
import pytest
from openai import InvalidWebhookSignatureError

from codex_proxy.surfaces.responses.webhooks import Webhook, sign, webhook_body

SECRETS = ["whsec_c2VjcmV0LXRoYXQtaXMtbG9uZw==", "a plain secret"]


def delivery(secret: str, status: str = "completed", timestamp: int | None = None) -> Webhook:
    body = webhook_body("evt_1", f"response.{status}", {"id": "resp_1"}, 1)
    return sign(body, event_id="evt_1", timestamp=timestamp or int(time.time()), secret=secret)


def unwrap(webhook: Webhook, secret: str) -> object:
    return openai.OpenAI(api_key="x", webhook_secret=secret).webhooks.unwrap(webhook.body, webhook.headers)


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("status", ["completed", "failed", "incomplete", "cancelled"])
def test_the_sdk_unwraps_every_end_of_a_response(secret: str, status: str) -> None:
    event = unwrap(delivery(secret, status), secret)
    assert getattr(event, "type", None) == f"response.{status}"
    assert event.data.id == "resp_1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("secret", SECRETS)
def test_another_secret_or_another_body_is_not_accepted(secret: str) -> None:
    with pytest.raises(InvalidWebhookSignatureError):
        unwrap(delivery(secret), "another secret")
    true = delivery(secret)
    with pytest.raises(InvalidWebhookSignatureError):
        unwrap(Webhook(true.body.replace(b"resp_1", b"resp_2"), true.headers), secret)


def test_a_repeated_delivery_is_signed_anew_and_keeps_its_id() -> None:
    first, second = delivery(SECRETS[0], timestamp=100), delivery(SECRETS[0], timestamp=200)
    assert first.body == second.body
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]


def test_a_secret_that_is_not_base64_is_refused() -> None:
    with pytest.raises(ValueError, match="not base64"):
        delivery("whsec_%%%")
