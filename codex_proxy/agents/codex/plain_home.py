"""The paths and variables of Codex's processes, and what plain-model turns need in the state folder: a Codex home,
an empty folder, and a patched catalog of the installed Codex's models (`codex debug models --bundled`, of which
clients get a list). Unpatched, Codex puts a client's tools behind a JavaScript tool, adds its own, cuts
outputs, and summarises long histories.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from codex_proxy.agents.codex.process_config import (
    LINKED_FILES,
    ConfigError,
    Profiles,
    ProviderConfig,
    ShadowHome,
    plan_shadow_home,
)
from codex_proxy.agents.codex.program import Version, output_of
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, misconfigured
from codex_proxy.core.json_values import UNREADABLE, text_at, value_at
from codex_proxy.files.private import make_folder, read_regular, replace_file, temporary_folder
from codex_proxy.process.launch import child_environment

MAX_CONFIG_BYTES: Final = 16 << 20
"""The largest config.toml: Codex itself adds to it, an entry for each folder that is trusted."""

NO_LIMIT: Final = 1_000_000_000
"""More tokens than any history has; the provider's own limit applies."""

PLAIN_PATCH: Final[dict[str, Any]] = {
    "tool_mode": "direct",  # client tools are function calls, not JavaScript inside a V8 tool
    "apply_patch_tool_type": None,  # no patch tool of the agent
    "experimental_supported_tools": [],  # no clock, no asynchronous user messages
    "supports_search_tool": False,  # no tool that searches tools
    "base_instructions": "",  # the client's own instructions are the only ones
    "context_window": NO_LIMIT,  # never summarise the history
    "max_context_window": NO_LIMIT,  # clamps the former
    "truncation_policy": {"mode": "tokens", "limit": NO_LIMIT},  # never cut a tool output
    "supports_reasoning_effort_updates": False,  # the effort of the request stays as the client gave it
}
PLAIN_REMOVED: Final = ("multi_agent_version", "model_messages")
"""Fields that add sub-agent tools and texts of Codex."""

CUSTOM_EFFORTS: Final = ("minimal", "low", "medium", "high")

PASSED_TIER: Final = "flex"
"""A service tier that Codex passes on for every model."""


class _Level(msgspec.Struct):
    effort: str


class _Entry(msgspec.Struct):
    """The fields that are read or replaced, with the types that Codex takes."""

    slug: str
    display_name: str
    visibility: str
    base_instructions: str
    context_window: int | None
    max_context_window: int | None
    truncation_policy: dict[str, Any]
    input_modalities: list[Any]
    supported_reasoning_levels: list[_Level]
    default_reasoning_level: str | None
    apply_patch_tool_type: str | None
    experimental_supported_tools: list[Any]
    supports_search_tool: bool
    tool_mode: str | None = None
    supports_reasoning_effort_updates: bool = False
    use_responses_lite: bool = False


class CatalogError(ValueError):
    """The catalog has an unknown form; the message names entry and field."""


def published_models(bundled: bytes | dict[str, Any]) -> tuple[AgentModel, ...]:
    """Returns every model, hidden ones included. The first model in Codex's picker serves turns that name no model.
    Raises `CatalogError`.
    """
    entries = _entries(bundled)
    first = min((entry for entry in entries if entry["visibility"] == "list"), key=_priority, default=None)
    return tuple(
        AgentModel(
            id=entry["slug"],
            display_name=entry["display_name"],
            context_window=entry["context_window"],
            input_modalities=tuple(str(name) for name in entry["input_modalities"]),
            efforts=tuple(level["effort"] for level in entry["supported_reasoning_levels"]),
            default_effort=entry["default_reasoning_level"],
            serves_unnamed=entry is first,
            service_tiers=(PASSED_TIER, *(str(tier["id"]) for tier in entry.get("service_tiers") or ())),
            verbosity=entry.get("support_verbosity") is not False,
            hidden=entry["visibility"] != "list",
            native=msgspec.json.encode(entry),
        )
        for entry in entries
    )


def _priority(entry: dict[str, Any]) -> int:
    return entry["priority"] if isinstance(entry.get("priority"), int) else 0


def with_user_settings(models: Sequence[AgentModel], own: str | None, tier: str) -> tuple[AgentModel, ...]:
    """Returns the models with those settings of the user's config.toml: its model (`own`; None: not set), which is
    added if the list lacks it, and its service `tier`.
    """
    if own is not None and all(model.id != own for model in models):
        unknown = AgentModel(id=own, service_tiers=(PASSED_TIER,), verbosity=False, hidden=True)
        models = (*models, unknown)
    return tuple(
        msgspec.structs.replace(
            model,
            serves_unnamed=model.serves_unnamed if own is None else model.id == own,
            default_tier=tier if tier in model.service_tiers else "default",
        )
        for model in models
    )


def plain_catalog(
    bundled: bytes | dict[str, Any], *, extra_slugs: Iterable[str] = (), lite: bool | None = None
) -> bytes:
    """Returns the patched catalog. `extra_slugs` are models of a provider in config.toml. `lite` sets
    `use_responses_lite` (tools as an input item, no parallel calls); None keeps it. Raises `CatalogError`.
    """
    entries = _entries(bundled)
    known = {entry["slug"] for entry in entries}
    plain = [_plain_entry(entry, lite) for entry in entries]
    extra = [slug for slug in dict.fromkeys(extra_slugs) if slug not in known]
    plain += [_custom_entry(plain[-1], slug, bool(lite)) for slug in extra]
    return msgspec.json.encode({"models": plain})


def _plain_entry(entry: dict[str, Any], lite: bool | None) -> dict[str, Any]:
    kept = {key: value for key, value in entry.items() if key not in PLAIN_REMOVED}
    return kept | PLAIN_PATCH | ({} if lite is None else {"use_responses_lite": lite})


def _custom_entry(template: dict[str, Any], slug: str, lite: bool) -> dict[str, Any]:
    return template | {
        "slug": slug,
        "display_name": slug,
        "description": "",
        "visibility": "list",
        "use_responses_lite": lite,
        "supported_reasoning_levels": [{"effort": name, "description": name} for name in CUSTOM_EFFORTS],
        # what the client did not ask for is not sent: another maker's model may not know it
        "default_reasoning_level": None,
        "support_verbosity": False,
        "default_verbosity": None,
        "upgrade": None,
        "availability_nux": None,
        "service_tiers": [],
        "additional_speed_tiers": [],
    }


def _entries(bundled: bytes | dict[str, Any]) -> list[dict[str, Any]]:
    if isinstance(bundled, bytes):
        try:
            catalog = msgspec.json.decode(bundled)
        except UNREADABLE as fault:  # RecursionError: nothing but brackets
            raise CatalogError(f"the model catalog is not JSON: {fault}") from fault
    else:
        catalog = bundled
    models = value_at(catalog, "models")
    if not isinstance(models, list) or not models:
        raise CatalogError('the model catalog has no "models" list with entries in it')
    for index, entry in enumerate(models):
        try:
            msgspec.convert(entry, _Entry)
        except msgspec.ValidationError as error:
            name = text_at(entry, "slug") or "no slug"
            raise CatalogError(f"models[{index}] ({name}) of the model catalog: {error}") from error
    return models


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
        return plan_shadow_home(read_regular(config, MAX_CONFIG_BYTES) if config.exists() else "")
    except (ConfigError, OSError) as error:
        raise misconfigured(f"{config} cannot be used: {error}") from error
    except OverflowError as error:
        raise misconfigured(f"{config} has more than {MAX_CONFIG_BYTES >> 20} MiB") from error


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
