"""The models of the installed Codex (`codex debug models --bundled`): a list for clients, and a patched catalog for
plain-model turns (`model_catalog_json`). Unpatched, Codex puts a client's tools behind a JavaScript tool, adds its own,
cuts outputs, and summarises long histories.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.json_values import UNREADABLE, text_at, value_at

NO_LIMIT: Final = 1_000_000_000
"""More tokens than any history has; the provider's own limit applies."""

PLAIN_PATCH: Final[dict[str, Any]] = {
    "tool_mode": "direct",  # client tools are function calls, not JavaScript inside a V8 tool
    "apply_patch_tool_type": None,  # no patch tool of the agent
    "experimental_supported_tools": [],  # no clock, no asynchronous user messages
    "supports_search_tool": False,  # no tool that searches tools
    "base_instructions": "",  # the client's own instructions are the only ones
    "context_window": NO_LIMIT,  # never summarise the history
    "max_context_window": NO_LIMIT,  # clamps the former
    "truncation_policy": {"mode": "tokens", "limit": NO_LIMIT},  # never cut a tool output
    "supports_reasoning_effort_updates": False,  # the effort of the request stays as the client gave it
}
PLAIN_REMOVED: Final = ("multi_agent_version", "model_messages")
"""Fields that add sub-agent tools and texts of Codex."""

CUSTOM_EFFORTS: Final = ("minimal", "low", "medium", "high")

PASSED_TIER: Final = "flex"
"""A service tier that Codex passes on for every model."""


class _Level(msgspec.Struct):
    effort: str


class _Entry(msgspec.Struct):
    """The fields that are read or replaced, with the types that Codex takes."""

    slug: str
    display_name: str
    visibility: str
    base_instructions: str
    context_window: int | None
    max_context_window: int | None
    truncation_policy: dict[str, Any]
    input_modalities: list[Any]
    supported_reasoning_levels: list[_Level]
    default_reasoning_level: str | None
    apply_patch_tool_type: str | None
    experimental_supported_tools: list[Any]
    supports_search_tool: bool
    tool_mode: str | None = None
    supports_reasoning_effort_updates: bool = False
    use_responses_lite: bool = False


class CatalogError(ValueError):
    """The catalog has an unknown form; the message names entry and field."""


def published_models(bundled: bytes | dict[str, Any]) -> tuple[AgentModel, ...]:
    """Returns every model, hidden ones included. The first model in Codex's picker serves turns that name no model.
    Raises `CatalogError`.
    """
    entries = _entries(bundled)
    first = min((entry for entry in entries if entry["visibility"] == "list"), key=_priority, default=None)
    return tuple(
        AgentModel(
            id=entry["slug"],
            display_name=entry["display_name"],
            context_window=entry["context_window"],
            input_modalities=tuple(str(name) for name in entry["input_modalities"]),
            efforts=tuple(level["effort"] for level in entry["supported_reasoning_levels"]),
            default_effort=entry["default_reasoning_level"],
            serves_unnamed=entry is first,
            service_tiers=(PASSED_TIER, *(str(tier["id"]) for tier in entry.get("service_tiers") or ())),
            verbosity=entry.get("support_verbosity") is not False,
            hidden=entry["visibility"] != "list",
            native=msgspec.json.encode(entry),
        )
        for entry in entries
    )


def _priority(entry: dict[str, Any]) -> int:
    return entry["priority"] if isinstance(entry.get("priority"), int) else 0


def with_user_settings(models: Sequence[AgentModel], own: str | None, tier: str) -> tuple[AgentModel, ...]:
    """Returns the models with those settings of the user's config.toml: its model (`own`; None: not set), which is
    added if the list lacks it, and its service `tier`.
    """
    if own is not None and all(model.id != own for model in models):
        unknown = AgentModel(id=own, service_tiers=(PASSED_TIER,), verbosity=False, hidden=True)
        models = (*models, unknown)
    return tuple(
        msgspec.structs.replace(
            model,
            serves_unnamed=model.serves_unnamed if own is None else model.id == own,
            default_tier=tier if tier in model.service_tiers else "default",
        )
        for model in models
    )


def plain_catalog(
    bundled: bytes | dict[str, Any], *, extra_slugs: Iterable[str] = (), lite: bool | None = None
) -> bytes:
    """Returns the patched catalog. `extra_slugs` are models of a provider in config.toml. `lite` sets
    `use_responses_lite` (tools as an input item, no parallel calls); None keeps it. Raises `CatalogError`.
    """
    entries = _entries(bundled)
    known = {entry["slug"] for entry in entries}
    plain = [_plain_entry(entry, lite) for entry in entries]
    extra = [slug for slug in dict.fromkeys(extra_slugs) if slug not in known]
    plain += [_custom_entry(plain[-1], slug, bool(lite)) for slug in extra]
    return msgspec.json.encode({"models": plain})


def _plain_entry(entry: dict[str, Any], lite: bool | None) -> dict[str, Any]:
    kept = {key: value for key, value in entry.items() if key not in PLAIN_REMOVED}
    return kept | PLAIN_PATCH | ({} if lite is None else {"use_responses_lite": lite})


def _custom_entry(template: dict[str, Any], slug: str, lite: bool) -> dict[str, Any]:
    return template | {
        "slug": slug,
        "display_name": slug,
        "description": "",
        "visibility": "list",
        "use_responses_lite": lite,
        "supported_reasoning_levels": [{"effort": name, "description": name} for name in CUSTOM_EFFORTS],
        # what the client did not ask for is not sent: another maker's model may not know it
        "default_reasoning_level": None,
        "support_verbosity": False,
        "default_verbosity": None,
        "upgrade": None,
        "availability_nux": None,
        "service_tiers": [],
        "additional_speed_tiers": [],
    }


def _entries(bundled: bytes | dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(bundled, bytes):
        try:
            catalog = msgspec.json.decode(bundled)
        except UNREADABLE as fault:  # RecursionError: nothing but brackets
            raise CatalogError(f"the model catalog is not JSON: {fault}") from fault
    else:
        catalog = bundled
    models = value_at(catalog, "models")
    if not isinstance(models, list) or not models:
        raise CatalogError('the model catalog has no "models" list with entries in it')
    for index, entry in enumerate(models):
        try:
            msgspec.convert(entry, _Entry)
        except msgspec.ValidationError as error:
            name = text_at(entry, "slug") or "no slug"
            raise CatalogError(f"models[{index}] ({name}) of the model catalog: {error}") from error
    return models
