"""PDFs are read in processes that can be killed, and their texts are kept for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.media import Pdf
from codex_proxy.workers import pdf_reader
from codex_proxy.workers.pdf_reader import PdfReader
from codex_proxy.workers.pdf_worker import MEMORY_BYTES
from tests import pdfs
from tests.cpu_time import cpu_seconds, slowness
from tests.waiting import eventually

TEXT = "[page 1 of 1]\nHello."


@pytest.fixture
async def reader(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PdfReader]:
    monkeypatch.setattr(pdf_reader, "WORKER", "tests.workers.hasty_pdf_worker")
    made = PdfReader(lambda: 2)
    yield made
    await made.close()
    assert made.pool.workers == []


async def read_text(reader: PdfReader, data: bytes, owner: str = "ann") -> str:
    (text,) = (await reader.read({b"1": Pdf(data, "here")}, owner)).values()
    return text


async def refusal_of(reader: PdfReader, data: bytes) -> str:
    with pytest.raises(Fault) as caught:
        await read_text(reader, data)
    failure = caught.value.failure
    assert (failure.kind, failure.param) == (FaultKind.INVALID_REQUEST, "here")
    assert failure.code == "unsupported_file"
    return failure.message


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", pdfs.BOMBS)
async def test_a_bomb_is_refused_and_the_next_file_is_read(reader: PdfReader, kind: str) -> None:
    longest = asyncio.ensure_future(_longest_stop())
    message = await refusal_of(reader, pdfs.bomb(kind))
    longest.cancel()
    assert message.startswith("Invalid file: the PDF takes too much ")
    assert await longest / slowness() < 0.1
    assert await read_text(reader, pdfs.pdf("Hello.")) == TEXT


async def _longest_stop() -> float:
    """How long the loop did one thing at most."""
    longest, last = 0.0, cpu_seconds()
    try:
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, cpu_seconds() - last), cpu_seconds()
    except asyncio.CancelledError:
        return longest


async def test_an_unreadable_pdf_is_a_400_that_names_the_part_and_says_what_to_do(reader: PdfReader) -> None:
    assert await refusal_of(reader, pdfs.encrypted_pdf("Hello.", "secret")) == (
        "Invalid file: the PDF is encrypted: send it without a password. Send its text, or pictures of its pages, "
        "instead."
    )


async def test_a_process_has_only_so_much_memory_and_nothing_of_our_environment(
    reader: PdfReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_API_KEY", "secret")
    await read_text(reader, pdfs.pdf("Hello."))
    process = psutil.Process(reader.pool.workers[0])
    assert process.environ() == {}
    assert process.rlimit(psutil.RLIMIT_AS) == (MEMORY_BYTES, MEMORY_BYTES)


async def test_a_text_is_kept_for_its_owner(reader: PdfReader) -> None:
    data = pdfs.pdf("Hello.")
    assert await read_text(reader, data) == TEXT
    assert await read_text(reader, b"not read again", "ann") == TEXT
    assert await read_text(reader, data, "bob") == TEXT
    assert await read_text(reader, b"not read again", "bob") == TEXT


async def test_the_text_of_a_pdf_is_cached(reader: PdfReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_reader, "KEPT_SECONDS", 0.05)
    assert await read_text(reader, pdfs.pdf("Hello.")) == TEXT
    await eventually(lambda: ("ann", b"1") not in reader._kept)
    with pytest.raises(Fault):
        await read_text(reader, b"read again")


async def test_the_cache_of_texts_is_limited(reader: PdfReader) -> None:
    reader._kept._room = 2 * (pdf_reader.ENTRY_CHARS + len(TEXT))
    for name in ("a", "b", "c"):
        await reader.read({name.encode(): Pdf(pdfs.pdf("Hello."), "here")}, "ann")
    assert [each for each in (b"a", b"b", b"c") if ("ann", each) in reader._kept] == [b"b", b"c"]
    assert len(expiries_of(reader)) == 2
    await reader.close()
    assert expiries_of(reader) == []


def expiries_of(reader: PdfReader) -> list[asyncio.TimerHandle]:
    """The timers that end what the reader keeps."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return [each for each in scheduled if not each.cancelled() and each._callback == reader._kept.drop]


@pytest.mark.exhaustive
async def test_an_owner_with_many_leaves_room_for_another(reader: PdfReader) -> None:
    bomb = Pdf(pdfs.bomb("a million texts"), "x")
    greedy = [asyncio.ensure_future(reader.read({b"%d" % n: bomb}, "ann")) for n in range(4)]
    await eventually(lambda: reader.pool.workers)
    assert await read_text(reader, pdfs.pdf("Hello."), "bob") == TEXT
    assert not any(each.done() for each in greedy)
    await reader.close()
    ended = await asyncio.gather(*greedy, return_exceptions=True)
    assert {each.failure.kind for each in ended if isinstance(each, Fault)} == {FaultKind.STOPPING}


async def test_a_request_whose_files_take_too_long_together_is_refused(
    reader: PdfReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf_reader, "REQUEST_SECONDS", -1.0)
    assert "with the others of the request" in await refusal_of(reader, pdfs.pdf("Hello."))
