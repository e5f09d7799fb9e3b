"""Converts messages to history. Instructions become developer messages in place. Raw items of `redacted_thinking`
return to their places. Raises `Fault` INVALID_REQUEST for the user's newest message only, because clients send their
history each time. Source: docs/messages.md#the-conversation.

A bad image, a document that is not sent along, or an unknown block is refused in that message; elsewhere, and for a
document that is there but unreadable, a note takes its place. Source: docs/messages.md#content.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.core.media import NoImageError, PdfTexts, clean_data_url, decode_base64
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.messages import wire
from codex_proxy.surfaces.messages.state import Element, unpack_items
from codex_proxy.surfaces.messages.wire import BLOCK_FIELDS
from codex_proxy.surfaces.requests.body import typed_at, unsupported_value, wrong_type
from codex_proxy.surfaces.requests.fields import FIELD_NAME, FieldNotes
from codex_proxy.surfaces.requests.files import IMAGE_LEFT_OUT, decode_text, image_part, no_file
from codex_proxy.surfaces.requests.options import HistoryWithCalls, model_name

T = TypeVar("T")

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
        elif isinstance(content, list):
            for index, block in enumerate(content):
                yield from self.parts_of_block(block, f"{param}[{index}]", newest=newest)
        elif content is not None:
            if newest:
                raise wrong_type(param, content, "a string or an array")
            self.ignored["messages[].content[].content"] = None

    def typed(self, block: dict[str, Any], name: str, kind: type[T], param: str, *, newest: bool) -> T | None:
        """Returns a field of a block; None if it has none. One of another type is refused in the newest message, and
        elsewhere ignored and named.
        """
        try:
            return typed_at(block, name, kind, param)
        except Fault:
            if newest:
                raise
        self.ignored[f"messages[].content[].{name}"] = None
        return None

    def text(self, block: dict[str, Any], name: str, param: str, *, newest: bool) -> str:
        """Returns a text of a block (see `typed`), or empty."""
        return self.typed(block, name, str, param, newest=newest) or ""

    def parts_of_block(self, block: Any, param: str, *, newest: bool) -> Iterator[Part]:
        kind = block_type(block)
        self.note_fields(block)
        if kind == "text":
            if text := self.text(block, "text", param, newest=newest):
                yield TextPart(text)
        elif isinstance(block, str):
            yield from self.parts(block, param, newest=newest)
        elif kind == "image":
            yield self._image(object_at(block, "source"), param, newest=newest)
        elif kind == "document":
            yield from self._document(block, param, newest=newest)
        elif kind == "search_result":
            yield from self._search_result(block, param, newest=newest)
        elif kind == "tool_reference":
            name = self.text(block, "tool_name", param, newest=newest)
            yield TextPart(f"The tool {escape(name)} can be called from now on.")
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
        if kind == "file":
            raise _no_such_file("image", source, param)
        raise bad_request("Invalid image: expected a source of the type 'base64', 'url' or 'file'.", param)

    # --- documents --------------------------------------------------------------------------------

    def _document(self, block: dict[str, Any], param: str, *, newest: bool) -> Iterator[Part]:
        source = object_at(block, "source")
        if value_at(block, "citations", "enabled"):
            self.ignored["citations"] = None
        kind = text_at(source, "type")
        given = source.get(_GIVEN_IN.get(kind, ""))
        title = self.text(block, "title", param, newest=newest) or "document"
        title = escape(title).translate(_QUOTE)[:_MAX_TITLE]
        context = self.text(block, "context", param, newest=newest)
        head = f'<document title="{title}">\n' + (f"{context}\n" if context else "")
        if kind == "text" and isinstance(given, str):
            yield TextPart(f"{head}{given}\n</document>")
        elif kind == "content" and isinstance(given, str | list):
            yield TextPart(head.rstrip("\n"))
            yield from self.parts(given, f"{param}.source.content", newest=newest)
            yield TextPart("</document>")
        elif kind == "base64" and (raw := _decoded(source)) is not None:
            yield self._file(raw, text_at(source, "media_type") or "of no type", title, head, param)
        elif newest and kind == "file":
            raise _no_such_file("document", source, f"{param}.source")
        elif newest:
            raise _not_sent_along(kind, f"{param}.source")
        else:
            self.ignored["document"] = None
            yield TextPart(f"[Document {title}: this model cannot read it.]")

    def _search_result(self, block: dict[str, Any], param: str, *, newest: bool) -> Iterator[Part]:
        head = [self.text(block, field, param, newest=newest) for field in ("title", "source")]
        parts = tuple(self.parts(block.get("content"), f"{param}.content", newest=newest))
        texts = [part.text for part in parts if isinstance(part, TextPart)]
        yield TextPart("\n".join([" - ".join(filter(None, head)), *texts]))
        yield from (part for part in parts if not isinstance(part, TextPart))

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


def _decoded(source: dict[str, Any]) -> bytes | None:
    """Returns the bytes of a document, of which only a text may be empty; None if there are none."""
    data = source.get("data")
    if not isinstance(data, str):
        return None
    try:
        raw = decode_base64(data)
    except ValueError:
        return None
    return raw if raw or text_at(source, "media_type").startswith("text/") else None


def _no_such_file(kind: str, source: dict[str, Any], param: str) -> Fault:
    message = f"Invalid {kind}: {no_file(text_at(source, 'file_id'))}"
    return Fault.of(FaultKind.NOT_FOUND, message, param=f"{param}.file_id")


def _not_sent_along(kind: str, param: str) -> Fault:
    if kind in _GIVEN_IN:
        field = _GIVEN_IN[kind]
        return bad_request(
            f"Invalid document: a source of the type '{kind}' needs it in '{field}'.", f"{param}.{field}"
        )
    return bad_request(
        "Invalid document: expected a source of the type 'base64', 'text', 'content' or 'file'; this server fetches no "
        "documents.",
        param,
    )


def block_type(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""


def changed_tool_name(block: dict[str, Any]) -> str:
    """Returns the name of the tool that a `tool_addition` or `tool_removal` is about."""
    defined = value_at(block, "tool", "definition")
    return text_at(defined if isinstance(defined, dict) else value_at(block, "tool"), "name")


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


BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""How Claude Code's own block begins, which would defeat the provider's cache."""
NO_RESULT: Final = "No result: this call was not answered."
RESULT_WITHOUT_CALL: Final = "The result of a tool call that is not part of this conversation:"
_ROLES: Final = frozenset({"user", "assistant", "system", "developer"})
_INSTRUCTING: Final = frozenset({"system", "developer"})
_NEXT_MESSAGE: Final = "next_user_message"
"""The `clear_at` that ends with the user's next message."""
_SEARCH_HEADING: Final = "[Results of a search:]\n"
_SUMMED_UP: Final = "[A summary of the conversation so far:]\n"
_UNSHOWN: Final = frozenset({"thinking", "redacted_thinking", "server_tool_use"})
"""Types of blocks that are never shown to the model as text."""


