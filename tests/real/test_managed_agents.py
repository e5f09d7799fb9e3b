"""Anthropic's Managed Agents API on the real Codex and the real Claude Code, with the official SDK as the client. Every
event is held to the SDK's types.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic import Anthropic, BadRequestError

from tests.npm import run_beside
from tests.parts.managed_agents.driving import TOOLSET, WEATHER
from tests.parts.managed_agents.following import INTERRUPT, check_log, confirm, kinds, message, result, said
from tests.parts.managed_agents.test_typescript import SDK as TYPESCRIPT
from tests.parts.managed_agents.test_typescript import program as typescript_program
from tests.real.anthropic_model import anthropic_model
from tests.real.codex_home import make_codex_home
from tests.real.managed_programs import (
    ASK_FOR_COMMANDS,
    KEY,
    OnClaudeCode,
    OnCodex,
    Program,
    Session,
    is_running,
)
from tests.real.model_plans import plan, say
from tests.real.model_server import ModelServer
from tests.real.shared import living_on
from tests.waiting import eventually

pytestmark = [pytest.mark.part("managed_agents"), pytest.mark.exhaustive]

COMPACTED_AT = 50_000
"""The tokens of a conversation at which Codex sums it up."""


@living_on(scope="module", params=["codex", "claude-code"])
async def program(request: pytest.FixtureRequest, living_model_server: ModelServer) -> AsyncIterator[Program]:
    with tempfile.TemporaryDirectory(prefix="codex-proxy-test-", ignore_cleanup_errors=True) as folder:
        if request.param == "codex":
            home = make_codex_home(Path(folder), living_model_server.base_url)
            home.add_config(f"model_auto_compact_token_limit = {COMPACTED_AT}")
            on_codex = OnCodex(home, living_model_server)
            await on_codex.start()
            yield on_codex
            await on_codex.close()
            return
        async with anthropic_model() as model:
            on_claude = OnClaudeCode(Path(folder), model)
            await on_claude.start()
            yield on_claude
            await on_claude.close()


def count_of(file: Path) -> int:
    """How often a command has written its line."""
    return len(file.read_text().splitlines()) if file.exists() else 0


async def test_a_denied_command_does_not_run_and_an_allowed_one_runs_once(program: Program) -> None:
    session = await Session.create(program, ASK_FOR_COMMANDS)
    file = program.workdir / "asked"
    async with session.reading():
        command = program.runs(f"echo ran >> {file}")
        await session.say(command, program.says("No."))
        await session.confirm(await session.until_asked(), "deny", deny_message="Ask me tomorrow.")
        assert await session.until_rest() == "end_turn"
        assert not file.exists()
        assert "Ask me tomorrow." in program.told_to_model()
        await session.say(command, program.says("Yes."))
        use = await session.until_asked()
        assert not file.exists()
        await session.confirm(use)
        assert await session.until_rest() == "end_turn"
        assert count_of(file) == 1
    denied, (_, failed) = session.results()
    assert (denied, failed) == (("Ask me tomorrow.", True), False)
    assert said(session.events) == ["No.", "Yes."]
    assert await session.listed() == session.events


async def test_with_two_readers_and_kills_nothing_runs_before_an_allow_and_once_after(
    program: Program,
) -> None:
    session = await Session.create(program, ASK_FOR_COMMANDS)
    readers = session, Session(program, session.id)
    file = program.workdir / "two-readers"
    command = f"echo ran >> {file}; tail -f /dev/null --pid=1 -s 4218"

    async def asked() -> str:
        uses = [await each.until_asked() for each in readers]
        assert uses[0] == uses[1]
        assert not file.exists()
        return uses[0]

    async with readers[0].reading(), readers[1].reading():
        await session.say(program.runs(command), program.says("Done."))
        lost = await asked()
        await _kill_and_start(program, readers)
    async with readers[0].reading(), readers[1].reading():
        for each in readers:
            await each.catch_up()
            with pytest.raises(BadRequestError, match="does not match"):
                await each.confirm(lost)
        await session.say(program.runs(command), program.says("Done."))
        use = await asked()
        told = await asyncio.gather(*(each.confirm(use) for each in readers), return_exceptions=True)
        (late,) = (each for each in told if each is not None)
        assert isinstance(late, BadRequestError)
        await eventually(file.exists)
        await _kill_and_start(program, readers)
    async with readers[0].reading(), readers[1].reading():
        for each in readers:
            await each.catch_up()
            assert each.events[-1]["stop_reason"]["type"] == "retries_exhausted"
        await session.say(program.says("Hello."))
        assert [await each.until_rest() for each in readers] == ["end_turn", "end_turn"]
    assert count_of(file) == 1
    assert [failed for _, failed in session.results()] == [True, True]
    assert readers[0].events == readers[1].events == await session.listed()


async def _kill_and_start(program: Program, readers: Iterable[Session]) -> None:
    """Kills the server while its streams are read, and starts it again."""
    reading = [asyncio.create_task(each.until(lambda _: False)) for each in readers]
    await program.kill()
    await asyncio.wait(reading)
    assert all(task.exception() is not None for task in reading)
    await program.start()


async def test_a_custom_tool_gets_the_models_input_and_gives_its_result(program: Program) -> None:
    session = await Session.create(program, WEATHER)
    async with session.reading():
        await session.say(program.calls(city="Paris"), program.says("It is warm."))
        use = await session.until_asked()
        (call,) = [event for event in session.events if event["type"] == "agent.custom_tool_use"]
        assert (call["id"], call["name"], call["input"]) == (use, "get_weather", {"city": "Paris"})
        assert kinds(session.events).count("span.model_request_start") == 1
        await session.answer(use, "sunny, 24 degrees")
        assert await session.until_rest() == "end_turn"
    assert "sunny, 24 degrees" in program.told_to_model()
    assert said(session.events) == ["It is warm."]
    assert await session.listed() == session.events


async def test_a_file_that_was_put_into_the_folder_is_read_by_the_program_after_a_kill(
    program: Program,
) -> None:
    words = "The password is a blue heron."
    file = await program.client.beta.files.upload(file=("notes.txt", words.encode()))
    given = {"type": "file", "file_id": file.id, "mount_path": "/data/notes.txt"}
    session = await Session.create(program, TOOLSET, resources=[given])
    await program.kill()
    await program.start()
    async with session.reading():
        await session.say(program.reads("data/notes.txt"), program.says("I have read it."))
        assert await session.until_rest() == "end_turn"
    ((output, failed),) = session.results()
    assert (words in output, failed) == (True, False)
    assert words in program.told_to_model()
    document: Any = {"type": "document", "source": {"type": "file", "file_id": file.id}}
    async with session.reading():
        asked = message(program.prompt(program.says("I have seen it.")))
        await session.send({**asked, "content": [document, *asked["content"]]})
        assert await session.until_rest() == "end_turn"
    assert program.told_to_model().count(words) > 1
    await program.kill()
    await program.start()
    assert await session.listed() == session.events
    downloaded = await program.client.beta.files.download(file.id)
    assert await downloaded.read() == words.encode()
    await program.client.beta.sessions.delete(session.id)
    assert not (program.workdir / "data/notes.txt").exists()


async def test_an_interrupt_ends_a_running_command_and_the_session_goes_on_after_a_kill(
    program: Program,
) -> None:
    session = await Session.create(program, TOOLSET)
    file = program.workdir / "began"
    async with session.reading():
        command = "tail -f /dev/null --pid=1 -s 4217"
        await session.say(program.runs(f"touch {file}; {command}"), program.says("Done."))
        await session.until(lambda event: event["type"] == "agent.tool_use")
        await eventually(file.exists)
        assert is_running(command)
        await session.send(INTERRUPT)
        assert await session.until_rest() == "end_turn"
        await eventually(lambda: not is_running(command))
        assert [failed for _, failed in session.results()] == [True]
    await program.kill()
    await program.start()
    before = len(session.events)
    async with session.reading():
        await session.say(program.says("Hello."))
        assert await session.until_rest() == "end_turn"
    assert kinds(session.events[before:]) == [
        *("user.message", "session.status_running", "span.model_request_start"),
        *("agent.message", "span.model_request_end", "session.status_idle"),
    ]
    assert await session.listed() == session.events


async def test_a_message_behind_an_interrupt_of_an_open_question_goes_on(program: Program) -> None:
    session = await Session.create(program, ASK_FOR_COMMANDS)
    file = program.workdir / "interrupted"
    async with session.reading():
        await session.say(program.runs(f"echo ran >> {file}"), program.says("Done."))
        await session.until_asked()
        await session.send(INTERRUPT, message(program.prompt(program.says("Hello."))))
        assert await session.until_rest() == "end_turn"
    assert not file.exists()
    assert [failed for _, failed in session.results()] == [True]
    assert said(session.events) == ["Hello."]
    assert await session.listed() == session.events


async def test_a_subagent_has_a_thread_with_its_own_log_also_after_a_kill(program: Program) -> None:
    self_only: Any = {"type": "coordinator", "agents": [{"type": "self"}]}
    session = await Session.create(program, TOOLSET, multiagent=self_only)
    async with session.reading():
        await session.say(program.delegates("Look around."), program.says("It has looked."))
        assert await session.until_rest() == "end_turn"
    threads = program.client.beta.sessions.threads
    own, kid = [each async for each in threads.list(session.id)]
    assert (own.parent_thread_id, kid.parent_thread_id, kid.status) == (None, own.id, "idle")
    events: list[Any] = [
        event.to_dict(mode="json") async for event in threads.events.list(kid.id, session_id=session.id)
    ]
    check_log(events)
    (task,) = said(events, "agent.thread_message_received")
    assert "Look around." in task
    assert len(said(events)) == 1
    told = [kind for kind in kinds(session.events) if kind.startswith("session.thread_")]
    assert told == ["session.thread_created", "session.thread_status_running", "session.thread_status_idle"]
    await program.kill()
    await program.start()
    threads = program.client.beta.sessions.threads
    assert [each async for each in threads.list(session.id)] == [own, kid]
    again = threads.events.list(kid.id, session_id=session.id)
    assert [event.to_dict(mode="json") async for event in again] == events
    async with session.reading():
        await session.say(program.says("Again."))
        assert await session.until_rest() == "end_turn"
    assert await session.listed() == session.events


async def test_what_a_subagent_asks_for_is_answered_in_the_session(program: Program) -> None:
    if not isinstance(program, OnClaudeCode):
        pytest.skip("what a subagent of Codex asks for is declined")
    self_only: Any = {"type": "coordinator", "agents": [{"type": "self"}]}
    session = await Session.create(program, ASK_FOR_COMMANDS, multiagent=self_only)
    file = program.workdir / "asked by a subagent"
    commands = [program.runs(f"echo {word} >> '{file}'") for word in ("denied", "allowed")]
    task = program.prompt(*commands, program.says("It is written."))
    async with session.reading():
        await session.say(program.delegates(task), program.says("Done."))
        for decision, words in (("deny", {"deny_message": "Not this one."}), ("allow", {})):
            use = await session.until_asked()
            assert not file.exists()
            await session.confirm(use, decision, **words)
        assert await session.until_rest() == "end_turn"
    assert file.read_text() == "allowed\n"
    threads = program.client.beta.sessions.threads
    _, kid = [each async for each in threads.list(session.id)]
    asked = [event for event in session.events if event["type"] == "agent.tool_use"]
    answers = [event for event in session.events if event["type"] == "user.tool_confirmation"]
    assert [event["evaluated_permission"] for event in asked] == ["ask", "ask"]
    assert {event["session_thread_id"] for event in [*asked, *answers]} == {kid.id}
    events: list[Any] = [
        event.to_dict(mode="json") async for event in threads.events.list(kid.id, session_id=session.id)
    ]
    check_log(events)
    calls = [event for event in events if event["type"] == "agent.tool_use"]
    assert [call["id"] for call in calls] == [event["id"] for event in asked]
    assert {call.get("session_thread_id") for call in calls} == {None}
    results = [event for event in events if event["type"] == "agent.tool_result"]
    assert [each["is_error"] for each in results] == [True, False]
    assert "Not this one." in str(results[0]["content"])
    assert await session.listed() == session.events


async def test_a_kill_while_a_subagent_works_ends_its_call_and_its_turn(program: Program) -> None:
    if not isinstance(program, OnClaudeCode):
        pytest.skip("a subagent of the scripted Codex has no commands")
    self_only: Any = {"type": "coordinator", "agents": [{"type": "self"}]}
    session = await Session.create(program, TOOLSET, multiagent=self_only)
    file = program.workdir / "a subagent works"
    task = program.prompt(program.runs(f"echo ran >> '{file}'; tail -f /dev/null"))
    async with session.reading():
        await session.say(program.delegates(task), program.says("Done."))
        await session.until(lambda event: event["type"] == "session.thread_status_running")
        await eventually(file.exists)
        await _kill_and_start(program, [session])
    async with session.reading():
        await session.catch_up()
        assert session.events[-1]["stop_reason"]["type"] == "retries_exhausted"
        threads = program.client.beta.sessions.threads
        _, kid = [each async for each in threads.list(session.id)]
        assert kid.status == "idle"
        events: list[Any] = [
            event.to_dict(mode="json") async for event in threads.events.list(kid.id, session_id=session.id)
        ]
        check_log(events)
        assert [each["is_error"] for each in events if each["type"] == "agent.tool_result"] == [True]
        assert events[-1]["type"] == "session.thread_status_idle"
        told = [kind for kind in kinds(session.events) if kind.startswith("session.thread_")]
        assert told[-2:] == ["session.thread_status_running", "session.thread_status_idle"]
        await session.say(program.says("Hello."))
        assert await session.until_rest() == "end_turn"
    assert count_of(file) == 1
    assert await session.listed() == session.events


def run_example(client: Anthropic, prompt: str) -> tuple[list[str], str]:
    """A program that was written for Anthropic's service. Returns the types of the calls that it has answered, and the
    agent's last words.
    """
    beta = client.beta
    environment = beta.environments.create(name="example", config={"type": "cloud"})
    agent = beta.agents.create(name="Helper", model="codex-5", tools=cast("Any", [ASK_FOR_COMMANDS, WEATHER]))
    session = beta.sessions.create(agent=agent.id, environment_id=environment.id, title="An example")
    answered, words, calls = [], "", dict[str, str]()
    with beta.sessions.events.stream(session.id) as stream:
        beta.sessions.events.send(session.id, events=cast("Any", [message(prompt)]))
        for event in stream:
            if event.type in ("agent.tool_use", "agent.custom_tool_use"):
                calls[event.id] = event.type
            elif event.type == "agent.message":
                words = "".join(block.text for block in event.content if block.type == "text")
            elif event.type == "session.status_idle":
                if event.stop_reason.type != "requires_action":
                    break
                for id in event.stop_reason.event_ids:
                    answered.append(calls[id])
                    own = calls[id] == "agent.tool_use"
                    answer: Any = confirm(id) if own else result(id, "sunny, 24 degrees")
                    beta.sessions.events.send(session.id, events=[answer])
    assert beta.sessions.retrieve(session.id).title == "An example"
    beta.sessions.archive(session.id)
    assert beta.sessions.delete(session.id).type == "session_deleted"
    return answered, words


async def test_a_program_for_anthropics_service_runs_with_another_address(program: Program) -> None:
    file = program.workdir / "example"
    steps = program.runs(f"echo ran >> {file}"), program.calls(city="Oslo"), program.says("It is warm.")
    with Anthropic(api_key=KEY, base_url=program.url, max_retries=0) as client:
        answered, words = await asyncio.to_thread(run_example, client, program.prompt(*steps))
    assert (answered, words) == (["agent.tool_use", "agent.custom_tool_use"], "It is warm.")
    assert count_of(file) == 1


async def test_a_program_in_typescript_denies_confirms_and_answers(program: Program, tmp_path: Path) -> None:
    file = program.workdir / "typescript"
    commands = [program.runs(f"echo {word} >> {file}") for word in ("denied", "allowed")]
    asks = program.prompt(*commands, program.says("Done."))
    calls = program.prompt(program.calls(city="Oslo"), program.says("It is warm."))
    given = (program.url, KEY, asks, calls)
    printed = await run_beside(TYPESCRIPT, typescript_program("anthropic_session.mjs"), tmp_path, *given)
    told = json.loads(printed)
    denied, (_, failed) = told.pop("results")
    assert (denied, failed) == (["Not this one.", True], False)
    assert file.read_text() == "allowed\n"
    assert told == {
        "said": ["Done.", "It is warm."],
        "custom": ["get_weather"],
        "same": True,
        "found": ["A session", "idle"],
        "refused": 409,
        "deleted": "session_deleted",
    }


async def test_a_conversation_that_the_program_has_summed_up_is_told(program: Program) -> None:
    session = await Session.create(program, TOOLSET)
    if isinstance(program, OnClaudeCode):
        long = program.prompt(program.says("Long.") | {"in": 5_000_000})
    else:
        long = plan([say("Long.")], again=None, **{"in": 2 * COMPACTED_AT})
    async with session.reading():
        for prompt in (long, program.prompt(program.says("Again."))):
            await session.send(message(prompt))
            assert await session.until_rest() == "end_turn"
    assert kinds(session.events).count("agent.thread_context_compacted") == 1
    assert said(session.events) == ["Long.", "Again."]
    assert await session.listed() == session.events


async def test_sessions_go_on_after_the_server_was_killed(program: Program) -> None:
    asks = await Session.create(program, ASK_FOR_COMMANDS)
    calls = await Session.create(program, WEATHER)
    rests = await Session.create(program, TOOLSET)
    file = program.workdir / "killed"
    async with rests.reading(), calls.reading(), asks.reading():
        await rests.say(program.says("Hello."))
        await rests.until_rest()
        await calls.say(program.calls(city="Rome"), program.says("It is warm."))
        use = await calls.until_asked()
        await asks.say(program.runs(f"echo ran >> {file}"), program.says("Done."))
        await asks.until_asked()
    await program.kill()
    await program.start()
    for session in (asks, calls, rests):
        listed = await session.listed()
        assert listed[: len(session.events)] == session.events
        session.events = listed
    assert asks.results()[-1][1] is True
    assert asks.events[-1]["stop_reason"]["type"] == "retries_exhausted"
    async with rests.reading(), calls.reading(), asks.reading():
        await calls.answer(use, "sunny, 24 degrees")
        assert await calls.until_rest() == "end_turn"
        assert said(calls.events) == ["It is warm."]
        assert "sunny, 24 degrees" in program.told_to_model()
        for session in (rests, asks):
            await session.say(program.says("Again."))
            assert await session.until_rest() == "end_turn"
            assert said(session.events)[-1] == "Again."
        assert not file.exists()
    for session in (asks, calls, rests):
        assert await session.listed() == session.events
