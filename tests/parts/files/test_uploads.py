"""Forms of uploads as they come from the network: in pieces, cut, false, too large, or from a web page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.parts.files import upload as upload_module
from codex_proxy.parts.files.objects import StoredFile
from tests.http.serving import Proxy, fake_proxy, until
from tests.parts.files.sending import (
    ANTHROPIC,
    BOUNDARY,
    END,
    FORM,
    OPENAI,
    files_of,
    form,
    part,
    upload,
    uploaded,
)
from tests.waiting import PATIENCE

FILE = part("file", b"Hello.", "a.txt")
PURPOSE = part("purpose", b"batch")


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as running:
        yield running


def left(folder: Path) -> list[str]:
    """The names of the files with bytes."""
    folder = folder / "state" / "store.sqlite3.files"
    return sorted(each.name for each in folder.iterdir()) if folder.exists() else []


async def test_the_bytes_lie_beside_the_store_for_their_owner_alone(proxy: Proxy, tmp_path: Path) -> None:
    id = await uploaded(proxy, data=b"Hello.")
    folder = tmp_path / "state" / "store.sqlite3.files"
    assert (folder / id).read_bytes() == b"Hello."
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / id).stat().st_mode & 0o777 == 0o600
    assert (await proxy.send("DELETE", f"/v1/files/{id}")).status == 200
    assert left(tmp_path) == []


async def test_a_file_that_is_deleted_while_it_is_read_is_an_unknown_one(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    id, files = await uploaded(proxy, data=b"Hello."), files_of(proxy)
    found = await files.find(NO_KEY_OWNER, id)
    assert (await proxy.send("DELETE", f"/v1/files/{id}")).status == 200

    async def found_before(*_: str) -> StoredFile:
        return found

    monkeypatch.setattr(files, "find", found_before)
    assert await files.load(NO_KEY_OWNER, id, 100) is None
    with pytest.raises(Fault, match="No such file"):
        [each async for each in files.read(NO_KEY_OWNER, found, 0, 6)]
    assert (await proxy.send("DELETE", f"/v1/files/{id}")).status == 404


async def test_the_fields_may_come_behind_the_file(proxy: Proxy) -> None:
    answer = await upload(proxy, FILE + PURPOSE + END)
    assert (answer.status, answer.body["purpose"]) == (200, "batch")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (3 << 20) + 7])
@pytest.mark.parametrize("store", ["sqlite", "memory"])
async def test_every_size_comes_back_byte_by_byte(tmp_path: Path, store: str, size: int) -> None:
    data = bytes(range(251)) * (size // 251 + 1)
    async with fake_proxy(tmp_path, store=store) as proxy:
        id = await uploaded(proxy, data=data[:size], filename="a.bin")
        async with proxy.session.get(f"{proxy.url}/v1/files/{id}/content") as reply:
            assert await reply.read() == data[:size]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\\\a\\\\b.txt", "b.txt"),
        ("ä€.txt", "ä€.txt"),
        ("", "unnamed.txt"),
    ],
)
async def test_a_name_is_only_a_name(proxy: Proxy, tmp_path: Path, given: str, shown: str) -> None:
    id = await uploaded(proxy, filename=given)
    assert (await proxy.send("GET", f"/v1/files/{id}")).body["filename"] == shown
    assert left(tmp_path) == [id]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (PURPOSE + END, "file"),
        (FILE + END, "purpose"),
        (FILE + part("purpose", b"fun") + END, "purpose"),
        (FILE + FILE + PURPOSE + END, "file"),
        (FILE + PURPOSE + part("expires_after[seconds]", b"3600") + END, "expires_after.anchor"),
        (
            FILE
            + PURPOSE
            + part("expires_after[anchor]", b"created_at")
            + part("expires_after[seconds]", b"60")
            + END,
            "expires_after.seconds",
        ),
        (FILE + PURPOSE + part("x", b"a" * 2_000) + END, "x"),
        (FILE + PURPOSE + PURPOSE + END, "purpose"),
        (form(filename="a" * 300, purpose="batch"), "file"),
        (b"".join([FILE, PURPOSE, *[part(f"f{i}", b"") for i in range(30)], END]), None),
        (b"", None),
        (b"Hello.", None),
        (FILE, None),
        (FILE[:-20], None),
        (FILE + PURPOSE, None),
        (PURPOSE + b"--" + BOUNDARY.encode() + b"\r\nno header\r\n\r\n", None),
        (part("", b"a") + END, None),
        (form(filename="a\x07b", purpose="batch"), None),
        (FILE.replace(b'form-data; name="file"', b'form-data; name="file') + PURPOSE + END, "file"),
        (FILE.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + PURPOSE + END, None),
        (part("file", b"", "a", "multipart/mixed; boundary=b") + END, None),
        (part("_charset_", b"a" * 100) + FILE + END, None),
    ],
)
async def test_a_form_that_is_wrong_is_refused_and_leaves_nothing(
    proxy: Proxy, tmp_path: Path, body: bytes, param: str | None
) -> None:
    answer = await upload(proxy, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.text
    assert left(tmp_path) == []
    assert (await proxy.send("GET", "/v1/files")).body["data"] == []


async def test_a_lifetime_of_anthropics_form_has_its_limits(proxy: Proxy) -> None:
    answer = await upload(proxy, FILE + part("expires_in_seconds", b"60") + END, ANTHROPIC)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")


async def test_fields_without_effect_are_named(proxy: Proxy) -> None:
    answer = await upload(proxy, FILE + PURPOSE + part("more", b"1") + END)
    assert answer.headers["x-codex-ignored-params"] == "more"


async def test_a_field_whose_name_no_header_can_have_does_not_stop_the_upload(proxy: Proxy) -> None:
    broken = part("more", b"1").replace(b'name="more"', b"name*=utf-8''a%0d%0aX-More%3A%201")
    answer = await upload(proxy, FILE + PURPOSE + broken + part("expires_after[more]", b"1") + END)
    assert (answer.status, answer.headers["x-codex-ignored-params"]) == (200, "expires_after.more")
    assert "X-More" not in answer.headers


async def test_a_body_that_is_no_form_is_told_what_to_send(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/v1/files", {"file": "a"}, headers=OPENAI)
    assert (answer.status, answer.error["param"]) == (400, "file")
    assert "multipart/form-data" in answer.error["message"]


async def test_a_form_of_a_page_is_told_which_form_to_send(proxy: Proxy) -> None:
    headers = {**OPENAI, "Content-Type": "application/x-www-form-urlencoded"}
    answer = await proxy.send("POST", "/v1/files", b"purpose=user_data&file=x", headers=headers)
    assert answer.status == 415
    assert "multipart/form-data" in answer.error["message"]


async def test_a_packed_form_is_refused(proxy: Proxy) -> None:
    answer = await upload(proxy, form(), {**OPENAI, "Content-Encoding": "gzip"})
    assert answer.status == 415


async def test_a_form_that_a_web_page_could_send_is_refused(proxy: Proxy, tmp_path: Path) -> None:
    answer = await upload(proxy, form(purpose="batch"), {})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert left(tmp_path) == []
    assert (await upload(proxy, form(), {"x-api-key": "none"})).status == 200


async def test_a_client_that_leaves_in_the_middle_leaves_nothing(proxy: Proxy, tmp_path: Path) -> None:
    _, writer = await _begin(proxy, part("file", b"a" * 3_000_000, "a.txt"))
    await until(lambda: bool(left(tmp_path)))
    writer.close()
    await until(lambda: not left(tmp_path))
    assert (await proxy.send("GET", "/v1/files")).body["data"] == []


async def test_a_file_that_is_being_received_is_not_there_yet(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="memory") as proxy:
        reader, writer = await _begin(proxy, part("file", b"a" * (32 << 20), "a.txt"))
        await asyncio.wait_for(
            writer.drain(), PATIENCE
        )  # more than the connection holds: some of it is stored
        assert (await proxy.send("GET", "/v1/files")).body["data"] == []
        await files_of(proxy).sweep()
        writer.write(PURPOSE + END)
        assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"\r\n"), PATIENCE)
        [file] = (await proxy.send("GET", "/v1/files")).body["data"]
        assert file["bytes"] == 32 << 20
        writer.close()


async def test_a_form_that_takes_too_long_is_refused(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_module, "UPLOAD_SECONDS", 0.2)
    reader, writer = await _begin(proxy, part("file", b"a", "a.txt"))
    answer = await reader.readuntil(b"\r\n")
    assert b" 400 " in answer
    writer.close()
    await until(lambda: not left(tmp_path))


async def _begin(proxy: Proxy, body: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Sends the beginning of a form in one chunk, without its end."""
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/files HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer none\r\n"
    head += (
        f"Content-Type: {FORM['Content-Type']}\r\nContent-Length: {len(body) + len(PURPOSE + END)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    return reader, writer


async def test_a_client_that_waits_to_be_asked_for_its_form_is_asked(proxy: Proxy) -> None:
    async with proxy.session.post(
        f"{proxy.url}/v1/files", data=form(purpose="batch"), headers={**FORM, **OPENAI}, expect100=True
    ) as reply:
        assert reply.status == 200


# --- limits -----------------------------------------------------------------------------------------


async def test_a_file_above_the_limit_is_refused_before_and_while_it_comes(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, files={"max_bytes": 100_000}) as proxy:
        assert (await upload(proxy, data=b"a" * 100_000)).status == 200
        for body in (form(b"a" * 100_001, purpose="batch"), form(b"a" * 1_000_000, purpose="batch")):
            answer = await upload(proxy, body)
            assert (answer.status, answer.error["param"]) == (413, "file")
            assert "PROXY_FILES_MAX_BYTES" in answer.error["message"]
        assert len(left(tmp_path)) == 1


async def test_a_store_in_memory_takes_files_up_to_32_mib(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="memory") as proxy:
        assert files_of(proxy).max_bytes == 32 << 20


async def test_the_files_of_a_key_have_a_quota_which_deleting_frees(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, files={"quota": 10_000}) as proxy:
        first = await uploaded(proxy, data=b"a" * 6_000)
        answer = await upload(proxy, data=b"a" * 6_000)
        assert (answer.status, answer.error["type"]) == (403, "permission_error")
        assert "PROXY_FILES_QUOTA" in answer.error["message"]
        assert left(tmp_path) == [first]
        await proxy.send("DELETE", f"/v1/files/{first}")
        await uploaded(proxy, data=b"a" * 6_000)


async def test_uploads_at_the_same_time_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, files={"quota": 10_000}) as proxy:
        answers = await asyncio.gather(*(upload(proxy, data=b"a" * 4_000) for _ in range(6)))
        assert {answer.status for answer in answers} <= {200, 403}
        listed = (await proxy.send("GET", "/v1/files")).body["data"]
        assert 0 < sum(each["bytes"] for each in listed) <= 10_000
        assert len(left(tmp_path)) == len(listed)


