"""The toolset of a session on the real Claude Code: which tools it has, what it asks before, and what a denial says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.server import Server
from codex_proxy.core.events import ItemEnded
from codex_proxy.core.turn import Toolset
from codex_proxy.parts.sessions.approvals import request_id_of
from tests.parts.sessions.toolsets import answer, calls, give_toolset
from tests.real.anthropic_model import AnthropicModel, anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.test_approvals import KEY, WAITS
from tests.real.test_approvals_of_claude import tool

pytestmark = [pytest.mark.part("sessions"), pytest.mark.exhaustive]

IDLE = "agent.session.idle"


class Driven:
    """A session on the real program."""

    def __init__(self, client: Any, server: Server, model: AnthropicModel) -> None:
        self.sessions = client.with_options(api_key=KEY).beta.agents.sessions
        self.server, self.model = server, model
        self.workdir = Path(server.settings.workdir)
        self.id = ""
        self.events: list[Any] = []

    async def begin(self, toolset: Toolset) -> None:
        environment: Any = {"type": "self_hosted", "workspace_directory": str(self.workdir), "remote_url": ""}
        created = await self.sessions.create(environment=environment, agent={"model": "codex-5"})
        self.id = created.id
        await give_toolset(self.server, self.id, toolset)

    @asynccontextmanager
    async def turn(self, *steps: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a turn with these steps of the model, and the text "Done."."""
        content = [{"type": "input_text", "text": f"Do it. {script(*steps, {'text': 'Done.'})}"}]
        message: Any = {"type": "message", "role": "user", "content": content}
        async with await self.sessions.events.stream(self.id) as stream:
            await self.sessions.events.create(
                self.id, events=[{"type": "agent.session.input.message", "input": [message]}]
            )
            yield stream

    async def answered(self, *steps: dict[str, Any], says: str = "") -> list[str]:
        """A turn whose questions are denied with these words, or approved without. Returns what was asked for."""
        asked = []
        async with self.turn(*steps) as stream:
            async for event in stream:
                self.events.append(event)
                if event.type == IDLE:
                    break
                if event.type == WAITS:
                    (action,) = event.session.required_actions
                    asked.append(action.request.name)
                    await answer(self.server, self.id, action.request_id, "deny" if says else "approve", says)
        return asked

    def results(self) -> list[tuple[str, bool]]:
        """What the model was told of its calls, and whether that is an error."""
        blocks = [
            block
            for message in self.model.last["messages"]
            for block in (message["content"] if isinstance(message["content"], list) else ())
            if block["type"] == "tool_result"
        ]
        return [(_text(block["content"]), bool(block.get("is_error"))) for block in blocks]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@asynccontextmanager
async def driven(folder: Path, toolset: Toolset, **more: Any) -> AsyncIterator[Driven]:
    async with (
        anthropic_model() as model,
        claude_proxy(folder, model, api_key=KEY, **{"sandbox": "danger-full-access"} | more) as (
            client,
            server,
        ),
    ):
        session = Driven(client, server, model)
        await session.begin(toolset)
        yield session


def offered(model: AnthropicModel) -> list[str]:
    return sorted(tool["name"] for tool in model.last["tools"])


async def test_the_model_has_the_enabled_tools_alone(tmp_path: Path) -> None:
    async with driven(tmp_path, Toolset(("read", "grep"), ("glob", "bash"))) as session:
        assert await session.answered({"text": "Hello."}) == []
        assert offered(session.model) == ["Bash", "Glob", "Grep", "Read"]
        await give_toolset(session.server, session.id, Toolset(("write",)))
        assert await session.answered(tool("Bash", command="touch made", description="x")) == []
        assert offered(session.model) == ["Write"]
        assert "No such tool available" in session.results()[-1][0]
        assert not (session.workdir / "made").exists()
        assert "Hello." in json.dumps(session.model.last["messages"]), (
            "the same session of the program goes on"
        )


async def test_what_only_reads_is_asked_for_too_and_the_words_of_a_denial_reach_the_model(
    tmp_path: Path,
) -> None:
    async with driven(tmp_path, Toolset((), ("bash", "read", "glob", "grep"))) as session:
        (session.workdir / "a.txt").write_text("seen\n")
        steps = [
            tool("Bash", command="ls", description="x"),
            tool("Read", file_path=str(session.workdir / "a.txt")),
            tool("Glob", pattern="*.txt"),
            tool("Grep", pattern="seen"),
        ]
        says = 'Ask me tomorrow: é, "quotes" and\ntwo lines.'
        assert len(await session.answered(*steps, says=says)) == 4
        assert session.results() == [(says, True)] * 4
        assert len(await session.answered(*steps)) == 4
        assert not any(is_error for _, is_error in session.results()[4:])
        assert session.results()[4][0] == "a.txt"


