"""OpenAI's SDK as the client: what its users write runs unchanged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.beta import AgentSession
from pydantic import BaseModel

from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import AGENT, WEATHER, AgentsClient, sdk, text_of
from tests.pictures import PIXEL
from tests.sdk_fields import unknown_fields

NONE: Any = {"type": "none"}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as proxy:
        yield proxy


@pytest.fixture
async def api(proxy: Proxy) -> AsyncIterator[Any]:
    """`client.beta.agents`."""
    async with sdk(proxy) as client:
        yield client.beta.agents


# --- agents -----------------------------------------------------------------------------------------


async def test_an_agent_is_created_changed_and_deleted(api: Any) -> None:
    made = await api.create(
        model="codex-5",
        name="Weather",
        instructions="Be kind.",
        metadata={"team": "a"},
        tools=[WEATHER],
        reasoning={"effort": "low"},
        text={"format": {"type": "text"}, "verbosity": "low"},
    )
    assert not unknown_fields(made)
    assert (made.name, made.reasoning.effort, made.reasoning.summary) == ("Weather", "low", None)
    assert await api.retrieve(made.id) == made

    changed = await api.update(
        made.id, instructions=None, metadata={"team": "b"}, reasoning={"summary": "auto"}
    )
    assert (changed.instructions, changed.metadata, changed.name) == (None, {"team": "b"}, "Weather")
    assert (changed.reasoning.effort, changed.reasoning.summary) == (None, "auto")
    assert changed.tools == made.tools

    deleted = await api.delete(made.id)
    assert (deleted.id, deleted.deleted) == (made.id, True)
    with pytest.raises(openai.NotFoundError):
        await api.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await api.delete(made.id)


async def test_an_agent_of_the_model_alone_has_the_defaults(api: Any) -> None:
    made = await api.create(model="codex-5")
    assert json.loads(
        made.model_dump_json(exclude={"id", "created_at", "updated_at"}, exclude_unset=True)
    ) == {
        "object": "agent",
        "name": None,
        "model": "codex-5",
        "instructions": None,
        "metadata": {},
        "tools": [],
        "reasoning": {"effort": None, "summary": None},
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "service_tier": "auto",
        "multi_agent": {"enabled": False, "max_concurrent_subagents": None},
    }


async def test_agents_are_listed_in_both_orders_over_pages(api: Any) -> None:
    made = [(await api.create(model="codex-5", name=f"n{number}")).id for number in range(5)]
    assert [agent.id async for agent in api.list(limit=2, order="asc")] == made
    assert [agent.id async for agent in api.list(limit=2)] == made[::-1]
    assert [agent.id async for agent in api.list(limit=3, after=made[1], order="asc")] == made[2:]


async def test_a_session_keeps_the_agent_that_it_was_created_with(api: Any) -> None:
    agent = await api.create(model="codex-5", name="Weather", instructions="Be kind.", metadata={"team": "a"})
    session = await api.sessions.create(environment=NONE, agent_id=agent.id, input="Hello.")
    await api.update(agent.id, instructions="Be brief.", name="Other")
    await api.delete(agent.id)
    found = (await api.sessions.retrieve(session.id)).agent
    assert (found.id, found.name, found.instructions) == (agent.id, "Weather", "Be kind.")
    assert session.metadata == {}


async def test_each_field_of_the_session_replaces_the_saved_one_whole(api: Any) -> None:
    agent = await api.create(
        model="codex-5",
        instructions="Be kind.",
        tools=[WEATHER],
        reasoning={"effort": "low", "summary": "auto"},
    )
    inline: Any = {"tools": None, "reasoning": {"effort": "high"}}
    session = await api.sessions.create(environment=NONE, agent_id=agent.id, agent=inline, input="Hello.")
    assert session.agent.tools == []
    assert (session.agent.reasoning.effort, session.agent.reasoning.summary) == ("high", None)
    assert session.agent.instructions == "Be kind."


# --- sessions ---------------------------------------------------------------------------------------


async def ended(api: Any, id: str) -> AgentSession:
    """The session, when its turn has ended."""
    async with await api.sessions.events.stream(id) as stream:
        found: AgentSession = await api.sessions.retrieve(id)
        if found.status == "in_progress":
            async for event in stream:
                if event.type == "agent.session.idle":
                    return event.session  # type: ignore[no-any-return]
    return found


async def test_a_session_that_is_not_streamed_is_at_work_when_it_is_answered(proxy: Proxy, api: Any) -> None:
    session = await api.sessions.create(environment=NONE, agent={"model": "codex-5"}, input="Hello.")
    assert not unknown_fields(session)
    assert session.status == "in_progress"
    idle = await ended(api, session.id)
    assert (idle.status, idle.required_actions, idle.error) == ("idle", [], None)
    assert idle.usage is not None
    page = await api.sessions.items.list(session.id, order="asc")
    assert [item.role for item in page.data] == ["user", "assistant"]
    assert not unknown_fields(page.data)


async def test_a_creation_stream_ends_when_the_session_is_idle(api: Any) -> None:
    stream = await api.sessions.create(
        environment=NONE, agent={"model": "codex-5"}, input="Hello.", stream=True
    )
    events = [event async for event in stream]
    assert not unknown_fields(events)
    assert (events[0].type, events[-1].type) == ("agent.session.created", "agent.session.idle")
    assert len({event.event_id for event in events}) == len(events)


async def test_the_result_of_a_creation_stream_is_the_answer(api: Any) -> None:
    stream = await api.sessions.create(
        environment=NONE, agent={"model": "codex-5"}, input="[[fake:text say='It is sunny.']]", stream=True
    )
    result = await stream.get_final_result()
    assert result.output_text == "It is sunny."


async def test_a_helper_runs_turn_after_turn(api: Any) -> None:
    session = await api.sessions.create(environment=NONE, agent={"model": "codex-5"}, input="Hello.")
    await ended(api, session.id)
    for word in ("one", "two", "three"):
        async with api.sessions.stream(session.id, input=f"[[fake:text say='This is {word}.']]") as stream:
            result = await stream.get_final_result()
        assert result.output_text == f"This is {word}."
    turns = [turn async for turn in api.sessions.turns.list(session.id, limit=1)]
    assert [turn.status for turn in turns] == ["completed"] * 4
    assert not unknown_fields(turns)


async def test_a_helper_can_be_used_after_a_failed_turn(api: Any) -> None:
    session = await api.sessions.create(
        environment=NONE, agent={"model": "codex-5"}, input="[[fake:error_500]]"
    )
    await ended(api, session.id)
    (failed,) = (await api.sessions.turns.list(session.id)).data
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    async with api.sessions.stream(session.id, input="[[fake:text say='Well.']]") as stream:
        assert (await stream.get_final_result()).output_text == "Well."


async def test_handlers_answer_every_call(api: Any) -> None:
    seen = []

    async def get_weather(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        return f"sunny in {arguments['city']}"

    session = await api.sessions.create(environment=NONE, agent=AGENT, input="[[fake:text]]")
    await ended(api, session.id)
    async with api.sessions.stream(
        session.id, input="[[fake:tool_calls say='{outputs}']]", tool_handlers={"get_weather": get_weather}
    ) as stream:
        result = await stream.get_final_result()
    assert seen == [{"city": "Paris"}, {"city": "Rome"}]
    assert "sunny in Paris" in result.output_text
    assert "sunny in Rome" in result.output_text


async def test_a_handler_that_fails_tells_the_model_so(api: Any) -> None:
    async def get_weather(arguments: dict[str, Any]) -> str:
        raise ValueError("no weather here")

    session = await api.sessions.create(environment=NONE, agent=AGENT, input="[[fake:text]]")
    await ended(api, session.id)
    async with api.sessions.stream(
        session.id, input="[[fake:tool_call]]", tool_handlers={"get_weather": get_weather}
    ) as stream:
        await stream.until_done()
    items = (await api.sessions.items.list(session.id, order="asc")).data
    output = next(item for item in items if item.type == "function_call_output")
    assert output.status == "failed"
    assert output.error
    assert (await api.sessions.retrieve(session.id)).status == "idle"


async def test_the_client_without_asyncio_does_the_same(proxy: Proxy) -> None:
    def run() -> tuple[str, str, int]:
        with openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="x", max_retries=0) as client:
            sessions = client.beta.agents.sessions
            agent: Any = AGENT
            with sessions.create(environment=NONE, agent=agent, input="Hello.", stream=True) as created:
                first, *_ = created
            assert first.type == "agent.session.created"
            id = first.session.id
            with sessions.stream(
                id,
                input="[[fake:tool_calls say='{outputs}']]",
                tool_handlers={"get_weather": lambda arguments: f"sunny in {arguments['city']}"},
            ) as stream:
                result = stream.get_final_result()
            items = list(sessions.items.list(id, limit=1))
            return id, result.output_text, len(items)

    id, text, count = await asyncio.to_thread(run)
    assert "sunny in Rome" in text
    assert count == len(await AgentsClient(proxy).all(f"/sessions/{id}/items")) == 8


class Weather(BaseModel):
    city: str
    degrees: int


async def test_a_structured_answer_is_parsed(api: Any) -> None:
    schema = Weather.model_json_schema() | {"additionalProperties": False}
    agent: Any = {"model": "codex-5", "text": {"format": {"type": "json_schema", "schema": schema}}}
    session = await api.sessions.create(environment=NONE, agent=agent, input="How is it?")
    await ended(api, session.id)
    async with api.sessions.stream(session.id, input="How is it?", output_type=Weather) as stream:
        result = await stream.get_final_result()
    assert isinstance(result.output_parsed, Weather)


async def test_an_image_of_a_message_reaches_the_model_and_the_list(proxy: Proxy, api: Any) -> None:
    content: Any = [
        {"type": "input_text", "text": "[[fake:echo]]"},
        {"type": "input_image", "image_url": PIXEL},
    ]
    session = await api.sessions.create(
        environment=NONE, agent={"model": "codex-5"}, input=[{"role": "user", "content": content}]
    )
    await ended(api, session.id)
    items = await AgentsClient(proxy).all(f"/sessions/{session.id}/items")
    assert items[0]["content"] == content
    assert "image" in text_of(items[-1])


# --- lists ------------------------------------------------------------------------------------------


async def test_items_and_turns_are_listed_in_both_orders_over_pages(proxy: Proxy, api: Any) -> None:
    client = AgentsClient(proxy)
    id = await client.idle_session("[[fake:tool_calls]]")
    async with api.sessions.stream(id, input="[[fake:multi_message]]") as stream:
        await stream.until_done()
    items = [item["id"] for item in await client.all(f"/sessions/{id}/items")]
    assert len(items) == 6 + 3
    for limit in (1, 2, 5, 100):
        assert [item.id async for item in api.sessions.items.list(id, limit=limit, order="asc")] == items
        assert [item.id async for item in api.sessions.items.list(id, limit=limit)] == items[::-1]
    first, second = [turn.id async for turn in api.sessions.turns.list(id, limit=1, order="asc")]
    assert [turn.id async for turn in api.sessions.turns.list(id, limit=1)] == [second, first]
    for turn, its in ((first, items[:6]), (second, items[6:])):
        for limit in (1, 2, 3, 5, 6, 100):
            pages = partial(api.sessions.turns.items.list, turn, session_id=id, limit=limit)
            assert [item.id async for item in pages(order="asc")] == its
            assert [item.id async for item in pages(order="desc")] == its[::-1]
    assert (await api.sessions.turns.retrieve(second, session_id=id)).id == second


async def test_sessions_are_found_by_agent_and_metadata(api: Any) -> None:
    agent = await api.create(model="codex-5")
    made = []
    for number in range(4):
        session = await api.sessions.create(
            environment=NONE,
            agent_id=agent.id,
            input="Hello.",
            metadata={"number": str(number), "even": str(number % 2 == 0)},
        )
        made.append(session.id)
    await api.sessions.create(environment=NONE, agent={"model": "codex-5"}, input="Hello.")
    assert [each.id async for each in api.sessions.list(agent_id=agent.id, limit=1)] == made[::-1]
    even = api.sessions.list(metadata={"even": "True"}, order="asc", limit=1)
    assert [each.id async for each in even] == made[::2]
    both = api.sessions.list(metadata={"even": "True", "number": "2"})
    assert [each.id async for each in both] == [made[2]]
    assert len([each async for each in api.sessions.list(limit=2)]) == 5


async def test_a_session_is_changed_and_deleted(api: Any) -> None:
    session = await api.sessions.create(environment=NONE, agent=AGENT, input="Hello.", metadata={"a": "1"})
    await ended(api, session.id)
    changed = await api.sessions.update(
        session.id, agent={"reasoning": {"effort": "high"}}, metadata={"b": "2"}
    )
    assert not unknown_fields(changed)
    assert (changed.metadata, changed.agent.reasoning.effort) == ({"b": "2"}, "high")
    assert len(changed.agent.tools) == 1
    assert (await api.sessions.update(session.id, metadata=None)).metadata == {}
    for _ in range(2):
        deleted = await api.sessions.delete(session.id)
        assert (deleted.id, deleted.deleted) == (session.id, True)
    with pytest.raises(openai.NotFoundError):
        await api.sessions.retrieve(session.id)
    with pytest.raises(openai.NotFoundError):
        await api.sessions.items.list(session.id)


async def test_what_this_server_does_not_have_is_an_empty_list(api: Any) -> None:
    session = await api.sessions.create(environment=NONE, agent={"model": "codex-5"}, input="Hello.")
    for found in (
        api.sessions.subagents.list(session.id),
        api.sessions.artifacts.list(session.id),
        api.environments.list(),
        api.environments.templates.list(),
        api.automations.list(),
        api.vaults.list(),
    ):
        assert [each async for each in found] == []


async def test_what_only_the_hosted_service_makes_is_refused_in_words(api: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="Only OpenAI's service has this"):
        await api.environments.create(environment={"type": "openai_hosted"})
