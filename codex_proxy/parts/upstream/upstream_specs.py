"""The settings of model servers, and the specs of their agents: one for each API."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from codex_proxy.agents.spec import AgentSpec, later
from codex_proxy.parts.upstream.config import APIS, CHAT, RESPONSES, UpstreamApi, UpstreamConfig
from codex_proxy.settings.tables import ONLY_TABLE, TableName, from_variables

UPSTREAM_SETTINGS: Final = frozenset({"upstream_url", "upstream_key", "idle_timeout"})
"""Settings that are short for keys of `[upstreams.default]`."""


CLIENTS_KEY: Final = "client"
"""The value of `upstream_key` with which each client's own key is sent."""


class UpstreamSettings(BaseModel, defer_build=True):
    upstreams: dict[TableName, UpstreamConfig] = Field({}, description="model servers, a table for each")
    upstream_url: str | None = from_variables(
        "PROXY_UPSTREAM_URL",
        "OPENAI_BASE_URL_INTERNAL",
        default=None,
        description="URL of the model server, which answers if `agent` is unset; short for `url` of "
        "`[upstreams.default]` (docs/upstreams.md)",
    )
    upstream_key: SecretStr | None = Field(
        None, description="API key for the model server; `client`: each client's own key"
    )

    @model_validator(mode="after")
    def _choose_agent(self) -> Self:
        """Chooses the agent for a single model server, if nothing else chooses an agent."""
        of_server: Any = self  # the server's settings, which inherit from these
        tables = of_server.agents or self.upstreams.keys() - {ONLY_TABLE}
        chosen = "agent" in self.model_fields_set or of_server.agent_plugin or tables
        if not chosen and (self.upstream_url or self.upstreams):
            default = self.upstreams.get(ONLY_TABLE) or UpstreamConfig()
            self.__dict__["agent"] = APIS[default.wire].agent
        return self

    @property
    def passes_keys(self) -> bool:
        """Whether the model server gets each client's own key."""
        return self.upstream_key is not None and self.upstream_key.get_secret_value() == CLIENTS_KEY


def _spec(api: UpstreamApi, summary: str) -> AgentSpec:
    return AgentSpec(
        name=api.agent,
        summary=summary,
        make=later("codex_proxy.parts.upstream.upstream_setup:make", api),
        check=later("codex_proxy.parts.upstream.upstream_setup:check", api),
        installation=later("codex_proxy.parts.upstream.upstream_setup:installation", api),
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
