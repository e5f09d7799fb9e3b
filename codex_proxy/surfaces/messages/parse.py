"""Parses a Messages request into a `Turn` and what its answer needs. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND,
NOT_ALLOWED. Also counts its tokens: an upper bound for `count_tokens`, since after too small a number clients shorten
too late; and an estimate for the first event of an answer. Source: docs/messages.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryMessage, TextPart, images_in, texts_in
from codex_proxy.core.json_values import text_at
from codex_proxy.core.media import PdfTexts, image_tokens
from codex_proxy.core.options import NAMES, SAMPLING
from codex_proxy.core.tokens import Piece, estimate_tokens, max_tokens_in
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.messages.history import (
    BlockReader,
    has_calls,
    has_instructions,
    history_of,
    instructions_of,
    require_files,
    tools_referred_to,
    with_tool_changes,
)
from codex_proxy.surfaces.messages.tools import NO_TOOLS, MessagesTools, loaded_names, offered_tools
from codex_proxy.surfaces.messages.wire import MessagesRequest, Thinking
from codex_proxy.surfaces.models import (
    DEFAULT_NAME,
    EFFORTS,
    ModelCatalog,
    efforts_of,
    nearest_effort,
    resolve,
)
from codex_proxy.surfaces.requests.body import check_length, invalid_value, missing_parameter, parse_as
from codex_proxy.surfaces.requests.fields import MAX_NAMED, FieldNotes, ignored_fields
from codex_proxy.surfaces.requests.options import (
    FieldNames,
    ParseContext,
    ParsedRequest,
    WorkdirParam,
    forbidden_search,
    non_null_fields,
    options_as_given,
    place_of,
    stops_of,
)

FIELDS: Final = FieldNames(
    tool_schema="tools[{}].input_schema",
    output_schema="output_config.format.schema",
    options=NAMES["messages"],
)
THINKING_FIELDS: Final = msgspec.structs.replace(FIELDS, options={**FIELDS.options, "effort": "thinking"})
"""The names for a request whose effort is that of `thinking`."""

_THINKING: Final = ("enabled", "adaptive", "between_tools", "disabled")
_BUDGETS: Final = ((2048, "low"), (8192, "medium"), (24576, "high"))
"""The largest budget of thinking tokens for each effort."""
_LARGEST_EFFORT: Final = "xhigh"


class ParsedMessages(ParsedRequest, frozen=True, kw_only=True):
    fields: FieldNames = FIELDS
    web_search: bool
    """Whether the client asks for web search, allowed or not."""
    thinking: bool
    """Whether the client asks for `thinking` blocks, and so for raw items."""
    client_names: dict[str, str]
    """The client's names of tools (see `MessagesTools`)."""


def parse(
    body: bytes,
    pdfs: PdfTexts | None = None,
    *,
    context: ParseContext,
    identity: Callable[[Turn], str],
    takes_images: Callable[[Turn], bool] = lambda _: True,
) -> ParsedMessages:
    """Parses the body of `POST /v1/messages`. `identity` names a turn's agent and model, whose raw items are used."""
    request, notes = parse_as(MessagesRequest, body)
    check_length("messages", len(request.messages), context.settings.max_items)
    tools = with_tool_changes(request.tools or (), request.messages)
    offered = NO_TOOLS
    if tools or request.tool_choice is not None:
        offered = offered_tools(tools, request.tool_choice, tools_referred_to(request.messages), notes)
    effort = _effort_asked(request)
    instructions = instructions_of(request.system)
    acts = bool(instructions) or _client_acts(request, offered)
    turn, workdir_param = _turn(request, offered, context, effort, client_acts=acts)
    reader = BlockReader(pdfs, notes, takes_images=takes_images(turn))
    history = history_of(request.messages, reader, identity(turn))
    if not history:
        raise bad_request("There is nothing to answer: every message is empty.", "messages")
    if instructions:
        history = (HistoryMessage("developer", (TextPart(instructions),)), *history)
    by_thinking = effort is None and request.thinking is not None
    return ParsedMessages(
        fields=THINKING_FIELDS if by_thinking else FIELDS,
        turn=msgspec.structs.replace(turn, history=history),
        model_asked=request.model or DEFAULT_NAME,
        stream=bool(request.stream),
        thinking=turn.summary is not None,
        web_search=offered.web_search,
        client_names=offered.client_names,
        ignored=(
            *_ignored_fields(request, effort),
            *forbidden_search("tools[web_search]", context.settings, asked=offered.web_search),
            *ignored_fields(notes),
            *offered.ignored[:MAX_NAMED],
            *reader.ignored,
        ),
        workdir_param=workdir_param,
        web_images=reader.web_images,
        optional_images=frozenset(reader.web_images.keys() - reader.newest_images),
    )


