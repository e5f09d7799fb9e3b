"""The spans of one turn, by OpenTelemetry's conventions for generative AI: the turn (`invoke_agent`), model calls
(`chat`), tool calls (`execute_tool`), and starts of processes; with content, if that is wanted. Agents report only the
end of a model call: its span is made then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, set_span_in_context

from codex_proxy.core.events import (
    VISIBLE_OUTPUT,
    Event,
    ForwardedBytes,
    ItemEnded,
    ItemStarted,
    ItemTexts,
    Retrying,
    ServedBy,
    StepCompleted,
    Stop,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import (
    Activity,
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Item,
    McpCall,
    Message,
    Part,
    Reasoning,
    TextPart,
    ToolCall,
    texts_of,
)
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.runs.observers import model_asked

OnCall = Callable[[str, str, SpanContext], None]
_SPAN_EVENTS: Final = frozenset(
    {ItemStarted, ItemEnded, StepCompleted, UsageReported, Retrying, ServedBy, TurnStarted, TurnEnded}
)


class TurnSpans:
    """Makes the spans of one turn from its events, as a `runs.event_log.TurnObserver`."""

    def __init__(
        self,
        start: Callable[..., Span],
        turn: Turn,
        agent: str,
        parent: Context,
        links: Sequence[Link],
        *,
        with_content: bool,
        on_call: OnCall,
    ) -> None:
        """`start` starts a span. `on_call` gets owner, id and span of each call that the client answers."""
        self._start = start
        self._agent = agent
        self._owner = turn.owner
        own_name = turn.model if not turn.model.endswith(MODEL_SEPARATOR) else ""
        self._model = excerpt(own_name) or model_asked(turn)
        self._on_call = on_call
        self._content = TurnContent(turn) if with_content else None
        attributes = self._attributes("invoke_agent")
        attributes |= {"codex_proxy.mode": turn.mode, "codex_proxy.key": turn.owner}
        if turn.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = turn.max_tokens
        self._span = start(f"invoke_agent {agent}", parent, SpanKind.INTERNAL, attributes, links)
        self.context = set_span_in_context(self._span)
        self._began = time.time_ns()
        self._model_asked: int | None = self._began
        """When the running model call began, if one is known."""
        self._model_spoke = False
        """Whether output of the running model call has come."""
        self._acted: int | None = None
        """When the agent began to act after the model had ended, in this model call."""
        self._tools_done = self._began
        """When the last model call or tool ended."""
        self._seen_first = False
        self._tools: dict[str, Span] = {}
        """Spans of tools that run here, by item id."""
        self._calls: list[tuple[str, Span]] = []
        """Ids and spans of calls that the client answers."""
        self._ended = False

    def add(self, events: Sequence[Event]) -> None:
        """Begins and ends the spans that the events are about. Most batches are text, and cost two lookups."""
        if self._content is not None:
            self._content.add(events)
        if not self._seen_first and not VISIBLE_OUTPUT.isdisjoint(map(type, events)):
            self._seen_first = True
            seconds = (time.time_ns() - self._began) / 1e9
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
            self._model_spoke = type(events[0]) is ForwardedBytes
        if _SPAN_EVENTS.isdisjoint(map(type, events)):
            return
        for event in events:
            self._trace(event)

    @contextmanager
    def process_start(self, agent: str) -> Iterator[None]:
        """Traces the start of a process, the body of the `with`, unless the turn has ended."""
        if self._ended:
            yield
            return
        span = self._start(f"start {agent}", self.context, SpanKind.INTERNAL, {"gen_ai.agent.name": agent})
        try:
            yield
        except BaseException as error:
            _fail(span, error.failure.kind.value if isinstance(error, Fault) else type(error).__name__)
            raise
        finally:
            span.end()

    def _trace(self, event: Event) -> None:
        if isinstance(event, ItemStarted):
            self._on_item_started(event.item)
        elif isinstance(event, ItemEnded):
            self._on_tool_ended(event)
        elif isinstance(event, StepCompleted):
            self._end_model_call(event.usage)
        elif isinstance(event, UsageReported):
            self._span.set_attributes(_tokens(event.usage))
        elif isinstance(event, TurnStarted):
            if event.thread_id:
                self._span.set_attribute("gen_ai.conversation.id", event.thread_id)
            if event.model:
                self._span.set_attribute("gen_ai.response.model", excerpt(event.model))
        elif isinstance(event, Retrying):
            self._span.add_event("model call repeated", {"http.response.status_code": event.http_status or 0})
        elif isinstance(event, ServedBy):
            self._span.set_attribute("codex_proxy.upstream", event.upstream or self._agent)
            self._span.set_attribute("codex_proxy.attempts", event.attempts)
        elif isinstance(event, TurnEnded):
            self._end(event)

    # --- model calls ----------------------------------------------------------------------------

    def _on_model_output(self) -> None:
        if self._model_asked is not None and self._acted is not None and not self._tools:
            self._end_model_call(None)
        if self._model_asked is None:
            self._model_asked = self._tools_done
        self._model_spoke = True

    def _end_model_call(self, usage: Usage | None) -> None:
        now = time.time_ns()
        began = self._tools_done if self._model_asked is None else self._model_asked
        span = self._start(
            f"chat {self._model}".rstrip(),
            self.context,
            SpanKind.CLIENT,
            self._attributes("chat") | _tokens(usage),
            start_time=began,
        )
        span.end(now if self._acted is None else self._acted)
        if self._acted is None or self._tools:
            self._tools_done = now
        self._model_asked, self._acted, self._model_spoke = None, None, False

    # --- tools ----------------------------------------------------------------------------------

    def _on_item_started(self, item: Item) -> None:
        if isinstance(item, Activity | McpCall):
            if isinstance(item, Activity) and item.kind == "plan":
                return
            if self._model_asked is not None and self._acted is None:
                self._acted = time.time_ns()
            name = item.kind if isinstance(item, Activity) else f"{item.server_label}.{item.name}"
            id = item.id if isinstance(item, Activity) else item.call_id
            self._tools[item.id] = self._tool_span(name, id, "extension")
            return
        self._on_model_output()
        if isinstance(item, ToolCall):
            self._calls.append((item.call_id, self._tool_span(item.name, item.call_id, "function")))

    def _tool_span(self, name: str, call_id: str, kind: str) -> Span:
        name = excerpt(name)
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": call_id,
            "gen_ai.tool.type": kind,
        }
        return self._start(f"execute_tool {name}", self.context, SpanKind.INTERNAL, attributes)

    def _on_tool_ended(self, event: ItemEnded) -> None:
        span = self._tools.pop(event.id, None)
        if span is None:
            return
        if self._content is not None:
            span.set_attributes(self._content.tool_attributes(event.id))
        if event.status == "failed":
            _fail(span, "tool_failed")
        span.end()
        self._tools_done = time.time_ns()

    # --- the end --------------------------------------------------------------------------------

    def _end(self, ended: TurnEnded) -> None:
        if self._model_asked is not None and self._model_spoke:
            self._end_model_call(None)
        for span in self._tools.values():
            _fail(span, "interrupted")
            span.end()
        for call_id, span in self._calls:
            if self._content is not None:
                span.set_attributes(self._content.tool_attributes(call_id))
            span.end()
            self._on_call(self._owner, call_id, span.get_span_context())
        self._span.set_attribute("gen_ai.response.finish_reasons", [excerpt(str(ended.stop))])
        if ended.failure is not None:
            message = ended.failure.message if self._content is not None else None
            _fail(self._span, ended.failure.kind.value, message)
        elif ended.stop == Stop.INTERRUPTED:
            _fail(self._span, "interrupted")
        if self._content is not None:
            self._span.set_attributes(self._content.turn_attributes(str(ended.stop)))
            self._content = None  # contexts of processes that live on hold this object
        self._span.end()
        self._ended = True

    def _attributes(self, operation: str) -> dict[str, Any]:
        attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": self._agent,
            "gen_ai.agent.name": self._agent,
        }
        return attributes | ({"gen_ai.request.model": self._model} if self._model else {})


def _tokens(usage: Usage | None) -> dict[str, int]:
    if usage is None:
        return {}
    return {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_written,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
    }


def _fail(span: Span, kind: str, message: str | None = None) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR, message))


class TurnContent:
    """What a turn says, as JSON; only for spans with content."""

    def __init__(self, turn: Turn) -> None:
        self._history = turn.history
        self._said = ItemTexts()

    def add(self, events: Sequence[Event]) -> None:
        self._said.add(events)

    def tool_attributes(self, id: str) -> dict[str, str]:
        """Returns the attributes of a tool's span; `id`: the id of the tool call or of its item."""
        item = next(
            (each for each in self._said.items.values() if id in (each.id, getattr(each, "call_id", ""))),
            None,
        )
        if item is None:
            return {}
        arguments, output = self._said.text(item.id), self._said.output(item.id)
        found = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": output}
        return {name: text for name, text in found.items() if text}

    def turn_attributes(self, stop: str) -> dict[str, str]:
        parts = [part for item in self._said.items.values() if (part := self._part(item)) is not None]
        said = [{"role": "assistant", "parts": parts, "finish_reason": stop}]
        asked = [message for item in self._history if (message := _message(item)) is not None]
        return {"gen_ai.input.messages": _json(asked), "gen_ai.output.messages": _json(said)}

    def _part(self, item: Item) -> dict[str, Any] | None:
        if isinstance(item, Message):
            return {"type": "text", "content": self._said.text(item.id)}
        if isinstance(item, Reasoning):
            return {"type": "reasoning", "content": self._said.text(item.id)}
        if isinstance(item, ToolCall | McpCall):
            return _call(item.call_id, item.name, self._said.text(item.id))
        return None


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _message(item: HistoryItem) -> dict[str, Any] | None:
    if isinstance(item, HistoryMessage):
        role = "system" if item.role == "developer" else item.role
        return {"role": role, "parts": [_part(part) for part in item.parts]}
    if isinstance(item, HistoryCall):
        return {"role": "assistant", "parts": [_call(item.call_id, item.name, item.arguments)]}
    if isinstance(item, HistoryOutput):
        text = "".join(texts_of(item.parts))
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": item.call_id, "response": text}],
        }
    return None


def _part(part: Part) -> dict[str, Any]:
    return {"type": "text", "content": part.text} if isinstance(part, TextPart) else {"type": "image"}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
