"""The agent `openai-responses`: any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codex_proxy.agents.spec import AgentContext, AgentSpec
from codex_proxy.agents.upstream.config import RESPONSES
from codex_proxy.agents.upstream.spec import UPSTREAM_SETTINGS, check_upstream, make_upstream

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent


async def _make(context: AgentContext) -> Agent:
    from codex_proxy.agents.openai_responses.dialect import OpenAIResponses

    return make_upstream(context, lambda turn, model, shared: OpenAIResponses(model, shared))


SPEC = AgentSpec(
    name=RESPONSES.agent,
    summary="any server that speaks the Responses API, at `PROXY_UPSTREAM_URL`",
    make=_make,
    check=check_upstream,
    capabilities=RESPONSES.capabilities,
    confined=True,  # it runs nothing
    plain_only=True,
    has_own_timeouts=True,
    settings=frozenset({"codex_model", *UPSTREAM_SETTINGS}),
)