def _turn(
    request: MessagesRequest,
    offered: MessagesTools,
    context: ParseContext,
    effort: str | None,
    *,
    client_acts: bool,
) -> tuple[Turn, WorkdirParam]:
    """Returns the turn without its history. `effort`: see `_effort_asked`."""
    catalog, schema = context.catalog, _schema_of(request)
    resolved = resolve(request.model or DEFAULT_NAME, catalog)
    acts = client_acts or schema is not None
    place = place_of(resolved, context, _metadata(request), client_acts=acts)
    wanted = _wanted_effort(request.thinking, effort, resolved.effort)
    turn = msgspec.structs.replace(
        place.turn,
        effort=None if wanted is None else nearest_effort(wanted, efforts_of(resolved.agent_model, catalog)),
        summary="auto" if _wants_thinking(request.thinking) else None,
        web_search=offered.web_search and context.settings.web_search,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=offered.parallel,
        output_schema=schema,
        sampling=non_null_fields(request, SAMPLING["messages"]),
        stop=stops_of(request.stop_sequences),
        reports_stop=True,
        max_tokens=request.max_tokens,
        instructions_in_outputs=True,
        **options_as_given(request, "messages"),
    )
    return turn, place.workdir_param


def _client_acts(request: MessagesRequest, offered: MessagesTools) -> bool:
    return (
        bool(request.tools or offered.tools)
        or has_instructions(request.messages)
        or has_calls(request.messages)
    )


def _schema_of(request: MessagesRequest) -> msgspec.Raw | None:
    config = request.output_config
    wanted, field = request.output_format, "output_format"
    if config is not None and config.format is not None:
        wanted, field = config.format, "output_config.format"
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != "json_schema":
        raise invalid_value(f"{field}.type", "it must be 'json_schema'")
    if wanted.schema_ is None:
        raise missing_parameter(f"{field}.schema")
    return schema_json(wanted.schema_)


def _metadata(request: MessagesRequest) -> dict[str, str | None]:
    folder = (request.metadata or {}).get("workdir")
    return {"workdir": folder} if isinstance(folder, str) else {}


def _ignored_fields(request: MessagesRequest, effort: str | None) -> tuple[str, ...]:
    return (
        *(("metadata",) if request.metadata else ()),
        *(("output_config.effort",) if effort is not None and effort not in EFFORTS else ()),
        *(("thinking",) if request.thinking is not None and request.thinking.type not in _THINKING else ()),
    )


# --- the effort -----------------------------------------------------------------------------------


def _wants_thinking(thinking: Thinking | None) -> bool:
    return thinking is not None and thinking.type in ("enabled", "adaptive", "between_tools")


def _effort_asked(request: MessagesRequest) -> str | None:
    for message in reversed(request.messages):
        if message.output_config is not None and message.output_config.effort is not None:
            return message.output_config.effort
    return request.output_config.effort if request.output_config else None


def _wanted_effort(thinking: Thinking | None, asked: str | None, by_name: str | None) -> str | None:
    """Returns the effort; None: the agent's default. `asked`: see `_effort_asked`; `by_name`: the effort in the model's
    name.
    """
    if thinking is not None and thinking.type == "disabled":
        return "none"
    if asked not in EFFORTS:
        asked = None
    if asked is None and thinking is not None and thinking.budget_tokens is not None:
        asked = next((effort for most, effort in _BUDGETS if thinking.budget_tokens <= most), _LARGEST_EFFORT)
    return asked or by_name


# --- the tokens of a request ----------------------------------------------------------------------

_REQUEST_TOKENS: Final = 16
"""The tokens of a request beside its parts: around instructions, and at the beginning of the answer."""
_MESSAGE_TOKENS: Final = 8
_TOOL_TOKENS: Final = 16
_BLOCK_TOKENS: Final = 4

_MAX_COUNTED: Final = 4 << 20
"""Maximum characters that are counted exactly; of the rest two count as a token."""

_STATE_CHARS: Final = 5
"""The fewest characters of encrypted reasoning per token."""
_PDF_CHARS: Final = 3
"""The fewest characters of a PDF's base64 per token."""
_MAX_PDF_TOKENS: Final = 200_000

_ENCRYPTED_FIELDS: Final = frozenset({"data", "signature", "encrypted_content"})
_NOT_SHOWN: Final = frozenset({"cache_control", "type", "id", "tool_use_id"})
_NOT_OFFERED: Final = _NOT_SHOWN | {"defer_loading", "eager_input_streaming", "strict"}


