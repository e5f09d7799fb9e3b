"""Prepares the start of `codex exec`: reads config.toml, asks the binary for its models, and creates home and catalog
of plain-model turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import structlog

from codex_proxy.agents.codex.catalog import CatalogError
from codex_proxy.agents.codex.plain_home import (
    CodexPaths,
    bundled_catalog,
    codex_environment,
    in_own_home,
    make_empty_folder,
    make_shadow_home,
    user_config,
    write_catalog,
)
from codex_proxy.agents.codex.program import Version
from codex_proxy.agents.codex.sandbox_config import workspace_write_pairs
from codex_proxy.agents.codex.shadow_home import ProviderConfig
from codex_proxy.agents.codex.switches import switch_pairs
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Fault
from codex_proxy.process.launch import child_environment, credential_names

log = structlog.get_logger(__name__)

NO_BASE_PROMPT = ("instructions", '""')
"""The pair for `-c` that removes Codex's own prompt."""


class ExecLaunch(msgspec.Struct, frozen=True):
    """How one mode's processes start: `pairs` for `-c`, `env`, and `folder` (None: the turn's)."""

    pairs: tuple[tuple[str, str], ...]
    env: dict[str, str]
    folder: str | None = None


class ExecSetup(msgspec.Struct, frozen=True):
    provider: ProviderConfig
    agent: ExecLaunch
    plain: ExecLaunch | None
    """How processes for plain-model turns start; None if the catalog cannot be patched."""
    models: tuple[AgentModel, ...] = ()


async def prepare_exec(
    paths: CodexPaths,
    version: Version,
    environment: Mapping[str, str],
    child_env: tuple[str, ...],
    unknown: Collection[str],
) -> ExecSetup:
    """Prepares the start. Children get harmless variables of `environment`, and `child_env`. `unknown` switches are
    left out. Raises `Fault` or `OSError`.
    """
    text, shadow = user_config(paths.codex_home)
    provider = shadow.provider
    env = codex_environment(environment, child_env, provider)
    hidden = credential_names(env, extra=child_env)
    pairs = switch_pairs(provider, catalog=None, hidden=hidden, unknown=unknown, version=version)
    agent = ExecLaunch(
        (*pairs, *workspace_write_pairs(paths.profiles.policy)), in_own_home(env, paths.codex_home)
    )
    try:
        base = child_environment(environment, extra=child_env)
        bundled = await bundled_catalog(paths.program, paths.state, version, base)
        catalog, models = write_catalog(paths.state, version, None, text, provider.service_tier, bundled)
    except Fault as fault:
        if not isinstance(fault.__cause__, CatalogError):
            raise
        log.warning("no_plain_model", reason=str(fault))
        return ExecSetup(provider, agent, None)
    home = make_shadow_home(paths.state, paths.codex_home, shadow)
    pairs = [*switch_pairs(provider, catalog=str(catalog), unknown=unknown), NO_BASE_PROMPT]
    plain = ExecLaunch(tuple(pairs), {**env, "CODEX_HOME": str(home)}, str(make_empty_folder(paths.state)))
    return ExecSetup(provider, agent, plain, models)
