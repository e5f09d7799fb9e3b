"""What a client may permit for the rest of a session, instead of once: a rule, with the sentence that a person is shown
before. A rule permits what would be asked, so never what the sandbox or the key does not allow.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final, Literal, TypeAlias

import msgspec

from codex_proxy.core.events import ApprovalRequested
from codex_proxy.core.items import ActionDetails
from codex_proxy.core.shown_text import escape, excerpt
from codex_proxy.runs.asks import OWN_FOLDERS, outside_folder

RuleKind: TypeAlias = Literal["command", "files", "mcp_tool", "tool"]

MAX_RULES: Final = 100
"""Maximum rules of a session; the oldest is dropped first, and what it permitted is asked again."""
MAX_QUOTED: Final = 300
"""Maximum characters of a command or a tool in a sentence: the question shows it whole."""


class Rule(msgspec.Struct, frozen=True):
    """What needs no further answer. Two questions have equal rules if an answer for the session to one is one to both.
    `digest`: the SHA-256 of what is permitted, in hexadecimal. `sentence`: one line, for a person.
    """

    kind: RuleKind
    digest: str
    sentence: str


def rule_of(event: ApprovalRequested, folder: str) -> Rule | None:
    """Returns the rule that an answer for the session makes of a question; None if that is not offered. `folder`: the
    turn's, without links. Looks at the files of a patch as they are now.
    """
    details = event.details
    if details is None:
        return None
    match event.kind:
        case "command":
            return _command_rule(details)
        case "file_change":
            return _files_rule(details, folder)
        case "mcp":
            told = f"the tool {_quoted(details.tool)} of the MCP server {_quoted(details.server)}"
            return _rule("mcp_tool", (details.server, details.tool), f"{told}, with any arguments")
        case "form":
            return None
        case _ if details.arguments in ("", "{}"):
            return None  # of a program that does not tell them, every call would be the same
        case _:
            told = f"the agent's tool {_quoted(details.tool)}, with exactly these arguments"
            return _rule("tool", (details.tool, details.arguments), told)


def with_rule(rules: tuple[Rule, ...], rule: Rule) -> tuple[Rule, ...]:
    """Returns the rules of a session with one more, which may be one of them."""
    return (*(each for each in rules if each != rule), rule)[-MAX_RULES:]


def without_tools(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    """Returns the rules but those about tools of MCP servers."""
    return tuple(each for each in rules if each.kind != "mcp_tool")


def _command_rule(details: ActionDetails) -> Rule | None:
    if not (details.command and details.cwd):
        return None
    told = f"exactly this command in the folder {_quoted(details.cwd)}: {_shown(details.command)}"
    return _rule("command", (details.command, details.cwd), told)


def _files_rule(details: ActionDetails, folder: str) -> Rule | None:
    paths = [path for change in details.changes for path in (change.path, change.moved_to) if path]
    if not paths or not os.path.isabs(folder) or any(outside_folder(path, folder) for path in paths):
        return None
    own = ", ".join(sorted(OWN_FOLDERS))
    told = f"every change of files in the folder {_quoted(folder)}, also new and deleted ones, but in {own}"
    return _rule("files", (folder,), told)


def _rule(kind: RuleKind, permitted: tuple[str, ...], told: str) -> Rule:
    digest = hashlib.sha256(msgspec.json.encode((kind, *permitted))).hexdigest()
    return Rule(kind, digest, f"Allowed without a question while this session exists: {told}.")


def _shown(text: str) -> str:
    return excerpt(escape(text), MAX_QUOTED)


def _quoted(text: str) -> str:
    return f"'{_shown(text)}'"
