"""Where files are kept: after a kill, when they expire or their bytes are lost, and in a database of two servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

from codex_proxy.app.system import RandomIds
from codex_proxy.commands.store import check
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts import absent_part
from codex_proxy.parts.files import FilesTable
from codex_proxy.parts.files.contents import PIECE_BYTES, Folder, Pieces
from codex_proxy.parts.files.objects import StoredFile
from codex_proxy.parts.files.service import LEFT_SECONDS, Files
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import Retention
from tests.http.serving import fake_proxy, settings_of, until
from tests.http_responses.killing import server_process
from tests.parts.files.sending import FORM, OPENAI, form, part, upload, uploaded
from tests.postgres import PostgresServer, empty
from tests.store.stored import Hands
from tests.waiting import poll

OWNER = "one"
DATA = bytes(range(256)) * (PIECE_BYTES // 100)
"""Some pieces."""
KINDS = ("folder", "memory", *(() if absent_part("stores", "postgresql") else ("postgresql",)))
Make: TypeAlias = Callable[..., Awaitable[tuple[Files, Store]]]


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture(params=KINDS)
async def make(request: pytest.FixtureRequest, tmp_path: Path, clock: Hands) -> AsyncIterator[Make]:
    """Makes the files of a store of each kind."""
    made: list[Store] = []

    async def of_kind(**options: Any) -> tuple[Files, Store]:
        options = {"clock": clock, **options}
        store: Store
        if request.param == "folder":
            store = await SqliteStore.open(tmp_path / "store.sqlite3", **options)
            contents: Any = Folder(tmp_path / "files")
        elif request.param == "memory":
            store = SqliteStore.in_memory(**options)
            contents = Pieces(store, is_shared=False)
        else:
            from codex_proxy.parts.machines.postgresql.store import PostgresStore

            server: PostgresServer = request.getfixturevalue("postgres_server")
            await empty(server.url)
            store = await PostgresStore.open(server.url, **options)
            contents = Pieces(store, is_shared=True)
        made.append(store)
        return Files(store, contents, FilesTable(), clock=clock, ids=RandomIds()), store

    yield of_kind
    for store in made:
        await store.close()


async def put(files: Files, data: bytes = DATA, *, lifetime: int | None = None) -> StoredFile:
    async with files.receive(OWNER) as receiving:
        await receiving.write(data)
        return await receiving.finish(
            name="a.bin", media_type="text/plain", purpose="batch", lifetime=lifetime
        )


async def bytes_of(files: Files, file: StoredFile) -> bytes:
    return b"".join([chunk async for chunk in files.read(OWNER, file, 0, file.size)])


async def test_a_file_is_read_as_it_was_written(make: Make) -> None:
    files, _ = await make()
    file = await put(files)
    assert await bytes_of(files, file) == DATA
    given = await files.load(OWNER, file.id.replace("-", "_"), len(DATA))
    assert given is not None
    assert (given.name, given.data) == ("a.bin", DATA)
    assert await files.load("two", file.id, len(DATA)) is None
    with pytest.raises(Fault):
        await files.load(OWNER, file.id, len(DATA) - 1)


async def test_an_expired_file_is_unknown_at_once_and_removed_by_the_next_sweep(
    make: Make, clock: Hands
) -> None:
    files, store = await make()
    short, long = await put(files, lifetime=3600), await put(files, lifetime=7200)
    clock.now += 3600
    assert await files.all_of(OWNER) == [long]
    assert await files.load(OWNER, short.id, len(DATA)) is None
    await files.sweep()
    await store.sweep()
    assert await bytes_of(files, long) == DATA
    with pytest.raises(Fault):
        await bytes_of(files, short)
    assert [record.id for _, _, record in await store.records_of_kind("file", 0, 10)] == [long.id]


async def test_what_retention_removes_leaves_no_bytes(make: Make, clock: Hands) -> None:
    files, store = await make(retention=Retention(conversation_age=100.0))
    old = await put(files)
    clock.now += 90
    new = await put(files)
    clock.now += 20
    await store.prune()
    await files.sweep()
    assert await files.all_of(OWNER) == [new]
    assert await bytes_of(files, new) == DATA
    with pytest.raises(Fault):
        await bytes_of(files, old)


async def test_a_deleted_file_leaves_no_bytes(make: Make) -> None:
    files, store = await make()
    file = await put(files)
    await files.delete(OWNER, file.id)
    await store.sweep()
    assert (await store.stats()).records == 0
    with pytest.raises(Fault) as fault:
        await bytes_of(files, file)
    assert fault.value.failure.kind is FaultKind.NOT_FOUND


async def test_a_cancelled_upload_leaves_nothing(make: Make) -> None:
    files, store = await make()
    begun = asyncio.Event()

    async def receive() -> None:
        async with files.receive(OWNER) as receiving:
            await receiving.write(DATA)
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(receive())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.sweep()
    assert (await store.stats()).records == 0
    assert await files.all_of(OWNER) == []


async def test_another_servers_upload_goes_on_during_a_sweep_but_not_for_ever(
    make: Make, clock: Hands
) -> None:
    files, store = await make()
    if store.team is None:
        pytest.skip("only one server has this store")
    other = Files(store, Pieces(store, is_shared=True), FilesTable(), clock=clock, ids=RandomIds())
    async with other.receive(OWNER) as receiving:
        await receiving.write(DATA)
        await files.sweep()
        file = await receiving.finish(name="a", media_type="text/plain", purpose="batch", lifetime=None)
    assert await bytes_of(files, file) == DATA
    async with other.receive(OWNER) as receiving:
        await receiving.write(DATA)
        clock.now += LEFT_SECONDS + 1
        await files.sweep()
        with pytest.raises(Fault, match="cannot be read or written"):
            await receiving.write(DATA)


async def test_missing_bytes_are_an_error_and_never_a_shorter_file(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        id = await uploaded(proxy, data=DATA)
        stored = tmp_path / "state" / "store.sqlite3.files" / id
        for damage in (
            lambda: stored.write_bytes(DATA[:-1]),
            stored.unlink,
            lambda: stored.symlink_to("/etc/passwd"),
        ):
            damage()
            answer = await proxy.send("GET", f"/v1/files/{id}/content")
            assert (answer.status, answer.error["code"]) in (
                (500, "store_damaged"),
                (503, "service_unavailable"),
            )
            assert "root" not in answer.text


async def test_a_kill_in_an_upload_leaves_nothing_and_no_other_file_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "store.sqlite3.files"
    async with aiohttp.ClientSession() as session:
        async with server_process(tmp_path) as (url, process):
            sent = {**FORM, **OPENAI}
            async with session.post(
                f"{url}/v1/files", data=BytesIO(form(purpose="batch")), headers=sent
            ) as reply:
                kept = (await reply.json())["id"]
            host, port = url.removeprefix("http://").split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer none\r\n"
            head += f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: 9000000\r\n\r\n"
            writer.write(head.encode() + part("file", b"a" * 2_000_000, "a.txt"))
            await until(lambda: len(list(folder.iterdir())) == 2)
            process.kill()
            await process.wait()
            writer.close()
        assert len(list(folder.iterdir())) == 2
        async with server_process(tmp_path) as (url, _):
            await until(lambda: [each.name for each in folder.iterdir()] == [kept])
            async with session.get(f"{url}/v1/files") as reply:
                assert [each["id"] for each in (await reply.json())["data"]] == [kept]
            async with session.get(f"{url}/v1/files/{kept}/content") as reply:
                assert await reply.read() == b"Hello."


async def test_store_check_knows_the_records_of_files(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        await uploaded(proxy)
    assert "1 rows are intact" in await check(settings_of(tmp_path))


# --- two servers on one database --------------------------------------------------------------------

needs_database = pytest.mark.skipif(
    bool(absent_part("stores", "postgresql")), reason="needs the part machines"
)


@needs_database
async def test_every_server_on_a_database_has_the_files_of_all(tmp_path: Path, postgres_url: str) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    async with (
        fake_proxy(folders[0], store=postgres_url) as one,
        fake_proxy(folders[1], store=postgres_url) as two,
    ):
        id = await uploaded(one, data=DATA)
        async with two.session.get(f"{two.url}/v1/files/{id}/content") as reply:
            assert await reply.read() == DATA
        small = await uploaded(one, data=b"What the file says.")
        said = [{"type": "input_text", "text": "[[fake:echo]]"}, {"type": "input_file", "file_id": small}]
        body = {"model": "codex-5", "input": [{"role": "user", "content": said}]}
        assert "What the file says." in (await two.send("POST", "/v1/responses", body)).text
        assert (await two.send("DELETE", f"/v1/files/{id}")).status == 200
        assert (await one.send("GET", f"/v1/files/{id}/content")).status == 404
        answer = await upload(one, data=bytes((32 << 20) + 1))
        assert (answer.status, answer.error["param"]) == (413, "file")

        async def listed() -> bool:
            return [each["id"] for each in (await one.send("GET", "/v1/files")).body["data"]] == [small]

        await poll(listed)
