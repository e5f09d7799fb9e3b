"""The official SDKs upload, list, read and delete files, each in the form of its API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.access.keyed import key_of, keyed_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.files.sending import anthropic_client, openai_client
from tests.sdk_fields import unknown_fields

DATA = bytes(range(256)) * 5_000
"""More than one piece of a file in records."""
STORES = ("sqlite", "memory")


@pytest.fixture(params=STORES)
async def proxy(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, store=request.param) as running:
        yield running


async def test_openais_sdk_uploads_reads_and_deletes_a_file(proxy: Proxy) -> None:
    async with openai_client(proxy) as client:
        made = await client.files.create(
            file=("data.bin", DATA),
            purpose="user_data",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert not unknown_fields(made)
        assert (made.object, made.bytes, made.filename) == ("file", len(DATA), "data.bin")
        assert (made.purpose, made.status) == ("user_data", "processed")
        assert made.expires_at == made.created_at + 3600
        assert await client.files.retrieve(made.id) == made
        assert (await client.files.content(made.id)).content == DATA
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "file", True)
        with pytest.raises(openai.NotFoundError, match="No such file"):
            await client.files.retrieve(made.id)


async def test_openais_sdk_lists_files_page_by_page_in_either_order(proxy: Proxy) -> None:
    async with openai_client(proxy) as client:
        of_each: Any = {"a": "batch", "b": "vision", "c": "batch"}
        made = [
            await client.files.create(file=(f"{name}.txt", name.encode()), purpose=purpose)
            for name, purpose in of_each.items()
        ]
        ids = [each.id for each in made]
        assert [each.id async for each in client.files.list(limit=1)] == ids[::-1]
        assert [each.id async for each in client.files.list(limit=2, order="asc")] == ids
        assert [each.id async for each in client.files.list(purpose="batch", limit=1)] == [ids[2], ids[0]]
        assert [each.id async for each in client.files.list(after=ids[1])] == ids[:1]
        with pytest.raises(openai.BadRequestError) as refused:
            await client.files.list(after="file-unknown")
        assert refused.value.param == "after"


async def test_anthropics_sdk_uploads_reads_and_deletes_a_file(proxy: Proxy) -> None:
    async with anthropic_client(proxy) as client:
        made = await client.beta.files.upload(
            file=("data.bin", DATA, "application/x-thing"), expires_in_seconds=7200
        )
        assert not unknown_fields(made)
        assert (made.type, made.size_bytes, made.filename) == ("file", len(DATA), "data.bin")
        assert (made.mime_type, made.downloadable) == ("application/x-thing", True)
        assert made.expires_at is not None
        assert (made.expires_at - made.created_at).total_seconds() == 7200
        assert abs((datetime.now(UTC) - made.created_at).total_seconds()) < 60
        assert await client.beta.files.retrieve_metadata(made.id) == made
        assert await (await client.beta.files.download(made.id)).read() == DATA
        gone = await client.beta.files.delete(made.id)
        assert (gone.id, gone.type) == (made.id, "file_deleted")
        with pytest.raises(anthropic.NotFoundError, match="No such file"):
            await client.beta.files.download(made.id)


async def test_anthropics_sdk_lists_files_page_by_page_and_by_their_ids(proxy: Proxy) -> None:
    async with anthropic_client(proxy) as client:
        made = [await client.beta.files.upload(file=(f"{name}.txt", b"x")) for name in "abc"]
        ids = [each.id for each in made]
        assert [each.id async for each in client.beta.files.list(limit=2)] == ids[::-1]
        only = await client.beta.files.list(ids=[ids[0], "file_unknown"])
        assert ([each.id for each in only.data], only.next_page) == (ids[:1], None)
        assert (await client.beta.files.list(scope_id="sesn_1")).data == []


async def test_whoever_deletes_each_file_of_a_list_sees_all_of_them(proxy: Proxy) -> None:
    async with anthropic_client(proxy) as client:
        made = [(await client.beta.files.upload(file=(name, b"x"))).id for name in "abcde"]
        seen = []
        async for each in client.beta.files.list(limit=2):
            await client.beta.files.delete(each.id)
            seen.append(each.id)
        assert seen == made[::-1]
        assert (await client.beta.files.list()).data == []
        with pytest.raises(anthropic.BadRequestError, match="next_page"):
            await client.beta.files.list(page="page_x")


async def test_older_clients_of_anthropic_page_by_the_ids_of_files(proxy: Proxy) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "files-api-2025-04-14"}
    async with anthropic_client(proxy) as client:
        ids = [(await client.beta.files.upload(file=(name, b"x"))).id for name in "abcd"]

    async def page(query: str) -> tuple[list[str], bool]:
        body = (await proxy.send("GET", f"/v1/files?{query}", headers=headers)).body
        assert (body["first_id"], body["last_id"]) == (body["data"][0]["id"], body["data"][-1]["id"])
        return [each["id"] for each in body["data"]], body["has_more"]

    assert await page("limit=2") == ([ids[3], ids[2]], True)
    assert await page(f"limit=2&after_id={ids[2]}") == ([ids[1], ids[0]], False)
    assert await page(f"limit=2&before_id={ids[0]}") == ([ids[2], ids[1]], True)
    assert await page(f"limit=2&before_id={ids[2]}") == ([ids[3]], False)


async def test_a_file_of_one_api_is_there_in_the_other(proxy: Proxy) -> None:
    async with openai_client(proxy) as one, anthropic_client(proxy) as other:
        first = await one.files.create(file=("a.txt", b"Hello."), purpose="vision")
        second = await other.beta.files.upload(file=("b.txt", b"World."))
        assert (await other.beta.files.retrieve_metadata(first.id)).mime_type == "text/plain"
        assert await (await other.beta.files.download(first.id)).read() == b"Hello."
        assert (await one.files.retrieve(second.id)).purpose == "user_data"
        assert (await one.files.content(second.id)).content == b"World."
        listed = [each.id async for each in one.files.list()]
        assert listed == [second.id.replace("file_", "file-"), first.id]


async def test_another_keys_file_is_unknown_whatever_is_asked(tmp_path: Path) -> None:
    async with (
        keyed_proxy(tmp_path, {"one": {}, "two": {}}) as proxy,
        openai_client(proxy, key_of("one")) as one,
        openai_client(proxy, key_of("two")) as two,
        anthropic_client(proxy, key_of("two")) as also_two,
    ):
        made = await one.files.create(file=("a.txt", b"secret"), purpose="user_data")
        for asked in (two.files.retrieve, two.files.content, two.files.delete):
            with pytest.raises(openai.NotFoundError):
                await asked(made.id)
        for asked_also in (also_two.beta.files.retrieve_metadata, also_two.beta.files.download):
            with pytest.raises(anthropic.NotFoundError):
                await asked_also(made.id)
        assert [each.id async for each in two.files.list()] == []
        assert (await also_two.beta.files.list(ids=[made.id])).data == []
        with pytest.raises(openai.BadRequestError):
            await two.files.list(after=made.id)
        assert (await one.files.content(made.id)).content == b"secret"
