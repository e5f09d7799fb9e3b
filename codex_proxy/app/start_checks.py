"""Checks the settings, and whether the server can listen, before anything is started."""

from __future__ import annotations

import errno
import ipaddress
import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from codex_proxy.app.keyring import Keyring
from codex_proxy.core.faults import UserError
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import KeysError, KeySet
from codex_proxy.files import private
from codex_proxy.http.middleware.access import Network, is_origin
from codex_proxy.settings.fields import Settings, default_state_dir, split_list
from codex_proxy.settings.protected_paths import write_conflict
from codex_proxy.surfaces.responses.webhooks import check_secret

NOBODY_APPROVES: Final = (
    "PROXY_APPROVALS=ask needs a key that may approve: without keys a command of the agent could answer its own "
    "question. Create one with `codex-proxy keys add NAME --may-approve`, or set PROXY_API_KEY."
)
ONLY_IN_TERMINAL: Final = (
    f"{NOBODY_APPROVES} Without keys, start one server (no --workers, no database as the store) in a terminal: there "
    "it shows a key of this start, which may approve."
)
MIN_OPEN_FILES: Final = 128
"""The lowest limit of open files with which a server accepts connections while as many turns run as by default."""

log = structlog.get_logger(__name__)


def keyring_of(settings: Settings, clock: Clock, start_digest: str = "") -> Keyring:
    """Returns the keyring of the settings. `start_digest`: that of the key of this start, if there is one. Raises
    `UserError` for invalid keys, or a missing file that the settings name.
    """
    try:
        if settings.keys_file is not None and not settings.keys_path.exists():
            raise KeysError(
                f"there is no {settings.keys_path}; create a key with `codex-proxy keys add NAME`"
            )
        return Keyring(settings.keys_path, settings.default_key, clock, start_digest)
    except KeysError as error:
        raise UserError(f"The keys file (PROXY_KEYS_FILE) is invalid: {error}.") from error


def trusted_proxies(settings: Settings) -> tuple[Network, ...]:
    """Returns the networks of trusted proxies. Raises `UserError` for an invalid one."""
    try:
        return tuple(
            ipaddress.ip_network(each, strict=False) for each in split_list(settings.trusted_proxies)
        )
    except ValueError as error:
        raise UserError(
            f"PROXY_TRUSTED_PROXIES: {error}. Write addresses or networks, like 10.0.0.0/8."
        ) from error


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address on which the server listens."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(settings: Settings) -> frozenset[str]:
    """Returns the names that a Host header may have, against DNS rebinding; empty: any name."""
    given = {name.lower() for name in split_list(settings.allowed_hosts)}
    if is_loopback(settings.host):
        return frozenset({"localhost", "127.0.0.1", "::1", settings.host.lower(), *given})
    return frozenset(given)


def webhook_secret(settings: Settings) -> str:
    """Returns the secret that signs webhooks; empty without a URL. Raises `UserError` if it is missing or invalid."""
    if not split_list(settings.webhooks.urls):
        return ""
    if settings.webhooks.secret is None:
        raise UserError(
            "PROXY_WEBHOOKS_URLS needs PROXY_WEBHOOKS_SECRET: a webhook without a signature proves nothing."
        )
    secret = settings.webhooks.secret.get_secret_value()
    try:
        check_secret(secret)
    except ValueError as error:
        raise UserError(f"PROXY_WEBHOOKS_SECRET is invalid: {error}") from error
    return secret


def check(
    settings: Settings, clock: Clock, environ: Mapping[str, str], start_digest: str | None = ""
) -> None:
    """Checks the settings. `start_digest`: that of the key of this start; None: it is not known whether there will be
    one. Raises `UserError` for: too low a limit of open files, access by other machines without a key, approvals that
    nobody may give, an invalid proxy, origin, key, webhook secret or `workdir`, or protected paths that turns could
    write to.
    """
    _, open_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files != resource.RLIM_INFINITY and open_files < MIN_OPEN_FILES:
        raise UserError(
            f"The limit of open files is {open_files}, and a server needs {MIN_OPEN_FILES}. Raise it (`ulimit -n`, or "
            "LimitNOFILE= in a systemd unit)."
        )
    keys = keyring_of(settings, clock, start_digest or "").current()
    if not settings.in_database:  # which may have keys
        check_has_key(settings, keys, start_is_known=start_digest is not None)
    trusted_proxies(settings)
    webhook_secret(settings)
    for origin in split_list(settings.allowed_origins):
        if not is_origin(origin.lower()):
            raise UserError(
                f"PROXY_ALLOWED_ORIGINS: {origin!r} is not an origin. Give each origin in full, "
                "like http://localhost:3000 or app://obsidian.md, without a path or a wildcard."
            )
    if not settings.workdir.is_dir():
        raise UserError(f"--workdir {settings.workdir} is not a folder.")
    try:
        str(settings.workdir).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"--workdir: the name {os.fsencode(settings.workdir)!r} cannot be sent to an agent, because it is not "
            "UTF-8. Rename the folder, or start the server with a locale that is UTF-8 (LC_ALL=C.UTF-8)."
        ) from error
    conflict = write_conflict(settings, environ)
    if conflict is not None:
        raise UserError(conflict)


def check_has_key(settings: Settings, keys: KeySet, *, start_is_known: bool = True) -> None:
    """Raises `UserError` if other machines could use the server without a key, or nobody could answer approval
    requests. `start_is_known`: whether it is known that there is no key of this start where `keys` has none.
    """
    if not is_loopback(settings.host) and not keys.keys:
        raise UserError(
            f"--host {settings.host} exposes a coding agent to other machines. Create a key "
            "with `codex-proxy keys add NAME` (or set PROXY_API_KEY), or listen on 127.0.0.1."
        )
    if settings.approvals != "ask" or keys.start_digest or any(key.may_approve for key in keys.keys):
        return
    if keys.required:
        raise UserError(NOBODY_APPROVES)
    if start_is_known:
        raise UserError(ONLY_IN_TERMINAL)


def listen_error(settings: Settings, error: OSError) -> UserError:
    """Returns why the server cannot listen, and what to change."""
    where, reason = f"{settings.host}:{settings.port}", error.strerror
    if error.errno is not None and error.errno > 0:  # else of a name that does not resolve
        reason = os.strerror(error.errno)
    if error.errno == errno.EADDRINUSE:
        advice = "Give another --port; a second server of yours also needs a state folder of its own (PROXY_STATE_DIR)."
    elif error.errno == errno.EACCES:
        advice = "Ports below 1024 are for root: give another --port."
    else:
        advice = "Give an address of this machine as --host."
    return UserError(f"cannot listen on {where}: {reason}. {advice}")


def close_state_folder(folder: Path) -> None:
    """Removes other users' permissions from the default state folder. If the folder is not the default one, which
    may have other uses, only `doctor` reports them.
    """
    if folder != default_state_dir().absolute():
        return
    try:
        if private.close_to_others(Path(os.path.realpath(folder))):
            log.warning("state_folder_closed", folder=str(folder))
    except FileNotFoundError:
        return  # it will be made closed
    except OSError as error:
        log.warning("state_folder_open", folder=str(folder), reason=error.strerror)


def reserve_port(host: str, port: int) -> socket.socket:
    """Checks that a server can listen here (`port` 0: on any free port). Returns a socket that reserves the port for
    servers that share it. Raises `OSError`.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        # Without SO_REUSEPORT: another server of this user may share its port, too, and would get half of the requests.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen()
        address = probe.getsockname()
    reserved = socket.socket(family, kind, protocol)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(address)
    except BaseException:
        reserved.close()
        raise
    return reserved
