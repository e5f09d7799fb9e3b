"""Parses the requests that count the tokens of an input or compact it, without answering it.

Input: the body of `POST /v1/responses/input_tokens` or `/compact`. Output: `ParsedContext`; `context_history`
returns its history, `compaction_turn` the turn in which the model summarises it, `summary_in` the summary from the
response to that turn. Raises `Fault` INVALID_REQUEST or MODEL_NOT_FOUND. Source:
docs/wire-rules.md#compaction-counting-and-websocket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput, TextPart
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.tokens import estimate_all
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.base import schema_json
from codex_proxy.surfaces.body import MAX_ITEMS
from codex_proxy.surfaces.items import ItemDict, normalised
from codex_proxy.surfaces.models import DEFAULT_NAME, ModelCatalog, resolve
from codex_proxy.surfaces.responses.history import STAND_ALONE, history_of
from codex_proxy.surfaces.responses.parse import check_input, conversation_of, format_of
from codex_proxy.surfaces.responses.tools import offered_tools
from codex_proxy.surfaces.responses.wire import parse_context as parse_body
from codex_proxy.surfaces.usage import tokens_in

APPROVED: Final = "The user has approved this call. It has yet to be made."
COMPACTION_WORDS: Final = (
    "Sum up the conversation so far, for yourself: you will go on from your summary and see nothing else of it. "
    "Keep every fact, decision, name, number and open question that may matter later, and the user's own wishes "
    "in the user's words. Answer with the summary only."
)


class ParsedContext(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request to count or compact an input. `model_asked` is the model's name as the client wrote it,
    `agent_model` the agent's name of it.
    """

    model_asked: str
    agent_model: str
    input_items: tuple[ItemDict, ...]
    """Normalised items without ids, with references that are not resolved yet."""
    instructions: str | None
    previous_response_id: str | None
    conversation: str | None
    tokens_beside: int
    """An estimate of the tokens of tools and schemas, which the model sees in addition to the history."""


def parse_context(
    body: bytes,
    *,
    catalog: ModelCatalog,
    max_items: int = MAX_ITEMS,
    counting: bool = False,
    pdfs: PdfTexts | None = None,
) -> ParsedContext:
    """Parses the body of a request to count (`counting`) or compact an input. `pdfs`: the texts of the request's
    PDFs; None if the server reads none. `max_items` is the most items that the operator allows. Raises `Fault`:
    INVALID_REQUEST, also if the request has neither items nor a previous response or conversation, or
    MODEL_NOT_FOUND.
    """
    request = parse_body(body, counting=counting)
    check_input(request, max_items)
    conversation = conversation_of(request)
    items = normalised(request.input or (), pdfs=pdfs)
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
    )


def context_history(
    parsed: ParsedContext, items: Sequence[ItemDict], *, earlier: int = 0
) -> tuple[HistoryItem, ...]:
    """Returns the history of `items`, with the request's instructions at its beginning. The first `earlier` items
    come from the previous response or the conversation, the others from the request. Raises `Fault` INVALID_REQUEST
    (see `history.history_entries`).
    """
    history = tuple(map(_not_run, history_of(items, earlier=earlier)))
    if parsed.instructions:
        return (HistoryMessage("developer", (TextPart(parsed.instructions),)), *history)
    return history


def _not_run(item: HistoryItem) -> HistoryItem:
    """Returns the item unchanged, unless it is the output of an approved MCP call that has not been run yet: then
    returns an output that says so, because these requests run no calls.
    """
    if isinstance(item, HistoryOutput) and item.approved_by is not None:
        return HistoryOutput(item.call_id, (TextPart(APPROVED),))
    return item


class InputEstimate:
    """Estimates the tokens of an input. Call `add` with each item of the previous responses or the conversation,
    then `tokens_with` once with the request's own items. `add` keeps calls and their outputs in memory (without
    images), because a call is only converted together with its output; it keeps nothing of other items.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._kept: list[ItemDict] = []

    def add(self, item: ItemDict) -> None:
        """Counts one item of the previous responses or the conversation. Items are added oldest first."""
        if item["type"] in STAND_ALONE:
            self._tokens += tokens_in(history_of((item,), earlier=1))
        else:
            self._kept.append(_without_images(item))

    def tokens_with(self, parsed: ParsedContext, items: Sequence[ItemDict]) -> int:
        """Returns an estimate of the tokens of the whole input: the items that were added, `items`, and the
        instructions, tools and schema of the request `parsed`. `items` are the request's own items, with references
        resolved; they must not have been added.
        """
        history = context_history(parsed, [*self._kept, *items], earlier=len(self._kept))
        return self._tokens + tokens_in(history) + parsed.tokens_beside


def _without_images(item: ItemDict) -> ItemDict:
    output = item.get("output")
    if not isinstance(output, list):
        return item
    return {**item, "output": [part for part in output if part["type"] != "input_image"]}


def compaction_turn(parsed: ParsedContext, history: tuple[HistoryItem, ...]) -> Turn:
    """Returns the turn whose answer is the summary: a plain model without tools."""
    wish = HistoryMessage("user", (TextPart(COMPACTION_WORDS),))
    return Turn(model=parsed.agent_model, history=(*history, wish), mode="model")


def summary_in(response: Mapping[str, Any]) -> str:
    """Returns the summary from the response to a compaction turn: all text of the assistant, its parts separated by
    empty lines; empty if there is none.
    """
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "\n\n".join(part["text"] for part in parts if part["type"] == "output_text")
