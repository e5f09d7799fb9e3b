"""Converts content blocks to parts of the history. A bad image, a document that is not sent along, or an unknown block
raises `Fault` INVALID_REQUEST only in the user's newest message, because clients send their history each time;
elsewhere, and for a document that is there but unreadable, a note takes its place. Source: docs/messages.md#content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import ImagePart, Part, TextPart
from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.core.media import NoImageError, PdfTexts, clean_data_url, decode_base64
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.surfaces.attachments import IMAGE_LEFT_OUT, decode_text, image_part
from codex_proxy.surfaces.body import unsupported_value
from codex_proxy.surfaces.field_lists import FIELD_NAME, FieldNotes
from codex_proxy.surfaces.messages.wire import BLOCK_FIELDS

_PDF: Final = "application/pdf"
_GIVEN_IN: Final = {"text": "data", "content": "content", "base64": "data"}
"""The field with the document itself, by the type of its source."""
_MAX_TITLE: Final = 200
_USER_BLOCKS: Final = ("text", "image", "document", "search_result", "tool_result")
TOOL_CHANGES: Final = {"tool_addition": "can be called", "tool_removal": "can no longer be called"}
"""Blocks that change the offered tools, with words for the model."""
_QUOTE: Final = str.maketrans({'"': "'", "<": "(", ">": ")"})


class BlockReader:
    """Reads content blocks. `ignored`: parameters without effect; `web_images`: addresses of images, each with the
    field that has it; `newest_images`: those in the user's newest message.
    """

    def __init__(self, pdfs: PdfTexts | None, notes: FieldNotes, *, takes_images: bool) -> None:
        """`pdfs` None: no PDFs are read. `takes_images`: whether the agent takes images."""
        self.ignored: dict[str, None] = {}
        self.web_images: dict[str, str] = {}
        self.newest_images: set[str] = set()
        self._pdfs = pdfs
        self._notes = notes
        self._takes_images = takes_images

    def parts(self, content: Any, param: str, *, newest: bool) -> Iterator[Part]:
        """Yields the parts of a message or result, without empty texts. `newest`: whether they belong to the user's
        newest message.
        """
        if isinstance(content, str):
            if content:
                yield TextPart(content)
            return
        for index, block in enumerate(content if isinstance(content, list) else ()):
            yield from self.parts_of_block(block, f"{param}[{index}]", newest=newest)

    def parts_of_block(self, block: Any, param: str, *, newest: bool) -> Iterator[Part]:
        kind = block_type(block)
        self.note_fields(block)
        if kind == "text":
            if text := text_of(block):
                yield TextPart(text)
        elif isinstance(block, str):
            yield from self.parts(block, param, newest=newest)
        elif kind == "image":
            yield self._image(object_at(block, "source"), param, newest=newest)
        elif kind == "document":
            yield from self._document(block, param, newest=newest)
        elif kind == "search_result":
            yield TextPart(_search_result(block))
        elif kind == "tool_reference":
            yield TextPart(f"The tool {escape(text_at(block, 'tool_name'))} can be called from now on.")
        elif kind in TOOL_CHANGES:
            yield TextPart(
                f"The tool {escape(excerpt(changed_tool_name(block)))} {TOOL_CHANGES[kind]} from now on."
            )
        elif newest:
            raise unsupported_value(f"{param}.type", kind, ", ".join(f"'{each}'" for each in _USER_BLOCKS))
        else:
            self.note_left_out(block)
            shown = excerpt(kind) if kind else "of no type"
            yield TextPart(f"[A content block ({shown}) was left out: this model cannot read it.]")

    def note_fields(self, block: Any) -> None:
        served = BLOCK_FIELDS.get(block_type(block))
        if served is not None and not served.issuperset(block):
            self._notes.add_unknown(block, served, "messages[].content[]")

    def note_left_out(self, block: Any) -> None:
        """Adds the block's type to `ignored`."""
        kind = block_type(block)
        self.ignored[f"messages[].content[]{'.' + kind if FIELD_NAME.fullmatch(kind) else ''}"] = None

    # --- images -----------------------------------------------------------------------------------

    def _image(self, source: dict[str, Any], param: str, *, newest: bool) -> Part:
        try:
            if not self._takes_images:
                raise bad_request(
                    "The agent of this server does not accept images.", param, "unsupported_by_agent"
                )
            return self._shown_image(source, f"{param}.source", newest=newest)
        except Fault:
            if newest:
                raise
        return TextPart(IMAGE_LEFT_OUT)

    def _shown_image(self, source: dict[str, Any], param: str, *, newest: bool) -> ImagePart:
        kind = source.get("type")
        if kind == "base64":
            data = f"data:{text_at(source, 'media_type')};base64,{text_at(source, 'data')}"
            try:
                return ImagePart(clean_data_url(data))
            except NoImageError as why:
                raise bad_request(f"Invalid image: the data {why}.", f"{param}.data") from None
        if kind == "url":
            part = image_part(text_at(source, "url"), None, f"{param}.url")
            if part.url[:5].lower() != "data:":
                if newest and part.url not in self.newest_images:
                    self.newest_images.add(part.url)
                    self.web_images[part.url] = f"{param}.url"
                self.web_images.setdefault(part.url, f"{param}.url")
            return part
        raise bad_request(
            "Invalid image: expected a source of the type 'base64' or 'url'; this server has no Files API.",
            param,
        )

    # --- documents --------------------------------------------------------------------------------

    def _document(self, block: dict[str, Any], param: str, *, newest: bool) -> Iterator[Part]:
        source = object_at(block, "source")
        if value_at(block, "citations", "enabled"):
            self.ignored["citations"] = None
        kind = text_at(source, "type")
        given = source.get(_GIVEN_IN.get(kind, ""))
        title, context = _shown_title(block), text_at(block, "context")
        head = f'<document title="{title}">\n' + (f"{context}\n" if context else "")
        if kind == "text" and isinstance(given, str):
            yield TextPart(f"{head}{given}\n</document>")
        elif kind == "content" and isinstance(given, str | list):
            yield TextPart(head.rstrip("\n"))
            yield from self.parts(given, f"{param}.source.content", newest=newest)
            yield TextPart("</document>")
        elif kind == "base64" and isinstance(given, str) and (raw := _decoded(given)):
            yield self._file(raw, text_at(source, "media_type") or "of no type", title, head, param)
        elif newest:
            raise _not_sent_along(kind, f"{param}.source")
        else:
            self.ignored["document"] = None
            yield TextPart(f"[Document {title}: this model cannot read it.]")

    def _file(self, raw: bytes, media_type: str, title: str, head: str, param: str) -> TextPart:
        is_pdf = media_type == _PDF
        text = self._pdf_text(raw, f"{param}.source.data") if is_pdf else decode_text(raw)
        if text is not None:
            return TextPart(f"{head}{text}\n</document>")
        self.ignored["document"] = None
        shown = f"{title}, {excerpt(media_type)}, {len(raw)} bytes"
        return TextPart(f"[Document {shown}: this model cannot read it.]")

    def _pdf_text(self, raw: bytes, param: str) -> str | None:
        if self._pdfs is None:
            return None
        try:
            return self._pdfs.text_of(raw, param) or None
        except Fault:
            return None


