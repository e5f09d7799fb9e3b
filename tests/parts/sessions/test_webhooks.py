"""Webhooks of sessions: which come, and that they have nothing of the conversation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from openai import OpenAI

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.sessions.records import SessionStore
from tests.http.serving import fake_proxy
from tests.http_responses.receiving import SECRET, count_undelivered, receiver
from tests.parts.sessions.driving import AgentsClient, message, result, session_body


async def test_webhooks_tell_what_a_session_does_and_nothing_of_its_contents(tmp_path: Path) -> None:
    async with (
        receiver() as target,
        fake_proxy(tmp_path, webhooks={"urls": target.url, "secret": SECRET}) as proxy,
    ):
        client = AgentsClient(proxy)
        async with client.creation("[[fake:tool_call]] the word") as reader:
            session = (await reader.until("agent.session.requires_action"))["session"]
            await client.send(session["id"], *map(result, session["required_actions"]))
            await reader.rest()
        found = await target.deliveries(5)
        told = [OpenAI(api_key="none").webhooks.unwrap(*each, secret=SECRET) for each in found]
    assert sorted(each.type for each in told) == [
        "agent.session.action_required",
        "agent.session.created",
        "agent.session.idle",
        "agent.session.in_progress",
        "agent.session.in_progress",
    ]
    id = session["id"]
    for each in told:
        data = each.to_dict()["data"]
        action = {"required_action": {"type": "function_call"}} if "action" in each.type else {}
        assert data == {"id": id, **action}
    assert len({each.id for each in told}) == 5
    assert "the word" not in json.dumps([body for body, _ in found])


async def test_a_change_that_was_not_stored_has_no_webhook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise Fault.of(FaultKind.UNAVAILABLE, "The store cannot be written.")

    async with fake_proxy(tmp_path, webhooks={"urls": "http://127.0.0.1:9/hook", "secret": SECRET}) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        store = proxy.server.settings.store_file
        before = count_undelivered(store)
        assert before == 3
        with monkeypatch.context() as patched:
            patched.setattr(SessionStore, "write", fail)
            assert (await client.ask("POST", "/sessions", session_body("Hello."))).status == 503
            assert (await client.refused(id, message("More."))).status == 503
        assert count_undelivered(store) == before
