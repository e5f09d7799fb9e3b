"""Approvals on a server without keys: only with the key of this start, which no request needs for anything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.keys import digest_of
from codex_proxy.http.page import FILES
from tests.http.serving import Proxy, user
from tests.parts.sessions.approving import START_KEY, answer, answer_to, keyless_proxy, shown
from tests.parts.sessions.driving import CANCEL, AgentsClient
from tests.parts.sessions.test_approvals import WAITS, asking, commands, with_keys
from tests.waiting import eventually


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with keyless_proxy(tmp_path) as proxy:
        yield proxy


@pytest.mark.parametrize("key", ["", "none", "cpx_another", digest_of(START_KEY)])
async def test_without_the_key_of_this_start_nobody_approves(proxy: Proxy, key: str) -> None:
    without, person = AgentsClient(proxy, key), AgentsClient(proxy, START_KEY)
    async with asking(without) as reader:
        session = (await reader.until(WAITS))["session"]
        (action,) = session["required_actions"]
        (ask,) = await shown(without, session["id"], "local")
        refused = await without.refused(session["id"], answer_to(action))
        assert (refused.status, refused.error["type"]) == (403, "forbidden")
        assert "the key of this start" in refused.error["message"]
        for decision in ("approve", "deny"):
            assert (await answer(without, session["id"], ask, decision)).status == 403
        assert await shown(without, session["id"], "local") == [ask]
        assert (await answer(person, session["id"], ask, "approve")).status == 202
        told = await reader.rest()
    assert commands(told) == [("rm -rf build", "completed", "ok\n")]
    assert (await answer(without, session["id"], ask, "approve")).status == 403  # also the same again


async def test_whoever_has_the_key_of_this_start_is_the_same_owner(proxy: Proxy) -> None:
    without, person = AgentsClient(proxy), AgentsClient(proxy, START_KEY)
    one, two = await without.idle_session(), await person.idle_session()
    for client in (without, person):
        assert {each["id"] for each in await client.all("/sessions")} == {one, two}
    headers = {"Authorization": f"Bearer {START_KEY}"}
    made = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."}, headers=headers)
    assert made.status == 200, made.text
    assert (await proxy.send("GET", f"/v1/responses/{made.body['id']}")).status == 200


async def test_other_requests_need_no_key(proxy: Proxy) -> None:
    assert (await proxy.ask(user())).status == 200
    assert (await proxy.ask(user(), headers={"Authorization": "Bearer none"})).status == 200


async def test_the_events_of_openai_are_answers_with_the_key_of_this_start(proxy: Proxy) -> None:
    person = AgentsClient(proxy, START_KEY)
    async with asking(person) as reader:
        session = (await reader.until(WAITS))["session"]
        await person.send(session["id"], answer_to(session["required_actions"][0], "deny"))
        assert [status for _, status, _ in commands(await reader.rest())] == ["failed"]


async def test_the_first_key_ends_the_key_of_this_start(tmp_path: Path) -> None:
    async with keyless_proxy(tmp_path, keys_file=None) as proxy:
        person = AgentsClient(proxy, START_KEY)
        session = await person.idle_session()
        keys = Path(proxy.server.settings.keys_path)
        with_keys(keys.parent, "one may_approve=true")
        (keys.parent / "keys.toml").rename(keys)
        await eventually(lambda: proxy.server.keyring.current().required)
        assert (await person.ask("GET", f"/sessions/{session}")).status == 401
        assert (await AgentsClient(proxy, "one").ask("GET", f"/sessions/{session}")).status == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"X-Forwarded-For": "10.0.0.1"},
    ],
)
async def test_no_page_of_another_origin_and_no_other_host_answers(
    proxy: Proxy, headers: dict[str, str]
) -> None:
    person = AgentsClient(proxy, START_KEY)
    async with asking(person) as reader:
        session = (await reader.until(WAITS))["session"]
        (ask,) = await shown(person, session["id"], "local")
        body: dict[str, Any] = {"decision": "approve", "digest": ask["digest"]}
        path = f"/sessions/{session['id']}/asks/{ask['request_id']}"
        assert (await person.ask("POST", path, body, headers=headers)).status == 403
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            assert (await person.ask("POST", path, body, headers={"Content-Type": kind})).status == 400
        assert (await person.ask("POST", path, body, headers={"OpenAI-Beta": "other"})).status == 400
        assert await shown(person, session["id"], "local") == [ask]
        await person.send(session["id"], CANCEL)
        await reader.rest()


async def test_the_page_can_be_shown_in_no_frame(proxy: Proxy) -> None:
    for path in ("/", *(f"/ui/{name}" for name in FILES if name != "index.html")):
        page = await proxy.send("GET", path, headers={"Accept": "text/html"})
        assert "frame-ancestors 'none'" in page.headers["Content-Security-Policy"], path


async def test_no_answer_tells_the_key_of_this_start(proxy: Proxy) -> None:
    for path in ("/ui/api/state", "/ui/api/choices", "/ui/api/connect", "/v1", "/openapi.json"):
        told = await proxy.send("GET", path, headers={"Authorization": f"Bearer {START_KEY}"})
        assert told.status == 200, path
        assert START_KEY not in told.text
        assert digest_of(START_KEY) not in told.text
