"""What Codex asks: its requests for permission as events, and the answers to them.

Codex asks before each command and patch of a turn with the policy `untrusted`. What an accepted command may do then
depends on its thread. With a permission profile that keeps it from reading some files, it stays in the sandbox. Without
one, Codex repeats a command that the sandbox has stopped, outside of it, without asking again. A command that the model
itself wants outside of the sandbox is asked for in the same words as any other: only the model's call tells. Seen on
releases 0.144, 0.163 and 0.171.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from codex_proxy.agents.codex_app_server.item_reader import ThreadItem, details_of
from codex_proxy.agents.codex_app_server.own_tools import tool_use
from codex_proxy.agents.codex_app_server.wire import (
    Message,
    Params,
    RawItemCall,
    RawItemHead,
    answer,
    command_text,
)
from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.events import ApprovalKind, ApprovalRequested, InputRequested
from codex_proxy.core.items import ActionDetails
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.turn import Turn

COMMAND: Final = "item/commandExecution/requestApproval"
PATCH: Final = "item/fileChange/requestApproval"
PERMISSIONS: Final = "item/permissions/requestApproval"
MCP: Final = "mcpServer/elicitation/request"
INPUT: Final = "item/tool/requestUserInput"
KINDS: Final[Mapping[str, ApprovalKind]] = {
    COMMAND: "command",
    PATCH: "file_change",
    PERMISSIONS: "permission",
    MCP: "mcp",
}
QUESTIONS: Final = (*KINDS, INPUT)
"""The methods of questions."""

HARMLESS_ARGUMENTS: Final = frozenset(
    {"cmd", "command", "workdir", "shell", "login", "tty", "timeout_ms", "yield_time_ms", "max_output_tokens"}
)
"""The arguments of a call of Codex's shell that change nothing about its sandbox."""
IN_SANDBOX: Final = "use_default"
"""The value of `sandbox_permissions` of a call that stays in the sandbox."""

WIDER: Final = "It would run outside of the sandbox."
UNKNOWN_CALL: Final = (
    "The model's call for it is not known, so that it may want to run outside of the sandbox."
)
MORE_PERMISSIONS: Final = "It would widen the sandbox."
UNCONFINED: Final = "The server of this tool runs outside of the sandbox."


def asks(turn: Turn) -> bool:
    """Whether Codex asks its user in this turn before it acts. It does so only if what the user accepts cannot
    leave the sandbox, or if there is no sandbox.
    """
    confined = turn.permissions is not None or turn.sandbox == "danger-full-access"
    asks = turn.approvals == "ask" and (turn.toolset is None or bool(turn.toolset.asked))
    return asks and turn.mode == "agent" and confined


