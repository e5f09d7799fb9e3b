"""The specs of model servers' agents: one for each API."""

from __future__ import annotations

from typing import Final

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.parts.upstream.config import CHAT, RESPONSES, UpstreamApi

UPSTREAM_SETTINGS: Final = frozenset({"upstream_url", "upstream_key", "idle_timeout"})
"""Settings that are short for keys of `[upstreams.default]`."""


def _spec(api: UpstreamApi, summary: str) -> AgentSpec:
    return AgentSpec(
        name=api.agent,
        summary=summary,
        make=later("codex_proxy.parts.upstream.upstream_setup:make", api),
        check=later("codex_proxy.parts.upstream.upstream_setup:check", api),
        capabilities=api.capabilities,
        confined=True,  # it runs nothing
        plain_only=True,
        settings=frozenset({"codex_model", *UPSTREAM_SETTINGS}),
        has_own_timeouts=True,
        made_at_start=True,
    )


CHAT_SPEC: Final = _spec(
    CHAT,
    "any server that speaks Chat Completions (Ollama, vLLM, llama.cpp, a provider), at `PROXY_UPSTREAM_URL`",
)
RESPONSES_SPEC: Final = _spec(
    RESPONSES,
    "any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`",
)
