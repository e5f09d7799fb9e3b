"""Reads PDFs in worker processes, since a hostile file may take any time and memory. Texts are cached, because a chat
sends its files again.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeAlias

from codex_proxy.core.caches import LruCache
from codex_proxy.core.faults import STOPPING, Fault, FaultKind, bad_request
from codex_proxy.core.media import Pdf
from codex_proxy.workers.pdf_worker import PdfAnswer, PdfQuestion
from codex_proxy.workers.pool import NoAnswer, WorkerPool

WORKER: Final = "codex_proxy.workers.pdf_worker"
WALL_SECONDS: Final = 40.0
"""Seconds for one PDF, also on a busy machine."""
REQUEST_SECONDS: Final = 60.0
"""Seconds after which no further PDF of a request is begun."""
KEPT_SECONDS: Final = 600.0
MAX_KEPT_CHARS: Final = 8 << 20
ENTRY_CHARS: Final = 512
"""The characters that a text counts besides its own, for the memory of its key and timer."""

_Key: TypeAlias = tuple[str, bytes]
"""The owner and the digest of a PDF."""


class _Kept(NamedTuple):
    text: str
    expiry: asyncio.TimerHandle


def can_read_pdfs() -> bool:
    """Whether the extra `pdf` is installed."""
    return importlib.util.find_spec("pypdf") is not None


class PdfReader:
    """Reads PDFs, and keeps their texts. `owners` returns how many keys share the workers (`slots`). `close` it."""

    def __init__(self, owners: Callable[[], int]) -> None:
        self.pool: WorkerPool[PdfQuestion, PdfAnswer] = WorkerPool(
            WORKER, PdfAnswer, wall_seconds=WALL_SECONDS, owners=owners
        )
        self._kept: LruCache[_Key, _Kept] = LruCache(
            MAX_KEPT_CHARS, lambda _, kept: ENTRY_CHARS + len(kept.text), lambda kept: kept.expiry.cancel()
        )

    async def read(
        self, pdfs: Mapping[bytes, Pdf], owner: str, *, skips_unreadable: bool = False
    ) -> dict[bytes, str]:
        """Returns the texts of PDFs by their digests. Raises `Fault`: INVALID_REQUEST for an unreadable one
        (`skips_unreadable`: an empty text instead), UNAVAILABLE, STOPPING.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + REQUEST_SECONDS
        texts: dict[bytes, str] = {}
        for digest, pdf in pdfs.items():
            kept = self._kept.get((owner, digest))
            try:
                if kept is None and loop.time() > until:
                    raise _pdf_fault("takes too long to read, with the others of the request", pdf.field)
                texts[digest] = await self._text_of(pdf, owner) if kept is None else kept.text
            except Fault as fault:
                if not (skips_unreadable and fault.failure.kind is FaultKind.INVALID_REQUEST):
                    raise
                texts[digest] = ""
                continue
            self._keep((owner, digest), texts[digest])
        return texts

    async def close(self) -> None:
        self._kept.clear()
        await self.pool.close()

    async def _text_of(self, pdf: Pdf, owner: str) -> str:
        answered = await self.pool.ask(PdfQuestion(pdf.data), owner)
        if isinstance(answered, PdfAnswer):
            if answered.wrong is not None:
                raise _pdf_fault(answered.wrong, pdf.field)
            return answered.text
        if answered is NoAnswer.GAVE_UP:
            raise _pdf_fault("takes too much time or memory to read", pdf.field)
        if answered is NoAnswer.STOPPING:
            raise Fault(STOPPING)
        busy = answered is NoAnswer.BUSY
        why = "too many others are being read" if busy else "no process could be started for it"
        message = f"The PDF in '{pdf.field}' could not be read: {why}. Try again later."
        raise Fault.of(FaultKind.UNAVAILABLE, message, param=pdf.field, retry_after=5)

    def _keep(self, key: _Key, text: str) -> None:
        expiry = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._kept.drop, key)
        self._kept.put(key, _Kept(text, expiry))


def _pdf_fault(wrong: str, field: str) -> Fault:
    return bad_request(
        f"Invalid file: the PDF {wrong}. Send its text, or pictures of its pages, instead.",
        field,
        "unsupported_file",
    )