def instructions_of(system: wire.Content | None) -> str:
    """Returns the system prompt without Claude Code's own block."""
    if system is None or isinstance(system, str):
        texts = [system or ""]
    else:
        texts = [_instruction(block, f"system[{index}]") for index, block in enumerate(system)]
    return "\n\n".join(text for text in texts if text and not text.startswith(BILLING_HEADER))


def _instruction(block: Any, param: str) -> str:
    if isinstance(block, str):
        return block
    if block_type(block) != "text":
        raise unsupported_value(f"{param}.type", block_type(block), "'text'")
    return typed_at(block, "text", str, param) or ""


def history_of(
    messages: Sequence[wire.InputMessage], reader: BlockReader, identity: str
) -> tuple[HistoryItem, ...]:
    """Returns the history. Raw items of another agent or model than `identity` are left out."""
    newest = _newest(messages)
    history = _History(reader, identity)
    for index, message in enumerate(messages):
        if not (index < newest and message.role in _INSTRUCTING and message.clear_at == _NEXT_MESSAGE):
            history.read(message, f"messages[{index}].content", newest=index == newest)
    history.finish_calls(NO_RESULT)
    return tuple(history.items)


def _newest(messages: Sequence[wire.InputMessage]) -> int:
    """Returns the place of the user's newest message; -1 if there is none."""
    return max((index for index, each in enumerate(messages) if each.role == "user"), default=-1)


