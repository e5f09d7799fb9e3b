"""What programs of ACP ask permission for, as far as they tell it, and their calls as the toolset has them."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from codex_proxy.agents.shared.conversions import marked_lines
from codex_proxy.core.events import ApprovalKind, ApprovalRequested
from codex_proxy.core.items import TOOL_NAMES, ActionDetails, FileDiff, ToolName, ToolUse
from codex_proxy.core.json_values import encode_json, object_at, objects_in, text_at
from codex_proxy.core.own_tools import OwnTools
from codex_proxy.core.turn import Sandbox, Toolset, Turn
from codex_proxy.parts.acp.messages import Update
from codex_proxy.parts.acp.presets import AcpPreset
from codex_proxy.parts.acp.reported_calls import ACTING_KINDS

UNCONFINED: Final = "No sandbox would confine it."
_ASKED: Final[frozenset[ToolName]] = frozenset({"bash", "write", "edit"})
_PATHS: Final = ("file_path", "path", "absolute_path", "fileName")
"""The arguments with a path, as programs call them."""
_FOLDERS: Final = ("cwd", "directory", "dir", "dir_path", "workdir", "working_directory", "workingDirectory")
"""The arguments with the folder of a command."""
_OF_COMMANDS: Final = {"command", "commands", "description", "timeout", "is_background", "run_in_background"}
"""The arguments of a command that do not change what it does, or say it again."""


def own_tools_of(preset: AcpPreset) -> OwnTools:
    """Returns what a program keeps of toolsets: one that asks before it acts can be kept from acting."""
    unconfined: Sandbox = "read-only" if preset.sandboxed else "danger-full-access"
    return OwnTools(
        sandboxes={
            **dict.fromkeys(TOOL_NAMES, "read-only"),
            **dict.fromkeys(("bash", "web_fetch"), unconfined),
            **dict.fromkeys(("write", "edit"), "workspace-write"),
        },
        asks=_ASKED if preset.asking else frozenset(),
        fixed=frozenset(TOOL_NAMES) - (_ASKED if preset.asking else set()),
    )


def question_of(
    request_id: str, asked: Update, known: Update, turn: Turn, *, confined: bool, item_id: str
) -> ApprovalRequested:
    """Returns the event of a request for permission. `known`: all that was reported of the call; `confined`: whether
    this server confines the program to the turn's sandbox. A program with a sandbox of its own asks for what leaves it.
    """
    kind: ApprovalKind = ACTING_KINDS.get(known.kind or "", "permission")
    details = details_of(known, asked.content, turn.workdir, turn.toolset)
    within = confined or kind == "file_change" or turn.sandbox == "danger-full-access"
    return ApprovalRequested(
        request_id, kind, "", details, beyond="" if within else UNCONFINED, item_id=item_id
    )


def details_of(call: Update, content: Any, cwd: str | None, toolset: Toolset | None) -> ActionDetails | None:
    """Returns in full what a call does; None if the program does not tell it. `content`: that of the report."""
    kind, given = ACTING_KINDS.get(call.kind or ""), object_at(call.raw_input)
    if kind == "command":
        # A title beside the tool's name is that name or what a model has written, and not the command.
        command = _command(given) or ("" if given or call.name else call.title or "")
        details = ActionDetails(command=command, cwd=_folder(given, cwd)) if command else None
    elif kind == "file_change":
        changes = _changes(given, content)
        details = ActionDetails(changes=changes) if changes else None
    elif not isinstance(call.raw_input, Mapping):
        details = None  # its arguments are not told, or not yet
    else:
        details = ActionDetails(tool=call.name or call.title or "", arguments=encode_json(given).decode())
    use = None if details is None or toolset is None else _use(call, details, given, toolset)
    return details if details is None or use is None else replace(details, use=use)


def _use(call: Update, details: ActionDetails, given: Mapping[str, Any], toolset: Toolset) -> ToolUse | None:
    name: ToolName
    input: dict[str, Any]
    if details.command:
        name, input = "bash", {"command": details.command}
    elif details.changes:
        first, *others = details.changes
        name = "write" if all(each.kind == "add" for each in details.changes) else "edit"
        if others:
            input = {
                "changes": [
                    {"file_path": each.path, "kind": each.kind, "diff": each.diff} for each in details.changes
                ]
            }
        else:
            input = {"file_path": first.path, "content" if name == "write" else "diff": first.diff}
    elif call.kind == "read" and _path(given):
        name, input = "read", {"file_path": _path(given)}
    elif call.kind == "fetch" and text_at(given, "url"):
        name, input = "web_fetch", {"url": text_at(given, "url")}
    else:
        return None
    return ToolUse(name, encode_json(input).decode(), toolset.permission(name))


def _command(given: Mapping[str, Any]) -> str:
    command = given.get("command")
    if isinstance(command, list):
        return shlex.join(map(str, command))
    return command if isinstance(command, str) else ""


def _folder(given: Mapping[str, Any], cwd: str | None) -> str | None:
    """Returns where a command runs: `cwd` if it names no folder; None if it is not known, or an argument that is not
    shown may change what the command does.
    """
    named = [value for name in _FOLDERS if (value := given.get(name)) is not None]
    if given.keys() - {*_FOLDERS, *_OF_COMMANDS} or len(named) > 1:
        return None
    if not named:
        return cwd
    return posixpath.join(cwd or "", named[0]) if isinstance(named[0], str) else None


def _path(given: Mapping[str, Any]) -> str:
    return next((path for name in _PATHS if (path := text_at(given, name))), "")


def _changes(given: Mapping[str, Any], content: Any) -> tuple[FileDiff, ...]:
    """Returns the changed files: of the report's content, or of the arguments if these have a diff."""
    found = [each for each in objects_in(content) if each.get("type") == "diff"]
    changes = tuple(
        FileDiff(
            text_at(each, "path"),
            *_kind_and_diff(each.get("oldText"), text_at(each, "newText")),
        )
        for each in found
        if text_at(each, "path")
    )
    if changes or len(found) > len(changes):
        return changes if len(changes) == len(found) else ()
    path, diff = _path(given), text_at(given, "diff")
    return (FileDiff(path, diff=diff),) if path and diff else ()


def _kind_and_diff(old: object, new: str) -> tuple[str, str]:
    """Returns how a file is changed, and its diff: of one that is added its text, as Codex tells it."""
    if isinstance(old, str):
        return "update", marked_lines("-", old) + marked_lines("+", new)
    return "add", new