async def test_a_key_has_a_maximum_number_of_files(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codex_proxy.parts.files.service.MAX_FILES", 2)
    await uploaded(proxy)
    await uploaded(proxy)
    answer = await upload(proxy)
    assert (answer.status, "Delete some" in answer.error["message"]) == (403, True)


async def test_without_a_store_there_are_no_files(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off") as proxy:
        for method, path in (
            ("GET", "/v1/files"),
            ("GET", "/v1/files/file-1"),
            ("DELETE", "/v1/files/file-1"),
        ):
            answer = await proxy.send(method, path)
            assert (answer.status, answer.error["code"]) == (400, "store_disabled")
        assert (await upload(proxy)).error["code"] == "store_disabled"


# --- bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["sqlite", "memory"])
async def test_a_range_of_the_bytes_can_be_asked_for(tmp_path: Path, store: str) -> None:
    size = (1 << 20) + 100
    data = (bytes(range(250)) * 5_000)[:size]
    async with fake_proxy(tmp_path, store=store) as proxy:
        id = await uploaded(proxy, data=data, filename="a.bin")

        async def ask(method: str, **headers: str) -> tuple[int, bytes, Any]:
            url = f"{proxy.url}/v1/files/{id}/content"
            async with proxy.session.request(method, url, headers=headers) as reply:
                return reply.status, await reply.read(), reply.headers

        for given, start, stop in (
            ("bytes=0-9", 0, 10),
            (f"bytes={(1 << 20) - 5}-{(1 << 20) + 4}", (1 << 20) - 5, (1 << 20) + 5),
            ("bytes=-7", size - 7, size),
            (f"bytes={size - 3}-", size - 3, size),
            ("bytes=5-99999999", 5, size),
        ):
            status, got, headers = await ask("GET", Range=given)
            assert (status, got) == (206, data[start:stop]), given
            assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
        for given in ("bytes=9-5", "bytes=0-1,3-4", "lines=1-2"):
            assert (await ask("GET", Range=given))[:2] == (200, data)
        assert (await ask("GET", **{"Range": "bytes=0-9", "If-Range": '"x"'}))[:2] == (200, data)
        for given in (f"bytes={size}-", "bytes=-0"):
            status, _, headers = await ask("GET", Range=given)
            assert (status, headers["Content-Range"]) == (416, f"bytes */{size}"), given
        status, got, headers = await ask("HEAD")
        assert (status, got, headers["Content-Length"]) == (200, b"", str(size))
        assert headers["Accept-Ranges"] == "bytes"


async def test_a_browser_does_not_show_what_was_uploaded(proxy: Proxy) -> None:
    id = await uploaded(proxy, data=b"<script>", filename='a".html', media_type="text/html")
    async with proxy.session.get(f"{proxy.url}/v1/files/{id}/content") as reply:
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["Content-Disposition"].startswith("attachment;")
