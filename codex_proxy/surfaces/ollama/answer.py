"""The types of the answers of Ollama's API, its models, and its errors: `{"error": "..."}`, with the statuses of Chat
Completions. Source: docs/ollama.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.answers.renderer import (
    Count,
    JsonText,
    Object,
    json_bytes,
    message_with_param,
    one_of,
    raw_text,
)


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


VERSION: Final = "0.20.0"
"""The version that is reported: Copilot Chat refuses one before 0.6.4."""

OLLAMA_PORT: Final = 11434
"""The port on which clients look for Ollama."""

RUNNING: Final = "Ollama is running"
"""The answer at its base URL, by which clients recognise it."""

NO_OLLAMA: Final = (
    "This is codex-proxy, not Ollama: agents and model servers give the answers, and no models are kept here that "
    "could be pulled, created, copied or deleted. GET /api/tags lists the models."
)


def model_entry(name: str, agent: str, modified_at: str) -> OllamaEntry:
    """Returns a model's entry in the list. `agent` serves it. Size and digest are invented: no model is a file."""
    return {
        "name": raw_text(name),
        "model": raw_text(name),
        "modified_at": modified_at,
        "size": 0,
        "digest": hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest(),
        "details": _details(agent),
    }


def model_details(
    name: str, agent: str, model: AgentModel | None, able: Collection[str], modified_at: str
) -> OllamaModel:
    """Returns a model's details. `agent` serves the model, `model` is its entry, `able` what the agent can do."""
    info: dict[str, Any] = {
        "general.architecture": agent,
        "general.basename": raw_text((model.display_name if model else "") or name),
    }
    if model is not None and model.context_window is not None:
        # Editors read the length here, by the name of the architecture.
        info[f"{agent}.context_length"] = model.context_window
    return {
        "license": "",
        "modelfile": "",
        "parameters": "",
        "template": "",
        "details": _details(agent),
        "model_info": info,
        "capabilities": capabilities_of(model, able),
        "modified_at": modified_at,
    }


def capabilities_of(model: AgentModel | None, able: Collection[str]) -> list[str]:
    """Returns a model's capabilities. `able`: what the agent can do. Without listed modalities the model sees what its
    agent can send.
    """
    modalities = model.input_modalities if model is not None else ()
    has = {
        "completion": True,
        "tools": "client_tools" in able,
        "vision": "images" in able and (not modalities or "image" in modalities),
        "thinking": model is not None and bool(model.efforts),
        "embedding": "embedding" in able,
    }
    return [name for name, is_able in has.items() if is_able]


def _details(agent: str) -> OllamaModelDetails:
    return {
        "parent_model": "",
        "format": "",
        "family": agent,
        "families": [agent],
        "parameter_size": "",
        "quantization_level": "",
    }