class AskedActions:
    """What a question only names, by the id of its item: the model's call for a command, and the changes of a patch."""

    def __init__(self, turn: Turn) -> None:
        self.kept = asks(turn)
        """Whether somebody may be asked, so that these have to be known."""
        self._free = turn.sandbox == "danger-full-access"
        self._toolset = turn.toolset
        self._in_sandbox: dict[str, bool] = {}
        """Whether each of the model's calls stays in the sandbox."""
        self._patches: dict[str, ActionDetails] = {}
        self.items: dict[str, str] = {}
        """The items of open questions, by the ids of the questions."""

    def note_item(self, params: Params) -> None:
        """Takes an item that begins."""
        item = decode_part(params.item, ThreadItem, loosely=True)
        details = details_of(item) if item.type == "fileChange" else None
        if details is not None:
            self._patches[item.id] = details

    def note_call(self, head: RawItemHead, item: bytes) -> None:
        """Takes an item of the model."""
        if head.type == "function_call":
            call = decode_part(item, RawItemCall)
            before = self._in_sandbox.get(
                call.call_id, True
            )  # of two with one id, the question may be about either
            self._in_sandbox[call.call_id] = before and _stays_in_sandbox(call.arguments)

    def question(self, message: Message, id: int | str) -> ApprovalRequested | InputRequested | None:
        """Converts a request of Codex to an event, with all that is known of it if somebody may be asked. None if it
        asks the client nothing.
        """
        params, request_id = message.params, f"{message.method}:{id}"
        details, beyond = self._described(message.method or "", params) if self.kept else (None, "")
        if message.method == INPUT:
            return InputRequested(request_id, "")
        kind = KINDS.get(message.method or "")
        if kind is None:
            return None
        text = command_text(params.command) if kind == "command" else params.message or ""
        reason = _text(params.reason) if self.kept else ""
        use = tool_use(kind, "", details, self._toolset)
        if details is not None and use is not None:
            details = msgspec.structs.replace(details, use=use)
        beyond, item_id = "" if self._free else beyond, params.item_id or ""
        self.items[request_id] = item_id
        return ApprovalRequested(request_id, kind, text, details, reason, beyond, item_id=item_id)

    def _described(self, method: str, params: Params) -> tuple[ActionDetails | None, str]:
        """Returns what a question is about, if Codex tells it, and why the sandbox would not confine it."""
        if method == COMMAND and _text(params.kind) in ("", "command"):
            command = _text(params.command) or command_text(params.command)
            return ActionDetails(command=command, cwd=_text(params.cwd) or None), self._wider(params)
        if method == PATCH:
            details = self._patches.pop(params.item_id or "", None)
            return details, MORE_PERMISSIONS if _is_given(params.grant_root) else ""
        if method == MCP:
            return _mcp_call(params), UNCONFINED
        # Of permissions: in a turn without a sandbox there is nothing to widen.
        return None, MORE_PERMISSIONS

    def _wider(self, params: Params) -> str:
        """Returns why a command would not stay in the sandbox; empty if it would."""
        stays = self._in_sandbox.get(params.item_id or "")
        if stays is None:
            return UNKNOWN_CALL
        more = (
            params.additional_permissions,
            params.network_approval_context,
            params.approval_id,
            params.reason,
        )
        # A reason is given for what leaves the sandbox, and for nothing else.
        return WIDER if not stays or any(map(_is_given, more)) else ""


def _is_given(value: msgspec.Raw) -> bool:
    return bytes(value) not in (b"", b"null")


def _text(value: msgspec.Raw) -> str:
    """Returns a text; empty for any other value."""
    found = decode_part(value, Any) if value else ""
    return found if isinstance(found, str) else ""


def _stays_in_sandbox(arguments: str) -> bool:
    """Whether a call of the shell with these arguments stays in the sandbox. What is not known may not."""
    try:
        given = msgspec.json.decode(arguments, type=dict[str, Any])
    except UNREADABLE:
        return False
    if given.pop("sandbox_permissions", None) not in (None, IN_SANDBOX):
        return False
    return given.keys() <= HARMLESS_ARGUMENTS


class _McpMeta(msgspec.Struct, frozen=True):
    codex_approval_kind: str = ""
    tool_name: str = ""
    tool_params: msgspec.Raw = msgspec.Raw(b"{}")


def _mcp_call(params: Params) -> ActionDetails | None:
    """Returns the call of a tool that an elicitation asks for; None for a question of the MCP server itself."""
    try:
        meta = decode_part(params.meta, _McpMeta) if params.meta else _McpMeta()
    except UnreadableError:
        return None
    server = _text(params.server_name)
    if meta.codex_approval_kind != "mcp_tool_call" or not (server and meta.tool_name):
        return None
    arguments = bytes(meta.tool_params).decode("utf-8", "replace")
    return ActionDetails(server=server, tool=meta.tool_name, arguments=arguments)


def decision_answer(id: int | str, request_id: str, reply: Decision) -> bytes:
    """Encodes the client's decision. `request_id`, of the event, determines the form."""
    method = request_id.partition(":")[0]
    decision = "accept" if reply.approve else "decline"
    if method == MCP:
        return answer(id, {"action": decision, "content": {} if reply.approve else None, "_meta": None})
    if method == INPUT:
        return answer(id, {"answers": {}})
    if method == PERMISSIONS:
        return answer(id, {"permissions": {}, "scope": "turn"})
    return answer(id, {"decision": decision})
