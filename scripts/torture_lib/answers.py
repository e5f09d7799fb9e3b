"""Reads answers, and compares them with what was expected. Pure.

Every request contains a nonce, which the fake agent or the evil upstream repeats. An answer with the nonce of another
request is crossed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

NONCE = re.compile(r"nonce-[0-9a-f]{16}")
OVER = frozenset({"completed", "failed", "incomplete", "cancelled"})
"""The states of a response that has ended."""
Api = Literal["chat", "responses", "messages", "ollama"]


@dataclass(frozen=True)
class Expected:
    """What the answer to a request must, and may, contain."""

    nonce: str
    text: str | None = None
    """The exact text of a complete answer; None if it cannot be known."""
    may_contain: frozenset[str] = frozenset()
    """Nonces of earlier requests that the answer may contain too: those of the same conversation."""
    must_contain: frozenset[str] = frozenset()
    """Nonces that a complete answer contains, beside `text`."""


@dataclass(frozen=True)
class Answer:
    """An answer. `complete`: the model has finished it, neither cut off nor with calls."""

    texts: tuple[str, ...]
    """The text of each choice."""
    complete: bool
    ended: bool = True
    """Whether a stream had its last event."""
    body: dict[str, Any] | None = None
    """The whole object; of a stream of the Responses API, the object in its last event."""


def faults_of(expected: Expected, raw: str, answer: Answer | None) -> list[str]:
    """Returns what is wrong with an answer; empty if nothing is. `raw` is all that was received, `answer` the decoded
    answer; None for an error.
    """
    said = [] if answer is None else answer.texts
    held = set(NONCE.findall(raw)).union(*(NONCE.findall(text) for text in said))
    if foreign := held - {expected.nonce} - expected.may_contain:
        return [f"the answer to {expected.nonce} holds {', '.join(sorted(foreign))}"]
    if answer is None or not answer.complete:
        return []
    if expected.text is not None:
        for text in said:
            if text != expected.text:
                return [
                    f"the answer to {expected.nonce} is {text[:200]!r} in place of {expected.text[:200]!r}"
                ]
    if missing := expected.must_contain - held:
        return [f"the answer to {expected.nonce} lacks {', '.join(sorted(missing))}"]
    return []


# --- whole answers ------------------------------------------------------------------------------


def read_whole(api: Api, body: dict[str, Any]) -> Answer:
    """Reads an answer that came as one object."""
    read = {"chat": _chat, "responses": read_response, "messages": _message, "ollama": _ollama}[api]
    return read(body)


def _chat(body: dict[str, Any]) -> Answer:
    choices = body["choices"]
    texts = tuple(choice["message"].get("content") or "" for choice in choices)
    return Answer(texts, all(choice["finish_reason"] == "stop" for choice in choices), body=body)


def read_response(body: dict[str, Any]) -> Answer:
    """Reads an object of the Responses API."""
    messages = [item for item in body["output"] if item["type"] == "message"]
    text = "".join(part.get("text", "") for message in messages for part in message["content"])
    calls = any(item["type"] == "function_call" for item in body["output"])
    return Answer((text,), body["status"] == "completed" and not calls, body=body)


def _message(body: dict[str, Any]) -> Answer:
    text = "".join(part["text"] for part in body["content"] if part["type"] == "text")
    return Answer((text,), body["stop_reason"] == "end_turn", body=body)


def _ollama(body: dict[str, Any]) -> Answer:
    return _ollama_stream([body])


# --- streams ------------------------------------------------------------------------------------


def read_stream(api: Api, text: str) -> Answer:
    """Reads an answer from all of its server-sent events, or JSON lines."""
    if api == "ollama":
        return _ollama_stream([json.loads(line) for line in text.splitlines()])
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    if api == "chat":
        return _chat_stream(events, ended=text.endswith("data: [DONE]\n\n"))
    return read_response_stream(events) if api == "responses" else _message_stream(events)


def _chat_stream(events: Iterable[dict[str, Any]], *, ended: bool) -> Answer:
    texts: dict[int, list[str]] = {}
    reasons: set[str] = set()
    for choice in (choice for event in events for choice in event.get("choices", ())):
        texts.setdefault(choice["index"], []).append(choice["delta"].get("content") or "")
        reasons.add(choice["finish_reason"] or "")
    return Answer(tuple(map("".join, texts.values())), reasons - {""} == {"stop"}, ended)


def read_response_stream(events: Iterable[dict[str, Any]]) -> Answer:
    """Reads the events of a response. Its deltas and the object at its end must have the same text."""
    deltas: list[str] = []
    kind, last = "", None
    for event in events:
        kind = event["type"]
        if kind == "response.output_text.delta":
            deltas.append(event["delta"])
        last = event.get("response")
    if kind.removeprefix("response.") not in OVER or last is None:
        return Answer(("".join(deltas),), complete=False, ended=kind == "error")
    final = read_response(last)
    return Answer((*final.texts, "".join(deltas)), final.complete, body=last)


def _ollama_stream(lines: Sequence[dict[str, Any]]) -> Answer:
    messages = [line["message"] for line in lines if "message" in line]
    text = "".join(message["content"] for message in messages)
    called = any(message.get("tool_calls") for message in messages)
    last = lines[-1] if lines else {}
    complete = last.get("done_reason") == "stop" and not called
    body = {"message": messages[-1]} if len(lines) == 1 and messages else None
    return Answer((text,), complete, ended=last.get("done", "error" in last), body=body)


def _message_stream(events: Iterable[dict[str, Any]]) -> Answer:
    deltas, stop, kind = [], None, ""
    for event in events:
        kind = event["type"]
        if kind == "content_block_delta":
            deltas.append(event["delta"].get("text", ""))
        elif kind == "message_delta":
            stop = event["delta"].get("stop_reason")
    return Answer(("".join(deltas),), stop == "end_turn", ended=kind in ("message_stop", "error"))
