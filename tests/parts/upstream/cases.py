"""What servers of Chat Completions send, each in its own way, and what it means: tests/golden/upstreams/cases.json.

The frames of the cases were written after the answers of real servers (Ollama, vLLM, SGLang, llama.cpp, Groq,
OpenRouter, DeepSeek, Mistral, Azure, LiteLLM), those called `llamacpp_*` and `litellm_*` were recorded from llama.cpp's
own and from LiteLLM's proxy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).parents[2] / "golden" / "upstreams" / "cases.json"


class Case(msgspec.Struct, frozen=True):
    """One answer of an upstream, and what of it reaches a client."""

    status: int
    headers: dict[str, str]
    frames: list[str]
    items: list[tuple[str, str | None, str]]
    """Kind, name of the tool, text (of a call: its arguments)."""
    stop: str
    usage: tuple[int, int] | None = None
    cut: bool = False
    """The connection is reset behind the frames."""
    fault: str | None = None
    message: str = ""
    """What the failure's message has to say."""

    @property
    def body(self) -> bytes:
        """All frames."""
        return "".join(self.frames).encode()


CASES: dict[str, Case] = msgspec.json.decode(FILE.read_bytes(), type=dict[str, Case])


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of a stream."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [choice],
    } | more


def event(value: Any) -> bytes:
    """A server-sent event with this as its data."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


def stream(*deltas: dict[str, Any], finish: str = "stop") -> bytes:
    """A whole answer as a stream, of these deltas, with its usage."""
    events = [*map(chunk, ({"role": "assistant", "content": ""}, *deltas)), chunk({}, finish)]
    return b"".join(map(event, [*events, chunk({}) | {"choices": [], "usage": USAGE}])) + DONE


def text(said: str) -> bytes:
    """An answer that says this, in two pieces."""
    return stream({"content": said[: len(said) // 2]}, {"content": said[len(said) // 2 :]})


def call(name: str, arguments: str, id: str = "call_a") -> dict[str, Any]:
    """A delta with a whole call."""
    function = {"name": name, "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": id, "type": "function", "function": function}]}
