"""What the commands of agent turns may do to files, in Codex's own terms: switches of the agent's process.

In: the text of the user's config.toml and what the server keeps for itself. Out: ``-c`` pairs. Pure.

Two ways, since Codex has two. The older one, by sandbox mode, is what a turn gets that is not to be kept from reading.
A *permission profile* says more (paths that no command reads), but lets Codex read the project's files through its
sandbox, which takes it 0.2 s and more for each new thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from codex_proxy.agents.codex.shadow_home import parse_config, strings_of, table_of

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]


class WorkspaceWrite(msgspec.Struct, frozen=True):
    """``[sandbox_workspace_write]`` of a config.toml, as Codex knows it."""

    writable_roots: tuple[str, ...] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


def workspace_write(config_toml: str) -> WorkspaceWrite:
    """The user's table; the empty text stands for a home without a file. Raises ``ConfigError``."""
    table = table_of(parse_config(config_toml), "sandbox_workspace_write")

    def flag(name: str) -> bool:
        return table.get(name) is True  # anything else is refused by Codex itself

    return WorkspaceWrite(
        writable_roots=strings_of(table.get("writable_roots", []), "sandbox_workspace_write.writable_roots"),
        network_access=flag("network_access"),
        exclude_tmpdir_env_var=flag("exclude_tmpdir_env_var"),
        exclude_slash_tmp=flag("exclude_slash_tmp"),
    )


def workspace_write_pairs(policy: WorkspaceWrite) -> list[tuple[str, str]]:
    """The whole table as switches, so that a trusted project's own config.toml widens nothing: switches win."""
    prefix = "sandbox_workspace_write"
    return [
        (f"{prefix}.writable_roots", _array(policy.writable_roots)),
        (f"{prefix}.network_access", _bool(policy.network_access)),
        (f"{prefix}.exclude_tmpdir_env_var", _bool(policy.exclude_tmpdir_env_var)),
        (f"{prefix}.exclude_slash_tmp", _bool(policy.exclude_slash_tmp)),
    ]


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(map(toml_string, texts))}]"


def _bool(value: bool) -> str:
    return "true" if value else "false"


class Profiles(msgspec.Struct, frozen=True):
    """Permission profiles of an agent process: the sandboxes of turns, with paths that no command reads.

    ``name`` must be one that nobody guesses: Codex merges tables, so a project's own config.toml could add to a
    profile whose name it knows.
    """

    name: str
    denied: tuple[str, ...]
    policy: WorkspaceWrite = WorkspaceWrite()

    def of(self, sandbox: Sandbox) -> str | None:
        """The profile's name for a sandbox; ``None`` for the one that confines nothing."""
        if sandbox == "danger-full-access":
            return None
        return f"{self.name}_{'read' if sandbox == 'read-only' else 'write'}"

    def pairs(self) -> list[tuple[str, str]]:
        """The switches that define them. Codex wants a default where there are profiles; a thread's own choice wins."""
        read, write = self.of("read-only"), self.of("workspace-write")
        return [
            (f"permissions.{read}", self._table(":read-only", {})),
            (f"permissions.{write}", self._table(":workspace", self._written())),
            ("default_permissions", toml_string(str(read))),
        ]

    def _written(self) -> dict[str, Any]:
        paths = dict.fromkeys(self.policy.writable_roots, "write")
        paths |= {":slash_tmp": "read"} if self.policy.exclude_slash_tmp else {}
        return paths | ({":tmpdir": "read"} if self.policy.exclude_tmpdir_env_var else {})

    def _table(self, extends: str, paths: dict[str, Any]) -> str:
        entries = paths | dict.fromkeys(self.denied, "deny")
        listed = ",".join(f"{toml_string(path)}={toml_string(access)}" for path, access in entries.items())
        network = ",network={enabled=true}" if self.policy.network_access and extends == ":workspace" else ""
        return f"{{extends={toml_string(extends)},filesystem={{{listed}}}{network}}}"


def denied_paths(paths: Sequence[str]) -> tuple[str, ...]:
    """The paths to deny, without those that lie in another one."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip("/") + "/") for folder in kept):
            kept.append(path)
    return tuple(kept)


def toml_string(text: str) -> str:
    """``text`` as a TOML basic string; JSON escapes are TOML's, but for DEL, which TOML wants escaped."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
