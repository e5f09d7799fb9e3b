"""One choice of a chat answer: frames and message of the same encoded fragments, and the types of a completion, whole
and as chunks. Sources: docs/contract.md#streams, docs/wire-rules.md#chat-completions.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.items import ItemStatus, ToolCall
from codex_proxy.surfaces.answers.renderer import (
    BLANK_LINE,
    Count,
    JsonText,
    SerialOutput,
    Text,
    Yes,
    json_text,
    one_of,
)
from codex_proxy.surfaces.answers.usage import json_tokens


class FunctionCall(TypedDict):
    name: JsonText
    arguments: JsonText


class CustomCall(TypedDict):
    name: JsonText
    input: JsonText


class ChatCall(TypedDict):
    """A call of a function or of a custom tool. The field named after its `type` has the rest."""

    id: JsonText
    type: Literal["function", "custom"]
    function: NotRequired[FunctionCall]
    custom: NotRequired[CustomCall]


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: JsonText | None
    refusal: JsonText | None
    tool_calls: NotRequired[Annotated[list[ChatCall], Meta(min_length=1)]]
    function_call: NotRequired[FunctionCall]
    reasoning_content: NotRequired[JsonText]
    annotations: NotRequired[Any]


class ChatChoice(TypedDict):
    index: Count
    message: ChatMessage
    logprobs: None
    finish_reason: JsonText


class PromptTokensDetails(TypedDict):
    cached_tokens: Count
    cache_write_tokens: NotRequired[Count]


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: Count


class ChatUsage(TypedDict):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails
    estimated: NotRequired[
        Annotated[
            Yes,
            Meta(description="The agent did not report all token counts; these are estimated from the text."),
        ]
    ]
    time_to_first_token: NotRequired[float | None]
    throughput_after_first_token: NotRequired[float | None]
    emission_trigger: NotRequired[Annotated[str, one_of(("token_count", "task_complete", "provider"))]]


class ChatCompletion(TypedDict):
    """An answer as a whole. An upstream's own fields are added to it."""

    id: JsonText
    object: Literal["chat.completion"]
    created: Count
    model: JsonText
    service_tier: NotRequired[str]
    choices: Annotated[list[ChatChoice], Meta(min_length=1)]
    usage: ChatUsage


class CallDelta(TypedDict):
    index: Count


class FunctionCallDelta(TypedDict, total=False):
    name: str
    arguments: str


class ChatDelta(TypedDict, total=False):
    role: Literal["assistant"]
    content: str
    refusal: str
    reasoning_content: str
    tool_calls: list[CallDelta]
    function_call: FunctionCallDelta


class ChunkChoice(TypedDict):
    index: Count
    delta: ChatDelta
    finish_reason: str | None


