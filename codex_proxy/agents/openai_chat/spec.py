"""The agent `openai-chat`: any server that speaks Chat Completions, at the address in `PROXY_UPSTREAM_URL`."""

from __future__ import annotations

from codex_proxy.agents.upstream.config import CHAT
from codex_proxy.agents.upstream.spec import upstream_spec

SPEC = upstream_spec(
    CHAT,
    summary="any server that speaks Chat Completions (Ollama, vLLM, llama.cpp, a provider), at `PROXY_UPSTREAM_URL`",
    make="codex_proxy.agents.openai_chat.setup:make",
)
