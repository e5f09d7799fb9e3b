"""The `-c` switches that limit what Codex's commands read and write. *Sandbox modes* limit writing only. *Permission
profiles* can forbid reading too, but make each new thread take 0.2 s or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from codex_proxy.agents.codex.shadow_home import WorkspaceWrite
from codex_proxy.core.turn import Sandbox


def workspace_write_pairs(policy: WorkspaceWrite) -> list[tuple[str, str]]:
    """Returns the settings as pairs for `-c`, so that a project's config.toml cannot widen the sandbox."""
    prefix = "sandbox_workspace_write"
    return [
        (f"{prefix}.writable_roots", toml_array(policy.writable_roots)),
        (f"{prefix}.network_access", _bool(policy.network_access)),
        (f"{prefix}.exclude_tmpdir_env_var", _bool(policy.exclude_tmpdir_env_var)),
        (f"{prefix}.exclude_slash_tmp", _bool(policy.exclude_slash_tmp)),
    ]


def _bool(value: bool) -> str:
    return "true" if value else "false"


class Profiles(msgspec.Struct, frozen=True):
    """The permission profiles of a process, one for each sandbox, with the `denied` paths and the user's `policy`.
    `name` begins their names and must not be guessable: a project's config.toml could change them.
    """

    name: str
    denied: tuple[str, ...]
    policy: WorkspaceWrite = WorkspaceWrite()

    def of(self, sandbox: Sandbox) -> str | None:
        """Returns a sandbox's profile; None for `danger-full-access`."""
        if sandbox == "danger-full-access":
            return None
        return f"{self.name}_{'read' if sandbox == 'read-only' else 'write'}"

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the definitions as pairs for `-c`; Codex requires a default."""
        read, write = self.of("read-only"), self.of("workspace-write")
        return [
            (f"permissions.{read}", self._table(":read-only", {})),
            (f"permissions.{write}", self._table(":workspace", self._writable_paths())),
            ("default_permissions", toml_string(str(read))),
        ]

    def _writable_paths(self) -> dict[str, Any]:
        paths = dict.fromkeys(self.policy.writable_roots, "write")
        paths |= {":slash_tmp": "read"} if self.policy.exclude_slash_tmp else {}
        return paths | ({":tmpdir": "read"} if self.policy.exclude_tmpdir_env_var else {})

    def _table(self, extends: str, paths: dict[str, Any]) -> str:
        entries = paths | dict.fromkeys(self.denied, "deny")
        listed = ",".join(f"{toml_string(path)}={toml_string(access)}" for path, access in entries.items())
        network = ",network={enabled=true}" if self.policy.network_access and extends == ":workspace" else ""
        return f"{{extends={toml_string(extends)},filesystem={{{listed}}}{network}}}"


def outermost_paths(paths: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip("/") + "/") for folder in kept):
            kept.append(path)
    return tuple(kept)


def toml_string(text: str) -> str:
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")


def toml_array(texts: Iterable[str]) -> str:
    return f"[{','.join(map(toml_string, texts))}]"