class ChatCompletionChunk(TypedDict):
    """One `data:` line of a stream; the last line is `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChunkChoice]
    usage: NotRequired[ChatUsage | None]


_PLAIN_ENDS: Final = frozenset({Stop.STOP, Stop.INTERRUPTED})
_CALL_ENDS: Final = frozenset({Stop.TOOL_CALLS, Stop.FUNCTION_CALL})


class Call:
    def __init__(
        self, item: ToolCall, index: int, arguments: str, *, legacy: bool, before: bytes, after: bytes
    ) -> None:
        """`arguments`: the arguments in the first chunk. `legacy`: whether the call is sent as `function_call`.
        `before`, `after`: the bytes around a delta.
        """
        name = json_text(item.name)
        first = json_text(arguments)
        if legacy:
            opening = b'{"function_call":{"name":%b,"arguments":%b}}' % (name, first)
            inner, closing = b'{"function_call":{"arguments":', b"}}"
        else:
            kind, field = (b"custom", b"input") if item.kind == "custom" else (b"function", b"arguments")
            own = b"," + item.provider_fields.encode()[1:-1] if item.provider_fields else b""
            opening = b'{"tool_calls":[{"index":%d,"id":%b,"type":"%b","%b":{"name":%b,"%b":%b}%b}]}' % (
                index, json_text(item.call_id), kind, kind, name, field, first, own,
            )  # fmt: skip
            inner, closing = b'{"tool_calls":[{"index":%d,"%b":{"%b":' % (index, kind, field), b"}}]}"
        self.opening = before + opening + after
        self.arguments = Text(before + inner, closing + after, first)
        self._item = item

    def legacy(self) -> FunctionCall:
        return {"name": msgspec.Raw(json_text(self._item.name)), "arguments": self.arguments.whole()}

    def whole(self) -> ChatCall:
        name = msgspec.Raw(json_text(self._item.name))
        id = msgspec.Raw(json_text(self._item.call_id))
        text = self.arguments.whole()
        call: ChatCall = {"id": id, "type": "function", "function": {"name": name, "arguments": text}}
        if self._item.kind == "custom":
            call = {"id": id, "type": "custom", "custom": {"name": name, "input": text}}
        if self._item.provider_fields:
            call |= msgspec.json.decode(self._item.provider_fields)
        return call


class Choice:
    """Appends the chunks of `choices[index]` to `out`, and keeps their text for the whole answer."""

    def __init__(self, index: int, before: bytes, after: bytes, *, legacy: bool, whole_calls: bool) -> None:
        """`before`, `after`: the bytes around the choice in every chunk. `legacy`: whether calls are sent as
        `function_call`. `whole_calls`: whether each call is one chunk.
        """
        self._before = before + b'{"index":%d,"delta":' % index
        self._middle = b',"finish_reason":'
        self._tail = b"}" + after
        self._after = self._middle + b"null" + self._tail
        self.index = index
        self._legacy = legacy
        self._legacy_calls: bool | None = None
        self._content = self._text(b"content")
        self._refusal: Text | None = None
        self._reasoning: Text | None = None
        self._message_order = SerialOutput()
        self._last_message: str | None = None
        self._begins: dict[str, int] = {}
        """Number of fragments before each message but the first."""
        self._at_line_start = True
        self._whole_calls = whole_calls
        self._call_order = SerialOutput(whole=whole_calls)
        self._waiting: dict[str, ToolCall] = {}
        self._calls: dict[str, Call] = {}
        self._has_cut_call = False
        """Whether the arguments of a call break off."""
        self.finish_reason = ""

    def _text(self, field: bytes) -> Text:
        return Text(self._before + b'{"%b":' % field, b"}" + self._after)

    def begin(self, out: list[bytes]) -> None:
        """Appends the first chunk, the only one with `role`."""
        out += (self._before, b'{"role":"assistant"}', self._after)

    # --- text ---------------------------------------------------------------------------------

    def open_message(self, id: str) -> None:
        self._message_order.open(id)

    def add_text(self, id: str, texts: list[str], out: list[bytes]) -> None:
        """Adds deltas of an open message; keeps them while an earlier one is open."""
        if id != self._message_order.current_id:
            self._message_order.keep(id, "".join(texts))
        elif id == self._last_message:
            self._content.add_all(texts, out)
        else:
            self._add_to_content(id, texts[0], out)
            self._content.add_all(texts[1:], out)

    def _add_to_content(self, id: str, text: str, out: list[bytes]) -> None:
        if id != self._last_message:
            if self._last_message is not None:
                text = BLANK_LINE + text
                self._begins[id] = self._content.count
            self._last_message = id
        self._content.add(text, out)

    def close(self, id: str, status: ItemStatus, out: list[bytes]) -> None:
        self._has_cut_call = self._has_cut_call or (status == "incomplete" and self._is_call(id))
        self._close_message(id, out)
        self._close_call(id, out)

    def _is_call(self, id: str) -> bool:
        return id in self._calls or id in self._waiting

    def _close_message(self, id: str, out: list[bytes]) -> None:
        for ready_id, text in self._message_order.close(id):
            if text:
                self._add_to_content(ready_id, text, out)

    def place_of(self, id: str) -> int:
        """Returns the index in `content` of the message `id`."""
        before = self._begins.get(id)
        return 0 if before is None else self._content.length(before) + len(BLANK_LINE)

    def add_refusal(self, id: str, text: str, out: list[bytes]) -> None:
        if self._refusal is None:
            self._refusal = self._text(b"refusal")
        self._refusal.add(self._refusal.with_separator(id, text), out)

    # --- reasoning and activity ---------------------------------------------------------------

    def add_reasoning(self, id: str, part: int, text: str, out: list[bytes]) -> None:
        """Adds a delta of a part of the summary `id`."""
        reasoning = self._begin_reasoning()
        text = reasoning.with_separator((id, part), text)
        self._at_line_start = text.endswith("\n")
        reasoning.add(text, out)

    def add_activity(self, line: str, out: list[bytes]) -> None:
        """Adds a line about an action of the agent."""
        line = f"{' '.join(line.split())}\n"
        reasoning = self._begin_reasoning()
        reasoning.add(line if self._at_line_start else "\n" + line, out)
        reasoning.part = None
        self._at_line_start = True

    def _begin_reasoning(self) -> Text:
        if self._reasoning is None:
            self._reasoning = self._text(b"reasoning_content")
        return self._reasoning

    # --- calls --------------------------------------------------------------------------------

    def open_call(self, item: ToolCall, out: list[bytes]) -> None:
        """Begins a call. The first decides the form of all: `function_call` if the client offered `functions` or the
        model server sent that, else `tool_calls`. Only one `function_call` is sent.
        """
        if self._legacy_calls:
            return
        if self._legacy_calls is None:
            self._legacy_calls = item.kind == "legacy" or (self._legacy and item.kind == "function")
        if self._call_order.open(item.id):
            self._begin_call(item, out)
        else:
            self._waiting[item.id] = item

    def _begin_call(self, item: ToolCall, out: list[bytes], arguments: str = "") -> Call:
        call = Call(
            item,
            len(self._calls),
            arguments,
            legacy=bool(self._legacy_calls),
            before=self._before,
            after=self._after,
        )
        self._calls[item.id] = call
        out.append(call.opening)
        return call

    def add_arguments(self, id: str, text: str, out: list[bytes]) -> None:
        if id == self._call_order.current_id:
            self._calls[id].arguments.add(text, out)
        else:
            self._call_order.keep(id, text)

    def _close_call(self, id: str, out: list[bytes]) -> None:
        for ready_id, text in self._call_order.close(id):
            item = self._waiting.pop(ready_id)
            if self._whole_calls:
                self._begin_call(item, out, text)
                continue
            call = self._begin_call(item, out)
            if text:
                call.arguments.add(text, out)

    # --- the end ------------------------------------------------------------------------------

    def finish(self, event: TurnEnded, out: list[bytes]) -> None:
        """Appends the last chunk; before it, an empty content if there was none."""
        if not (self._content or self._refusal or self._calls):
            self._content.add("", out)
        self.finish_reason = self._reason((event.choice_stops or {}).get(self.index, event.stop))
        out += (self._before, b"{}", self._middle, json_text(self.finish_reason), self._tail)

    def _reason(self, stop: str) -> str:
        if stop not in _PLAIN_ENDS and stop not in _CALL_ENDS:
            return str(stop)
        # Clients run the calls of an answer that ends with calls.
        if not self._calls or (stop == Stop.INTERRUPTED and self._has_cut_call):
            return "stop"
        return "function_call" if self._legacy_calls else "tool_calls"

    def whole(self) -> ChatChoice:
        message: ChatMessage = {
            "role": "assistant",
            "content": self._content.whole() if self._content else None,
            "refusal": self._refusal.whole() if self._refusal else None,
        }
        if self._reasoning:
            message["reasoning_content"] = self._reasoning.whole()
        calls = list(self._calls.values())
        if calls and self._legacy_calls:
            message["function_call"] = calls[0].legacy()
        elif calls:
            message["tool_calls"] = [call.whole() for call in calls]
        return {
            "index": self.index,
            "message": message,
            "logprobs": None,
            "finish_reason": msgspec.Raw(json_text(self.finish_reason)),
        }

    def tokens(self) -> int:
        """Estimates the tokens of content, refusal and arguments."""
        texts = [self._content, *(call.arguments for call in self._calls.values())]
        if self._refusal is not None:
            texts.append(self._refusal)
        return json_tokens(bytes(text.whole()) for text in texts)
