"""The events of the Responses API, as the scripted model sends them.

A ``Reply`` is one model response: its methods yield the acts that write it, and it remembers the output items
so that the last event repeats them, as the real API does. It does no IO; ``model_server`` performs the acts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

Options = dict[str, str]


@dataclass(frozen=True)
class Event:
    """One SSE event."""

    type: str
    data: dict[str, Any]

    def encode(self) -> bytes:
        return f"event: {self.type}\ndata: {json.dumps({'type': self.type, **self.data})}\n\n".encode()


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Gate:
    """IdleTimer until the test opens the gate of this name; without a name, until the client hangs up."""

    name: str


@dataclass(frozen=True)
class Drop:
    """The connection breaks: no last event, no end of the body."""


@dataclass(frozen=True)
class Headers:
    """Further response headers; only before the first event."""

    values: dict[str, str]


@dataclass(frozen=True)
class HttpAnswer:
    """An answer that is no stream; only as the first act."""

    status: int
    body: str
    headers: dict[str, str]


Act = Event | Pause | Gate | Drop | Headers | HttpAnswer


def words_of(text: str) -> list[str]:
    """``text`` cut before its words; joined again it is the same text."""
    return re.findall(r"\s*\S+|\s+$", text)


@dataclass
class Reply:
    """One model response under way. ``number`` makes its ids unique and predictable."""

    number: int
    model: str
    options: Options
    output: list[dict[str, Any]] = field(default_factory=list)

    @property
    def delay(self) -> float:
        return float(self.options.get("delay", 0)) / 1000

    def count(self, key: str, default: int) -> int:
        return int(self.options.get(key, default))

    def start(self) -> Iterator[Act]:
        yield Event("response.created", {"response": self._head("in_progress")})
        if "first" in self.options:
            yield Pause(self.count("first", 0) / 1000)

    def end(self, status: str = "completed", **more: Any) -> Iterator[Act]:
        response = self._head(status) | {"output": self.output} | more
        if self.options.get("usage") != "0":
            response["usage"] = self._usage()
        yield Event(f"response.{status}", {"response": response})

    def text(self, words: list[str], *, phase: str | None = None, finish: bool = True) -> Iterator[Act]:
        """An assistant message, a delta per word; ``finish=False`` leaves it open."""
        place = {"output_index": len(self.output)}
        head: dict[str, Any] = {"type": "message", "id": self._id("msg"), "role": "assistant", "content": []}
        if phase:
            head["phase"] = phase
        yield Event("response.output_item.added", {"item": head | {"status": "in_progress"}, **place})
        part = {"item_id": head["id"], "content_index": 0, **place}
        empty = {"type": "output_text", "text": "", "annotations": []}
        yield Event("response.content_part.added", {"part": empty, **part})
        for word in words:
            yield Event("response.output_text.delta", {"delta": word, **part})
            yield Pause(self.delay)
        if not finish:
            return
        whole = empty | {"text": "".join(words)}
        yield Event("response.output_text.done", {"text": whole["text"], **part})
        yield Event("response.content_part.done", {"part": whole, **part})
        yield from self._done(head | {"status": "completed", "content": [whole]})

    def item(self, item: dict[str, Any], added: dict[str, Any] | None = None) -> Iterator[Act]:
        """An item that has no deltas."""
        place = {"output_index": len(self.output)}
        yield Event("response.output_item.added", {"item": item | (added or {}), **place})
        yield from self._done(item)

    def call(
        self, name: str, text: str, *, custom: bool = False, namespace: str | None = None
    ) -> Iterator[Act]:
        """A call of a client's tool: ``text`` is the JSON arguments, or the input of a custom tool."""
        place = {"output_index": len(self.output)}
        member, kind = ("input", "custom_tool_call") if custom else ("arguments", "function_call")
        stem = "custom_tool_call_input" if custom else "function_call_arguments"
        identity = self._id("ctc" if custom else "fc")
        item = {"type": kind, "id": identity, "call_id": self._id("call"), "name": name, member: text}
        if namespace:
            item["namespace"] = namespace
        opened = item | {member: "", "status": "in_progress"}
        yield Event("response.output_item.added", {"item": opened, **place})
        size = self.count("chunk", 8)
        for start in range(0, len(text), size):
            delta = text[start : start + size]
            yield Event(f"response.{stem}.delta", {"item_id": identity, "delta": delta, **place})
            yield Pause(self.delay)
        yield Event(f"response.{stem}.done", {"item_id": identity, member: text, **place})
        yield from self._done(item | {"status": "completed"})

    def reasoning(self, parts: list[list[str]], raw: list[str]) -> Iterator[Act]:
        """A reasoning item: summary parts word by word, then raw reasoning if there is any."""
        identity = self._id("rs")
        place = {"item_id": identity, "output_index": len(self.output)}
        opened = {"type": "reasoning", "id": identity, "summary": []}
        yield Event("response.output_item.added", {"output_index": len(self.output), "item": opened})
        summary = []
        for index, words in enumerate(parts):
            part = {"summary_index": index, **place}
            whole = {"type": "summary_text", "text": "".join(words)}
            yield Event("response.reasoning_summary_part.added", {"part": whole | {"text": ""}, **part})
            for word in words:
                yield Event("response.reasoning_summary_text.delta", {"delta": word, **part})
                yield Pause(self.delay)
            yield Event("response.reasoning_summary_text.done", {"text": whole["text"], **part})
            yield Event("response.reasoning_summary_part.done", {"part": whole, **part})
            summary.append(whole)
        for word in raw:
            yield Event("response.reasoning_text.delta", {"delta": word, "content_index": 0, **place})
            yield Pause(self.delay)
        content = [{"type": "reasoning_text", "text": "".join(raw)}] if raw else None
        yield from self._done(
            opened | {"summary": summary, "encrypted_content": f"sealed-{identity}", "content": content}
        )

    def _done(self, item: dict[str, Any]) -> Iterator[Act]:
        yield Event("response.output_item.done", {"output_index": len(self.output), "item": item})
        self.output.append(item)

    def _id(self, kind: str) -> str:
        return f"{kind}_{self.number}_{len(self.output)}"

    def _head(self, status: str) -> dict[str, Any]:
        return {"id": f"resp_{self.number}", "model": self.model, "status": status}

    def _usage(self) -> dict[str, Any]:
        given, made = self.count("in", 100), self.count("out", 20)
        return {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": self.count("cached", 40)},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": self.count("reasoning", 5)},
            "total_tokens": given + made,
        }
