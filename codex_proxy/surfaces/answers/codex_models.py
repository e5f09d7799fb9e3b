"""The list of models in the form that Codex reads, as its server's answer or as the file `model_catalog_json`. Codex
offers its patch tool and its tool search only to models that it knows. Sources: the catalogs of Codex 0.144, 0.163
and 0.171.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypedDict

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault
from codex_proxy.surfaces.models import ModelCatalog, ResolvedModel, default_name, resolve

_INSTRUCTIONS: Final = """\
You are a coding agent in a terminal on the user's computer, in a folder with the user's files. Work with your tools \
until the user's task is done: read what is there before you change it, keep to the style of the files, change only \
what the task needs, and run what shows that it works. Change files with `apply_patch` where you have it. Never undo \
changes that are not yours. Before several steps say in a sentence what you will do. At the end say in a few \
sentences what you did, with the names of the files, and what is left to do."""

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
"""The efforts that each release of Codex reads."""

_MODALITIES: Final = ("text", "image")

_FIELDS: Final[dict[str, Any]] = {
    "description": "",
    "default_reasoning_level": None,
    "supported_reasoning_levels": [],
    "shell_type": "unified_exec",
    "visibility": "list",
    "supported_in_api": True,
    "priority": 0,
    "base_instructions": _INSTRUCTIONS,
    "supports_reasoning_summaries": True,
    "support_verbosity": False,
    "apply_patch_tool_type": "freeform",
    "truncation_policy": {"mode": "tokens", "limit": 10_000},
    "supports_parallel_tool_calls": True,
    "supports_search_tool": True,
    "experimental_supported_tools": [],
    "input_modalities": ["text", "image"],
}
"""The fields that some release of Codex requires, and those on which the tools depend."""


class CodexModelList(TypedDict):
    """The list in the form that Codex reads."""

    models: list[Any]


def codex_list_body(catalog: ModelCatalog, names: Iterable[str]) -> CodexModelList:
    """Returns an entry for each name, with Codex's own fields if it is one of its models."""
    return {"models": list(_entries(catalog, names))}


def _entries(catalog: ModelCatalog, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    known = catalog.names
    unnamed = {default_name(model): model for model in catalog.models}
    for name in names:
        try:
            resolved = resolve(name, catalog, known)
        except Fault:
            continue  # an alias that leads nowhere is not offered
        model = known.entries.get(resolved.agent_model) or unnamed.get(resolved.agent_model)
        yield _entry(name, resolved, model)


def _entry(name: str, resolved: ResolvedModel, model: AgentModel | None) -> dict[str, Any]:
    entry: dict[str, Any] = {**_FIELDS, "display_name": name}
    if model is not None:
        entry |= (
            msgspec.json.decode(model.native, type=dict[str, Any]) if model.native else _own_fields(model)
        )
        if model.id != name:
            entry["display_name"] = name
    if resolved.effort is not None:
        entry["visibility"] = "hide"  # Codex chooses an effort by itself
        if any(level["effort"] == resolved.effort for level in entry["supported_reasoning_levels"]):
            entry["default_reasoning_level"] = resolved.effort
    return entry | {"slug": name}


def _own_fields(model: AgentModel) -> dict[str, Any]:
    """Returns what is known of a model that is none of Codex."""
    efforts = [effort for effort in _EFFORTS if effort in model.efforts]
    fields: dict[str, Any] = {
        "display_name": model.display_name or model.id,
        "supported_reasoning_levels": [{"effort": effort, "description": effort} for effort in efforts],
        "visibility": "hide" if model.hidden else "list",
    }
    if model.default_effort in efforts:
        fields["default_reasoning_level"] = model.default_effort
    if model.context_window is not None:
        fields["context_window"] = model.context_window
    if model.input_modalities:  # Codex refuses the whole list for one that it does not know
        fields["input_modalities"] = [each for each in _MODALITIES if each in model.input_modalities]
    return fields
