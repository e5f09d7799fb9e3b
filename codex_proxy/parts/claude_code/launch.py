"""How a `claude` process is started: the program, its command line and variables. A *plain-model* process has no tools,
none of the user's settings and instructions, and an empty folder. An *agent* process works in the turn's folder with
the user's settings, not the folder's, which could name commands.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from codex_proxy.agents.sessions.claude_variables import CLAUDE_VARIABLES
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import Mode, Sandbox, Toolset
from codex_proxy.parts.claude_code.messages import CLIENT_SERVER
from codex_proxy.parts.claude_code.own_tools import asking_settings, program_names

CAPABILITIES: Final[frozenset[Capability]] = frozenset({
    "history", "client_tools", "tool_replies", "structured_output", "images", "plain_model",
    "system_prompt", "exact_usage", "stop_reasons", "parallel_calls", "model_choice", "effort",
    "stored_sessions", "steering", "subagents",
})  # fmt: skip

COMMON_ARGUMENTS: Final = (
    "-p", "--input-format", "stream-json", "--output-format", "stream-json",
    "--include-partial-messages",  # deltas, not whole messages alone
    "--verbose",  # without it the program prints the result alone
    "--allowedTools", f"mcp__{CLIENT_SERVER}",  # the client's own tools are the client's affair
)  # fmt: skip
PLAIN_ARGUMENTS: Final = (
    "--tools", "",
    "--strict-mcp-config",  # no MCP server of the user's
    "--setting-sources", "",  # no hooks, no permissions, no instructions
    "--disable-slash-commands",
)  # fmt: skip
AGENT_ARGUMENTS: Final = (
    "--setting-sources", "user",
    "--permission-prompt-tool", "stdio",  # what needs permission is asked of us
)  # fmt: skip
SUBAGENTS_TOOL: Final = "Agent"
READ_TOOLS: Final = ("Read", "Glob", "Grep")
WORK_TOOLS: Final = (*READ_TOOLS, "Edit", "Write", "NotebookEdit", "Bash", SUBAGENTS_TOOL, "Skill")
"""The agent's own tools in turns that may write: none that asks the user, and none that outlives the turn."""
MODES: Final[Mapping[Sandbox, str]] = {
    "read-only": "default",
    "workspace-write": "acceptEdits",
    "danger-full-access": "default",
}
"""Permission modes. `acceptEdits` allows changes of files in the folder. In `danger-full-access` this server gives
every permission, because the program refuses its own mode for that to root."""

SWITCHES: Final[Mapping[str, str]] = {
    **CLAUDE_VARIABLES,
    # A command in the background would outlive its turn.
    "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1",
}
"""Variables of every process; the operator's (PROXY_CHILD_ENV) win."""

NO_MENTIONS: Final[Mapping[str, str]] = {"CLAUDE_CODE_DISABLE_ATTACHMENTS": "1"}
"""For a release that does not take the mark of texts that nobody typed (see `user_line`): it reads no file that a text
mentions, and adds nothing for words. It also leaves out the CLAUDE.md of subfolders, and the list of skills.
"""

CLOUD_NAMES: Final = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
"""Variables that choose a cloud, whose sign-in is then used."""
ALLOWED_NAMES: Final = (
    "CLAUDE_CONFIG_DIR",
    "ANTHROPIC_BASE_URL", "ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_DEFAULT_OPUS_MODEL", "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
    *CLOUD_NAMES,
    "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL", "ANTHROPIC_VERTEX_PROJECT_ID",
    "AWS_REGION", "AWS_PROFILE", "CLOUD_ML_REGION",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS", "MAX_THINKING_TOKENS",
)  # fmt: skip
"""Variables for the provider's addresses and the program's home; no keys, which would be charged in place of the user's
sign-in.
"""
KEY_NAMES: Final = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")
"""Keys that the operator may pass on (PROXY_CHILD_ENV)."""

NEWEST_TESTED: Final = (2, 1, 332)
"""The newest tested release; others are used, too."""
FIRST_WITH_MARK: Final = (2, 1, 300)
"""The first release that is known to take the mark. Earlier ones run no command in it, but read the files that it
mentions.
"""
_VERSION: Final = re.compile(r"^(\d{1,6})\.(\d{1,6})\.(\d{1,6})\b.*Claude Code", re.MULTILINE)


NOT_STORED: Final = "--no-session-persistence"
"""Nothing of a client's conversation is written to the user's home, unless it is to be continued there."""


class LaunchKey(msgspec.Struct, frozen=True):
    """What is fixed at a process's start."""

    mode: Mode
    cwd: str
    sandbox: Sandbox = "read-only"
    session: str | None = None
    """The id of the stored session that goes on; empty: a new one is stored; None: nothing is."""
    subagents: bool = False
    """Whether the agent may have subagents, also where it may not write."""
    asks: bool = False
    """Whether the client is asked before each change."""
    toolset: Toolset | None = None
    """The agent's own tools, where the client has chosen them."""


def claude_argv(program: str, key: LaunchKey, unreadable: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns the command line. The agent's own tools may not read `unreadable`, absolute paths."""
    if key.mode == "model":
        return (program, *COMMON_ARGUMENTS, NOT_STORED, *PLAIN_ARGUMENTS)
    toolset = key.toolset
    if toolset is not None:
        tools = program_names(toolset)
    else:
        tools = READ_TOOLS if key.sandbox == "read-only" else WORK_TOOLS
    if key.subagents and SUBAGENTS_TOOL not in tools:
        tools = (*tools, SUBAGENTS_TOOL)
    storing = [NOT_STORED] if key.session is None else ["--resume", key.session] if key.session else []
    argv = [
        program,
        *COMMON_ARGUMENTS,
        *storing,
        *AGENT_ARGUMENTS,
        "--permission-mode",
        "default" if key.asks and toolset is None else MODES[key.sandbox],
        "--tools",
        ",".join(tools),
    ]
    if toolset is not None:
        argv.append("--strict-mcp-config")  # it has no tools but these
        if settings := asking_settings(toolset):
            argv += ["--settings", settings]
    denied = [rule for path in unreadable for rule in (f"Read(/{path})", f"Read(/{path}/**)")]
    return (*argv, "--disallowedTools", *denied) if denied else tuple(argv)


def version_in(text: str) -> tuple[int, int, int] | None:
    """Reads the output of `claude --version`; None if it has no release."""
    found = _VERSION.search(text)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def version_text(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def find_claude(named: str | None, search_path: str) -> str | None:
    """Returns the path of the program to start: of `named` in the settings, else of `claude` on `search_path`; None if
    there is none.
    """
    found = shutil.which(os.path.expanduser(named or "claude"), path=search_path)
    return found and os.path.abspath(found)  # children start in another folder
