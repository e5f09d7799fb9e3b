"""The agent `openai-responses`: any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.spec import AgentContext
from codex_proxy.agents.upstream.config import RESPONSES
from codex_proxy.agents.upstream.spec import make_upstream, upstream_spec

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent


async def _make(context: AgentContext) -> Agent:
    from codex_proxy.agents.openai_responses.dialect import OpenAIResponses

    return make_upstream(context, lambda turn, model, shared: OpenAIResponses(model, shared))


SPEC = upstream_spec(
    RESPONSES, summary="any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`", make=_make
)
