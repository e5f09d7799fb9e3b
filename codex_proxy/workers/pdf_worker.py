"""The worker process that reads PDFs. It is killed for too much CPU time; for too much memory it answers so, or is
killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.workers.worker_process import run

if TYPE_CHECKING:
    from pypdf import PdfReader

CPU_SECONDS: Final = 20.0
"""The CPU time for one PDF; a full page takes 10 ms."""
MEMORY_BYTES: Final = 768 << 20
"""Maximum address space; the library unpacks no stream above 75 MB."""
MAX_PAGES: Final = 500
MAX_CHARS: Final = 2_000_000
"""Maximum characters of a text: more than any model takes."""
MAX_DEPTH: Final = 5
"""Maximum levels of nested form objects that are searched for fonts."""

_CONTROLS: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0x7F, *range(0x80, 0xA0)])


class PdfQuestion(msgspec.Struct, frozen=True):
    data: bytes


class PdfAnswer(msgspec.Struct, frozen=True):
    """The text, or in `wrong` why there is none, continuing `the PDF`."""

    text: str = ""
    wrong: str | None = None


class _UnreadableError(Exception):
    """A PDF cannot be read. The message continues `the PDF`."""


def read_pdf(question: PdfQuestion) -> PdfAnswer:
    """Returns the text of all pages, each under its number, and form values; or why there is none."""
    try:
        return PdfAnswer(_text_of(question.data))
    except _UnreadableError as error:
        return PdfAnswer(wrong=str(error))
    except Exception as error:  # noqa: BLE001 - whatever a damaged file makes the library raise: no end of kinds
        return PdfAnswer(wrong=_problem_text(error, "is damaged"))


def _text_of(data: bytes) -> str:
    pages = _pages_of(data)
    total = len(pages.pages)
    if not total:
        raise _UnreadableError("has no pages")
    if total > MAX_PAGES:
        raise _UnreadableError(f"has {total} pages: at most {MAX_PAGES} are read")
    written, texts, chars = 0, [], 0
    for number, page in enumerate(pages.pages, 1):
        text = _page_text(page, number)
        written += bool(text)
        chars += len(text)
        if chars > MAX_CHARS:
            raise _UnreadableError(f"has more than {MAX_CHARS:,} characters of text")
        head = f"[page {number} of {total}]" if text else f"[page {number} of {total}: no text]"
        texts.append(f"{head}\n{text}" if text else head)
    if filled := "\n".join(_filled_fields(pages)):
        written += 1
        texts.append(f"[fields of the form]\n{filled[:MAX_CHARS]}")
    if not written:
        raise _UnreadableError(
            "has no text that can be read: its pages are scanned, or their fonts have no character map"
        )
    return "\n\n".join(texts)


def _pages_of(data: bytes) -> PdfReader:
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    reader = PdfReader(BytesIO(data))
    try:
        locked = reader.is_encrypted and not reader.decrypt("")  # one may only forbid to print
    except (DependencyError, NotImplementedError):
        locked = True
    if locked:
        raise _UnreadableError("is encrypted: send it without a password")
    return reader


def _page_text(page: Any, number: int) -> str:
    _use_unicode_maps(page.get("/Resources"), MAX_DEPTH)
    try:
        text = page.extract_text()
    except Exception as error:
        raise _UnreadableError(
            _problem_text(error, f"is damaged: its page {number} cannot be read")
        ) from error
    # Lone halves of surrogate pairs are no text, and nothing that is sent on could hold them.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\r\n", "\n")
    clean = text.translate(_CONTROLS)
    # Codes of letters that the font does not map to Unicode come as control characters: such a text is noise.
    return clean.strip() if len(clean) * 2 > len(text) else ""


def _problem_text(error: Exception, damaged: str) -> str:
    from pypdf.errors import LimitReachedError

    return "takes too much memory to read" if isinstance(error, LimitReachedError | MemoryError) else damaged


def _use_unicode_maps(resources: Any, depth: int) -> None:
    """Makes the library use each font's map to Unicode: it ignores embedded encodings (WeasyPrint)."""
    from pypdf.generic import NameObject, StreamObject

    resources = _resolve_reference(resources)
    for font in _values(resources, "/Font"):
        if "/ToUnicode" in font and isinstance(_resolve_reference(font.get("/Encoding")), StreamObject):
            font[NameObject("/Encoding")] = NameObject("/Identity-H")
    if depth:
        for form in _values(resources, "/XObject"):
            if form.get("/Subtype") == "/Form":
                _use_unicode_maps(form.get("/Resources"), depth - 1)


def _values(resources: Any, kind: str) -> Iterator[dict[str, Any]]:
    entries = _resolve_reference(resources.get(kind)) if isinstance(resources, dict) else None
    for entry in entries.values() if isinstance(entries, dict) else ():
        value = _resolve_reference(entry)
        if isinstance(value, dict):
            yield value


def _resolve_reference(value: Any) -> Any:
    return value.get_object() if hasattr(value, "get_object") else value


def _filled_fields(reader: PdfReader) -> Iterator[str]:
    """Yields form fields, which no page's text contains."""
    for name, value in reader.get_form_text_fields(full_qualified_name=True).items():
        if isinstance(value, str) and value.strip():
            yield f"{name}: {value.translate(_CONTROLS).strip()}"


def main() -> None:
    run(PdfQuestion, read_pdf, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
