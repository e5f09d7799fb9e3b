"""Makes the agent `openai-chat`."""

from __future__ import annotations

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.dialect import Dialect
from codex_proxy.agents.openai_chat.dialect import OpenAIChat
from codex_proxy.agents.openai_chat.forwarding import ForwardedTurn
from codex_proxy.agents.spec import AgentContext
from codex_proxy.agents.upstream.config import UpstreamConfig
from codex_proxy.agents.upstream.setup import make_upstream
from codex_proxy.agents.upstream.stream import Message
from codex_proxy.agents.upstream.turn import UpstreamContext
from codex_proxy.core.turn import Turn


async def make(context: AgentContext) -> Agent:
    reasoning_back = (context.upstream or UpstreamConfig()).reasoning_field

    def dialect(turn: Turn, model: str, shared: UpstreamContext) -> Dialect[Message]:
        if turn.forwarded is not None:
            return ForwardedTurn(turn.forwarded, model, shared)
        return OpenAIChat(model, shared, reasoning_back=reasoning_back)

    return make_upstream(context, dialect)
