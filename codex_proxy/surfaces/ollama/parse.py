"""Parses an Ollama request into a `Turn` and what its answer needs (`ParsedOllama`), a `FillInRequest`, or a
`PreloadRequest`. Raises `Fault`: INVALID_REQUEST, MODEL_NOT_FOUND, NOT_ALLOWED. Source: docs/ollama.md.

Clients may leave out ids of calls. A call without an output gets a text that says so; an output without a call becomes
the user's.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import (
    ClientName,
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Part,
    TextPart,
    Tool,
)
from codex_proxy.core.media import PdfTexts
from codex_proxy.core.options import NAMES, SAMPLING
from codex_proxy.surfaces.answers.renderer import json_bytes, schema_json
from codex_proxy.surfaces.models import (
    EFFORTS,
    ModelCatalog,
    ResolvedModel,
    efforts_of,
    nearest_effort,
    resolve,
)
from codex_proxy.surfaces.ollama import wire
from codex_proxy.surfaces.ollama.wire import (
    GivenTool,
    ModelRequest,
    OllamaChatRequest,
    OllamaGenerateRequest,
    Options,
)
from codex_proxy.surfaces.requests.body import check_length, invalid_value, parse_as, unsupported_value
from codex_proxy.surfaces.requests.fields import FIELD_NAME, MAX_NAMED, FieldNotes, ignored_fields
from codex_proxy.surfaces.requests.files import image_part
from codex_proxy.surfaces.requests.options import (
    JSON_OBJECT,
    FieldNames,
    Format,
    HistoryWithCalls,
    ParseContext,
    ParsedRequest,
    json_schema_format,
    model_name,
    non_null_fields,
    options_as_given,
    place_of,
    refuse_duplicates,
    stops_of,
    with_json_hint,
)

NO_OUTPUT: Final = "(This call has no output.)"
OUTPUT_WITHOUT_CALL: Final = "Output of {}, whose call is not in the conversation:\n{}"
_INSTRUCTING: Final = ("system", "developer")


def history_of(messages: Sequence[wire.ChatMessage]) -> tuple[HistoryItem, ...]:
    history = _History()
    for index, message in enumerate(messages):
        history.read(message, index)
    history.finish_calls(NO_OUTPUT)
    return tuple(history.items)


def message_parts(text: str | None, images: Sequence[str] | None, param: str) -> tuple[Part, ...]:
    """Returns the parts of a message. `param`: the path of the images."""
    texts = [TextPart(text)] if text else []
    return (*texts, *(_image(image, f"{param}[{index}]") for index, image in enumerate(images or ())))


def _image(data: str, param: str) -> Part:
    url = data if data[:5].lower() == "data:" else f"data:image/png;base64,{data}"
    return image_part(url, None, param)


def has_instructions(messages: Sequence[wire.ChatMessage]) -> bool:
    return any(message.role in _INSTRUCTING for message in messages)


def has_calls(messages: Sequence[wire.ChatMessage]) -> bool:
    return any(message.role == "tool" or message.tool_calls for message in messages)


class _History(HistoryWithCalls):
    def __init__(self) -> None:
        super().__init__()
        self._last_role = ""
        self._waiting: defaultdict[str, deque[str]] = defaultdict(deque)
        """Ids of calls by the tool's name, and of all calls by ""; answered ones are removed when they are met."""

    def read(self, message: wire.ChatMessage, index: int) -> None:
        if self._repeats_calls(message):  # before each output, as some clients do
            return
        # A client may send each chunk of a stream, and so each call, as a message.
        continues = message.role == self._last_role == "assistant"
        self._last_role = message.role
        parts = message_parts(message.content, message.images, f"messages[{index}].images")
        if message.role == "tool":
            self._add_output(message, parts)
            return
        if not continues:
            self.finish_calls(NO_OUTPUT)
        if message.role == "assistant":
            texts = tuple(part for part in parts if isinstance(part, TextPart))
            if texts:
                self.items.append(HistoryMessage("assistant", texts))
            for number, call in enumerate(message.tool_calls or ()):
                self._call(call, f"call_{index}_{number}")
        elif parts:
            self.items.append(HistoryMessage("user" if message.role == "user" else "developer", parts))

    def _repeats_calls(self, message: wire.ChatMessage) -> bool:
        """Whether the message has the calls that wait for further outputs once more."""
        given = message.tool_calls or ()
        if len(given) != len(self.calls) or len(self.outputs) == len(self.calls):
            return False
        return [_past_call(call, call.id or "") for call in given] == list(self.calls.values())

    def _call(self, call: wire.PastCall, made_id: str) -> None:
        call_id = call.id if call.id and call.id not in self.calls else made_id
        past = _past_call(call, call_id)
        self.add_call(past)
        self._waiting[past.name].append(call_id)
        self._waiting[""].append(call_id)

    def finish_calls(self, missing: str = "") -> None:
        super().finish_calls(missing)
        self._waiting.clear()

    def _add_output(self, message: wire.ChatMessage, parts: tuple[Part, ...]) -> None:
        call_id = self._find_call(message)
        if call_id is not None:
            self.outputs[call_id] = HistoryOutput(call_id, parts or (TextPart(""),))
            return
        tool = f"the tool {message.tool_name}" if message.tool_name else "a tool"
        text = TextPart(OUTPUT_WITHOUT_CALL.format(tool, message.content or ""))
        images = (part for part in parts if not isinstance(part, TextPart))
        self.add(HistoryMessage("user", (text, *images)))

    def _find_call(self, message: wire.ChatMessage) -> str | None:
        if message.tool_call_id in self.calls and message.tool_call_id not in self.outputs:
            return message.tool_call_id
        waiting = self._waiting[model_name(message.tool_name) if message.tool_name else ""]
        while waiting:
            if (call_id := waiting.popleft()) not in self.outputs:
                return call_id
        return None


