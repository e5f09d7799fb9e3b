"""Parses a Messages request into a `Turn` and what its answer needs. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND,
NOT_ALLOWED. Source: docs/messages.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import NAMES, SAMPLING
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.answers.renderer import schema_json
from codex_proxy.surfaces.messages.history import (
    BlockReader,
    has_calls,
    has_instructions,
    history_of,
    instructions_of,
    tools_referred_to,
    with_tool_changes,
)
from codex_proxy.surfaces.messages.tools import MessagesTools, offered_tools
from codex_proxy.surfaces.messages.wire import MessagesRequest, Thinking
from codex_proxy.surfaces.models import DEFAULT_NAME, EFFORTS, efforts_of, nearest_effort, resolve
from codex_proxy.surfaces.requests.body import check_length, invalid_value, missing_parameter, parse_as
from codex_proxy.surfaces.requests.fields import MAX_NAMED, ignored_fields
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
    offered = offered_tools(tools, request.tool_choice, tools_referred_to(request.messages), notes)
    effort = _effort_asked(request)
    turn, workdir_param = _turn(request, offered, context, effort)
    reader = BlockReader(pdfs, notes, takes_images=takes_images(turn))
    history = history_of(request.messages, reader, identity(turn))
    if not history:
        raise bad_request("There is nothing to answer: every message is empty.", "messages")
    if instructions := instructions_of(request.system):
        history = (HistoryMessage("developer", (TextPart(instructions),)), *history)
    by_thinking = effort is None and request.thinking is not None
    return ParsedMessages(
        fields=THINKING_FIELDS if by_thinking else FIELDS,
        turn=msgspec.structs.replace(turn, history=history),
        model_asked=request.model or DEFAULT_NAME,
        stream=bool(request.stream),
        thinking=_wants_thinking(request.thinking),
        web_search=offered.web_search,
        client_names=offered.client_names,
        ignored=(
            *_ignored_fields(request, effort, turn.sampling),
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
) -> tuple[Turn, WorkdirParam]:
    """Returns the turn without its history. `effort`: see `_effort_asked`."""
    catalog, schema = context.catalog, _schema_of(request)
    resolved = resolve(request.model or DEFAULT_NAME, catalog)
    acts = _client_acts(request, offered, schema)
    place = place_of(resolved, context, _metadata(request), client_acts=acts)
    turn = msgspec.structs.replace(
        place.turn,
        effort=_effort_of(
            request.thinking, effort, resolved.effort, efforts_of(resolved.agent_model, catalog)
        ),
        summary="auto" if _wants_thinking(request.thinking) else None,
        web_search=offered.web_search and context.settings.web_search,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=offered.parallel,
        output_schema=schema,
        sampling=_sampling(request),
        stop=stops_of(request.stop_sequences),
        reports_stop=True,
        max_tokens=request.max_tokens,
        instructions_in_outputs=True,
        **options_as_given(request, "messages"),
    )
    return turn, place.workdir_param


def _client_acts(request: MessagesRequest, offered: MessagesTools, schema: msgspec.Raw | None) -> bool:
    return (
        bool(request.tools or offered.tools or schema is not None or instructions_of(request.system))
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


def _sampling(request: MessagesRequest) -> dict[str, float]:
    return {
        name: value
        for name, value in non_null_fields(request, SAMPLING["messages"]).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _ignored_fields(
    request: MessagesRequest, effort: str | None, numbers: Collection[str]
) -> tuple[str, ...]:
    """`numbers`: the sampling parameters that can be used."""
    return (
        *(name for name in non_null_fields(request, SAMPLING["messages"]) if name not in numbers),
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


def _effort_of(
    thinking: Thinking | None, asked: str | None, by_name: str | None, efforts: Sequence[str]
) -> str | None:
    """Returns the effort; None: the agent's default. `asked`: see `_effort_asked`; `by_name`: the effort in the model's
    name.
    """
    if thinking is not None and thinking.type == "disabled":
        return nearest_effort("none", efforts)
    if asked not in EFFORTS:
        asked = None
    if asked is None and thinking is not None and thinking.budget_tokens is not None:
        asked = next((effort for most, effort in _BUDGETS if thinking.budget_tokens <= most), _LARGEST_EFFORT)
    asked = asked or by_name
    return None if asked is None else nearest_effort(asked, efforts)
