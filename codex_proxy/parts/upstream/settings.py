"""The settings of model servers."""

from __future__ import annotations

from typing import Any, Final, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from codex_proxy.parts.upstream.config import APIS, UpstreamConfig
from codex_proxy.settings.sources import from_variables
from codex_proxy.settings.tables import ONLY_TABLE, TableName

CLIENTS_KEY: Final = "client"
"""The value of `upstream_key` with which each client's own key is sent."""


class UpstreamSettings(BaseModel):
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