def _past_call(call: wire.PastCall, call_id: str) -> HistoryCall:
    arguments = json_bytes(call.function.arguments or {}).decode()
    return HistoryCall(call_id, model_name(call.function.name), arguments)


FIELDS: Final = FieldNames(output_schema="format", options=NAMES["ollama"])

LATEST_TAG: Final = ":latest"
"""The tag that clients add to a name without one."""

NO_SUFFIX: Final = (
    "An agent cannot fill in before a 'suffix'. Leave it out, or name a model of an upstream that can."
)


class ParsedOllama(ParsedRequest, frozen=True, kw_only=True):
    fields: FieldNames = FIELDS
    thinking: bool
    """Whether the answer has the model's thinking."""
    client_names: dict[str, str]
    """The client's names of tools by the model's, if they differ."""


class PreloadRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to load or unload a model, without a turn."""

    model_asked: str
    stream: bool
    reason: Literal["load", "unload"]


class FillInRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for the text before a `suffix`. `body`: the request's body in the form of `/v1/completions`."""

    model_asked: str
    stream: bool
    body: bytes


def parse_chat(
    body: bytes, pdfs: PdfTexts | None = None, *, context: ParseContext
) -> ParsedOllama | PreloadRequest:
    """Parses a body of `/api/chat`. `pdfs` is not used."""
    request, notes = parse_as(OllamaChatRequest, body)
    messages = request.messages or []
    check_length("messages", len(messages), context.settings.max_items)
    resolved = resolve(known_name(request.model, context.catalog), context.catalog)
    if not messages:
        return _preload(request)
    acts = bool(request.tools) or has_instructions(messages) or has_calls(messages)
    tools = tuple(map(_tool, request.tools or ()))
    return _make_parsed(request, notes, resolved, history_of(messages), context, tools, acts=acts)


def parse_generate(
    body: bytes, pdfs: PdfTexts | None = None, *, context: ParseContext
) -> ParsedOllama | PreloadRequest | FillInRequest:
    request, notes = parse_as(OllamaGenerateRequest, body)
    name = known_name(request.model, context.catalog)
    resolved = resolve(name, context.catalog)
    if request.suffix:
        return _fill_in(request, name)
    parts = message_parts(request.prompt, request.images, "images")
    if not parts:
        return _preload(request)
    instructions = (HistoryMessage("developer", (TextPart(request.system),)),) if request.system else ()
    history = (*instructions, HistoryMessage("user", parts))
    return _make_parsed(request, notes, resolved, history, context, (), acts=bool(request.system))


