"""Models in the form of `/api/tags` and `/api/show`. Size and digest are invented: no model is a file. Editors read the
context's length in `model_info`, at `ARCHITECTURE.context_length`. Source: docs/ollama.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Any, Final

from codex_proxy.core.account import AgentModel
from codex_proxy.surfaces.base import raw_text
from codex_proxy.surfaces.ollama.answer import OllamaEntry, OllamaModel, OllamaModelDetails

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
    """Returns a model's entry in the list. `agent` serves the model."""
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
