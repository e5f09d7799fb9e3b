"""Parses the requests that count the tokens of an input or compact it. Source:
docs/wire-rules.md#compaction-counting-and-websocket.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryItem, HistoryMessage, TextPart
from codex_proxy.core.media import PdfTexts, url_tokens
from codex_proxy.core.tokens import estimate_all
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.models import DEFAULT_NAME, ModelCatalog, resolve
from codex_proxy.surfaces.requests.body import MAX_ITEMS, parse_as
from codex_proxy.surfaces.requests.fields import ignored_fields
from codex_proxy.surfaces.responses.history import STAND_ALONE, history_of, note_unrun_call, orphaned_outputs
from codex_proxy.surfaces.responses.items import ItemDict, normalise_items
from codex_proxy.surfaces.responses.parse import INSTRUCTING, check_input, conversation_of, format_of
from codex_proxy.surfaces.responses.tools import HostedOffer, offered_tools
from codex_proxy.surfaces.responses.wire import CompactRequest, ContextFields


class ParsedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `model_asked` is the client's name of the model, `agent_model` the agent's."""

    model_asked: str
    agent_model: str
    input_items: tuple[ItemDict, ...]
    """The request's own items (see `ParsedResponse`)."""
    instructions: str | None
    previous_response_id: str | None
    conversation: str | None
    tokens_beside: int
    """The tokens of tools and schemas."""
    hosted: tuple[HostedOffer, ...]
    """The tools that the model server is to run."""
    ignored: tuple[str, ...]
    """Fields without effect."""


def parse_context(
    body: bytes,
    *,
    catalog: ModelCatalog,
    max_items: int = MAX_ITEMS,
    counting: bool = False,
    pdfs: PdfTexts | None = None,
) -> ParsedContext:
    """Parses a request that counts (`counting`) or compacts. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND."""
    request, notes = parse_as(ContextFields if counting else CompactRequest, body)
    ignored = ignored_fields(notes)
    check_input(request, max_items)
    conversation = conversation_of(request)
    items = normalise_items(request.input or (), pdfs=pdfs)
    if not items and conversation is None and request.previous_response_id is None:
        raise bad_request(
            "Give an 'input', a 'previous_response_id' or a 'conversation'.",
            "input",
            "missing_required_parameter",
        )
    offered = offered_tools(request.tools, request.tool_choice)
    schema = format_of(request).schema
    shown = schema_json(offered.shown) if offered.shown else b""
    return ParsedContext(
        model_asked=request.model or DEFAULT_NAME,
        agent_model=resolve(request.model or DEFAULT_NAME, catalog).agent_model,
        input_items=items,
        instructions=request.instructions,
        previous_response_id=request.previous_response_id,
        conversation=conversation,
        tokens_beside=estimate_all(bytes(each or b"").decode() for each in (shown, schema)),
        hosted=offered.hosted_offers,
        ignored=ignored,
    )


def context_history(
    parsed: ParsedContext, items: Sequence[ItemDict], *, earlier: int = 0
) -> tuple[HistoryItem, ...]:
    """Returns the history of the conversation. The first `earlier` of `items` are stored."""
    history = tuple(map(note_unrun_call, history_of(items, earlier=earlier)))
    if parsed.instructions:
        return (HistoryMessage("developer", (TextPart(parsed.instructions),)), *history)
    return history


class InputEstimate:
    """Estimates an input: `add` each stored item, then call `tokens_with` once."""

    def __init__(self) -> None:
        self._tokens = 0
        self._instructions = 0
        """The tokens of instructions, which a compaction leaves."""
        self._last = ""
        self._kept: list[ItemDict] = []
        self.leaves_out_orphans = False
        """Whether outputs whose calls are nowhere do not count; otherwise they are errors."""

    def add(self, item: ItemDict) -> None:
        """Counts a stored item, oldest first."""
        if item["type"] == "compaction" and self._last == "compaction_trigger":
            self._tokens, self._kept = self._instructions, []
        self._last = item["type"]
        if item["type"] in STAND_ALONE:
            tokens = tokens_in(history_of((item,), earlier=1))
            self._tokens += tokens
            self._instructions += tokens if item.get("role") in INSTRUCTING else 0
        else:
            kept, images = _without_images(item)
            self._tokens += sum(map(url_tokens, images))
            self._kept.append(kept)

    def tokens_with(self, parsed: ParsedContext, items: Sequence[ItemDict]) -> int:
        """Returns the estimate of the whole input: the stored items that were added, and the request's own `items`,
        instructions, tools and schema.
        """
        whole, earlier = [*self._kept, *items], len(self._kept)
        if self.leaves_out_orphans:
            orphans = orphaned_outputs(whole)
            whole = [item for index, item in enumerate(whole) if index not in orphans]
            earlier -= sum(index < earlier for index in orphans)
        history = context_history(parsed, whole, earlier=earlier)
        return self._tokens + tokens_in(history) + parsed.tokens_beside


def _without_images(item: ItemDict) -> tuple[ItemDict, list[str]]:
    """Returns the item without the images in its output, and their URLs."""
    output = item.get("output")
    if not isinstance(output, list):
        return item, []
    images = [part["image_url"] for part in output if part["type"] == "input_image"]
    return {**item, "output": [part for part in output if part["type"] != "input_image"]}, images
