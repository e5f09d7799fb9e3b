"""Subagents of sessions on the real Codex, with the official SDK as the client."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.parts.sessions.driving import check_event, check_item, check_object
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import plan, say
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.shared import Proxies
from tests.real.tool_loop import input_of
from tests.waiting import eventually

pytestmark = [pytest.mark.part("sessions"), pytest.mark.exhaustive]

V1 = "multi_agent_v1"
V2 = "collaboration"
KEY = "a key of the test"
ADDED = "agent.session.turn.item.added"


def call(name: str, namespace: str = V1, **arguments: Any) -> str:
    return f"[[model:tool ns={namespace} name={name} args='{json.dumps(arguments)}']]"


def thread_of_subagent(model_server: ModelServer) -> str:
    """The id that the model has of the subagent that it has made."""
    outputs = [
        item["output"] for request in model_server.calls for item in input_of(request) if "output" in item
    ]
    thread: str = json.loads(outputs[0])["agent_id"]
    return thread


def step(name: str, namespace: str = V1, **arguments: Any) -> dict[str, str]:
    """The same as a step of a plan."""
    return {"call": name, "text": json.dumps(arguments), "namespace": namespace}


def environment_of(folder: str) -> Any:
    return {"type": "self_hosted", "workspace_directory": folder, "remote_url": ""}


def agent_with(subagents: int) -> Any:
    return {
        "model": "codex-5",
        "multi_agent": {"enabled": True, "max_concurrent_subagents": subagents},
    }


async def new_session(client: AsyncOpenAI, folder: str, input: str, subagents: int = 2) -> list[Any]:
    """Creates a session that may have subagents; returns all events until it is idle."""
    stream = await client.beta.agents.sessions.create(
        environment=environment_of(folder),
        agent=agent_with(subagents),
        input=input,
        stream=True,
    )
    events = [event async for event in stream]
    for event in events:
        check_event(event.to_dict())
    return events


async def next_turn(client: AsyncOpenAI, session: str, input: str) -> list[Any]:
    async with client.beta.agents.sessions.stream(session, input=input) as stream:
        events = [event async for event in stream]
    for event in events:
        check_event(event.to_dict())
    return events


def items_of(events: list[Any]) -> list[Any]:
    return [event.item for event in events if event.type == "agent.session.turn.item.done"]


def told_of(events: list[Any]) -> list[tuple[str, Any]]:
    start = "agent.session.subagent."
    return [(each.type[len(start) :], each.subagent) for each in events if each.type.startswith(start)]


async def everything_of(client: AsyncOpenAI, session: str, subagent: str) -> list[tuple[str, list[str]]]:
    """The status of each turn of a subagent, with the texts of its items, oldest first."""
    subagents = client.beta.agents.sessions.subagents
    found: list[tuple[str, list[str]]] = []
    async for turn in subagents.turns.list(subagent, session_id=session, order="asc"):
        check_object(turn.to_dict())
        assert turn.subagent_id == subagent
        items: list[Any] = [
            item
            async for item in subagents.turns.items.list(
                turn.id, session_id=session, subagent_id=subagent, order="asc"
            )
        ]
        for item in items:
            check_item(item.to_dict())
        texts = [part.text for item in items if item.type == "message" for part in item.content]
        found.append((turn.status, texts))
    return found


async def test_an_agent_makes_a_subagent_and_goes_on_with_it_in_a_later_turn(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy, folder = await proxies.of(), str(proxies.home.workdir)
    client, subagents = proxy.client, proxy.client.beta.agents.sessions.subagents
    events = await new_session(proxy.client, folder, call("spawn_agent", message="[[model:text say=Kid.]]"))
    session, agent = events[0].session.id, events[0].session.agent.id
    [(kind, kid), (ended, _)] = told_of(events)
    assert (kind, ended, kid.status, kid.parent_agent_id) == ("created", "closed", "active", agent)
    assert kid.name
    assert [part.text for part in kid.instructions] == ["[[model:text say=Kid.]]"]
    made = items_of(events)[0]
    assert (made.type, made.agent_id, made.status) == ("create_subagent_call", agent, "completed")
    assert [part.text for part in made.content] == ["[[model:text say=Kid.]]"]
    assert await everything_of(client, session, kid.id) == [
        ("completed", ["[[model:text say=Kid.]]", "Kid."])
    ]

    thread = thread_of_subagent(model_server)
    steps = [
        [step("resume_agent", id=thread)],
        [step("send_input", target=thread, message="[[model:text say=Me.]]")],
        [step("wait_agent", targets=[thread], timeout_ms=10000)],
        [step("close_agent", target=thread)],
        [say("It is over.")],
    ]
    events = await next_turn(client, session, plan(*steps))
    resumed, sent, waited, closed, _ = items_of(events)
    assert (resumed.type, closed.type) == ("resume_subagent_call", "close_subagent_call")
    assert (sent.type, sent.sender_agent_id, sent.recipient_agent_id) == (
        "send_subagent_input_call",
        agent,
        kid.id,
    )
    assert (waited.type, waited.recipient_agent_ids) == ("wait_for_subagents_call", [kid.id])
    assert [(kind, each.id, each.opened_at) for kind, each in told_of(events)] == [
        ("active", kid.id, kid.opened_at),
        ("closed", kid.id, kid.opened_at),
    ]
    [listed] = [each async for each in subagents.list(session)]
    assert (listed.id, listed.status) == (kid.id, "closed")
    assert await everything_of(client, session, kid.id) == [
        ("completed", ["[[model:text say=Kid.]]", "Kid."]),
        ("completed", ["[[model:text say=Me.]]", "Me."]),
    ]
    turns = [turn async for turn in client.beta.agents.sessions.turns.list(session)]
    assert [turn.subagent_id for turn in turns] == [None, None]
    assert [turn.usage.total_tokens for turn in turns if turn.usage] == [600, 240]  # calls of its own model


async def test_a_turn_ends_when_its_subagents_rest(proxies: Proxies, model_server: ModelServer) -> None:
    proxy, folder = await proxies.of(), str(proxies.home.workdir)
    task = "[[model:stall n=2 gate=kid]]"
    stream = await proxy.client.beta.agents.sessions.create(
        environment=environment_of(folder),
        agent=agent_with(2),
        input=call("spawn_agent", message=task),
        stream=True,
    )
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "agent.session.turn.item.done" and event.item.type == "message":
            await eventually(lambda: len(model_server.open) == 1)  # the root has said its last word
            model_server.open_gate("kid")
    kid = told_of(events)[0][1]
    [(status, texts)] = await everything_of(proxy.client, events[0].session.id, kid.id)
    assert (status, texts) == ("completed", [task, "word0 word1 and on."])
    assert events[-2].type == "agent.session.turn.completed"


async def test_a_cancel_ends_the_subagents(proxies: Proxies, model_server: ModelServer) -> None:
    proxy, folder = await proxies.of(), str(proxies.home.workdir)
    sessions = proxy.client.beta.agents.sessions
    stream = await sessions.create(
        environment=environment_of(folder),
        agent=agent_with(2),
        input=call("spawn_agent", message="[[model:stall n=2 gate=never]]"),
        stream=True,
    )
    events: list[Any] = []
    async for event in stream:
        events.append(event)
        if event.type == "agent.session.turn.item.done" and event.item.type == "message":
            session = events[0].session.id
            await sessions.events.create(session, events=[{"type": "agent.session.input.cancel"}])
    await eventually(lambda: not model_server.open)
    assert [kind for kind, _ in told_of(events)] == ["created", "closed"]
    assert events[-2].type == "agent.session.turn.cancelled"
    [(status, _)] = await everything_of(proxy.client, session, told_of(events)[0][1].id)
    assert status == "cancelled"
    await eventually(lambda: proxy.idle)


async def test_no_more_subagents_are_open_than_the_session_allows(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy, folder = await proxies.of(), str(proxies.home.workdir)
    input = '[[model:tool ns=multi_agent_v1 n=3 name=spawn_agent args=\'{"message":"[[model:text]]"}\']]'
    events = await new_session(proxy.client, folder, input, subagents=2)
    made = [item.status for item in items_of(events) if item.type == "create_subagent_call"]
    assert sorted(made) == ["completed", "completed", "failed"]
    assert [kind for kind, _ in told_of(events)] == ["created", "created", "closed", "closed"]


async def test_turns_of_sessions_without_subagents_and_plain_turns_have_no_tools_for_them(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy, folder = await proxies.of(), str(proxies.home.workdir)
    await proxy.client.chat.completions.create(
        model="codex-5",
        messages=[{"role": "user", "content": "Hello"}],
        extra_headers={"X-Codex-Mode": "model"},
    )
    stream = await proxy.client.beta.agents.sessions.create(
        environment=environment_of(folder), agent={"model": "codex-5"}, input="Hello", stream=True
    )
    assert [event.type async for event in stream][-1] == "agent.session.idle"
    await new_session(proxy.client, folder, "Hello")
    chat, without, session = (tools_of(request.body) for request in model_server.calls)
    assert "exec_command" in without
    assert f"{V1}.spawn_agent" in session
    assert [name for name in (*chat, *without) if name.startswith((V1, V2))] == []


async def test_agent_turns_of_other_apis_end_when_their_subagents_rest(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxies.of()
    asked = asyncio.ensure_future(
        proxy.client.chat.completions.create(
            model="codex-5",
            messages=[
                {"role": "user", "content": call("spawn_agent", message="[[model:stall n=2 gate=kid]]")}
            ],
            extra_headers={"X-Codex-Mode": "agent"},
        )
    )
    await eventually(lambda: len(model_server.open) == 1 and len(model_server.calls) == 3)
    assert not asked.done()
    model_server.open_gate("kid")
    answer = (await asked).choices[0].message
    assert answer.content
    assert "[subagent] create" in str(answer.to_dict()["reasoning_content"])
    await eventually(lambda: proxy.idle)


async def test_models_with_encrypted_messages_between_agents_have_subagents(
    own_proxies: Proxies, model_server: ModelServer
) -> None:
    own_proxies.home.add_config("features.multi_agent_v2 = true")
    proxy, folder = await own_proxies.of(), str(own_proxies.home.workdir)
    spawn = step("spawn_agent", V2, task_name="kid", message="Say hello.", fork_turns="none")
    wait = step("wait_agent", V2, timeout_ms=10000)
    events = await new_session(proxy.client, folder, plan([spawn], [wait], [say("Done.")]))
    session, agent = events[0].session.id, events[0].session.agent.id
    kid = told_of(events)[0][1]
    assert (kid.name, kid.instructions) == ("kid", None)
    made, waited, _ = items_of(events)
    assert (made.type, made.content) == ("create_subagent_call", [])
    assert waited.type == "wait_for_subagents_call"
    [answer] = [event.item for event in events if event.type == ADDED and event.item.type == "agent_message"]
    assert (answer.sender_agent_id, answer.recipient_agent_id) == (kid.id, agent)
    assert [part.text for part in answer.content] == ["Hello from the scripted model."]
    assert await everything_of(proxy.client, session, kid.id) == [
        ("completed", ["Hello from the scripted model."])
    ]
    events = await next_turn(proxy.client, session, call("followup_task", V2, target="kid", message="Again."))
    assert [(kind, each.id) for kind, each in told_of(events)] == [("active", kid.id), ("closed", kid.id)]
    sent = items_of(events)[0]
    assert (sent.type, sent.recipient_agent_id) == ("send_subagent_input_call", kid.id)
    assert len(await everything_of(proxy.client, session, kid.id)) == 2


@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
async def test_a_subagents_commands_are_confined_as_its_parents(
    own_proxies: Proxies, model_server: ModelServer, sandbox: str
) -> None:
    home = own_proxies.home
    state, outside = home.path.parent / "server", home.user / "outside"
    state.mkdir()
    (state / "kept").write_text("another client's data")
    proxy = await own_proxies.of(sandbox=sandbox, state_dir=state, api_key=KEY)
    client = proxy.client.with_options(api_key=KEY)
    command = f"touch {home.workdir}/inside {outside}; cat {state}/kept; echo RAN"
    task = f'[[model:shell cmd="{command}" say=Done.]]'
    events = await new_session(client, str(home.workdir), call("spawn_agent", message=task))
    kid = told_of(events)[0][1]
    found = client.beta.agents.sessions.subagents.items.list(kid.id, session_id=kid.session_id)
    items: list[Any] = [item async for item in found]
    [ran] = [item for item in items if item.type == "command_execution"]
    assert "RAN" in ran.output
    assert "another client's data" not in ran.output
    assert (home.workdir / "inside").exists() is (sandbox == "workspace-write")
    assert not outside.exists()


# --- Claude Code --------------------------------------------------------------------------------


async def test_a_task_of_claude_code_is_a_subagent(tmp_path: Path) -> None:
    folder = str(tmp_path / "work")
    asked = {"description": "look", "prompt": "Look around.", "subagent_type": "general-purpose"}
    steps = script({"tools": [{"name": "Agent", "args": asked}]}, {"text": "It has looked."})
    async with anthropic_model() as model, claude_proxy(tmp_path, model) as (client, _):
        stream = await client.beta.agents.sessions.create(
            environment=environment_of(folder), agent=agent_with(2), input=f"Go. {steps}", stream=True
        )
        events: list[Any] = [event async for event in stream]
        for event in events:
            check_event(event.to_dict())
        (first, kid), (last, closed) = told_of(events)
        assert (first, last, kid.name, closed.status) == ("created", "closed", "look", "closed")
        made, *_, answer = items_of(events)
        assert (made.type, made.status) == ("create_subagent_call", "completed")
        assert answer.content[0].text == "It has looked."
        session = events[0].session.id
        [(status, texts)] = await everything_of(client, session, kid.id)
        assert (status, texts) == ("completed", ["Look around.", "ok"])
