"""Prepares the start of `codex exec`: reads the user's config.toml, asks the binary for its models, and creates a home
and a catalog without Codex's prompts for plain-model turns, in the state folder.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
import structlog

from codex_proxy.agents.codex.catalog import CatalogError, CatalogModel
from codex_proxy.agents.codex.plain_home import (
    bundled_catalog,
    make_empty_folder,
    make_shadow_home,
    user_config,
    write_catalog,
)
from codex_proxy.agents.codex.program import Version
from codex_proxy.agents.codex.sandbox_config import WorkspaceWrite, toml_string, workspace_write_pairs
from codex_proxy.agents.codex.shadow_home import ProviderConfig, ShadowHome
from codex_proxy.agents.codex.switches import COMMON_SWITCHES, PLAIN_SWITCHES, provider_pairs, shell_pairs
from codex_proxy.core.faults import Fault
from codex_proxy.process.launch import child_environment, credential_names

log = structlog.get_logger(__name__)

NO_BASE_PROMPT = ("instructions", '""')
"""Removes Codex's own prompt, as a field of `thread/start` does with an app-server."""


class ExecLaunch(msgspec.Struct, frozen=True):
    """How processes of one mode start: `pairs` for `-c`, `env`, and `folder` (None: the turn's)."""

    pairs: tuple[tuple[str, str], ...]
    env: dict[str, str]
    folder: str | None = None


class ExecSetup(msgspec.Struct, frozen=True):
    """How agent turns and plain-model turns start, and the models."""

    provider: ProviderConfig
    """The provider settings in the user's config.toml."""
    agent: ExecLaunch
    """How agent turns are started."""
    plain: ExecLaunch | None
    """None if the catalog cannot be patched, so that there are no plain-model turns."""
    models: tuple[CatalogModel, ...] = ()
    """The models in Codex's catalog."""


class ExecPaths(msgspec.Struct, frozen=True):
    """The binary and its release, the user's home, the state folder, and what `workspace-write` allows beside the
    workspace.
    """

    program: str
    version: Version
    codex_home: str
    state: str
    policy: WorkspaceWrite = WorkspaceWrite()


async def prepare_exec(
    paths: ExecPaths,
    environment: Mapping[str, str],
    child_env: tuple[str, ...],
    unknown: Collection[str],
) -> ExecSetup:
    """Returns how `codex exec` starts. Raises `Fault` or `OSError`. Children get harmless variables of `environment`,
    and `child_env`. `unknown`: switches that the binary does not support.
    """
    text, shadow = user_config(paths.codex_home)
    env = child_environment(
        environment, extra=child_env, env_keys=shadow.provider.env_names, credentials=True
    )
    switches = [(switch.key, switch.value) for switch in COMMON_SWITCHES if switch.key not in unknown]
    common = [*switches, *provider_pairs(shadow.provider)]
    agent = ExecLaunch(
        (
            *common,
            *shell_pairs(shadow.provider, credential_names(env, extra=child_env), paths.version),
            *workspace_write_pairs(paths.policy),
        ),
        _in_own_home(env, paths.codex_home),
    )
    try:
        catalog, models = await _catalog(paths, environment, child_env, text)
    except Fault as fault:
        if not isinstance(fault.__cause__, CatalogError):
            raise
        log.warning("no_plain_model", reason=str(fault))
        return ExecSetup(shadow.provider, agent, None)
    return ExecSetup(shadow.provider, agent, _plain(paths, shadow, common, unknown, catalog, env), models)


def _in_own_home(env: Mapping[str, str], codex_home: str) -> dict[str, str]:
    """Returns the environment with CODEX_HOME, unless the home does not exist: Codex then creates its default one."""
    return {**env, "CODEX_HOME": codex_home} if os.path.isdir(codex_home) else dict(env)


async def _catalog(
    paths: ExecPaths,
    environment: Mapping[str, str],
    child_env: tuple[str, ...],
    config: str,
) -> tuple[Path, tuple[CatalogModel, ...]]:
    base = child_environment(environment, extra=child_env)
    bundled = await bundled_catalog(paths.program, paths.state, paths.version, base)
    return write_catalog(paths.state, paths.version, None, config, bundled)


def _plain(
    paths: ExecPaths,
    shadow: ShadowHome,
    common: list[tuple[str, str]],
    unknown: Collection[str],
    catalog: Path,
    env: Mapping[str, str],
) -> ExecLaunch:
    """Creates the home of plain-model turns, and returns how they start. `common` are pairs of all turns, `unknown`
    unsupported switches.
    """
    home = make_shadow_home(paths.state, paths.codex_home, shadow)
    pairs = [
        *common,
        *((switch.key, switch.value) for switch in PLAIN_SWITCHES if switch.key not in unknown),
        ("model_catalog_json", toml_string(str(catalog))),
        NO_BASE_PROMPT,
    ]
    return ExecLaunch(tuple(pairs), {**env, "CODEX_HOME": str(home)}, str(make_empty_folder(paths.state)))
