"""Prepares the start of `codex exec` processes, for agent turns and for plain-model turns (without Codex's own
prompt and tools).

Reads the user's config.toml, runs the binary to learn its models, and creates the files for plain-model turns in
the state folder: a Codex home of their own, and a model catalog without Codex's prompts. A plain-model turn uses
the model without Codex's own prompt and tools. Nothing is written to the user's own home.
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
"""The ``-c`` switch that removes Codex's own prompt. (With an app-server a field of `thread/start` does so.)"""


class ExecLaunch(msgspec.Struct, frozen=True):
    """How the processes for one mode (plain model or agent) are started: `pairs` are keys and TOML values for
    ``-c``, `env` is the environment, and `folder` the working folder (None: the turn's).
    """

    pairs: tuple[tuple[str, str], ...]
    env: dict[str, str]
    folder: str | None = None


class ExecSetup(msgspec.Struct, frozen=True):
    """What is needed to start `codex exec` processes: how those of agent turns and of plain-model turns are
    started, and the models.
    """

    provider: ProviderConfig
    """The provider settings in the user's config.toml."""
    agent: ExecLaunch
    """How agent turns are started."""
    plain: ExecLaunch | None
    """How plain-model turns are started. None if there are none, because the binary's model catalog cannot be
    patched."""
    models: tuple[CatalogModel, ...] = ()
    """The models in Codex's catalog."""


class ExecPaths(msgspec.Struct, frozen=True):
    """What `prepare_exec` needs to know: the path of the binary and its release, the user's Codex home, the state
    folder, and what the sandbox `workspace-write` allows in addition to the workspace.
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
    lite: bool | None,
    unknown: Collection[str],
) -> ExecSetup:
    """Returns how `codex exec` processes are started. Reads the user's config.toml, runs the binary to learn its
    models, and creates the home and the model catalog of plain-model turns in the state folder. Raises `Fault` if
    this Codex cannot be used, and `OSError` if the state folder cannot be used.

    `environment` is the server's; children get its harmless variables (PATH, HOME, locale, proxies and the like)
    and those named in `child_env`. `lite` is the value of `use_responses_lite` that every model has in plain-model
    turns; None keeps the value in the binary's catalog. `unknown`: the keys of those ``-c`` switches that the
    binary does not support, which are left out.
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
        catalog, models = await _catalog(paths, environment, child_env, lite, text)
    except Fault as fault:
        if not isinstance(fault.__cause__, CatalogError):
            raise
        log.warning("no_plain_model", reason=str(fault))
        return ExecSetup(shadow.provider, agent, None)
    return ExecSetup(shadow.provider, agent, _plain(paths, shadow, common, unknown, catalog, env), models)


def _in_own_home(env: Mapping[str, str], codex_home: str) -> dict[str, str]:
    """Returns the environment with CODEX_HOME set to the user's home. If the home does not exist, it is not set, so
    that Codex creates its default one.
    """
    return {**env, "CODEX_HOME": codex_home} if os.path.isdir(codex_home) else dict(env)


async def _catalog(
    paths: ExecPaths,
    environment: Mapping[str, str],
    child_env: tuple[str, ...],
    lite: bool | None,
    config: str,
) -> tuple[Path, tuple[CatalogModel, ...]]:
    base = child_environment(environment, extra=child_env)
    bundled = await bundled_catalog(paths.program, paths.state, paths.version, base)
    return write_catalog(paths.state, paths.version, lite, config, bundled)


def _plain(
    paths: ExecPaths,
    shadow: ShadowHome,
    common: list[tuple[str, str]],
    unknown: Collection[str],
    catalog: Path,
    env: Mapping[str, str],
) -> ExecLaunch:
    """Creates the home of plain-model turns, and returns how they are started: without Codex's own prompt, tools
    and files. `shadow` is the content of that home; `common` are the pairs for ``-c`` that all turns have;
    `unknown` are the keys of the switches that the binary does not support; `catalog` is the path of the catalog
    for these turns.
    """
    home = make_shadow_home(paths.state, paths.codex_home, shadow)
    pairs = [
        *common,
        *((switch.key, switch.value) for switch in PLAIN_SWITCHES if switch.key not in unknown),
        ("model_catalog_json", toml_string(str(catalog))),
        NO_BASE_PROMPT,
    ]
    return ExecLaunch(tuple(pairs), {**env, "CODEX_HOME": str(home)}, str(make_empty_folder(paths.state)))
