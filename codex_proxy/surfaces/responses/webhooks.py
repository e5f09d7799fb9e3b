"""Webhooks as the SDKs' `webhooks.unwrap()` expects (Standard Webhooks: `v1`, HMAC-SHA256 over `id.timestamp.body`). A
secret behind `whsec_` is base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec

from codex_proxy.surfaces.answers.renderer import json_bytes

PREFIX: Final = "whsec_"


class Webhook(msgspec.Struct, frozen=True):
    """A webhook as it is posted. A repeated one has the same id and body, but its own time and signature."""

    body: bytes
    headers: dict[str, str]


def event_id_of(response_id: str) -> str:
    # It is the same if the event is made again after a restart.
    return "evt_" + response_id.removeprefix("resp_")


def webhook_body(event_id: str, kind: str, data: Mapping[str, object], created_at: int) -> bytes:
    """Returns the body of a webhook of the type `kind`. `created_at`: seconds since 1970."""
    event = {"id": event_id, "object": "event", "created_at": created_at, "type": kind, "data": data}
    return json_bytes(event)


def sign(body: bytes, *, event_id: str, timestamp: int, secret: str) -> Webhook:
    """Returns the webhook with its signature. `timestamp`: seconds since 1970. Raises `ValueError` for an invalid
    secret.
    """
    content = b"%b.%d.%b" % (event_id.encode(), timestamp, body)
    signature = base64.b64encode(hmac.new(_key(secret), content, hashlib.sha256).digest()).decode()
    headers = {
        "content-type": "application/json",
        "webhook-id": event_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
    return Webhook(body, headers)


def check_secret(secret: str) -> None:
    """Raises `ValueError` if a secret is not base64 behind `whsec_`."""
    _key(secret)


def _key(secret: str) -> bytes:
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret[len(PREFIX) :], validate=True)
    except binascii.Error:
        raise ValueError("The webhook secret begins with 'whsec_', but what follows is not base64.") from None
