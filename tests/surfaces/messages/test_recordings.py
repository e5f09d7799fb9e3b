"""Every recorded request of Claude Code and of the SDKs is accepted, and a conversation goes on where it was left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.runs.idle_sessions import item_digests
from codex_proxy.surfaces.messages.parse import ParsedMessages
from tests.surfaces.messages.asking import ANY_MODEL, parse_body, recordings

REQUESTS = dict(recordings())


def parse_entry(entry: dict[str, Any]) -> ParsedMessages:
    return parse_body(json.dumps(entry["body"]).encode(), ANY_MODEL)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", REQUESTS)
def test_a_recorded_request_is_accepted(name: str) -> None:
    entry = REQUESTS[name]
    answer = parse_entry(entry)
    assert answer.turn.history
    assert answer.stream == bool(entry["body"].get("stream"))
    assert "x-anthropic-billing-header" not in repr(answer.turn.history)


@pytest.mark.parametrize("session", ["01-print-session", "04-interactive", "06-interactive2"])
def test_each_step_of_a_recorded_conversation_begins_with_all_of_the_step_before(session: str) -> None:
    """That is what kept threads and caches live of: blocks or strings, moving cache marks and billing blocks alike."""
    conversations: dict[str, list[tuple[bytes, ...]]] = {}
    steps = continued = 0
    for _, entry in recordings(session):
        turn = parse_entry(entry).turn
        prints, _ = item_digests(turn.history)
        known = conversations.setdefault(_conversation(entry), [])
        if known and len(prints) > len(known[-1]):
            steps += 1
            continued += prints[: len(known[-1])] == known[-1]
        known.append(prints)
    assert steps >= 3
    assert continued / steps >= 0.95


def _conversation(entry: dict[str, Any]) -> str:
    """What tells one conversation of a session from another: its first message, and the tools at its beginning."""
    body = entry["body"]
    headers = {name.lower(): value for name, value in entry["headers"]}
    first = body["messages"][0]["content"]
    text = first if isinstance(first, str) else [block.get("text") for block in first]
    compacting = "CRITICAL: Respond with TEXT ONLY" in json.dumps(body["messages"][-1])
    return json.dumps([headers.get("x-claude-code-agent-id"), text, bool(body.get("tools")), compacting])
