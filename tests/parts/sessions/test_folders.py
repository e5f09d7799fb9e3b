"""Sessions of `self_hosted`: a folder of this machine, under the rules of the header X-Codex-Workdir."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

from codex_proxy.core.keys import digest_of
from tests.http.serving import fake_proxy
from tests.parts.sessions.driving import AgentsClient, message, sdk, session_body, text_of


def hosted(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "environment": {"type": "self_hosted", "workspace_directory": str(folder), "remote_url": "https://x"},
        "agent": {"model": "codex-5"},
        **more,
    }


def assert_failed_for_its_folder(events: list[dict[str, Any]]) -> None:
    """These events of a turn end with its failure, which names the session's folder."""
    assert [event["type"] for event in events][-3:] == [
        "agent.session.turn.failed",
        "error",
        "agent.session.idle",
    ]
    assert "workspace_directory" in events[-2]["error"]["message"]


async def test_a_session_of_a_folder_may_begin_without_input(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        session = await client.post("/sessions", hosted(tmp_path))
        assert session["status"] == "idle"
        assert session["environment"]["workspace_directory"] == str(tmp_path)
        events = await client.turn(session["id"], message("[[fake:activity]]"))
        assert events[-2]["type"] == "agent.session.turn.completed"


async def test_the_environment_of_a_session_is_read_by_its_id(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, sdk(proxy) as api:
        client = AgentsClient(proxy)
        session = await client.post("/sessions", hosted(tmp_path))
        id = session["environment"]["id"]
        found = await api.beta.agents.environments.retrieve(id)
        assert (found.id, found.type, found.status) == (id, "self_hosted", "connected")
        await client.idle_session()
        for unknown in (id + "x", "env_none", session["id"]):
            answer = await client.ask("GET", f"/environments/{unknown}")
            assert (answer.status, answer.error["code"]) == (404, "not_found_error")


async def test_an_idle_session_is_streamed_as_created_and_idle(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        answer = await client.ask("POST", "/sessions", hosted(tmp_path, stream=True))
        assert [event["type"] for event in answer.frames] == ["agent.session.created", "agent.session.idle"]


async def test_a_folder_that_may_not_be_used_is_refused_with_its_field(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        for folder in (Path("/"), tmp_path / "missing", Path("relative")):
            answer = await client.ask("POST", "/sessions", hosted(folder, input="Hello."))
            assert 400 <= answer.status < 500, (folder, answer.text)
            assert answer.error["param"] == "environment.workspace_directory", answer.text


async def test_turns_that_may_write_work_in_no_folder_that_programs_obey(tmp_path: Path) -> None:
    work = tmp_path / "work"
    hooks, allowed = work / "repository/.git/hooks", work / ".claude/worktrees/one"
    bare, agents = work / "bare.git", work / "Library/LaunchAgents"
    parts = [bare / "hooks", bare / "refs", bare / "objects"]
    for each in (hooks, allowed / "src", allowed / ".vscode", agents, *parts):
        each.mkdir(parents=True)
    (bare / "HEAD").touch()
    (work / "link").symlink_to(hooks)
    settings: dict[str, Any] = {
        "sandbox": "workspace-write",
        "workdir_roots": str(allowed),
        "state_dir": tmp_path / "state",
    }
    async with fake_proxy(work, **settings) as proxy:
        client = AgentsClient(proxy)
        for folder in (
            hooks,
            hooks.parent,
            work / "link",
            allowed.parent,
            allowed / ".vscode",
            bare,
            bare / "hooks",
            agents,
        ):
            answer = await client.ask("POST", "/sessions", hosted(folder, input="Hello."))
            assert (answer.status, answer.error["param"]) == (400, "environment.workspace_directory"), folder
            asked = await proxy.send(
                "POST",
                "/v1/responses",
                {"model": "codex-5", "input": "Hello."},
                headers={"X-Codex-Mode": "agent", "X-Codex-Workdir": str(folder)},
            )
            assert (asked.status, asked.error["param"]) == (400, "X-Codex-Workdir"), folder
            made = await client.ask(
                "POST", "/sessions", hosted(folder), headers={"X-Codex-Sandbox": "read-only"}
            )
            assert made.status == 201, (folder, made.text)
        for folder in (allowed, allowed / "src", work / "repository"):
            assert (await client.ask("POST", "/sessions", hosted(folder))).status == 201, folder


async def test_a_default_folder_behind_a_link_is_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "real/work").mkdir(parents=True)
    link = tmp_path / ".config"
    link.symlink_to(tmp_path / "real")
    settings: dict[str, Any] = {"sandbox": "workspace-write", "state_dir": tmp_path / "state"}
    async with fake_proxy(link / "work", workdir_roots=str(tmp_path), **settings) as proxy:
        asked = {"model": "codex-5", "input": "Hello."}
        answer = await proxy.send("POST", "/v1/responses", asked, headers={"X-Codex-Mode": "agent"})
        assert answer.status == 200, answer.text


async def test_a_folder_that_is_gone_fails_the_next_turn_and_not_the_session(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        session = await client.post("/sessions", hosted(folder))
        folder.rmdir()
        events = await client.turn(session["id"], message("Hello."))
        assert_failed_for_its_folder(events)
        folder.mkdir()
        events = await client.turn(session["id"], message("Hello."))
        assert events[-2]["type"] == "agent.session.turn.completed"


async def test_a_folder_that_became_a_link_to_another_place_fails_the_next_turn_and_is_not_worked_in(
    tmp_path: Path,
) -> None:
    folder, elsewhere = tmp_path / "allowed" / "work", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir(parents=True)
    async with fake_proxy(tmp_path, workdir=folder.parent, fake_dialect="app-server") as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session("Hello.", **hosted(folder))
        folder.rmdir()
        folder.symlink_to(elsewhere)
        events = await client.turn(id, message("[[fake:work]]"))
        assert_failed_for_its_folder(events)
        folder.unlink()
        folder.mkdir()
        events = await client.turn(id, message("Hello."))
        assert events[-2]["type"] == "agent.session.turn.completed"


async def test_a_new_session_is_told_which_others_work_in_its_folder(tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    for each in (shared, other):
        each.mkdir()
    keys = tmp_path / "keys.toml"
    keys.write_text("\n".join(f"[keys.{name}]\nsha256 = '{digest_of(name)}'" for name in ("one", "two")))
    keys.chmod(0o600)
    async with fake_proxy(tmp_path, keys_file=keys) as proxy:
        client, stranger = AgentsClient(proxy, "one"), AgentsClient(proxy, "two")

        async def told(client: AgentsClient, **body: Any) -> tuple[str, list[str]]:
            """The id of a new session, and the sessions that its answer names."""
            answer = await client.ask("POST", "/sessions", body)
            assert answer.status == 201, answer.text
            session = answer.frames[0]["session"] if body.get("stream") else answer.body
            return session["id"], answer.headers.get("x-codex-same-folder", "").split(", ")

        first, named = await told(client, **hosted(shared, input="Hello."))
        assert named == [""]
        assert (await told(client, **hosted(other)))[1] == [""]
        assert (await told(stranger, **hosted(shared)))[1] == [""], "sessions of another key are not told"
        second, named = await told(client, **hosted(shared / ".." / "shared", input="Hello.", stream=True))
        assert named == [first]
        third, named = await told(client, **hosted(shared))
        assert named == [second, first]
        archived = await client.ask("POST", f"/sessions/{third}/summary", {"archived": True})
        assert archived.status == 200
        assert (await told(client, **hosted(shared)))[1] == [second, first]
        assert (await told(client, **session_body("Hello.")))[1] == [""]


async def test_an_agent_that_has_no_room_in_its_folder_says_so_and_its_session_goes_on(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    changes = json.dumps([{"path": "work/large", "text": "x" * 5000}])
    writing = f"[[fake:text files='{changes}' say='I have tried.']]"
    settings = {"fake_dialect": "app-server", "sandbox": "danger-full-access"}
    async with fake_proxy(tmp_path, {"FAKE_CODEX_PID_FILE": str(pids)}, **settings) as proxy:
        client = AgentsClient(proxy)

        async def write(session: str) -> tuple[str, str]:
            """Has the agent write a file of 5000 bytes. Returns the command's status and output."""
            events = await client.turn(session, message(writing))
            assert events[-2]["type"] == "agent.session.turn.completed"
            items = [event["item"] for event in events if event["type"].endswith("item.done")]
            assert text_of(items[-1]) == "I have tried."
            return items[0]["status"], items[0]["output"]

        id = await client.idle_session("Hello.", **hosted(tmp_path))
        (agent,) = map(int, pids.read_text().split())
        _, maximum = resource.prlimit(agent, resource.RLIMIT_FSIZE)
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (4096, maximum))
        status, output = await write(id)
        assert status == "failed"
        assert "File too large" in output
        resource.prlimit(agent, resource.RLIMIT_FSIZE, (maximum, maximum))
        assert (await write(id))[0] == "completed"
        assert (tmp_path / "work/large").stat().st_size == 5000
