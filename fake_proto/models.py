"""The models of the fake agent, in the formats of `model/list` and `codex debug models`."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.settings import Settings

EFFORTS = ("minimal", "low", "medium", "high")
SLUGS = (("gpt-5", "GPT-5", "list"), ("gpt-5-mini", "GPT-5 mini", "list"), ("fake-hidden", "Hidden", "hide"))
CONTEXT_WINDOW = 272000


def catalog() -> dict[str, Any]:
    """Returns the bundled catalog, in the format of `codex debug models --bundled`."""
    return {"models": [_entry(slug, name, visibility) for slug, name, visibility in SLUGS]}


def catalog_text() -> str:
    """Returns the text that `codex debug models --bundled` prints."""
    return json.dumps(catalog(), indent=2) + "\n"


def listed_models(settings: Settings, *, hidden: bool) -> list[dict[str, Any]]:
    """Returns the `data` of `model/list`: the models of `-c model_catalog_json=FILE`, else of the bundled catalog; with
    `hidden` also hidden ones.
    """
    path = settings.config.get("model_catalog_json")
    entries = catalog()["models"]
    if isinstance(path, str):
        with open(path, encoding="utf-8") as file:
            entries = json.load(file)["models"]
    visible = [entry for entry in entries if hidden or entry.get("visibility") != "hide"]
    return [_model_entry(entry, is_default=index == 0) for index, entry in enumerate(visible)]


def _entry(slug: str, name: str, visibility: str) -> dict[str, Any]:
    return {
        "slug": slug,
        "display_name": name,
        "description": f"{name}, played by the fake agent.",
        "visibility": visibility,
        "supported_reasoning_levels": [{"effort": effort, "description": effort} for effort in EFFORTS],
        "default_reasoning_level": "medium",
        "input_modalities": ["text", "image"],
        "context_window": CONTEXT_WINDOW,
        "max_context_window": CONTEXT_WINDOW,
        "tool_mode": "code_mode_only",
        "use_responses_lite": True,
        "apply_patch_tool_type": "freeform",
        "experimental_supported_tools": ["clock"],
        "supports_search_tool": True,
        "supports_reasoning_effort_updates": True,
        "multi_agent_version": "v2",
        "base_instructions": "You are played by the fake agent.",
        "truncation_policy": {"mode": "tokens", "limit": 10000},
        "service_tiers": [],
        "additional_speed_tiers": [],
        "upgrade": None,
        "availability_nux": None,
    }


def _model_entry(entry: dict[str, Any], *, is_default: bool) -> dict[str, Any]:
    levels = entry.get("supported_reasoning_levels") or []
    return {
        "id": entry["slug"],
        "model": entry["slug"],
        "upgrade": None,
        "upgradeInfo": None,
        "availabilityNux": None,
        "displayName": entry.get("display_name") or entry["slug"],
        "description": entry.get("description") or "",
        "modelSpecialty": None,
        "hidden": entry.get("visibility") == "hide",
        "supportedReasoningEfforts": [
            {"reasoningEffort": level["effort"], "description": level["description"]} for level in levels
        ],
        "defaultReasoningEffort": entry.get("default_reasoning_level") or "medium",
        "inputModalities": entry.get("input_modalities") or ["text"],
        "supportsPersonality": False,
        "multiAgentVersion": entry.get("multi_agent_version"),
        "additionalSpeedTiers": [],
        "serviceTiers": [],
        "defaultServiceTier": None,
        "availableAccessPrograms": None,
        "isDefault": is_default,
    }
