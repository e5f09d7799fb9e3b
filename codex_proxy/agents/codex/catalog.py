"""The models of the installed Codex (`codex debug models --bundled`): the list for clients, and a patched catalog for
plain-model turns (`model_catalog_json`). Without the patch Codex puts a client's tools behind a JavaScript tool, adds
its own, cuts outputs, and summarises a long history.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

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

_REQUIRED: Final[dict[str, tuple[type, ...]]] = {
    "slug": (str,),
    "display_name": (str,),
    "visibility": (str,),
    "base_instructions": (str,),
    "context_window": (int, type(None)),
    "max_context_window": (int, type(None)),
    "truncation_policy": (dict,),
    "input_modalities": (list,),
    "supported_reasoning_levels": (list,),
    "default_reasoning_level": (str, type(None)),
    "apply_patch_tool_type": (str, type(None)),
    "experimental_supported_tools": (list,),
    "supports_search_tool": (bool,),
}
_OPTIONAL: Final[dict[str, tuple[type, ...]]] = {
    "tool_mode": (str, type(None)),
    "supports_reasoning_effort_updates": (bool,),
    "use_responses_lite": (bool,),
}


class CatalogError(ValueError):
    """The catalog has an unknown form; names entry and field."""


class CatalogModel(msgspec.Struct, frozen=True):
    slug: str
    display_name: str
    context_window: int | None
    input_modalities: tuple[str, ...]
    efforts: tuple[str, ...]
    default_effort: str | None
    visibility: str
    """`list` if Codex's model picker shows it."""
    service_tiers: tuple[str, ...] = ()
    verbosity: bool = True
    """Whether the model gets a request's verbosity."""
    priority: int = 0
    is_own_default: bool = False
    """Whether Codex uses the model for turns that name none."""
    native: bytes = b""
    """The whole entry as JSON, for Codex as a client."""

    @property
    def listed(self) -> bool:
        return self.visibility == "list"


def published_models(bundled: bytes | dict[str, Any]) -> tuple[CatalogModel, ...]:
    """Returns every model, hidden ones included. Raises `CatalogError`."""
    return tuple(
        CatalogModel(
            slug=entry["slug"],
            display_name=entry["display_name"],
            context_window=entry["context_window"],
            input_modalities=tuple(str(name) for name in entry["input_modalities"]),
            efforts=tuple(level["effort"] for level in entry["supported_reasoning_levels"]),
            default_effort=entry["default_reasoning_level"],
            visibility=entry["visibility"],
            service_tiers=tuple(str(tier["id"]) for tier in entry.get("service_tiers") or ()),
            verbosity=entry.get("support_verbosity") is not False,
            priority=entry["priority"] if isinstance(entry.get("priority"), int) else 0,
            native=msgspec.json.encode(entry),
        )
        for entry in _entries(bundled)
    )


def with_own_default(models: tuple[CatalogModel, ...], configured: str | None) -> tuple[CatalogModel, ...]:
    """Sets `is_own_default` of the `configured` model (added if needed), else of the first in Codex's picker."""
    shown = sorted((model for model in models if model.listed), key=lambda model: model.priority)
    own = configured or next((model.slug for model in shown), None)
    marked = tuple(msgspec.structs.replace(model, is_own_default=model.slug == own) for model in models)
    if own is None or any(model.is_own_default for model in marked):
        return marked
    added = CatalogModel(own, "", None, (), (), None, "hide", verbosity=False, is_own_default=True)
    return (*marked, added)


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
    """Returns the models' entries. Raises `CatalogError` for a missing list or field, or one of another type."""
    if isinstance(bundled, bytes):
        try:
            catalog = msgspec.json.decode(bundled)
        except (msgspec.DecodeError, RecursionError) as fault:  # RecursionError: nothing but brackets
            raise CatalogError(f"the model catalog is not JSON: {fault}") from fault
    else:
        catalog = bundled
    models = catalog.get("models") if isinstance(catalog, dict) else None
    if not isinstance(models, list) or not models:
        raise CatalogError('the model catalog has no "models" list with entries in it')
    return [_check_entry(entry, index) for index, entry in enumerate(models)]


def _check_entry(entry: Any, index: int) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise CatalogError(f"models[{index}] of the model catalog is not an object")
    name = f"models[{index}] ({entry.get('slug', 'no slug')}) of the model catalog"
    for field, types in (_REQUIRED | _OPTIONAL).items():
        if field not in entry:
            if field in _OPTIONAL:
                continue
            raise CatalogError(f'{name} has no "{field}"')
        if not isinstance(entry[field], types):
            raise CatalogError(f'{name} has a "{field}" of type {type(entry[field]).__name__}')
    for level in entry["supported_reasoning_levels"]:
        if not isinstance(level, dict) or not isinstance(level.get("effort"), str):
            raise CatalogError(f'{name} has a "supported_reasoning_levels" entry without an "effort"')
    return entry
