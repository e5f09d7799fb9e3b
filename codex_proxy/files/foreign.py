"""Which paths may be written in somebody's folder for strangers: those of changes that they have written down, such as
those of a cassette, and those that clients name. Nothing here does IO.

What a program runs or obeys by itself is refused: when somebody enters the folder, opens it in an editor, starts a
shell, an agent, git or a package manager there, or pushes it. What only runs when somebody runs it, such as a
program's own code and its tests, is what agents write, and allowed.
"""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Final

MAX_PATH_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 255

_VERSION_CONTROL: Final = (".git", ".gitmodules", ".gitconfig", ".hg", ".hgrc", ".svn", ".bzr", ".jj")
_HOOKS: Final = (
    ".husky",
    ".githooks",
    ".lefthook",
    ".lefthook.yml",
    "lefthook.yml",
    ".pre-commit-config.yaml",
)
_AGENTS: Final = (
    *(
        ".codex",
        ".claude",
        ".claude.json",
        ".mcp.json",
        ".gemini",
        ".qwen",
        ".copilot",
        ".cursor",
        ".windsurf",
    ),
    *(
        ".continue",
        ".cline",
        ".clinerules",
        ".roo",
        ".kilo",
        ".kilocode",
        ".kilocodemodes",
        "kilo.json",
        "kilo.jsonc",
        ".opencode",
        ".goose",
        ".goosehints",
        ".amazonq",
    ),
    *(".aider.conf.yml", ".cursorrules", ".windsurfrules", ".agents", "agents.md", "claude.md", "gemini.md"),
    *("agents.override.md", "claude.local.md", "qwen.md", "opencode.json", "opencode.jsonc", "crush.json"),
    *(".crush", ".crush.json", ".kiro", ".junie", ".factory", ".trae", ".augment", ".roomodes"),
)
_EDITORS: Final = (
    *(".vscode", ".idea", ".fleet", ".zed", ".vs", ".devcontainer", ".devcontainer.json", ".vim", ".vimrc"),
    *(".exrc", ".nvimrc", ".nvim.lua", ".emacs", ".emacs.d", ".dir-locals.el", ".dir-locals-2.el"),
    *(".gdbinit", ".lldbinit", ".pdbrc", ".sublime-project"),
)
_SHELLS: Final = (
    *(
        ".bashrc",
        ".bash_profile",
        ".bash_login",
        ".bash_logout",
        ".bash_aliases",
        ".profile",
        ".login",
        ".logout",
    ),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc", ".inputrc"),
    *(".config", ".local", ".ssh", ".gnupg", ".aws", ".kube", ".docker", ".netrc", ".tmux.conf", ".screenrc"),
    "launchagents",
    *(
        ".envrc",
        ".direnv",
        ".autoenv",
        ".autoenv.zsh",
        ".mise.toml",
        "mise.toml",
        ".mise.local.toml",
        "mise.local.toml",
        ".mise",
        ".rtx.toml",
    ),
    *(
        ".tool-versions",
        "sitecustomize.py",
        "usercustomize.py",
        ".pythonstartup",
        "desktop.ini",
        "autorun.inf",
    ),
)
_PACKAGE_MANAGERS: Final = (
    *(".npmrc", ".yarnrc", ".yarnrc.yml", ".yarn", ".pnpmfile.cjs", ".pypirc", ".gemrc", ".bundle", ".cargo"),
    *(".mvn", ".gradle", ".condarc"),
)
_BUILD_SERVERS: Final = (
    ".github",
    ".gitlab-ci.yml",
    ".gitlab",
    ".circleci",
    ".buildkite",
    ".gitea",
    ".forgejo",
    ".travis.yml",
    ".appveyor.yml",
    "appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
    ".drone.yml",
    ".woodpecker",
    ".woodpecker.yml",
    ".cirrus.yml",
)
_HIDDEN_CODE: Final = (".venv", "venv", "node_modules", "__pycache__")
"""Programs run what is there, in place of the code that is read."""

PROTECTED: Final = frozenset(
    (
        *_VERSION_CONTROL,
        *_HOOKS,
        *_AGENTS,
        *_EDITORS,
        *_SHELLS,
        *_PACKAGE_MANAGERS,
        *_BUILD_SERVERS,
        *_HIDDEN_CODE,
    )
)
"""The names, in lower case, that no part of a path may have in any spelling that a file system takes for it."""
_PROTECTED_ENDINGS: Final = (".sublime-project", ".code-workspace")
_VARIATIONS: Final = frozenset(map(chr, range(0xFE00, 0xFE10)))
"""Characters without width that are no format characters."""
_SHORT_NAME: Final = re.compile(r"([^~]{1,6})~[0-9]+(?:\..*)?")
"""Matches the short names that Windows gives to files, such as `git~1`."""
_SHORTENED: Final = frozenset(name.lstrip(".").partition(".")[0][:6] for name in PROTECTED)


def why_refused(path: bytes, target: bytes | None = None) -> str:
    """Returns why nothing may be written at a path below a folder; empty if it may. `target`: that of a link, if one is
    written.
    """
    if len(path) > MAX_PATH_BYTES:
        return f"a path has more than {MAX_PATH_BYTES} bytes"
    parts = path.split(b"/")
    why = _why_wrong(parts) or _why_protected(parts)
    if why or target is None:
        return why
    return _why_link_refused(len(parts) - 1, target)


def why_protected(path: str) -> str:
    """Returns why nothing may be written at a relative path, given without `..`, for a part of it; empty if it may."""
    return _why_protected(os.fsencode(path).split(b"/"))


def _why_wrong(parts: list[bytes]) -> str:
    if b"\0" in b"".join(parts):
        return "a path has a zero byte"
    if parts[0] == b"" or b":" in parts[0][1:2]:
        return "the path is absolute"
    if b".." in parts:
        return "the path has `..`"
    if b"" in parts or b"." in parts:
        return "the path has an empty part, or `.`"
    return "a name is too long" if max(map(len, parts)) > MAX_NAME_BYTES else ""


def _why_protected(parts: list[bytes]) -> str:
    for part in parts:
        # On Windows a backslash separates names.
        for spelled in part.split(b"\\"):
            name = _as_file_systems_read_it(spelled)
            short = _SHORT_NAME.fullmatch(name)
            if (
                name in PROTECTED
                or name.endswith(_PROTECTED_ENDINGS)
                or (short is not None and short[1] in _SHORTENED)
            ):
                return f"programs run or obey what is in {name}"
            if not name:
                return "a name has only characters that file systems may ignore"
    return ""


def _as_file_systems_read_it(name: bytes) -> str:
    """Returns a name as file systems may compare it: in lower case, without what they ignore (HFS+ characters without
    width; Windows dots and spaces at the end, and what is behind a colon).
    """
    text = name.decode("utf-8", "surrogateescape").partition(":")[0]
    visible = "".join(each for each in text if unicodedata.category(each) != "Cf" and each not in _VARIATIONS)
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")


def _why_link_refused(depth: int, target: bytes) -> str:
    """`depth`: the number of folders between the folder and the link."""
    if target == b"" or b"\0" in target or len(target) > MAX_PATH_BYTES:
        return "the link has no target"
    if target.startswith((b"/", b"\\")) or target[1:2] == b":":
        return "the link's target is absolute"
    names = [part for part in target.replace(b"\\", b"/").split(b"/") if part not in (b"", b".")]
    up = 0
    while names[up : up + 1] == [b".."]:
        up += 1
    if up > depth:
        return "the link points out of the folder"
    if b".." in names[up:]:
        return "the link's target has `..` behind a name, which may be another link"
    return _why_protected(names[up:])
