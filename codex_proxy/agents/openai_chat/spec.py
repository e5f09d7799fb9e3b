"""The agent `openai-chat`: any server that speaks Chat Completions, at the address in `PROXY_UPSTREAM_URL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.spec import AgentContext
from codex_proxy.agents.upstream.config import CHAT, UpstreamConfig
from codex_proxy.agents.upstream.spec import make_upstream, upstream_spec

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.dialect import Dialect
    from codex_proxy.core.turn import Turn


async def _make(context: AgentContext) -> Agent:
    from codex_proxy.agents.openai_chat.dialect import OpenAIChat
    from codex_proxy.agents.openai_chat.forwarding import ForwardedTurn
    from codex_proxy.agents.upstream.stream import Message
    from codex_proxy.agents.upstream.turn import UpstreamContext

    reasoning_back = (context.upstream or UpstreamConfig()).reasoning_field

    def dialect(turn: Turn, model: str, shared: UpstreamContext) -> Dialect[Message]:
        if turn.forwarded is not None:
            return ForwardedTurn(turn.forwarded, model, shared)
        return OpenAIChat(model, shared, reasoning_back=reasoning_back)

    return make_upstream(context, dialect)


SPEC = upstream_spec(
    CHAT,
    summary="any server that speaks Chat Completions (Ollama, vLLM, llama.cpp, a provider), at `PROXY_UPSTREAM_URL`",
    make=_make,
)