def _fill_in(request: OllamaGenerateRequest, model: str) -> FillInRequest:
    options = request.options or Options()
    body: dict[str, Any] = {"model": model, "prompt": request.prompt or "", "suffix": request.suffix}
    body |= non_null_fields(options, SAMPLING["ollama"])
    if (limit := _limit_of(options)) is not None:
        body["max_tokens"] = limit
    if stops := stops_of(options.stop):
        body["stop"] = stops
    stream = request.stream is not False
    return FillInRequest(model_asked=request.model, stream=stream, body=json_bytes(body))


def known_name(name: str, catalog: ModelCatalog) -> str:
    """Returns the name, without `:latest` if only the rest is a model's name."""
    base = name.removesuffix(LATEST_TAG)
    if base == name or not base or catalog.names.find(name) is not None:
        return name
    return name if catalog.names.find(base) is None else base


def _preload(request: ModelRequest) -> PreloadRequest:
    is_unload = request.keep_alive in (0, "0") or str(request.keep_alive).rstrip("hms") == "0"
    reason: Literal["load", "unload"] = "unload" if is_unload else "load"
    return PreloadRequest(model_asked=request.model, stream=request.stream is not False, reason=reason)


def _make_parsed(
    request: ModelRequest,
    notes: FieldNotes,
    resolved: ResolvedModel,
    history: tuple[HistoryItem, ...],
    context: ParseContext,
    tools: tuple[Tool, ...],
    *,
    acts: bool,
) -> ParsedOllama:
    """Returns the parsed request. `acts`: the client seems to be an agent itself, whatever the `format`."""
    if not history:
        raise bad_request("There is nothing to answer: every message is empty.", "messages")
    refuse_duplicates(tools, [f"tools[{index}].function.name" for index in range(len(tools))])
    wanted, options = _format_of(request), request.options or Options()
    place = place_of(resolved, context, None, client_acts=acts or wanted.kind != "text")
    turn = msgspec.structs.replace(
        place.turn,
        history=with_json_hint(history, wanted),
        effort=_effort_of(request, resolved.effort, efforts_of(resolved.agent_model, context.catalog)),
        summary="auto" if request.think else None,
        tools=tools,
        calls_without_ids=True,
        output_schema=wanted.schema,
        sampling=non_null_fields(options, SAMPLING["ollama"]),
        stop=stops_of(options.stop),
        max_tokens=_limit_of(options),
        **options_as_given(request, "ollama"),
    )
    return ParsedOllama(
        turn=turn,
        model_asked=request.model,
        stream=request.stream is not False,
        thinking=request.think is not False,
        client_names={tool.name: tool.client_name.name for tool in tools if tool.client_name is not None},
        ignored=(*ignored_fields(notes), *_unknown_options(options)),
        workdir_param=place.workdir_param,
    )


def _tool(given: GivenTool) -> Tool:
    function = given.function
    offered = model_name(function.name)
    return Tool(
        offered,
        function.description or "",
        None if function.parameters is None else schema_json(function.parameters),
        client_name=None if offered == function.name else ClientName(function.name),
    )


def _format_of(request: ModelRequest) -> Format:
    given = request.format
    if not given:
        return Format()
    if isinstance(given, dict):
        return json_schema_format(given, "answer", None)
    if given != "json":
        raise unsupported_value("format", given, "'json' and a JSON schema")
    return JSON_OBJECT


def _effort_of(request: ModelRequest, by_name: str | None, efforts: tuple[str, ...]) -> str | None:
    """Returns the effort; None: the agent's default. `by_name`: the effort in the model's name. Raises `Fault` for an
    unknown `think`.
    """
    think = request.think
    if think is not None and not isinstance(think, bool):
        if think not in EFFORTS:
            known = ", ".join(f"'{each}'" for each in EFFORTS)
            raise invalid_value("think", f"supported values are true, false and {known}")
        return nearest_effort(think, efforts)
    if think is False and efforts:
        return nearest_effort("none", efforts)
    if think is True and by_name is None and not efforts:
        return "medium"  # a model server may not think without an effort
    return None if by_name is None else nearest_effort(by_name, efforts)


def _limit_of(options: Options) -> int | None:
    limit = options.num_predict
    return limit if limit is not None and limit > 0 else None


def _unknown_options(options: Options) -> tuple[str, ...]:
    unknown = [name for name in options.model_extra or {} if FIELD_NAME.fullmatch(name)]
    return tuple(unknown[:MAX_NAMED])
