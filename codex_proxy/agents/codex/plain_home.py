"""The paths and variables of Codex's processes, and what plain-model turns need in the state folder: a Codex home
(`shadow_home`), a patched model catalog (`catalog`), an empty folder.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from codex_proxy.agents.codex.catalog import CatalogError, plain_catalog, published_models, with_user_settings
from codex_proxy.agents.codex.program import Version, output_of
from codex_proxy.agents.codex.shadow_home import (
    LINKED_FILES,
    ConfigError,
    ProviderConfig,
    ShadowHome,
    plan_shadow_home,
)
from codex_proxy.agents.codex.switches import Profiles
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, misconfigured
from codex_proxy.files.private import make_folder, replace_file
from codex_proxy.files.temporary import temporary_folder
from codex_proxy.process.launch import child_environment


class CodexPaths(msgspec.Struct, frozen=True):
    program: str
    codex_home: str
    """The user's Codex home; may not exist yet."""
    state: str
    workdir: str
    user: ShadowHome = ShadowHome("", ProviderConfig())
    """What the user's config.toml says."""
    profiles: Profiles = Profiles("codex_proxy", ())


def codex_environment(
    environment: Mapping[str, str], child_env: tuple[str, ...], provider: ProviderConfig
) -> dict[str, str]:
    """Returns a child's variables: harmless ones, `child_env`, and credentials of Codex and its provider."""
    return child_environment(environment, extra=child_env, env_keys=provider.env_names, credentials=True)


def in_own_home(env: Mapping[str, str], codex_home: str) -> dict[str, str]:
    """Returns the variables with CODEX_HOME, but without it if that folder does not exist: Codex then creates its
    default one.
    """
    env = {name: value for name, value in env.items() if name != "CODEX_HOME"}
    return {**env, "CODEX_HOME": codex_home} if os.path.isdir(codex_home) else env


def removed_home(env: Mapping[str, str]) -> Failure | None:
    """Returns a failure if the folder CODEX_HOME of a child's variables does not exist any more; it existed when they
    were made.
    """
    home = env.get("CODEX_HOME")
    if home is None or os.path.isdir(home):
        return None
    return misconfigured(
        f"Codex's home {home} was removed while the server runs. Put it back, and run `codex login` if its sign-in is "
        "lost; or start the server again."
    ).failure


def user_config(codex_home: Path) -> ShadowHome:
    """Returns the shadow home for the user's config.toml, or without one. Raises `Fault`."""
    config = codex_home / "config.toml"
    try:
        return plan_shadow_home(config.read_text("utf-8") if config.exists() else "")
    except (ConfigError, OSError, UnicodeDecodeError) as error:
        raise misconfigured(f"{config} cannot be used: {error}") from error


class PlainHome(msgspec.Struct, frozen=True):
    folder: str
    """The Codex home."""
    catalog: str
    """The file with the patched catalog."""
    empty_folder: str
    models: tuple[AgentModel, ...]
    """The models of the catalog, with the user's model and service tier."""


async def make_plain_home(
    paths: CodexPaths, version: Version, base: Mapping[str, str], *, lite: bool | None
) -> PlainHome:
    """Creates what plain-model turns need. `base`: the variables of the binary, which is asked for its catalog once.
    `lite`: see `plain_catalog`. Raises `OSError`, or `Fault`, whose cause is a `CatalogError` if the catalog cannot be
    patched.
    """
    user, bundled_file = paths.user, Path(paths.state) / "catalogs" / f"bundled-{version}.json"
    bundled = _kept_catalog(bundled_file)
    if bundled is None:
        with temporary_folder("home", paths.state) as (home, _):
            command = (paths.program, "debug", "models", "--bundled")
            bundled = await output_of(command, {**base, "CODEX_HOME": home})
    try:
        models = with_user_settings(published_models(bundled), user.model, user.provider.service_tier)
        patched = plain_catalog(bundled, extra_slugs=[model.id for model in models], lite=lite)
    except CatalogError as error:
        bundled_file.unlink(missing_ok=True)
        raise misconfigured(f"the model catalog of Codex {version} cannot be used: {error}") from error
    make_folder(bundled_file.parent)
    _write(bundled_file, bundled)
    catalog = bundled_file.with_name(f"plain-{version}-{hashlib.sha256(patched).hexdigest()[:12]}.json")
    _write(catalog, patched)
    empty = Path(paths.state) / "empty"
    make_folder(empty)
    return PlainHome(str(_make_shadow_home(paths)), str(catalog), str(empty), models)


def _kept_catalog(file: Path) -> bytes | None:
    try:
        kept = file.read_bytes()
        published_models(kept)
    except (FileNotFoundError, CatalogError):
        return None
    return kept


def _make_shadow_home(paths: CodexPaths) -> Path:
    name = hashlib.sha256(os.fsencode(os.path.realpath(paths.codex_home))).hexdigest()[:16]
    home = Path(paths.state) / "homes" / name
    make_folder(home)
    _write(home / "config.toml", paths.user.config_toml.encode())
    for link in LINKED_FILES:
        _link(Path(paths.codex_home) / link, home / link)
    return home


def _write(file: Path, content: bytes) -> None:
    """Replaces a file in one step, since another server may read it."""
    if file.exists() and file.read_bytes() == content:
        return
    with replace_file(file) as new:
        new.write(content)


def _link(target: Path, link: Path) -> None:
    if link.is_symlink() and Path(os.readlink(link)) == target.absolute():
        return
    with temporary_folder("link", link.parent) as (folder, _):
        new = Path(folder, link.name)
        new.symlink_to(target.absolute())
        new.replace(link)


POLL_SECONDS = 0.02


@asynccontextmanager
async def first_start_lock(mark: str, within: float) -> AsyncIterator[None]:
    """Holds a lock if the file `mark` does not exist, then creates `mark`. After `within` seconds goes on without the
    lock.
    """
    if not mark or _exists(mark):
        yield
        return
    lock = os.open(f"{mark}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        await _wait_for_lock(lock, within)
        yield
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.close(lock)


async def _wait_for_lock(lock: int, within: float) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within
    while loop.time() < give_up:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _exists(mark: str) -> bool:
    return os.path.exists(mark)
