"""The paths and variables of Codex's processes, and what plain-model turns need in the state folder: a Codex home
(`shadow_home`), a patched model catalog (`catalog`), an empty folder.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from codex_proxy.agents.codex.catalog import CatalogError, plain_catalog, published_models, with_own_settings
from codex_proxy.agents.codex.home_locks import private_home
from codex_proxy.agents.codex.program import Version, output_of
from codex_proxy.agents.codex.sandbox_config import Profiles
from codex_proxy.agents.codex.shadow_home import (
    LINKED_FILES,
    ConfigError,
    ProviderConfig,
    ShadowHome,
    plan_shadow_home,
)
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import misconfigured
from codex_proxy.files.private import make_folder, replace_file
from codex_proxy.process.launch import child_environment


class CodexPaths(msgspec.Struct, frozen=True):
    program: str
    codex_home: str
    """The user's Codex home; may not exist yet."""
    state: str
    workdir: str
    profiles: Profiles = Profiles("codex_proxy", ())


def codex_environment(
    environment: Mapping[str, str], child_env: tuple[str, ...], provider: ProviderConfig
) -> dict[str, str]:
    """Returns a child's variables: harmless ones, `child_env`, and credentials of Codex and its provider."""
    return child_environment(environment, extra=child_env, env_keys=provider.env_names, credentials=True)


def in_own_home(env: Mapping[str, str], codex_home: str) -> dict[str, str]:
    """Adds CODEX_HOME, unless that folder does not exist: Codex then creates its default one."""
    env = {name: value for name, value in env.items() if name != "CODEX_HOME"}
    return {**env, "CODEX_HOME": codex_home} if os.path.isdir(codex_home) else env


def make_empty_folder(state: str) -> Path:
    """Creates the working folder of plain-model turns. Raises `OSError`."""
    empty = Path(state) / "empty"
    make_folder(empty)
    return empty


def user_config(codex_home: str) -> tuple[str, ShadowHome]:
    """Returns the text of config.toml ("" without one), and its shadow home. Raises `Fault`."""
    config = Path(codex_home) / "config.toml"
    try:
        text = config.read_text("utf-8") if config.exists() else ""
        return text, plan_shadow_home(text)
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise misconfigured(f"{config} cannot be used: {error}") from error


def make_shadow_home(state: str, codex_home: str, shadow: ShadowHome) -> Path:
    """Creates the home of plain-model turns. Raises `OSError`."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(codex_home))).hexdigest()[:16]
    home = Path(state) / "homes" / name
    make_folder(home)
    _write(home / "config.toml", shadow.config_toml.encode())
    for link in LINKED_FILES:
        _link(Path(codex_home) / link, home / link)
    return home


def _bundled_file(state: str, version: Version) -> Path:
    return Path(state) / "catalogs" / f"bundled-{version}.json"


async def bundled_catalog(program: str, state: str, version: Version, base: Mapping[str, str]) -> bytes:
    """Returns the binary's catalog, kept in the state folder for each release. Raises `Fault` or `OSError`."""
    file = _bundled_file(state, version)
    make_folder(file.parent)
    try:
        kept = file.read_bytes()
        published_models(kept)
    except (FileNotFoundError, CatalogError):
        with private_home(state) as home:
            return await output_of((program, "debug", "models", "--bundled"), {**base, "CODEX_HOME": home})
    return kept


def write_catalog(
    state: str, version: Version, lite: bool | None, config: str, tier: str, bundled: bytes
) -> tuple[Path, tuple[AgentModel, ...]]:
    """Writes the patched catalog. Returns the file and the models, with the model and the service tier (`tier`) of
    config.toml (text `config`). Raises `Fault` or `OSError`.
    """
    bundled_file = _bundled_file(state, version)
    try:
        own = tomllib.loads(config).get("model") or None
        models = with_own_settings(published_models(bundled), own if isinstance(own, str) else None, tier)
        patched = plain_catalog(bundled, extra_slugs=[model.id for model in models], lite=lite)
    except CatalogError as error:
        bundled_file.unlink(missing_ok=True)
        raise misconfigured(f"the model catalog of Codex {version} cannot be used: {error}") from error
    _write(bundled_file, bundled)
    digest = hashlib.sha256(patched).hexdigest()[:12]
    patched_file = bundled_file.parent / f"plain-{version}-{digest}.json"
    _write(patched_file, patched)
    return patched_file, models


def _write(file: Path, content: bytes) -> None:
    """Replaces a file in one step, since another server may read it."""
    if file.exists() and file.read_bytes() == content:
        return
    with replace_file(file) as new:
        new.write(content)


def _link(target: Path, link: Path) -> None:
    if link.is_symlink() and Path(os.readlink(link)) == target.absolute():
        return
    with tempfile.TemporaryDirectory(dir=link.parent, prefix=".new-") as folder:
        new = Path(folder, link.name)
        new.symlink_to(target.absolute())
        new.replace(link)
