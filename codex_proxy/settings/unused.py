"""Settings that have no effect because no setting is set that they need."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Final

from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import variables_of

_MCP: Final = ("mcp_config", "mcp_allowed_urls")
NEEDS_ONE_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "cassettes.match": ("cassettes.replay", "cassettes.record"),
    "cassettes.pace": ("cassettes.replay",),
    "cassettes.scrub": ("cassettes.record",),
    "max_tool_call_iterations": (*_MCP, "cassettes.replay"),
    "mcp_call_timeout": _MCP,
    "mcp_tool_refresh_interval": _MCP,
    "metrics_key": ("metrics",),
    "webhooks.secret": ("webhooks.urls",),
}
"""The settings of which each needs one, by its name."""


def unused_settings(settings: Settings) -> list[str]:
    """Returns the set settings that have no effect, by their variables, each with what it needs."""
    return [
        f"{_variable(name)} (only with {' or '.join(map(_variable, needed))})"
        for name, needed in NEEDS_ONE_OF.items()
        if _is_set(settings, name) and not any(attrgetter(each)(settings) for each in needed)
    ]


def _is_set(settings: Settings, name: str) -> bool:
    table, _, key = name.rpartition(".")
    owner = attrgetter(table)(settings) if table else settings
    return key in owner.model_fields_set


def _variable(name: str) -> str:
    table, _, key = name.partition(".")
    return "_".join((variables_of(table)[0], key.upper())) if key else variables_of(table)[0]