def _decoded(data: str) -> bytes:
    try:
        return decode_base64(data)
    except ValueError:
        return b""


def _not_sent_along(kind: str, param: str) -> Fault:
    if kind in _GIVEN_IN:
        field = _GIVEN_IN[kind]
        return bad_request(
            f"Invalid document: a source of the type '{kind}' needs it in '{field}'.", f"{param}.{field}"
        )
    return bad_request(
        "Invalid document: expected a source of the type 'base64', 'text' or 'content'; this server has no Files API, "
        "and fetches no documents.",
        param,
    )


def block_type(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""


def changed_tool_name(block: dict[str, Any]) -> str:
    """Returns the name of the tool that a `tool_addition` or `tool_removal` is about."""
    defined = value_at(block, "tool", "definition")
    return text_at(defined if isinstance(defined, dict) else value_at(block, "tool"), "name")


def text_of(block: dict[str, Any]) -> str:
    return text_at(block, "text")


def results_text(block: dict[str, Any]) -> str:
    """Returns a line for each result of Anthropic's tools."""
    content = block.get("content")
    lines: list[str] = []
    for each in content if isinstance(content, list) else [content]:
        if not isinstance(each, dict):
            continue
        found = [text_at(each, field) for field in ("title", "url", "text", "stdout", "stderr", "error_code")]
        line = " - ".join(part for part in found if part)
        if line:
            lines.append(line)
    return "\n".join(lines)


def _search_result(block: dict[str, Any]) -> str:
    texts = map(text_of, objects_in(block.get("content")))
    head = " - ".join(part for part in (text_at(block, "title"), text_at(block, "source")) if part)
    return "\n".join([head, *(text for text in texts if text)])


def _shown_title(block: dict[str, Any]) -> str:
    return escape(text_at(block, "title") or "document").translate(_QUOTE)[:_MAX_TITLE]
