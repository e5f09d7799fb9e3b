"""The PDFs of one request: the texts of those that have been read, and those that have yet to be.

A parser of bodies does no IO, and reading a PDF may take long. So it asks here for the text of each, and is run again
when those that were unread have been read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from codex_proxy.core.faults import bad_request

MAX_PDFS: Final = 20
"""Different ones in one request."""
MAX_PDF_BYTES: Final = 20 << 20


class Pdf(msgspec.Struct, frozen=True):
    """A PDF of a request, and the field that holds it."""

    data: bytes
    field: str


class PdfTexts:
    """`known`: texts by digest. `unread` has the PDFs that were asked for and are not among them, by digest."""

    def __init__(self, known: Mapping[bytes, str] | None = None) -> None:
        self._known = known or {}
        self.unread: dict[bytes, Pdf] = {}

    def text_of(self, data: bytes, field: str) -> str:
        """The text; empty for one that is unread. Raises `Fault` for one that is too large, or one too many."""
        if len(data) > MAX_PDF_BYTES:
            raise bad_request(
                f"Invalid file: the PDF is larger than {MAX_PDF_BYTES >> 20} MiB.", field, "unsupported_file"
            )
        digest = hashlib.sha256(data).digest()
        if digest in self._known:
            return self._known[digest]
        self.unread.setdefault(digest, Pdf(data, field))
        if len(self.unread) > MAX_PDFS:
            raise bad_request(
                f"A request may bring at most {MAX_PDFS} PDFs: send the text of the others.",
                field,
                "unsupported_file",
            )
        return ""
