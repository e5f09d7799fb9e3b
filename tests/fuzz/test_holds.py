"""The fuzzers see it when a request holds up the server, and nothing else counts as a hold."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from codex_proxy.http.app_keys import IDS
from tests.cpu_time import cpu_seconds
from tests.fuzz.conftest import ServerThread
from tests.fuzz.holds import MAX_HOLD_SECONDS, Holds
from tests.waiting import hold_up_the_loop


def work(seconds: float) -> None:
    """Needs the processor for so long."""
    until = cpu_seconds() + seconds
    while cpu_seconds() < until:
        pass


def test_a_handler_that_works_for_too_long_is_seen_and_its_request_is_named(tmp_path: Path) -> None:
    thread = ServerThread(tmp_path)
    with thread.holds, thread as port:
        assert thread.server is not None
        assert thread.server.app is not None
        ids = thread.server.app[IDS]
        new = ids.new

        def slowly(prefix: str) -> str:
            work(1.5 * MAX_HOLD_SECONDS)
            return new(prefix)

        thread.finish_callback()
        thread.holds.forget()
        urllib.request.urlopen(f"http://127.0.0.1:{port}/livez").close()
        thread.finish_callback()
        assert thread.holds.longest < MAX_HOLD_SECONDS
        ids.new = slowly  # type: ignore[method-assign]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez") as answer:
            request_id = answer.headers["x-request-id"]
        thread.finish_callback()
        assert thread.holds.longest > MAX_HOLD_SECONDS
        assert request_id in thread.holds.who


def collect_often() -> None:
    """Looks for garbage until that has taken longer than a callback may."""
    until = time.thread_time() + 2 * MAX_HOLD_SECONDS
    while time.thread_time() < until:
        gc.collect()


def wait() -> None:
    hold_up_the_loop(2 * MAX_HOLD_SECONDS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("meanwhile", [collect_often, wait])
async def test_a_collection_of_garbage_and_a_wait_are_no_hold(meanwhile: Callable[[], None]) -> None:
    with Holds() as holds:
        holds.thread = threading.get_ident()
        asyncio.get_running_loop().call_soon(meanwhile)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert 0 < holds.longest < MAX_HOLD_SECONDS
