"""Images of a request become parts, files become text. Nothing is downloaded. Raises `Fault` INVALID_REQUEST."""

from __future__ import annotations

import codecs
import re
from typing import Final

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import ImagePart
from codex_proxy.core.media import ACCEPTED, NoImageError, PdfTexts, clean_data_url, decode_base64
from codex_proxy.core.shown_text import excerpt

_WEB_IMAGE: Final = re.compile(r"https?://\S", re.IGNORECASE)


def image_part(url: str, detail: str | None, param: str) -> ImagePart:
    """Returns an image part: a web address as it is, a data URL checked."""
    return ImagePart(image_url(url, param), detail)


def image_url(url: str, param: str) -> str:
    """Returns the URL of `image_part`."""
    url = url.strip()
    if _WEB_IMAGE.match(url):
        return url
    if url[:5].lower() != "data:":
        raise bad_request("Invalid image: expected a 'data:image/<type>;base64,' URL or an https URL.", param)
    try:
        return clean_data_url(url)
    except NoImageError as why:
        raise bad_request(
            f"Invalid image: the data {why}. Send {ACCEPTED} that is complete, in base64.",
            param,
            "invalid_base64_image" if "base64" in str(why) else "invalid_image",
        ) from None


IMAGE_LEFT_OUT: Final = "[An image was left out: it cannot be shown to this model.]"
"""The text that the model gets in place of an image of an earlier message."""

MAX_NAME: Final = 200
_DATA_URL: Final = re.compile(r"data:[^,]{0,256}?;base64,", re.IGNORECASE)
_NO_NAME: Final = re.compile(r'[\x00-\x1f\x7f"<>]')
_UTF_16_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PDF: Final = b"%PDF-"
_PDF_HEAD: Final = 1024

NO_PDFS: Final = (
    "Invalid file: this server does not read PDFs. Send its text instead, or ask the operator "
    "to install PDF support (`pip install 'codex-openai-proxy[pdf]'`) and restart the server."
)


def no_file(id: str) -> str:
    """Returns what is said of a `file_id` in whose place no file could be put (`requests.stored_files`)."""
    return (
        f"No file '{excerpt(id)}' is stored here for this key. It must have been uploaded (POST /v1/files), and not be "
        "deleted or expired."
    )


def file_text(
    param: str,
    *,
    name: str | None,
    data: str | None,
    pdfs: PdfTexts | None,
    id: str | None,
    url: str | None = None,
) -> str:
    """Returns a file as text. `data`: base64 or a data URL. An unknown PDF is added to `pdfs.unread`, to be read before
    the caller parses again (None: PDFs are refused). Raises `Fault` for other files.
    """
    if id is not None:
        raise bad_request(
            f"{no_file(id)} Send the file itself in 'file_data'.", f"{param}.file_id", "invalid_value"
        )
    if url is not None:
        raise bad_request(
            "This server does not fetch files by URL. Send the file itself in 'file_data'.",
            f"{param}.file_url",
            "unsupported_value",
        )
    if data is None:
        raise bad_request("A file must be given in 'file_data'.", f"{param}.file_data")
    text = _text_of(data, f"{param}.file_data", pdfs)
    shown = _NO_NAME.sub("_", name or "file")[:MAX_NAME]
    return f'<file name="{shown}">\n{text}\n</file>'


def _text_of(data: str, param: str, pdfs: PdfTexts | None) -> str:
    head = _DATA_URL.match(data)
    try:
        raw = decode_base64(data[head.end() :] if head else data)
    except ValueError:
        raise bad_request(
            "Invalid file: 'file_data' is not valid base64, alone or in a 'data:<type>;base64,' URL.",
            param,
            "invalid_base64_file",
        ) from None
    text = None if raw.startswith(_PDF) else decode_text(raw)
    if text is not None:
        return text
    # A reader of PDFs lets other bytes stand before the header.
    if _PDF not in raw[:_PDF_HEAD]:
        raise bad_request(
            "Invalid file: it is neither a PDF nor text (UTF-8, or UTF-16 with a byte order "
            "mark). Send its text instead.",
            param,
            "unsupported_file",
        )
    if pdfs is None:
        raise bad_request(NO_PDFS, param, "unsupported_file")
    return pdfs.text_of(raw, param)


def decode_text(raw: bytes) -> str | None:
    """Decodes UTF-8, or UTF-16 with a byte order mark; None if it is no text."""
    try:
        text = raw.decode("utf-16" if raw.startswith(_UTF_16_MARKS) else "utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