async def test_a_call_is_told_with_the_toolsets_name_and_input(tmp_path: Path) -> None:
    async with driven(tmp_path, Toolset(("write", "read"), ("bash", "edit"))) as session:
        path = str(session.workdir / "a.txt")
        asked = await session.answered(
            tool("Write", file_path=path, content="one\n"),
            tool("Bash", command="cat a.txt", description="x", timeout=5000),
            tool("Read", file_path=path, offset=1, limit=2),
            tool("Edit", file_path=path, old_string="one", new_string="two", replace_all=True),
        )
        assert asked == ["run_command", "apply_patch"]
        assert Path(path).read_text() == "two\n"
        found = [
            (events[0].item.details.use, events) for _, events in await calls(session.server, session.id)
        ]
        assert [(use.name, json.loads(use.input), use.permission) for use, _ in found] == [
            ("write", {"file_path": path, "content": "one\n"}, "always_allow"),
            ("bash", {"command": "cat a.txt", "timeout_ms": 5000}, "always_ask"),
            ("read", {"file_path": path, "view_range": [1, 2]}, "always_allow"),
            (
                *("edit", {"file_path": path, "old_string": "one", "new_string": "two", "replace_all": True}),
                "always_ask",
            ),
        ]
        assert all(
            isinstance(events[-1], ItemEnded) and events[-1].status == "completed" for _, events in found
        )


async def test_two_calls_of_a_step_are_answered_before_the_program_asks_about_the_second(
    tmp_path: Path,
) -> None:
    """The program asks about the second when the first has run."""
    async with driven(tmp_path, Toolset((), ("bash",))) as session:
        step = {
            "tools": [
                {"name": "Bash", "args": {"command": f"echo {name} >> {name}"}} for name in ("one", "two")
            ]
        }
        asked = 0
        async with session.turn(step) as stream:
            async for event in stream:
                if event.type == IDLE:
                    break
                if event.type == WAITS:
                    asked += 1
                    assert not list(session.workdir.iterdir())
                    (action,) = event.session.required_actions
                    two: list[Any] = []
                    while len(two) < 2:
                        two = [entry for entry, _ in await calls(session.server, session.id)]
                    (early,) = {request_id_of(entry.id) for entry in two} - {action.request_id}
                    await answer(session.server, session.id, early, "deny", "Not two.")
                    await answer(session.server, session.id, action.request_id, "approve")
        assert asked == 1
        assert [each.name for each in session.workdir.iterdir()] == ["one"]
        assert (session.workdir / "one").read_text() == "one\n"
        assert session.results()[1] == ("Not two.", True)


async def test_in_a_sandbox_what_is_allowed_stays_in_the_folder(tmp_path: Path) -> None:
    toolset = Toolset(("write", "read"), ("edit",))
    async with driven(tmp_path, toolset, sandbox="workspace-write") as session:
        outside, inside, link = tmp_path / "outside.txt", session.workdir / "a.txt", session.workdir / "link"
        outside.write_text("secret\n")
        link.symlink_to(outside)
        asked = await session.answered(
            tool("Write", file_path=str(inside), content="one\n"),
            tool("Write", file_path=str(tmp_path / "new.txt"), content="one\n"),
            tool("Read", file_path=str(outside)),
            tool("Read", file_path=str(link)),
            tool("Edit", file_path=str(inside), old_string="one", new_string="two"),
        )
        assert asked == ["apply_patch"]
        assert inside.read_text() == "two\n"
        assert not (tmp_path / "new.txt").exists()
        assert not any("secret" in said for said, _ in session.results())
        assert [is_error for _, is_error in session.results()] == [False, True, True, True, False]


async def test_an_interrupt_withdraws_the_question_and_the_session_goes_on(tmp_path: Path) -> None:
    async with driven(tmp_path, Toolset((), ("bash",))) as session:
        async with session.turn(tool("Bash", command="touch made", description="x")) as stream:
            async for event in stream:
                if event.type == WAITS:
                    await session.sessions.events.create(
                        session.id, events=[{"type": "agent.session.input.cancel"}]
                    )
                if event.type == IDLE:
                    assert event.session.required_actions == []
                    break
        assert not (session.workdir / "made").exists()
        assert await session.answered({"text": "Hello."}) == []
        assert not (session.workdir / "made").exists()


async def test_a_session_goes_on_with_other_tools_of_the_client(tmp_path: Path) -> None:
    """The program gets them anew with each process: nothing that it knows is lost by that."""
    weather: Any = {
        "type": "function",
        "name": "get_weather",
        "description": "x",
        "parameters": {"type": "object", "properties": {}},
    }
    async with driven(tmp_path, Toolset(("bash",))) as session:
        assert await session.answered(tool("Bash", command="echo marker-$((40+2))", description="x")) == []
        await session.sessions.update(session.id, agent={"tools": [weather]})
        assert await session.answered({"text": "Hello."}) == []
        assert "mcp__client__get_weather" in offered(session.model)
        assert session.results() == [("marker-42", False)], "the same session of the program goes on"


async def test_a_server_that_dies_with_an_open_question_has_run_nothing_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    async with driven(tmp_path, Toolset((), ("bash",))) as session:
        id = session.id
        async with session.turn(tool("Bash", command="touch made", description="x")) as stream:
            async for event in stream:
                if event.type == WAITS:
                    break
    more: Any = {"api_key": KEY, "sandbox": "danger-full-access"}
    async with anthropic_model() as model, claude_proxy(tmp_path, model, **more) as (client, server):
        again = Driven(client, server, model)
        again.id = id
        assert await again.answered({"text": "Hello."}) == []
        assert not (again.workdir / "made").exists()
        ((said, is_error),) = again.results()
        assert is_error, said
