"""The switches of an agent process that limit what Codex's commands may do to files.

Input: the text of the user's config.toml and the paths that the server protects. Output: `-c` pairs. No IO.

Codex has two ways. Sandbox modes are the older one; turns whose reading is not limited use them. A *permission
profile* can also name paths that no command may read, but Codex then reads the project's files through its sandbox,
which takes 0.2 s and more for each new thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from codex_proxy.agents.codex.shadow_home import parse_config, strings_of, table_of

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]


class WorkspaceWrite(msgspec.Struct, frozen=True):
    """The table `[sandbox_workspace_write]` of a config.toml."""

    writable_roots: tuple[str, ...] = ()
    network_access: bool = False
    exclude_tmpdir_env_var: bool = False
    exclude_slash_tmp: bool = False


def workspace_write(config_toml: str) -> WorkspaceWrite:
    """Reads the table from the user's config.toml; an empty text means that there is no file. Raises `ConfigError`
    if the text is not TOML, or the table or its `writable_roots` have the wrong type; a flag of another type counts
    as False.
    """
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
    """Returns the whole table as keys and TOML values for ``-c``. These override a project's own config.toml, so
    that a project cannot widen the sandbox.
    """
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
    """The permission profiles of an agent process: the sandboxes of its turns, with the paths that no command may
    read.

    `name` must be impossible to guess: Codex merges tables, so a project's own config.toml could add to a profile
    whose name it knows.
    """

    name: str
    denied: tuple[str, ...]
    policy: WorkspaceWrite = WorkspaceWrite()

    def of(self, sandbox: Sandbox) -> str | None:
        """Returns the profile's name for a sandbox; None for `danger-full-access`, which needs none."""
        if sandbox == "danger-full-access":
            return None
        return f"{self.name}_{'read' if sandbox == 'read-only' else 'write'}"

    def pairs(self) -> list[tuple[str, str]]:
        """Returns the keys and TOML values for ``-c`` that define the profiles. Codex requires a default profile;
        each thread chooses its own.
        """
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
    """Returns the paths without those that lie in another one of them."""
    kept: list[str] = []
    for path in sorted(set(paths)):
        if not any(path.startswith(folder.rstrip("/") + "/") for folder in kept):
            kept.append(path)
    return tuple(kept)


def toml_string(text: str) -> str:
    """Returns `text` as a TOML basic string. JSON's escapes are valid in TOML, but TOML also escapes DEL."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
