"""The PDFs in events of a client: their texts take their place, as in Messages."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel

from codex_proxy.core.faults import Fault
from codex_proxy.core.media import PdfTexts, decode_base64
from codex_proxy.parts.managed_agents import session_wire as wire
from codex_proxy.parts.managed_agents.environments import refused
from codex_proxy.surfaces.requests.files import NO_PDFS
from codex_proxy.surfaces.responses.item_wire import TEXT_LIMIT

M = TypeVar("M", bound=BaseModel)

_HEAD: Final = 1024
"""Bytes in which a PDF says that it is one."""


def with_pdf_texts(given: M, pdfs: PdfTexts | None) -> M:
    """Returns a body with the texts of the PDFs in its events. One that is not known is added to `pdfs.unread`, and has
    no text before the body is parsed again. Raises `Fault`, also for any PDF if `pdfs` is None.
    """
    sent, initial = getattr(given, "events", None), getattr(given, "initial_events", None)
    for field, events in (("events", sent), ("initial_events", initial)):
        if isinstance(events, list):
            found = [_event(event, f"{field}[{index}]", pdfs) for index, event in enumerate(events)]
            given = given.model_copy(update={field: found})
    return given


def _event(event: BaseModel, place: str, pdfs: PdfTexts | None) -> BaseModel:
    content = getattr(event, "content", None)
    if not isinstance(content, list):
        return event
    found = [_block(block, f"{place}.content[{index}].source", pdfs) for index, block in enumerate(content)]
    return event.model_copy(update={"content": found})


def _block(block: Any, place: str, pdfs: PdfTexts | None) -> Any:
    if not (isinstance(block, wire.DocumentBlock) and isinstance(block.source, wire.Base64Source)):
        return block
    try:
        raw = decode_base64(block.source.data)
    except ValueError:
        return block  # is refused as what it is not
    if b"%PDF-" not in raw[:_HEAD]:
        return block
    if pdfs is None:
        raise refused(NO_PDFS, place)
    try:
        text = pdfs.text_of(raw, place)
    except Fault as fault:
        raise refused(fault.failure.message, place) from fault
    if not (text.strip() or pdfs.unread):
        raise refused("the PDF has no text. Send pictures of its pages.", place)
    if len(text) > TEXT_LIMIT:
        raise refused(
            f"the PDF's text has more than {TEXT_LIMIT} characters. Put the file into the folder.", place
        )
    return block.model_copy(update={"source": wire.TextSource(type="text", data=text)})
