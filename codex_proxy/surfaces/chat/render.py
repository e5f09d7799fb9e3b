"""Renders a turn as a chat completion, streamed or whole, from the same `Choice`s. Sources: docs/contract.md#streams,
docs/contract.md#failures-of-a-stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias, Unpack

import msgspec

from codex_proxy.core.events import (
    AnnotationAdded,
    AnswerDetails,
    ArgumentsDelta,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    RefusalDelta,
    TurnEnded,
)
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import Item, Message, Reasoning, ToolCall
from codex_proxy.surfaces.answers.renderer import (
    RenderOptions,
    StreamRenderer,
    TextRun,
    activity_line,
    json_bytes,
    raw_text,
)
from codex_proxy.surfaces.chat.choice import ChatUsage, Choice
from codex_proxy.surfaces.errors import DONE, error_frames


class StreamMetrics(msgspec.Struct, frozen=True):
    """Milliseconds until the first token, and tokens per second after it."""

    time_to_first_token: float | None = None
    throughput_after_first_token: float | None = None


Measure: TypeAlias = Callable[[int], StreamMetrics]
"""Takes the number of a stream's completion tokens, and returns its timings."""


ChatProfile: TypeAlias = Literal["openai", "codex-completions-api"]
"""The form of chunks: OpenAI's, or codex-completions-api's (`usage: null`, all choices in one)."""

NOT_MEASURED: Final = StreamMetrics()
_SHOWN_ITEMS: Final = (Message, Reasoning, ToolCall)
NO_CHOICES: Final[tuple[Choice, ...]] = ()


