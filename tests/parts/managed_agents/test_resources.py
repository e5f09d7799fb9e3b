"""Uploaded files in sessions of the Managed Agents API: in the content of events, and in the
folder of a session.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anthropic.types.beta.sessions import BetaManagedAgentsFileResource
from msgspec.structs import replace

from codex_proxy.http import body
from codex_proxy.parts.managed_agents import resources
from codex_proxy.parts.sessions.agents import AgentSettings
from codex_proxy.parts.sessions.commands import Change
from codex_proxy.parts.sessions.placed_files import FileResource
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.workers.pdf_reader import PdfReader, can_read_pdfs
from tests import pdfs
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.files.sending import ANTHROPIC, uploaded
from tests.parts.managed_agents.driving import sdk
from tests.parts.managed_agents.following import IDLE, ManagedClient, check, result, said
from tests.parts.sessions.driving import AgentsClient
from tests.pictures import PIXEL, PNG
from tests.waiting import poll

WORDS = "What the file says."
ECHO = {"type": "text", "text": "[[fake:echo]]"}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        yield proxy


def naming(id: str, kind: str = "document", **more: Any) -> dict[str, Any]:
    """A content block that names a file."""
    return {"type": kind, "source": {"type": "file", "file_id": id}, **more}


def message_of(*blocks: Any) -> dict[str, Any]:
    return {"type": "user.message", "content": [ECHO, *blocks]}


# --- files in events ------------------------------------------------------------------------------


async def test_a_text_file_in_a_message_is_read(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode(), filename="a.txt")
    told = await client.turn(await client.new_session(), message_of(naming(file)))
    assert told[0]["content"][1] == {"type": "text", "text": f"a.txt\n\n{WORDS}"}
    assert WORDS in said(told)[0]


async def test_a_picture_in_a_message_is_shown(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=PNG, filename="a.png", media_type="image/png")
    told = await client.turn(await client.new_session(), message_of(naming(file, "image")))
    source = told[0]["content"][1]["source"]
    assert (source["type"], f"data:{source['media_type']};base64,{source['data']}") == ("base64", PIXEL)
    assert '"images":1' in said(told)[0]


async def test_initial_events_may_name_a_file(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode())
    id = await client.new_session(initial_events=[message_of(naming(file, title="Said"))])
    assert (await client.events(id))[0]["content"][1]["text"] == f"Said\n\n{WORDS}"


async def test_the_result_of_a_custom_tool_may_name_a_file(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(proxy, ANTHROPIC, data=WORDS.encode(), filename="a.txt")
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(
            id, {"type": "user.message", "content": [{"type": "text", "text": "[[fake:tool_call]]"}]}
        )
        waits = await stream.until(IDLE)
        [use] = waits["stop_reason"]["event_ids"]
        [sent] = await client.send(id, result(use) | {"content": [naming(file)]})
        assert sent["content"] == [{"type": "text", "text": f"a.txt\n\n{WORDS}"}]
        await client.until_rest(id, stream)


@pytest.mark.skipif(not can_read_pdfs(), reason="needs pypdf")
async def test_the_text_of_a_pdf_reaches_the_agent(proxy: Proxy, client: ManagedClient) -> None:
    file = await uploaded(
        proxy, ANTHROPIC, data=pdfs.pdf(WORDS), media_type="application/pdf", filename="a.pdf"
    )
    id = await client.new_session(initial_events=[message_of(naming(file))])
    data = {"type": "base64", "media_type": "application/pdf", "data": b64encode(pdfs.pdf("Other.")).decode()}

    async def rests() -> bool:
        return any(event["type"] == IDLE for event in await client.events(id))

    await poll(rests)  # else the stream begins with the first turn
    told = await client.turn(id, message_of({"type": "document", "source": data}))
    assert WORDS in (await client.events(id))[0]["content"][1]["text"]
    assert "Other." in told[0]["content"][1]["text"]
    assert "Other." in said(told)[0]


async def test_a_pdf_is_refused_where_it_cannot_be_read(
    proxy: Proxy, client: ManagedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "PDF_READER", web.AppKey("no_reader", PdfReader))
    file = await uploaded(proxy, ANTHROPIC, data=pdfs.pdf(WORDS), media_type="application/pdf")
    id = await client.new_session()
    words = await client.refused(400, f"/sessions/{id}/events", {"events": [message_of(naming(file))]})
    assert words.startswith("events[0].content[1].source: Invalid file: this server does not read PDFs.")


async def test_a_file_of_another_key_is_unknown_in_a_message(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy:
        file = await uploaded(proxy, {"anthropic-version": "2023-06-01", **key_header("one")})
        two = ManagedClient(proxy)
        two.headers = {**two.headers, **key_header("two")}
        id = await two.new_session()
        for kind in ("document", "image"):
            body = {"events": [message_of(naming(file, kind))]}
            words = await two.refused(404, f"/sessions/{id}/events", body)
            assert words.startswith(f"events[0].content[1].source.file_id: No file '{file}'")


# --- files in the folder of a session ---------------------------------------------------------------


@asynccontextmanager
async def writing(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[ManagedClient, Path]]:
    """A client of a server whose agents may write in a folder of their own."""
    folder = tmp_path / "work"
    folder.mkdir()
    settings: dict[str, Any] = {"sandbox": "workspace-write", "workdir": folder, "fake_dialect": "app-server"}
    async with fake_proxy(tmp_path, **settings | more) as proxy:
        yield ManagedClient(proxy), folder


async def file_of(client: ManagedClient, data: str = WORDS) -> str:
    return await uploaded(client.proxy, client.headers | ANTHROPIC, data=data.encode())


async def in_folder(client: ManagedClient, folder: Path, *resources: Any, **more: Any) -> str:
    """The id of a session in a folder."""
    given = {"metadata": {"workdir": str(folder)}, "resources": [*resources], **more}
    return await client.new_session(**given)


def resource(file: str, mount_path: str | None = None) -> dict[str, Any]:
    return {"type": "file", "file_id": file, **({"mount_path": mount_path} if mount_path else {})}


def files_below(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir())


async def test_a_sandbox_is_kept_with_a_session_and_never_wider_than_the_keys(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        body = {
            "agent": await client.new_agent(),
            "environment_id": await client.environment(),
            "metadata": {"workdir": str(folder)},
        }
        for sandbox, kept in (("read-only", "read-only"), ("", "workspace-write")):
            made = await client.ask("POST", "/sessions", body, **{"X-Codex-Sandbox": sandbox})
            assert (made.status, made.headers.get("x-codex-ignored-params")) == (200, None), made.text
            about = await AgentsClient(client.proxy).ask("GET", f"/sessions/{made.body['id']}/summary")
            assert about.body["sandbox"] == kept
        given = {**body, "resources": [resource(await file_of(client))]}
        refused = await client.ask("POST", "/sessions", given, **{"X-Codex-Sandbox": "read-only"})
        assert (refused.status, "read-only" in refused.text) == (403, True)
        for wrong, status in (("danger-full-access", 403), ("none", 400)):
            refused = await client.ask("POST", "/sessions", body, **{"X-Codex-Sandbox": wrong})
            assert (refused.status, "X-Codex-Sandbox" in refused.text) == (status, True)
        sent = {"events": [{"type": "user.message", "content": [{"type": "text", "text": "[[fake:text]]"}]}]}
        path = f"/sessions/{made.body['id']}/events"
        later = await client.ask("POST", path, sent, **{"X-Codex-Sandbox": "read-only"})
        assert later.headers["x-codex-ignored-params"] == "X-Codex-Sandbox"


async def test_the_sdk_puts_files_into_the_folder_and_removes_them(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder), sdk(client.proxy) as anthropic:
        file = await file_of(client)
        made = await anthropic.beta.sessions.create(
            agent=await client.new_agent(),
            environment_id=await client.environment(),
            metadata={"workdir": str(folder)},
            resources=[{"type": "file", "file_id": file, "mount_path": "/data/a.txt"}],
        )
        [first] = made.resources
        assert first.type == "file"
        assert (first.file_id, first.mount_path) == (file, str(folder / "data/a.txt"))
        assert Path(first.mount_path).read_text() == WORDS
        second = await anthropic.beta.sessions.resources.add(made.id, type="file", file_id=file)
        assert Path(second.mount_path).read_text() == WORDS
        assert second.mount_path == f"{folder}/mnt/session/uploads/{made.id}/{file}"
        listed = [each async for each in anthropic.beta.sessions.resources.list(made.id)]
        assert [each.id for each in listed if each.type == "file"] == [first.id, second.id]
        pages = [each async for each in anthropic.beta.sessions.resources.list(made.id, limit=1)]
        assert pages == listed
        found = await anthropic.beta.sessions.resources.retrieve(second.id, session_id=made.id)
        assert found == second
        gone = await anthropic.beta.sessions.resources.delete(second.id, session_id=made.id)
        assert (gone.id, gone.type) == (second.id, "session_resource_deleted")
        assert files_below(folder) == ["data/a.txt"]
        await anthropic.beta.sessions.delete(made.id)
        assert files_below(folder) == []
        assert (await anthropic.beta.files.retrieve_metadata(file)).id == file


async def test_a_file_is_in_the_folder_before_the_first_turn_begins(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        id = await in_folder(client, folder, resource(await file_of(client), "a.txt"))
        told = await client.turn(id, message_of())
        assert said(told)
        check((await client.session(id))["resources"][0], BetaManagedAgentsFileResource)
        assert files_below(folder) == ["a.txt"]


async def test_a_file_that_was_changed_in_the_folder_stays(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        file = await file_of(client)
        paths = ("changed.txt", "replaced.txt", "removed.txt")
        id = await in_folder(client, folder, *(resource(file, path) for path in paths))
        (folder / "changed.txt").write_text("Other words.")
        (folder / "replaced.txt").unlink()
        (folder / "replaced.txt").write_text(WORDS)
        (folder / "removed.txt").unlink()
        [_, _, removed] = (await client.session(id))["resources"]
        await client.well("DELETE", f"/sessions/{id}/resources/{removed['id']}")
        await client.well("DELETE", f"/sessions/{id}")
        assert files_below(folder) == ["changed.txt", "replaced.txt"]


async def test_openais_api_removes_the_files_with_the_session(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        file = await file_of(client)
        id = await in_folder(client, folder, resource(file, "a.txt"), resource(file, "changed.txt"))
        (folder / "changed.txt").write_text("Other words.")
        headers = {"OpenAI-Beta": "agents=v1"}
        for _ in range(2):  # to delete it again does nothing
            answer = await client.proxy.send("DELETE", f"/v1/agents/sessions/{id}", headers=headers)
            assert (answer.status, answer.body["deleted"]) == (200, True)
            assert files_below(folder) == ["changed.txt"]


async def test_an_absolute_path_in_the_folder_means_itself(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        id = await in_folder(client, folder, resource(await file_of(client), f"{folder}/b/c.txt"))
        assert (await client.session(id))["resources"][0]["mount_path"] == f"{folder}/b/c.txt"
        assert files_below(folder) == ["b/c.txt"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("../a.txt", "may begin with a dot"),
        ("/b/../../a.txt", "may begin with a dot"),
        (".git/hooks/pre-commit", "may begin with a dot"),
        ("git~1/hooks/pre-commit", "programs run or obey"),
        ("/", "has to name a file"),
        ("b/", "has to name a file"),
        ("a\x00b", "without control characters"),
        ("a\nb", "without control characters"),
        ("b" * 300, "at most 16 names of 255 bytes"),
        ("/".join("b" * 17), "at most 16 names of 255 bytes"),
        ("there.txt", "which stays as it is"),
        ("link.txt", "which stays as it is"),
        ("loose.txt", "which stays as it is"),
        ("out/a.txt", "is a file or a link"),
        ("there.txt/a.txt", "is a file or a link"),
    ],
)
async def test_a_path_that_would_leave_the_folder_or_change_a_file_is_refused(
    tmp_path: Path, path: str, words: str
) -> None:
    async with writing(tmp_path) as (client, folder):
        outside = tmp_path / "outside"
        outside.mkdir()
        (folder / "out").symlink_to(outside)
        (folder / "there.txt").write_text("Mine.")
        (folder / "link.txt").symlink_to(folder / "there.txt")
        (folder / "loose.txt").symlink_to(outside / "new.txt")
        before = files_below(tmp_path / "work")
        id = await in_folder(client, folder)
        file = await file_of(client)
        told = await client.refused(400, f"/sessions/{id}/resources", resource(file, path))
        assert told.startswith("mount_path: ")
        assert words in told
        assert files_below(folder) == before
        assert files_below(outside) == []
        assert (folder / "there.txt").read_text() == "Mine."
        assert (await client.session(id))["resources"] == []


async def test_two_resources_of_one_path_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        file = await file_of(client)
        body = {
            "agent": await client.new_agent(),
            "environment_id": await client.environment(),
            "metadata": {"workdir": str(folder)},
            "resources": [resource(file, "a.txt"), resource(file, "/a.txt")],
        }
        told = await client.refused(400, "/sessions", body)
        assert told.startswith("resources[1].mount_path: there is a file")
        assert files_below(folder) == []
        assert (await client.well("GET", "/sessions"))["data"] == []


async def test_sessions_in_one_folder_have_the_same_file_each_for_itself(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        file = await file_of(client)
        one, two = [await in_folder(client, folder, resource(file)) for _ in range(2)]
        await client.well("DELETE", f"/sessions/{one}")
        assert files_below(folder) == [f"mnt/session/uploads/{two}/{file}"]


async def test_a_session_has_at_most_100_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with writing(tmp_path) as (client, folder):
        file = await file_of(client)
        id = await in_folder(client, folder, *(resource(file, f"{index}.txt") for index in range(99)))
        answers = await asyncio.gather(
            *(client.ask("POST", f"/sessions/{id}/resources", resource(file, name)) for name in "ab")
        )
        assert sorted(answer.status for answer in answers) == [200, 400]
        [refused] = [each for each in answers if each.status == 400]
        assert "at most 100 files" in refused.text
        assert len(files_below(folder)) == 100
        monkeypatch.setattr(resources, "MAX_BYTES", 100 * len(WORDS))
        [last, *_] = (await client.session(id))["resources"]
        await client.well("DELETE", f"/sessions/{id}/resources/{last['id']}")
        large = await file_of(client, 2 * WORDS)
        told = await client.refused(400, f"/sessions/{id}/resources", resource(large, "c"))
        assert told.startswith("file_id: the files of a session have at most")


def test_a_change_that_is_made_twice_adds_a_file_once() -> None:
    agent = AgentSettings(model="codex-5")
    before = Session(id="s", created_at=1, last_active_at=1, agent_id="a", agent=agent, environment={})
    file = FileResource(id="r", file_id="f", folder="/w", path="a", inode=1, size=1, modified=1, created_at=1)
    after = replace(before, resources=(file,))
    change = Change.between(before, after)
    assert change.applied_to(before) == change.applied_to(after) == after
    assert Change.between(after, before).applied_to(after) == before


async def test_a_session_without_a_folder_has_no_files(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        id = await client.new_session()
        told = await client.refused(400, f"/sessions/{id}/resources", resource(await file_of(client)))
        assert "this session has no folder" in told
        assert files_below(folder) == []


async def test_a_key_whose_agents_only_read_puts_no_files(tmp_path: Path) -> None:
    async with writing(tmp_path, sandbox="read-only") as (client, folder):
        id = await in_folder(client, folder)
        told = await client.refused(403, f"/sessions/{id}/resources", resource(await file_of(client)))
        assert "its sandbox is read-only" in told
        assert files_below(folder) == []


async def test_an_archived_session_takes_no_files(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        id = await in_folder(client, folder)
        await client.well("POST", f"/sessions/{id}/archive", {})
        await client.refused(409, f"/sessions/{id}/resources", resource(await file_of(client)))
        assert files_below(folder) == []


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    async with writing(tmp_path) as (client, folder):
        id = await in_folder(client, folder)
        path = f"/sessions/{id}/resources"
        assert "clone it" in await client.refused(400, path, {"type": "github_repository", "url": "x"})
        assert "not served" in await client.refused(400, path, {"type": "memory_store"})
        assert await client.refused(400, path, {"type": "file"}) == "file_id: Field required"
        told = await client.refused(404, path, resource("file_none"))
        assert told.startswith("file_id: No file 'file_none'")
        assert "sesrsc_none" in await client.refused(404, f"{path}/sesrsc_none", method="GET")


async def test_files_and_resources_of_another_key_are_unknown(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    settings: dict[str, Any] = {"sandbox": "workspace-write", "workdir": folder, "fake_dialect": "app-server"}
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, **settings) as proxy:
        one, two = ManagedClient(proxy), ManagedClient(proxy)
        one.headers, two.headers = (
            {"anthropic-version": "2023-06-01", **key_header(name)} for name in ("one", "two")
        )
        file = await uploaded(proxy, one.headers, data=WORDS.encode())
        id = await in_folder(one, folder, resource(file, "a.txt"))
        [made] = (await one.session(id))["resources"]
        other = await in_folder(two, folder)
        await two.refused(404, f"/sessions/{other}/resources", resource(file))
        for session in (id, other):
            for method in ("GET", "DELETE"):
                path = f"/sessions/{session}/resources/{made['id']}"
                await two.refused(404, path, method=method)
        await two.refused(404, f"/sessions/{id}/resources", resource(file, "b.txt"))
        assert files_below(folder) == ["a.txt"]
        await one.well("GET", f"/sessions/{id}/resources/{made['id']}")