def require_files(messages: Sequence[wire.InputMessage]) -> None:
    """Raises `Fault` NOT_FOUND for a file in the user's newest message that is not stored here, as `history_of`."""
    if (newest := _newest(messages)) >= 0:
        _require_files(messages[newest].content, f"messages[{newest}].content")


def _require_files(content: Any, param: str, *, within: bool = False) -> None:
    for index, block in enumerate(_blocks(content)):
        kind, source, where = block_type(block), object_at(block, "source"), f"{param}[{index}]"
        if kind in ("document", "image") and text_at(source, "type") == "file":
            raise _no_such_file(kind, source, f"{where}.source")
        if kind == "tool_result" and not within:
            _require_files(block.get("content"), f"{where}.content", within=True)


def tools_referred_to(messages: Iterable[wire.InputMessage]) -> set[str]:
    """Returns tools that a `tool_reference` or a call names."""
    names: set[str] = set()
    for message in messages:
        for block in _blocks(message.content):
            kind = block_type(block)
            if kind == "tool_use":
                names.add(str(block.get("name")))
            elif kind == "tool_addition":
                names.add(changed_tool_name(block))
            elif kind == "tool_reference":
                names.add(str(block.get("tool_name")))
            elif kind == "tool_result":
                inner = objects_in(block.get("content"))
                names.update(
                    str(each.get("tool_name")) for each in inner if block_type(each) == "tool_reference"
                )
    return names


def with_tool_changes(
    tools: Sequence[dict[str, Any]], messages: Iterable[wire.InputMessage]
) -> list[dict[str, Any]]:
    """Returns the tools after the blocks `tool_addition` and `tool_removal`."""
    offered = list(tools)
    removed: set[str] = set()
    for message in messages:
        for block in _blocks(message.content) if message.role in _INSTRUCTING else ():
            if (kind := block_type(block)) not in TOOL_CHANGES:
                continue
            name = changed_tool_name(block)
            if kind == "tool_removal":
                removed.add(name)
                continue
            removed.discard(name)
            if defined := object_at(block, "tool", "definition"):
                offered = [tool for tool in offered if tool.get("name") != name]
                offered.append(defined)
    return [tool for tool in offered if str(tool.get("name")) not in removed] if removed else offered


def has_calls(messages: Iterable[wire.InputMessage]) -> bool:
    kinds = ("tool_use", "tool_result")
    return any(block_type(block) in kinds for message in messages for block in _blocks(message.content))


def has_instructions(messages: Iterable[wire.InputMessage]) -> bool:
    return any(message.role in _INSTRUCTING for message in messages)


