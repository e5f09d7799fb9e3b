"""The agent `openai-responses`: any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`."""

from __future__ import annotations

from codex_proxy.agents.upstream.config import RESPONSES
from codex_proxy.agents.upstream.spec import upstream_spec

SPEC = upstream_spec(
    RESPONSES,
    summary="any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`",
    make="codex_proxy.agents.openai_responses.setup:make",
)
