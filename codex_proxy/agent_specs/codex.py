"""What the two agents that run Codex share: its program, the provider of its config.toml, and the choice by `auto`."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from codex_proxy.agent_specs.spec import AgentContext, AgentSpec, NoAgentError

if TYPE_CHECKING:
    from codex_proxy.agents.codex_app_server.launch import Dialect, Version
    from codex_proxy.agents.codex_app_server.shadow_home import ProviderConfig
    from codex_proxy.commands.checkup import Check
    from codex_proxy.runs.agent import Agent

NO_CODEX = (
    "No Codex was found. Install it (`npm install -g @openai/codex`, or the extra `codex-openai-proxy[codex]`), "
    "give its path with --codex-bin, or try the embedded fake agent with --agent fake."
)


def codex_program(context: AgentContext) -> str:
    """The Codex to start. Raises `NoAgentError`."""
    from codex_proxy.runs.codex_binary import find_codex

    program = find_codex(context.settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        raise NoAgentError(NO_CODEX)
    return program


def dialect_for(agent: Literal["auto"] | Dialect, version: Version | None) -> Dialect:
    """The protocol by which a Codex is driven: the one that is named, else one that the release speaks."""
    from codex_proxy.agents.codex_app_server.launch import refusal

    if agent != "auto":
        return agent
    assert version is not None, "without a name the release decides"
    return "codex-proto" if refusal("codex-proto", version) is None else "codex-app-server"


def provider_of(config: Path) -> ProviderConfig:
    """What the user's config.toml says of the model provider. Raises `ValueError` that says what is wrong in it."""
    from codex_proxy.agents.codex_app_server.shadow_home import ConfigError, provider_config

    try:
        return provider_config(config.read_text("utf-8") if config.exists() else "")
    except (ConfigError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{config} cannot be used: {error}") from error


async def _make(context: AgentContext) -> Agent:
    """The agent that the release of the Codex that is found speaks the protocol of."""
    from codex_proxy.process.environment import child_environment
    from codex_proxy.runs.codex_setup import find_version

    program = codex_program(context)
    version = await find_version(program, child_environment(context.environ))
    if dialect_for("auto", version) == "codex-proto":
        from codex_proxy.agent_specs.codex_proto import make_proto

        return await make_proto(context)
    from codex_proxy.agent_specs.codex_app_server import make_app_server

    return await make_app_server(context)


async def _check(context: AgentContext) -> list[Check]:
    from codex_proxy.agent_specs.codex_checks import codex_checks

    return await codex_checks(context, "auto")


AUTO = AgentSpec(
    name="auto",
    summary="the Codex that is found, by the protocol that its release speaks",
    processes="as that agent has them",
    make=_make,
    check=_check,
    confined=True,
    uses_codex=True,
)
