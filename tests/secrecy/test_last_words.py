"""The last words of a process that several clients share are told to the one whose turn they belong to."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.agents.codex_app_server.agent import AppServerProcess
from codex_proxy.core.faults import Fault
from codex_proxy.process.child import Command
from tests.http.serving import Proxy, fake_proxy, user
from tests.waiting import PATIENCE

WORDS = "Error: what the client asked for"
CRASH = f"[[fake:count n=50 misbehave=crash at=6 words='{WORDS}']]"


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    settings = {"fake_dialect": "app-server", "kept_threads": 16}
    async with fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(tmp_path / "never")}, **settings) as running:
        yield running


async def test_the_only_client_of_a_process_gets_the_last_lines_of_its_stderr(proxy: Proxy) -> None:
    assert WORDS in (await proxy.ask(user(CRASH))).error["message"]


async def test_an_error_of_a_turn_on_a_shared_process_does_not_quote_the_process(
    proxy: Proxy,
) -> None:
    async with proxy.open(user("[[fake:text hold=1]]", stream=True)) as held:
        await held.content.readline()
        assert proxy.server.runs.running == 1
        crashed = await proxy.ask(user(CRASH))
        rest = (await held.read()).decode()
    assert "agent_crashed" in rest
    assert WORDS not in rest + crashed.text
    await proxy.settled()


async def test_an_error_does_not_quote_what_a_process_wrote_in_an_earlier_turn(proxy: Proxy) -> None:
    assert (await proxy.ask(user("[[fake:text misbehave=stderr_flood]]"))).status == 200
    crashed = await proxy.ask(user("[[fake:count n=50 misbehave=eof_without_end at=6]]"))
    assert crashed.error["code"] == "agent_crashed"
    assert "flood" not in crashed.text


async def test_the_error_about_a_process_that_keeps_ending_has_its_exit_status_and_not_its_output(
    proxy: Proxy,
) -> None:
    answers = [await proxy.ask(user(CRASH)) for _ in range(3)]
    assert WORDS in answers[0].text
    health = await proxy.send("GET", "/healthz")
    ready = await proxy.send("GET", "/readyz")
    assert WORDS not in health.text + ready.text


async def test_why_a_process_does_not_start_is_reported_without_its_words_to_clients_without_a_key(
    tmp_path: Path,
) -> None:
    script = f"import sys; sys.stderr.write({WORDS!r}); sys.exit(3)"
    process = AppServerProcess()
    with pytest.raises(Fault, match=WORDS) as raised:
        await process.start(
            Command((sys.executable, "-c", script), {}, str(tmp_path)), timeout_seconds=PATIENCE
        )
    assert raised.value.failure.unquoted == "The agent's process ended while it was starting (exit code 3)."
