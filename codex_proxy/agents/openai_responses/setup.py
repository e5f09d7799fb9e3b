"""Makes the agent `openai-responses`."""

from __future__ import annotations

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.openai_responses.dialect import OpenAIResponses
from codex_proxy.agents.spec import AgentContext
from codex_proxy.agents.upstream.setup import make_upstream


async def make(context: AgentContext) -> Agent:
    return make_upstream(context, lambda turn, model, shared: OpenAIResponses(model, shared))
