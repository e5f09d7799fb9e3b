"""What the specs of model servers' agents share."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.agents.upstream.config import UpstreamApi

UPSTREAM_SETTINGS: Final = frozenset({"upstream_url", "upstream_key", "idle_timeout"})
"""Settings that are short for keys of `[upstreams.default]`."""


def upstream_spec(api: UpstreamApi, *, summary: str, make: str) -> AgentSpec:
    """Declares the agent of servers with `api`. `make` is the name for `later`."""
    return AgentSpec(
        name=api.agent,
        summary=summary,
        make=later(make),
        check=later("codex_proxy.agents.upstream.setup:check"),
        capabilities=api.capabilities,
        confined=True,  # it runs nothing
        plain_only=True,
        settings=frozenset({"codex_model", *UPSTREAM_SETTINGS}),
        has_own_timeouts=True,
    )
