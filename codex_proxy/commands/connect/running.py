"""Asks a server that may be running."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from typing import Final, NamedTuple

SECONDS: Final = 2.0
"""Seconds in which a running server answers."""
MAX_BYTES: Final = 64 << 20


class Reply(NamedTuple):
    status: int
    body: bytes


def ask_server(url: str, key: str | None = None) -> Reply | None:
    """Returns the reply to a GET; None if no codex-proxy answers there."""
    # Without the proxy of the environment: this is a server of the user's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with opener.open(request, timeout=SECONDS) as reply:
            answer, server = Reply(reply.status, reply.read(MAX_BYTES)), reply.headers["Server"]
    except urllib.error.HTTPError as error:
        answer, server = Reply(error.code, b""), error.headers["Server"]
    except (OSError, ValueError, http.client.HTTPException):
        return None
    return answer if server == "codex-proxy" else None
