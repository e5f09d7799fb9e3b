"""A server whose store is a PostgreSQL database."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.store_lifecycle import open_store
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from tests.forking import run_command
from tests.http.serving import Proxy
from tests.http_responses.asking import create, events_of, prompt_for, proxy_and_client
from tests.postgres import PostgresServer, server
from tests.stream_server import stream_server
from tests.waiting import poll

SOCKET: Final = ".s.PGSQL.5432"


def as_child(folder: Path, url: str, *arguments: str) -> tuple[int, str, str]:
    """Runs `codex-proxy store` with this store. Returns its exit status, output and errors."""
    environment = {"PATH": os.defpath, "HOME": str(folder), "PROXY_STORE": url}
    done = run_command(("store", *arguments), env=environment, cwd=folder)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def test_responses_and_conversations_are_kept_in_the_database_that_proxy_store_names(
    postgres_url: str, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    async with proxy_and_client(tmp_path / "first", store=postgres_url) as (proxy, client):
        first = (await create(proxy, prompt_for("Hello."))).body
        conversation = await client.conversations.create()
        await create(proxy, prompt_for("Hello."), conversation=conversation.id)
    assert not list((tmp_path / "first").rglob("store.sqlite3"))
    async with proxy_and_client(tmp_path / "second", store=postgres_url) as (proxy, client):
        assert (await client.responses.retrieve(first["id"])).id == first["id"]
        second = await create(proxy, prompt_for("Again."), previous_response_id=first["id"])
        assert second.status == 200
        assert len((await client.conversations.items.list(conversation.id)).data) == 2
        assert (await proxy.send("GET", "/v1/usage")).body["kept"] == "disk"
    _, stats, _ = as_child(tmp_path, postgres_url, "stats", "--json")
    assert json.loads(stats)["responses"] == 3
    _, _, exported = as_child(tmp_path, postgres_url, "export")
    assert "4 objects" in exported


async def test_a_database_that_cannot_be_reached_at_the_start_is_the_operators_to_mend() -> None:
    with pytest.raises(UserError, match=r"cannot be reached.*PROXY_STORE=off"):
        await open_store(Settings(store="postgresql://nobody@127.0.0.1:1/none"), SystemClock())


@pytest.mark.exhaustive
async def test_a_store_in_a_file_is_copied_into_a_database_and_served_from_there(
    postgres_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "state" / "store.sqlite3"
    async with proxy_and_client(tmp_path) as (proxy, _):
        first = (await create(proxy, prompt_for("Hello."))).body["id"]
        status, _, refused = as_child(tmp_path, "sqlite", "copy", str(file), postgres_url)
        assert (status, "another server" in refused) == (1, True)
    status, done, progress = as_child(tmp_path, "sqlite", "copy", str(file), postgres_url)
    assert (status, "rows copied" in done, "responses: 1 rows" in progress) == (0, True, True)
    assert "0 rows copied" in as_child(tmp_path, "sqlite", "copy", str(file), postgres_url)[1]
    async with proxy_and_client(tmp_path, store=postgres_url) as (proxy, _):
        assert (await create(proxy, prompt_for("Again."), previous_response_id=first)).status == 200
    status, _, said_why = as_child(tmp_path, "sqlite", "copy", str(tmp_path / "nowhere"), postgres_url)
    assert (status, "there is no store" in said_why) == (1, True)


@pytest.mark.exhaustive
async def test_a_server_whose_database_is_stopped_is_not_ready_until_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.health.FRESH_SECONDS", 0.0)
    with server() as database:
        async with proxy_and_client(tmp_path, store=database.url) as (proxy, client):
            kept = (await create(proxy, prompt_for("Hello."))).body["id"]
            database.stop("immediate")

            async def is_unready() -> bool:
                return (await proxy.send("GET", "/readyz")).status == 503

            await poll(is_unready)
            ready = await proxy.send("GET", "/readyz")
            assert (ready.headers["Retry-After"], ready.body["status"]) == ("1", "unready")
            assert str(database.folder) not in ready.text
            refused = await create(proxy, prompt_for("Again."), previous_response_id=kept)
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
            assert (await create(proxy, prompt_for("Hello."), store=False)).status == 200
            assert (await proxy.send("GET", "/livez")).status == 200
            database.start()

            async def is_ready() -> bool:
                return (await proxy.send("GET", "/readyz")).status == 200

            await poll(is_ready)
            assert (await client.responses.retrieve(kept)).id == kept
            assert (await create(proxy, prompt_for("Again."), previous_response_id=kept)).status == 200


class Relay:
    """Passes on the connections to a database's socket. Once `armed`, it cuts all of them when the database has
    answered a statement with this text, whose sender never gets the answer, and refuses new ones until `open`."""

    def __init__(self, database: PostgresServer, folder: Path) -> None:
        self.url = f"postgresql://tester@/postgres?host={folder}"
        self.armed = b""
        self.cut = asyncio.Event()
        self.open = asyncio.Event()
        self.open.set()
        self._path = str(database.folder / SOCKET)
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.open.is_set():
            writer.close()
            return
        its_reader, its_writer = await asyncio.open_unix_connection(self._path)
        self._writers += [writer, its_writer]
        sent: list[bytes] = []
        await asyncio.gather(self._to(its_writer, reader, sent), self._back(writer, its_reader, sent))

    async def _to(
        self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, sent: list[bytes]
    ) -> None:
        while data := await reader.read(1 << 16):
            sent[:] = [data]
            writer.write(data)
        writer.close()

    async def _back(
        self, writer: asyncio.StreamWriter, reader: asyncio.StreamReader, sent: list[bytes]
    ) -> None:
        while data := await reader.read(1 << 16):
            if self.armed and sent and self.armed in sent[0]:
                self.armed = b""
                self.open.clear()
                self.cut.set()
                for each in self._writers:
                    each.transport.abort()
                return
            writer.write(data)
        writer.close()


@asynccontextmanager
async def relay_to(database: PostgresServer, folder: Path) -> AsyncIterator[Relay]:
    relay = Relay(database, folder)
    async with stream_server(relay.serve, folder / SOCKET):
        yield relay


@pytest.fixture
async def cut_at_end(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Relay, Proxy, AsyncOpenAI, str]]:
    """A server whose connection to its database ends at the commit of a completed response; and the id of a
    conversation."""
    for module in ("background", "saving"):
        monkeypatch.setattr(f"codex_proxy.responses.{module}.RETRY_SECONDS", 0.02)
    async with (
        relay_to(postgres_server, tmp_path) as relay,
        proxy_and_client(tmp_path, store=relay.url) as (proxy, client),
    ):
        conversation = await client.conversations.create()
        relay.armed = b'"status":"completed"'
        yield relay, proxy, client, conversation.id


@pytest.mark.parametrize("stays_away", [False, True])
async def test_a_response_whose_commit_got_no_answer_is_what_its_client_was_told(
    cut_at_end: tuple[Relay, Proxy, AsyncOpenAI, str], postgres_url: str, stays_away: bool
) -> None:
    """If the database can be asked again, it is stored once; if not, its client gets an error, and it is removed
    when the database is back."""
    relay, proxy, client, conversation = cut_at_end
    asking = asyncio.create_task(create(proxy, prompt_for("Hello."), conversation=conversation))
    await relay.cut.wait()
    if not stays_away:
        relay.open.set()
    answer = await asking
    relay.open.set()
    await proxy.settled()
    connection = await asyncpg.connect(postgres_url)
    stored = await connection.fetch("SELECT id FROM codex_proxy.responses WHERE NOT deleted")
    await connection.close()
    items = (await client.conversations.items.list(conversation)).data
    assert len(items) == 2, "the commit was done, and done once"
    if stays_away:
        assert (answer.status, stored) == (503, [])
        assert "list its items" in answer.error["message"]
    else:
        assert [row["id"] for row in stored] == [answer.body["id"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_background_response_whose_commit_got_no_answer_ends_once(
    cut_at_end: tuple[Relay, Proxy, AsyncOpenAI, str], stream: bool
) -> None:
    relay, proxy, client, conversation = cut_at_end
    asking = asyncio.create_task(
        create(proxy, prompt_for("Hello."), background=True, stream=stream, conversation=conversation)
    )
    await relay.cut.wait()
    relay.open.set()
    answer = await asking
    await proxy.settled()
    if stream:
        assert [event["type"] for event in events_of(answer.text)].count("response.completed") == 1
    found = re.search(r"resp_[0-9a-f]{32}", answer.text)
    assert found is not None
    assert (await proxy.send("GET", f"/v1/responses/{found[0]}")).body["status"] == "completed"
    assert len((await client.conversations.items.list(conversation)).data) == 2


async def test_a_server_without_its_database_does_not_start_and_says_why(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = f"postgresql://tester:secret@/postgres?host={postgres_server.folder}/nowhere"
    status, _, said = as_child(tmp_path, url, "stats")
    assert status == 1
    assert "cannot be reached" in said
    assert "secret" not in said


def test_another_scheme_is_no_store(tmp_path: Path) -> None:
    status, _, said = as_child(tmp_path, "mysql://me:secret@here/db", "stats")
    assert status != 0
    assert "postgresql://user:password@host/database" in said
    assert "secret" not in said