def count_tokens(body: bytes, catalog: ModelCatalog) -> tuple[int, FieldNotes]:
    """Returns the tokens of a request, and findings about its fields. Raises `Fault`, also NOT_FOUND for an unknown
    file.
    """
    request, notes = parse_as(MessagesRequest, body)
    resolve(request.model or DEFAULT_NAME, catalog)
    require_files(request.messages)
    counter = _Counter()
    tools = request.tools or ()
    loaded = loaded_names(tools, request.tool_choice, tools_referred_to(request.messages))
    offered = [tool for tool in tools if not tool.get("defer_loading") or str(tool.get("name")) in loaded]
    wanted = (request.output_config and request.output_config.format) or request.output_format
    tokens = (
        _REQUEST_TOKENS
        + counter.content(request.system)
        + sum(_MESSAGE_TOKENS + counter.content(each.content) for each in request.messages)
        + sum(
            _TOOL_TOKENS
            + counter.value({name: value for name, value in tool.items() if name not in _NOT_OFFERED})
            for tool in offered
        )
        + (counter.value(wanted.schema_) if wanted else 0)
    )
    return tokens, notes


class _Counter:
    """Counts parts, with a cache of pieces of text."""

    def __init__(self) -> None:
        self._known: dict[str, Piece] = {}
        self._chars = 0

    def content(self, content: Any) -> int:
        if isinstance(content, str):
            return self._text(content)
        if isinstance(content, list):
            return sum(_BLOCK_TOKENS + self._block(block) for block in content)
        return 0

    def value(self, value: Any) -> int:
        """Counts a value: a string as it is, others as JSON."""
        if value is None:
            return 0
        return self._text(value if isinstance(value, str) else msgspec.json.encode(value).decode())

    def _text(self, text: str) -> int:
        self._chars += len(text)
        return max_tokens_in(text, self._known) if self._chars <= _MAX_COUNTED else len(text) // 2

    def _block(self, block: Any) -> int:
        if not isinstance(block, dict):
            return self.value(block)
        kind, source = block.get("type"), block.get("source")
        if kind == "thinking":
            return 0  # a summary, which the model is not shown again
        if kind == "image":
            return image_tokens(text_at(source, "data"))
        if kind == "document" and isinstance(source, dict):
            return self.value([block.get("title"), block.get("context")]) + self._document(source)
        nested = block.get("content")
        known = self.content(nested) if isinstance(nested, list | str) else None
        return (known or 0) + sum(
            _count_encrypted(value) if field in _ENCRYPTED_FIELDS else self.value(value)
            for field, value in block.items()
            if field not in _NOT_SHOWN and not (field == "content" and known is not None)
        )

    def _document(self, source: dict[str, Any]) -> int:
        data = source.get("data")
        if source.get("type") == "base64":
            return min(_MAX_PDF_TOKENS, len(data) // _PDF_CHARS) if isinstance(data, str) else 0
        return self.content(source.get("content")) + self.content(data)


def _count_encrypted(value: Any) -> int:
    return len(value) // _STATE_CHARS if isinstance(value, str) else 0


# --- the estimate ---------------------------------------------------------------------------------

IMAGE_TOKENS: Final = 800
"""The tokens of an image: providers scale images down."""
TOOL_TOKENS: Final = 12
"""A tool's tokens beside name, description and schema."""

_SLICES: Final = 12
_SLICE: Final = 160
"""The characters of each counted slice; slices are spread evenly."""


def prompt_tokens(turn: Turn) -> int:
    """Estimates a turn's input: history, images, tools, schema."""
    images = len(images_in(turn.history))
    return _tokens_in(" ".join(_texts(turn))) + images * IMAGE_TOKENS + len(turn.tools) * TOOL_TOKENS


def _texts(turn: Turn) -> Iterator[str]:
    yield from texts_in(turn.history)
    for tool in turn.tools:
        yield tool.description
        if tool.parameters is not None:
            yield bytes(tool.parameters).decode()
    if turn.output_schema is not None:
        yield bytes(turn.output_schema).decode()


def _tokens_in(text: str) -> int:
    if len(text) <= _SLICES * _SLICE:
        return estimate_tokens(text)
    step = (len(text) - _SLICE) // (_SLICES - 1)
    sample = sum(estimate_tokens(text[at * step : at * step + _SLICE]) for at in range(_SLICES))
    return sample * len(text) // (_SLICES * _SLICE)
