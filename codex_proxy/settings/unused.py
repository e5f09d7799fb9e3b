"""Finds settings that are set but have no effect, because another setting that they need is not set."""

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
"""The settings that a setting needs, of which one is enough."""


def unused_settings(settings: Settings) -> list[str]:
    """Returns texts for a message: `PROXY_METRICS_KEY (only with PROXY_METRICS)`."""
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
