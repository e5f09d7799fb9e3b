"""The types of the answers of Ollama's API, and its errors: `{"error": "..."}`, with the statuses of Chat Completions.
Source: docs/ollama.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.answer_types import Count, JsonText, Object, one_of
from codex_proxy.surfaces.base import json_bytes, message_with_param, raw_text


class OllamaFunction(TypedDict):
    index: Count
    name: JsonText
    arguments: Object


class OllamaCall(TypedDict):
    id: JsonText
    function: OllamaFunction


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: JsonText
    thinking: NotRequired[JsonText]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaAnswer(TypedDict):
    """An answer, or a line of a streamed one. Durations are in nanoseconds."""

    model: JsonText
    created_at: str
    done: bool
    message: NotRequired[OllamaMessage]
    response: NotRequired[JsonText]
    thinking: NotRequired[JsonText]
    done_reason: NotRequired[JsonText]
    total_duration: NotRequired[Count]
    load_duration: NotRequired[Count]
    prompt_eval_count: NotRequired[Count]
    prompt_eval_duration: NotRequired[Count]
    eval_count: NotRequired[Count]
    eval_duration: NotRequired[Count]


class OllamaModelDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaEntry(TypedDict):
    name: JsonText
    model: JsonText
    modified_at: str
    size: Count
    digest: str
    details: OllamaModelDetails


class OllamaModels(TypedDict):
    models: list[OllamaEntry]


class OllamaModel(TypedDict):
    license: str
    modelfile: str
    parameters: str
    template: str
    details: OllamaModelDetails
    model_info: Object
    capabilities: list[Annotated[str, one_of(("completion", "tools", "vision", "thinking", "embedding"))]]
    modified_at: str


class OllamaVersion(TypedDict):
    version: str


class OllamaError(TypedDict):
    error: JsonText


def error_body(failure: Failure) -> bytes:
    body: OllamaError = {"error": raw_text(message_with_param(failure))}
    return json_bytes(body)


def error_line(failure: Failure) -> bytes:
    """Returns the line that ends a stream."""
    return error_body(failure) + b"\n"
