"""The files of the page and the API that it reads: who sees what."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import structlog

from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.commands import checks
from codex_proxy.core.checks import Check
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.core.turn import Turn
from codex_proxy.http.page import FILES, POLICY
from tests.access.keyed import key_header, keyed_proxy
from tests.forked_fake import no_forks
from tests.http.serving import Proxy, fake_agent, fake_proxy, proxy_of, until, user, worker_proxy

HTML = {"Accept": "text/html,application/xhtml+xml"}
MAX_BYTES = 80 << 10
"""As browsers get them: compressed."""
NO_TRACES = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
WARNING = Check(name="x", status="warning", message="m", advice="a")


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, ui=True) as proxy:
        yield proxy


async def test_a_browser_gets_the_page_and_any_other_client_the_name_of_the_server(proxy: Proxy) -> None:
    page = await proxy.send("GET", "/", headers=HTML)
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.headers["Content-Security-Policy"] == POLICY
    assert (await proxy.send("GET", "/")).body["name"] == "codex-proxy"


async def test_all_files_of_the_page_are_small_and_name_no_other_server(proxy: Proxy) -> None:
    size = 0
    for name in FILES:
        file = await proxy.send("GET", "/" if name == "index.html" else f"/ui/{name}", headers=HTML)
        assert file.status == 200
        assert "https://" not in file.text.replace("http://www.w3.org/2000/svg", "")
        assert file.headers["Content-Encoding"] == "gzip"
        size += int(file.headers["Content-Length"])
    assert size < MAX_BYTES


async def test_a_client_that_does_not_unpack_gets_the_files_as_they_are(proxy: Proxy) -> None:
    file = await proxy.send("GET", "/ui/page.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in file.headers
    assert file.text == (await proxy.send("GET", "/ui/page.js")).text


async def test_a_file_that_the_browser_has_is_not_sent_again(proxy: Proxy) -> None:
    tag = (await proxy.send("GET", "/ui/page.js")).headers["ETag"]
    again = await proxy.send("GET", "/ui/page.js", headers={"If-None-Match": tag})
    assert (again.status, again.text) == (304, "")


async def test_without_the_setting_there_is_no_page(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, ui=False) as proxy:
        assert (await proxy.send("GET", "/", headers=HTML)).body["name"] == "codex-proxy"
        assert (await proxy.send("GET", "/ui/page.js")).status == 404
        assert (await proxy.send("GET", "/ui/api/state")).status == 404
        assert proxy.server.runs.records is None


@pytest.fixture
async def proxy_with_two_keys(tmp_path: Path) -> AsyncIterator[Proxy]:
    """A server with two keys."""
    async with keyed_proxy(tmp_path, {"a": {}, "b": {}}, ui=True) as proxy:
        yield proxy


async def test_a_key_sees_its_own_turns_and_responses_alone(proxy_with_two_keys: Proxy) -> None:
    asked = {"model": "codex-5", "input": "Hello."}
    id = (await proxy_with_two_keys.send("POST", "/v1/responses", asked, headers=key_header("a"))).body["id"]
    (turn,) = (await proxy_with_two_keys.send("GET", "/ui/api/turns", headers=key_header("a"))).body["data"]
    assert (turn["owner"], turn["api"], turn["end"]) == ("a", "Responses", "stop")
    assert (await proxy_with_two_keys.send("GET", "/ui/api/turns", headers=key_header("b"))).body[
        "data"
    ] == []
    assert (await proxy_with_two_keys.send("GET", "/ui/api/stored", headers=key_header("b"))).body[
        "data"
    ] == []
    for path in (f"turns/{turn['id']}", f"stored/{id}/tree"):
        assert (
            await proxy_with_two_keys.send("GET", f"/ui/api/{path}", headers=key_header("a"))
        ).status == 200
        assert (
            await proxy_with_two_keys.send("GET", f"/ui/api/{path}", headers=key_header("b"))
        ).status == 404
    assert (await proxy_with_two_keys.send("GET", "/ui/api/turns")).status == 401


async def test_a_turn_is_found_by_its_requests_id_and_says_where_it_works(
    proxy_with_two_keys: Proxy,
) -> None:
    for mode, folder in (("agent", proxy_with_two_keys.server.settings.workdir), ("model", "")):
        headers = {**key_header("a"), "X-Codex-Mode": mode}
        answer = await proxy_with_two_keys.send(
            "POST", "/v1/responses", {"model": "codex-5", "input": "Hello."}, headers=headers
        )
        path = f"/ui/api/turns/{answer.headers['x-request-id']}"
        turn = (await proxy_with_two_keys.send("GET", path, headers=key_header("a"))).body
        assert (turn["mode"], turn["folder"]) == (mode, str(folder))
        assert (await proxy_with_two_keys.send("GET", path, headers=key_header("b"))).status == 404


async def test_a_key_cannot_cancel_the_turn_of_another(proxy_with_two_keys: Proxy) -> None:
    body = user("[[fake:text misbehave=hang]]")
    asked = asyncio.create_task(proxy_with_two_keys.ask(body, headers=key_header("a")))
    records = proxy_with_two_keys.server.runs.records
    assert records is not None
    (record,) = await until(lambda: records.of_owner("a"))
    path = f"/ui/api/turns/{record.id}/cancel"
    assert (await proxy_with_two_keys.send("POST", path, {}, headers=key_header("b"))).status == 404
    assert not record.has_ended
    assert (await proxy_with_two_keys.send("POST", path, {}, headers=key_header("a"))).status == 200
    answer = await asked
    assert (answer.status, answer.error["code"]) == (499, "cancelled")
    assert answer.headers["x-should-retry"] == "false"
    assert record.summary().error == "cancelled"


async def test_a_turn_that_has_no_process_yet_can_be_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path, ui=True) as proxy:
        agent, may_open = proxy.server.agent, asyncio.Event()
        opened = agent.open

        async def open_later(turn: Turn) -> AgentSession:
            await may_open.wait()
            return await opened(turn)

        monkeypatch.setattr(agent, "open", open_later)
        asked = asyncio.create_task(proxy.ask(user()))
        records = proxy.server.runs.records
        assert records is not None
        (record,) = await until(lambda: records.of_owner("local"))
        assert (await proxy.send("POST", f"/ui/api/turns/{record.id}/cancel", {})).body["end"] == "failed"
        may_open.set()
        assert (await asked).error["code"] == "cancelled"


async def test_a_turn_whose_agent_cannot_be_started_is_remembered(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with no_forks():
        assert (await proxy.ask(user())).status == 500
    (turn,) = (await proxy.send("GET", "/ui/api/turns")).body["data"]
    assert (turn["error"], turn["end"]) == ("spawn_failed", "failed")


async def test_the_state_has_each_process_and_what_it_does(proxy: Proxy) -> None:
    asked = asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]")))
    await until(lambda: proxy.server.runs.running)
    await until(lambda: [each for each in proxy.server.agent.each_process() if each.memory > 1 << 20])
    (agent,) = (await proxy.send("GET", "/ui/api/state")).body["agents"]
    (process,) = agent["processes"]["each"]
    assert (process["turns_running"], process["turns_served"]) == (1, 1)
    assert process["memory"] > 1 << 20
    await proxy.send("POST", "/ui/api/turns/1/cancel", {})
    await asked


@pytest.mark.part("traces")
async def test_the_checks_of_doctor_are_of_this_server_and_are_not_run_for_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []

    def state_check(folder: Path) -> Check:
        ran.append(folder)
        return WARNING

    monkeypatch.setattr(checks, "state_check", state_check)
    async with fake_proxy(tmp_path, NO_TRACES, ui=True) as proxy:
        for _ in range(3):
            state = await proxy.send("GET", "/ui/api/state")
            findings = {each["name"]: each for each in state.body["findings"]}
            assert findings["x"] == msgspec.to_builtins(WARNING)
            assert findings["traces"]["status"] == "warning"
    assert len(ran) == 1


async def test_the_stream_of_changes_begins_with_the_turns_that_run_and_ends_with_the_server(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, ui=True) as proxy:
        await proxy.ask(user())
        running = asyncio.create_task(proxy.ask(user("[[fake:text misbehave=hang]]")))
        records = proxy.server.runs.records
        assert records is not None
        await until(lambda: records.find(NO_KEY_OWNER, 2))
        async with proxy.session.get(f"{proxy.url}/ui/api/live") as live:
            first = json.loads((await live.content.readline()).removeprefix(b"data: "))
            assert [(turn["id"], turn["end"]) for turn in first["turns"]] == [(2, None)]
            await proxy.send("POST", "/ui/api/turns/2/cancel", {})
            await running
            await live.content.readline()
            changed = json.loads((await live.content.readline()).removeprefix(b"data: "))
            assert [(turn["id"], turn["end"]) for turn in changed["turns"]] == [(2, "failed")]
            proxy.server.runs.begin_drain()
            assert (await live.content.read()).endswith(b"\n")


async def test_a_turn_without_a_recording_has_none(proxy: Proxy) -> None:
    await proxy.ask(user())
    assert (await proxy.send("GET", "/ui/api/turns/1/cassette")).error["code"] == "not_found"


async def test_a_key_sees_its_own_conversations_alone(proxy_with_two_keys: Proxy) -> None:
    await proxy_with_two_keys.send(
        "POST", "/v1/conversations", {"metadata": {"topic": "a trip"}}, headers=key_header("a")
    )
    (found,) = (
        await proxy_with_two_keys.send("GET", "/ui/api/conversations?search=trip", headers=key_header("a"))
    ).body["data"]
    assert found["metadata"] == {"topic": "a trip"}
    assert (await proxy_with_two_keys.send("GET", "/ui/api/conversations", headers=key_header("b"))).body[
        "data"
    ] == []
    refused = await proxy_with_two_keys.send(
        "GET", "/ui/api/conversations?after=conv_0", headers=key_header("a")
    )
    assert refused.error["message"] == "There is no conversation 'conv_0'."


async def test_a_turn_of_another_worker_is_looked_for_on_a_new_connection(tmp_path: Path) -> None:
    async with worker_proxy(tmp_path, 2) as proxy:
        for id, connection in (("1000001", "close"), ("20000001", "close"), ("2000001", None)):
            reply = await proxy.send("GET", f"/ui/api/turns/{id}")
            assert (reply.status, reply.headers.get("Connection")) == (404, connection)


@pytest.mark.parametrize("path", ["turns/0", "turns/x", "turns/99999999999999999999", "stored/resp_0/tree"])
async def test_a_path_of_the_page_that_does_not_exist_is_a_404(proxy: Proxy, path: str) -> None:
    assert (await proxy.send("GET", f"/ui/api/{path}")).error["code"] == "not_found"


async def test_a_search_that_is_too_long_names_its_parameter(proxy: Proxy) -> None:
    refused = await proxy.send("GET", f"/ui/api/stored?search={'x' * 201}")
    assert (refused.status, refused.error["param"]) == (400, "search")


async def test_a_server_without_a_store_says_so(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, ui=True, store="off") as proxy:
        refused = await proxy.send("GET", "/ui/api/stored")
        assert refused.status == 400
        assert "PROXY_STORE" in refused.error["message"]


@pytest.mark.parametrize("effort", ["", "-high"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions", "api/chat"])
async def test_a_turn_of_a_default_model_without_a_name_is_shown_by_the_name_that_was_asked_for(
    tmp_path: Path, path: str, stream: bool, effort: str
) -> None:
    asked = f"codex-5{effort}"
    body = {
        "chat/completions": user(),
        "responses": {"input": "Hello."},
        "messages": user(max_tokens=100),
        "completions": {"prompt": "Hello."},
        "api/chat": user(),
    }[path]
    async with proxy_of(fake_agent(), tmp_path, ui=True) as proxy:
        with structlog.testing.capture_logs() as lines:
            url = f"/{path}" if path == "api/chat" else f"/v1/{path}"
            answer = await proxy.send("POST", url, {**body, "model": asked, "stream": stream})
            assert answer.status == 200, answer.text
            await proxy.settled()
        assert proxy.server.runs.records is not None
        (record,) = proxy.server.runs.records.of_owner(NO_KEY_OWNER)
        assert (record.summary().model, record.summary().response_model) == (asked, "gpt-5")
        (started,) = [line for line in lines if line["event"] == "turn_started"]
        (ended,) = [line for line in lines if line["event"] == "request"]
        assert started["model"] == asked
        assert (ended["model"], ended["response_model"]) == (asked, "gpt-5")
