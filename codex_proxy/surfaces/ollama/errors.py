"""The errors of Ollama's API: `{"error": "..."}`, with the statuses of Chat Completions."""

from __future__ import annotations

from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.base import json_bytes, raw_text
from codex_proxy.surfaces.ollama.answer import OllamaError


def error_body(failure: Failure) -> bytes:
    """Returns the JSON body of an error. The name of the field is put before a message that does not contain it."""
    message = failure.message
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    body: OllamaError = {"error": raw_text(message)}
    return json_bytes(body)


def error_line(failure: Failure) -> bytes:
    """Returns the line that ends a stream that has begun."""
    return error_body(failure) + b"\n"
