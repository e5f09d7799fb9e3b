"""What the specs of the agents that run Codex share: its program, its protocol, the provider of its config.toml."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from codex_proxy.agents.spec import AgentContext, NoAgentError

if TYPE_CHECKING:
    from codex_proxy.agents.codex.shadow_home import ProviderConfig
    from codex_proxy.agents.codex.version import Dialect, Version

NO_CODEX = (
    "No Codex was found. Install it (`npm install -g @openai/codex`, or the extra `codex-openai-proxy[codex]`), "
    "give its path with --codex-bin, or try the embedded fake agent with --agent fake."
)


def codex_program(context: AgentContext) -> str:
    """The Codex to start. Raises `NoAgentError`."""
    from codex_proxy.agents.codex.program import find_codex

    program = find_codex(context.settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        raise NoAgentError(NO_CODEX)
    return program


def dialect_for(agent: Literal["auto"] | Dialect, version: Version | None) -> Dialect:
    """The protocol by which a Codex is driven: the one that is named, else one that the release speaks."""
    from codex_proxy.agents.codex.version import refusal

    if agent != "auto":
        return agent
    assert version is not None, "without a name the release decides"
    return "codex-proto" if refusal("codex-proto", version) is None else "codex-app-server"


def provider_of(config: Path) -> ProviderConfig:
    """What the user's config.toml says of the model provider. Raises `ValueError` that says what is wrong in it."""
    from codex_proxy.agents.codex.shadow_home import ConfigError, provider_config

    try:
        return provider_config(config.read_text("utf-8") if config.exists() else "")
    except (ConfigError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{config} cannot be used: {error}") from error