class ChatRenderer(StreamRenderer):
    """Renders a chat completion. `whole_calls`: whether each call is one delta. `show_activity`: whether the
    agent's actions are shown as lines of reasoning. `metrics` returns times for the usage chunk.
    """

    def __init__(
        self,
        *,
        id: str,
        created: int,
        model: str,
        profile: ChatProfile = "openai",
        choices: int = 1,
        include_usage: bool = False,
        legacy_function_call: bool = False,
        whole_calls: bool = False,
        show_activity: bool = True,
        metrics: Measure | None = None,
        service_tier: str | None = None,
        **options: Unpack[RenderOptions],
    ) -> None:
        super().__init__(**options)
        self._envelope: dict[str, Any] = {"id": raw_text(id), "created": created, "model": raw_text(model)}
        if service_tier is not None:
            self._envelope["service_tier"] = service_tier
        usage_null = include_usage or profile == "codex-completions-api"
        self._chunk_end = b'],"usage":null}\n\n' if usage_null else b"]}\n\n"
        self._joined = profile == "codex-completions-api" and choices > 1
        self._legacy = legacy_function_call
        self._whole_calls = whole_calls
        self._details = AnswerDetails()
        self._make_choices(choices)
        self._targets: dict[str, tuple[Choice, ...]] = {}
        self._include_usage = include_usage
        self._show_activity = show_activity
        self._measure = metrics
        self._routed = False
        self._cited: list[tuple[tuple[Choice, ...], AnnotationAdded]] = []
        """Annotations, each with the choices that have its message."""

    def _make_choices(self, count: int) -> None:
        head = {"id": self._envelope["id"], "object": "chat.completion.chunk"}
        body = json_bytes({**head, **self._envelope, **self._details.fields})
        self._chunk_head = b"data: " + body[:-1] + b',"choices":['
        # A choice that shares its chunks says its part as a line: JSON has no raw line breaks.
        before, after = (b"", b"\n") if self._joined else (self._chunk_head, self._chunk_end)
        self._choices = tuple(
            Choice(index, before, after, legacy=self._legacy, whole_calls=self._whole_calls)
            for index in range(count)
        )

    # --- what an exchange asks ------------------------------------------------------------------

    def _whole(self) -> bytes:
        choices = [choice.whole() for choice in self._choices]
        for choice, whole in zip(self._choices, choices, strict=True):
            if annotations := self._annotations(choice):
                whole["message"]["annotations"] = annotations
        head = {"id": self._envelope["id"], "object": "chat.completion"}
        top = {**head, **self._envelope, **self._details.fields}
        return json_bytes({**top, "choices": choices, "usage": self._usage()})

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        return tuple(choice.finish_reason for choice in self._choices if choice.finish_reason)

    # --- what happens in a turn -----------------------------------------------------------------

    def _begin(self, out: list[bytes]) -> None:
        self.visible = True
        self._append_for_each(self._choices, out, Choice.begin)

    def _append_for_each(
        self, targets: tuple[Choice, ...], out: list[bytes], append: Callable[..., None], *args: object
    ) -> None:
        """Calls `append(choice, *args, out)` for each choice. Their chunks are sent one by one or, in the profile
        `codex-completions-api`, joined.
        """
        if not self._joined:
            for choice in targets:
                append(choice, *args, out)
            return
        spoken: list[list[bytes]] = []
        for choice in targets:
            frames: list[bytes] = []
            append(choice, *args, frames)
            spoken.append(b"".join(frames).split(b"\n")[:-1])
        # From the end backwards: choices that say less than others finish together with them.
        count = max(map(len, spoken), default=0)
        for index in range(-count, 0):
            parts = [parts[index] for parts in spoken if len(parts) >= -index]
            out += (self._chunk_head, b",".join(parts), self._chunk_end)

    def _on_text(self, pieces: TextRun, out: list[bytes]) -> None:
        targets = self._choices_with(pieces.id, out)
        if len(targets) == 1:
            self._append_for_each(targets, out, Choice.add_text, pieces.id, pieces.texts)
            return
        for text in pieces.texts:  # each choice gets a piece before the next one is sent
            self._append_for_each(targets, out, Choice.add_text, pieces.id, [text])

    def _on_refusal(self, event: RefusalDelta, out: list[bytes]) -> None:
        self._append_for_each(
            self._choices_with(event.id, out), out, Choice.add_refusal, event.id, event.text
        )

    def _on_reasoning(self, event: ReasoningDelta, out: list[bytes]) -> None:
        if event.kind == "summary":  # raw reasoning is not sent to clients
            targets = self._choices_with(event.id, out)
            self._append_for_each(targets, out, Choice.add_reasoning, event.id, event.part, event.text)

    def _on_arguments(self, event: ArgumentsDelta, out: list[bytes]) -> None:
        self._append_for_each(
            self._choices_with(event.id, out), out, Choice.add_arguments, event.id, event.text
        )

    def _choices_with(self, id: str, out: list[bytes]) -> tuple[Choice, ...]:
        targets = self._targets.get(id, NO_CHOICES)
        if targets and not self.visible:
            self._begin(out)
        return targets

    def _on_item_started(self, event: ItemStarted, out: list[bytes]) -> None:
        item = event.item
        line = activity_line(item) if self._show_activity else None
        if line is None and not isinstance(item, _SHOWN_ITEMS):
            return
        self._targets[item.id] = self._choices_for(item)
        if isinstance(item, Message):
            for choice in self._targets[item.id]:
                choice.open_message(item.id)
        elif isinstance(item, ToolCall):
            self._append_for_each(self._choices_with(item.id, out), out, Choice.open_call, item)
        elif line is not None:
            self._append_for_each(self._choices_with(item.id, out), out, Choice.add_activity, line)

    def _choices_for(self, item: Item) -> tuple[Choice, ...]:
        if item.choice is None:
            return self._choices
        self._routed = True
        return self._choices[item.choice : item.choice + 1] if item.choice >= 0 else NO_CHOICES

    def _on_item_ended(self, event: ItemEnded, out: list[bytes]) -> None:
        targets = self._targets.pop(event.id, NO_CHOICES)
        self._append_for_each(targets, out, Choice.close, event.id, event.status)

    def _on_turn_ended(self, event: TurnEnded, out: list[bytes]) -> None:
        self.ended = True
        if event.failure is not None:
            self.failure = event.failure
            out.append(self._error(event.failure))
            return
        if not self.visible:
            self._begin(out)
        if self._details.annotations or self._cited:
            out.append(self._annotations_chunk())
        self._append_for_each(self._choices, out, Choice.finish, event)
        self.spent.end(event)
        if self._include_usage and self._stream:
            out.append(self._usage_chunk())
        out.append(DONE)

    def _error(self, failure: Failure) -> bytes:
        return error_frames(failure)

    def _annotations_chunk(self) -> bytes:
        """Returns the annotations, which are sent directly before the finish reasons."""
        # Some are known only at the end.
        choices = []
        for choice in self._choices:
            annotations = self._annotations(choice)
            delta = {"annotations": annotations} if annotations else {}
            choices.append(json_bytes({"index": choice.index, "delta": delta, "finish_reason": None}))
        return self._chunk_head + b",".join(choices) + self._chunk_end

    def _annotations(self, choice: Choice) -> msgspec.Raw | list[dict[str, Any]]:
        if self._details.annotations:
            return msgspec.Raw(self._details.annotations)
        return [
            _nest_annotation(cited.json, choice.place_of(cited.id))
            for choices, cited in self._cited
            if choice in choices
        ]

    def _on_annotation(self, event: AnnotationAdded, out: list[bytes]) -> None:
        self._cited.append((self._choices_with(event.id, out), event))

    def _on_details(self, event: AnswerDetails, out: list[bytes]) -> None:
        """Notes details; those known before the first item are in all chunks."""
        is_new = event.fields != self._details.fields
        self._details = event
        # Clients expect the same fields in all chunks.
        if is_new and not (self.visible or self._targets):
            self._make_choices(len(self._choices))

    # --- usage ----------------------------------------------------------------------------------

    def _usage(self) -> ChatUsage:
        """Returns the usage. Output that several choices have counts for each."""
        usage, copies = self._tokens(), 1 if self._routed else len(self._choices)
        completion = usage.output * copies
        figures: ChatUsage = {
            "prompt_tokens": usage.input,
            "completion_tokens": completion,
            "total_tokens": usage.input + completion,
            "prompt_tokens_details": {"cached_tokens": usage.cached},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning * copies},
        }
        if usage.cache_written:
            figures["prompt_tokens_details"]["cache_write_tokens"] = usage.cache_written
        if self.spent.is_estimated:
            figures["estimated"] = True
        for field, counts in self._details.tokens.items():
            figures[field] |= counts  # type: ignore[literal-required]  # an upstream's own
        return figures

    def _count_tokens(self) -> int:
        counted = self._choices if self._routed else self._choices[:1]
        return sum(self._limit(choice.tokens()) for choice in counted)

    def _usage_chunk(self) -> bytes:
        figures = self._usage()
        measured = NOT_MEASURED if self._measure is None else self._measure(figures["completion_tokens"])
        figures["time_to_first_token"] = measured.time_to_first_token
        figures["throughput_after_first_token"] = measured.throughput_after_first_token
        figures["emission_trigger"] = self.spent.trigger
        return self._chunk_head + b'],"usage":' + json_bytes(figures) + b"}\n\n"


def _nest_annotation(annotation: bytes, offset: int) -> dict[str, Any]:
    """Nests an annotation of the Responses API. `offset`: the place of the annotation's message in `content`."""
    fields: dict[str, Any] = msgspec.json.decode(annotation)
    for name in ("start_index", "end_index"):
        if isinstance(fields.get(name), int):
            fields[name] += offset
    kind = fields.pop("type", None)
    return {"type": kind, kind: fields} if isinstance(kind, str) else fields