class _History(HistoryWithCalls):
    def __init__(self, reader: BlockReader, identity: str) -> None:
        super().__init__()
        self._reader = reader
        self._identity = identity
        self._answering = False
        """Whether the last message was the model's."""
        self._seen: set[str] = set()
        """Ids of raw items: a client may send an answer twice."""
        self._waiting: dict[str, deque[str]] = {}
        """Our ids of the calls without a result, by the client's id: two calls of an answer may have the same."""
        self._renamed = 1

    def finish_calls(self, missing: str = "") -> None:
        super().finish_calls(missing)
        self._waiting.clear()

    def read(self, message: wire.InputMessage, param: str, *, newest: bool) -> None:
        if message.role == "assistant":
            if not self._answering:
                self.finish_calls(NO_RESULT)
            self._add_answer(message.content)
            self._answering = True
            return
        self._answering = False
        if message.role in _INSTRUCTING:
            parts = tuple(self._reader.parts(message.content, param, newest=False))
            if parts:
                self.add(HistoryMessage("developer", parts))
            return
        if message.role not in _ROLES:
            self._reader.ignored["messages[].role"] = None
        self._add_user(message.content, param, newest=newest)

    # --- what the user said -----------------------------------------------------------------------

    def _add_user(self, content: wire.Content | None, param: str, *, newest: bool) -> None:
        parts: list[Part] = []
        if isinstance(content, str):
            parts += self._reader.parts(content, param, newest=newest)
        for index, block in enumerate(_blocks(content)):
            where = f"{param}[{index}]"
            if block_type(block) == "tool_result":
                self._reader.note_fields(block)
                parts += self._result(block, where, newest=newest)
            else:
                parts += self._reader.parts_of_block(block, where, newest=newest)
        if parts:
            self.add(HistoryMessage("user", tuple(parts)))

    def _result(self, block: dict[str, Any], param: str, *, newest: bool) -> Iterator[Part]:
        """Stores a call's first result; yields any other, with a note, for the user's message."""
        call_id = self._reader.text(block, "tool_use_id", param, newest=newest)
        parts = tuple(self._reader.parts(block.get("content"), f"{param}.content", newest=newest))
        if self._reader.typed(block, "is_error", bool, param, newest=newest):
            parts = _as_error(parts)
        if waiting := self._waiting.get(call_id):
            own_id = waiting.popleft()
            self.outputs[own_id] = HistoryOutput(own_id, parts or (TextPart(""),))
            return
        yield TextPart(RESULT_WITHOUT_CALL)
        yield from parts

    # --- what the model texts ----------------------------------------------------------------------

    def _add_answer(self, content: wire.Content | None) -> None:
        texts: list[HistoryMessage] = []
        calls: dict[str, HistoryCall] = {}
        state: list[Element] = []
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _blocks(content)
        for block in blocks:
            kind = block_type(block)
            text = ""
            self._reader.note_fields(block)
            if isinstance(block, str):
                text = block
            elif kind == "text":
                text = self._reader.text(block, "text", "", newest=False)
            elif kind == "redacted_thinking":
                state += unpack_items(str(block.get("data", "")), self._identity)
            elif kind == "tool_use":
                call = self._past_call(block)
                if call is None:
                    self._reader.note_left_out(block)
                elif self.calls.get(call.call_id) != call:  # else the client has sent an answer twice
                    own = self._with_own_id(call, calls)
                    calls[own.call_id] = own
            elif kind.endswith("_tool_result"):
                text = _SEARCH_HEADING + found if (found := results_text(block)) else ""
            elif kind == "compaction" and isinstance(block.get("content"), str):
                text = _SUMMED_UP + block["content"]
            elif kind not in _UNSHOWN:
                self._reader.note_left_out(block)
            if text:
                texts.append(HistoryMessage("assistant", (TextPart(text),)))
        self.items += self._merge_answer(state, texts, dict(calls))
        self.calls |= calls

    def _past_call(self, block: dict[str, Any]) -> HistoryCall | None:
        call_id, name = text_at(block, "id"), text_at(block, "name")
        if not (call_id and name):
            return None  # no result could refer to it
        arguments = self._reader.typed(block, "input", dict, "", newest=False)
        return HistoryCall(call_id, model_name(name), json_bytes(arguments or {}).decode())

    def _with_own_id(self, call: HistoryCall, calls: Mapping[str, HistoryCall]) -> HistoryCall:
        id = call.call_id
        while id in self.calls or id in calls:
            self._renamed += 1
            id = f"{call.call_id}_{self._renamed}"
        self._waiting.setdefault(call.call_id, deque()).append(id)
        return msgspec.structs.replace(call, call_id=id)

    def _merge_answer(
        self, state: Sequence[Element], texts: list[HistoryMessage], calls: dict[str, HistoryCall]
    ) -> Iterator[HistoryItem]:
        """Yields an answer's items in the order of `state`, then others."""
        left = list(texts)
        for element in state:
            if isinstance(element, dict):
                if (raw := self._raw(element)) is not None:
                    yield raw
            elif isinstance(element, str):
                if element in calls:
                    yield from left  # words that a client has put before its calls stay there
                    left = []
                    yield calls.pop(element)
            elif left:
                yield left.pop(0)
        yield from left
        yield from calls.values()

    def _raw(self, item: dict[str, Any]) -> RawHistoryItem | None:
        id = f"{item['type']} {item.get('id') or item.get('call_id') or ''}"
        if id in self._seen:
            return None
        if not id.endswith(" "):
            self._seen.add(id)
        return RawHistoryItem(json_bytes(item))


def _as_error(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    first = parts[0] if parts else TextPart("")
    text = first.text if isinstance(first, TextPart) else ""
    if "error" in text[:40].lower():
        return parts
    # Models do not get `is_error`.
    rest = parts[1:] if isinstance(first, TextPart) else parts
    return (TextPart(f"Error: {text}"), *rest)


def _blocks(content: wire.Content | None) -> list[Any]:
    return content if isinstance(content, list) else []
