"""A background stream of 30 MB: others are served while it is resumed and read."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cpu_time import slowness
from tests.fuzz.conftest import ServerThread
from tests.fuzz.holds import MAX_HOLD_SECONDS
from tests.waiting import PATIENCE

PROMPT: Final = "[[fake:count n=30000 size=1000]]"
"""Deltas of 30 MB in all."""

pytestmark = pytest.mark.exhaustive


@pytest.fixture(params=["file", "postgresql"])
def thread(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerThread]:
    settings = {} if request.param == "file" else {"store": request.getfixturevalue("postgres_url")}
    made = ServerThread(tmp_path, fake_dialect="app-server", **settings)
    with made.holds, made:
        yield made


def send(thread: ServerThread, method: str, path: str, body: Any = None) -> bytes:
    assert thread.server is not None
    connection = http.client.HTTPConnection("127.0.0.1", thread.server.port, timeout=4 * PATIENCE)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    read = answer.read()
    assert answer.status == 200, read[:500]
    connection.close()
    return read


def test_a_background_stream_of_30_mb_is_resumed_and_read_while_others_are_served(
    thread: ServerThread,
) -> None:
    def measured(path: str) -> bytes:
        tries: list[float] = []
        while len(tries) < 3 and not any(each < MAX_HOLD_SECONDS for each in tries):
            thread.finish_callback()
            thread.holds.forget()
            read = send(thread, "GET", path)
            thread.finish_callback()
            tries.append(thread.holds.longest / slowness())
        assert min(tries) < MAX_HOLD_SECONDS, (path, tries, thread.holds.who)
        return read

    body = {"model": "codex-5", "input": PROMPT, "background": True, "stream": True}
    stream = send(thread, "POST", "/v1/responses", body)
    match = re.search(rb"resp_[0-9a-f]{32}", stream)
    assert match is not None
    path = f"/v1/responses/{match[0].decode()}"
    assert measured(f"{path}?stream=true") == stream
    assert stream.endswith(measured(f"{path}?stream=true&starting_after=20000"))
    assert len(measured(path)) > 30_000_000
