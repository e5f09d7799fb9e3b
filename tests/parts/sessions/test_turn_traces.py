"""The traces of a session's turns, which its client reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from openai.types.beta.agents.sessions import SessionTrace

from codex_proxy.parts.sessions import turn_traces
from codex_proxy.parts.sessions.log import LogPage
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import AgentsClient, message
from tests.parts.sessions.sdk_values import differences
from tests.parts.sessions.test_folders import hosted

WORK = "[[fake:course]]"


def spans_of(trace: dict[str, Any]) -> list[dict[str, Any]]:
    (resource,) = trace["otlp"]["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return list(scope["spans"])


async def traces(client: AgentsClient, id: str, query: str = "") -> Any:
    answer = await client.ask("GET", f"/sessions/{id}/traces{query}")
    assert answer.status == 200, answer.text
    return answer.body


async def test_each_turn_has_a_trace_with_its_calls_of_the_model_and_of_tools(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        client = AgentsClient(proxy)
        id = (await client.post("/sessions", hosted(tmp_path)))["id"]
        for text in ("The secret.", WORK, "The secret."):
            await client.turn(id, message(text))
        turns = [turn["id"] for turn in await client.all(f"/sessions/{id}/turns")]
        found = (await traces(client, id, "?order=asc"))["data"]
    assert [trace["id"] for trace in found] == turns
    assert not [differences(trace, SessionTrace) for trace in found if differences(trace, SessionTrace)]
    names = [[span["name"].split()[0] for span in spans_of(trace)] for trace in found]
    assert names[0] == names[2] == ["invoke_agent", "chat"]
    assert names[1][0] == "invoke_agent"
    assert "execute_tool" in names[1]
    for trace in found:
        own, *below = spans_of(trace)
        assert "parentSpanId" not in own
        for span in below:
            assert (span["traceId"], span["parentSpanId"]) == (own["traceId"], own["spanId"])
            times = [own["startTimeUnixNano"], span["startTimeUnixNano"], span["endTimeUnixNano"]]
            assert times == sorted(times)
            assert span["endTimeUnixNano"] <= own["endTimeUnixNano"]
    ids = [span["spanId"] for trace in found for span in spans_of(trace)]
    assert len(set(ids)) == len(ids)
    assert "secret" not in json.dumps(found)


async def test_a_page_of_traces_has_of_each_turn_what_the_whole_list_has(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        for number in range(3):
            await client.turn(id, message(f"{number}"))
        whole = (await traces(client, id))["data"]
        for order in ("asc", "desc"):
            found, after = [], ""
            while True:
                page = await traces(client, id, f"?limit=1&order={order}{after}")
                found += page["data"]
                if not page["has_more"]:
                    break
                after = f"&after={page['last_id']}"
            assert found == (whole if order == "desc" else whole[::-1])


async def test_of_a_turn_that_goes_on_there_is_what_has_ended(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        async with client.creation("[[fake:tool_call]]") as reader:
            id = (await reader.until("agent.session.requires_action"))["session"]["id"]
            (trace,) = (await traces(client, id))["data"]
            assert [span["name"].split()[0] for span in spans_of(trace)] in ([], ["chat"])


async def test_a_trace_of_an_old_turn_holds_little_of_the_log_of_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = list[int]()
    by_turn = turn_traces.events_by_turn

    def noted(pages: Iterable[LogPage], turns: Mapping[str, str]) -> Any:
        kept = [*pages]
        held.append(len(kept))
        return by_turn(kept, turns)

    monkeypatch.setattr(turn_traces, "events_by_turn", noted)
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        (whole,) = (await traces(client, id))["data"]
        for number in range(10):
            await client.turn(id, message(f"{number}"))
        page = await traces(client, id, "?limit=1&order=asc")
        assert page["data"] == [whole]
        await traces(client, id)
        assert held[1] <= held[0] + 1 < held[2]
        monkeypatch.setattr(turn_traces, "MAX_LOG_BYTES", 1)
        monkeypatch.setattr(turn_traces, "MAX_PAGE", 1)
        newest, *before = (await traces(client, id))["data"]
    assert not any(map(spans_of, before)), newest
