"""Asks the parsers, as a client would, and reads answers without a line of the renderer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.ollama.parse import (
    FillInRequest,
    ParsedOllama,
    PreloadRequest,
    parse_chat,
    parse_generate,
)
from codex_proxy.surfaces.ollama.render import OllamaRenderer
from codex_proxy.surfaces.requests.options import ParseContext, RequestHints, RequestSettings
from tests.surfaces.chat.asking import CATALOG

HELLO = {"role": "user", "content": "hello"}
DEFAULTS = RequestSettings()
NO_HINTS = RequestHints()
HEAD = {"model": "codex-5", "created_at": "2026-01-02T03:04:05Z"}


def parse_body(
    path: str, catalog: ModelCatalog = CATALOG, **fields: Any
) -> ParsedOllama | PreloadRequest | FillInRequest:
    """What a request to `chat` or `generate` with these fields means."""
    body = json.dumps({"model": "codex-5", **fields}).encode()
    if path == "chat":
        return parse_chat(body, context=ParseContext(DEFAULTS, catalog, NO_HINTS))
    return parse_generate(body, context=ParseContext(DEFAULTS, catalog, NO_HINTS))


def chat(catalog: ModelCatalog = CATALOG, **fields: Any) -> ParsedOllama:
    """What a request for a chat means; a greeting where it has no messages."""
    found = parse_body("chat", catalog, **{"messages": [HELLO], **fields})
    assert isinstance(found, ParsedOllama)
    return found


def generate(**fields: Any) -> ParsedOllama:
    found = parse_body("generate", **{"prompt": "hello", **fields})
    assert isinstance(found, ParsedOllama)
    return found


def refusal_of(path: str = "chat", **fields: Any) -> Failure:
    """The fault of a request with these fields."""
    given = {"messages": [HELLO]} if path == "chat" else {"prompt": "hello"}
    with pytest.raises(Fault) as raised:
        parse_body(path, **{**given, **fields})
    return raised.value.failure


def renderer(**options: Any) -> OllamaRenderer:
    return OllamaRenderer(**{"form": "chat", **HEAD, **options})


def stream_events(events: Sequence[Event], **options: Any) -> list[dict[str, Any]]:
    """The lines of a stream."""
    return lines(renderer(stream=True, **options).feed(events))


def whole(events: Sequence[Event], **options: Any) -> Any:
    """The whole answer to the same events."""
    answer = renderer(stream=False, **options)
    assert answer.feed(events) == b""
    return json.loads(answer.result())


def lines(data: bytes) -> list[dict[str, Any]]:
    """The objects of a stream, divided into lines as Ollama's package for Python does it."""
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.decode("utf-8").splitlines()]


def fold(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a client puts together from the lines of a stream."""
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    answer: dict[str, Any] = json.loads(json.dumps(parts[-1]))
    grown = answer.get("message", answer)
    for part in reversed(parts[:-1]):
        assert {name: part[name] for name in HEAD} == {name: answer[name] for name in HEAD}
        piece = part.get("message", part)
        for name in ("content", "response", "thinking", "tool_calls"):
            if name in piece:
                grown[name] = piece[name] + grown[name] if name in grown else piece[name]
    return answer
