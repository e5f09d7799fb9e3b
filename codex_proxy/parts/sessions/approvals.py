"""An agent's questions for permission, as required actions of a session: in the form of the API's questions about the
tools of MCP servers, which is the only one that clients know. Source: docs/agents-api.md#approvals-and-safety.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

import msgspec
from msgspec.structs import replace

from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.shared.forms import ASK_USER, FormField
from codex_proxy.core.events import ApprovalRequested
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ActionDetails, FileDiff, ToolUse
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.shown_text import escape, one_line
from codex_proxy.parts.sessions.rules import Rule, rule_of

Choice: TypeAlias = Literal["approve", "deny", "cancel"]
"""What a client decides. The API lets the turn go on after `cancel`, too, so it is the same as `deny`."""

OWN_LABEL: Final = "agent"
"""The label of the agent itself, in place of an MCP server's."""
_LABEL_OF_NAMESAKE: Final = "agent (MCP server)"
"""The label of an MCP server that is called as the agent itself is: else what is shown of its calls would be wrong."""
MAY_NOT_APPROVE: Final = Failure(
    FaultKind.NOT_ALLOWED,
    "Approval requests are answered with a key that may approve: one whose entry in the keys file says so (may_approve "
    "= true), or, where no keys are needed, the key of this start, which the server shows in its terminal.",
)
MAY_NOT_ASK: Final = Failure(
    FaultKind.NOT_ALLOWED,
    "The agent is to ask before some of its tools, and nobody may answer with this key. Have the operator allow it in "
    "the keys file (may_approve = true) or, without keys, start the server in a terminal; or let the tools run without "
    "a question (always_allow).",
    param="tools",
)


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """A question. `asked`: what the agent calls it, within one run; empty until the agent has asked. `item`: the id of
    the entry of the call, if it is told. `answered`: empty until there is an answer; `denial`: its words, if it denies
    with some. `rule`: what an answer for the session permits; None if only this can be permitted. `for_session`:
    whether the answer is one for the session, or such an answer has permitted this.
    `content`: the values of a form.
    """

    request_id: str
    asked: str
    turn: str
    server_label: str
    name: str
    arguments: Any
    message: str
    answered: Choice | Literal[""] = ""
    item: str = ""
    denial: str = ""
    rule: Rule | None = None
    for_session: bool = False
    content: dict[str, Any] = {}
    is_form: bool = False
    """Whether the user is asked for more than a permission: to fill in a form, or to open a page. Names do not tell it:
    a tool may be called so, too.
    """
    subagent: str = ""
    """The id of the subagent that asks; empty if it is the session's own agent."""

    @property
    def fields(self) -> list[FormField]:
        """The fields of a form; none of any other question."""
        if not self.is_form or self.name != ASK_USER:
            return []
        return msgspec.convert(self.arguments["fields"], list[FormField])

    @property
    def digest(self) -> str:
        """The SHA-256 of what is asked, in hexadecimal: who answers tells by it what was shown."""
        asked = {"server_label": self.server_label, "name": self.name, "arguments": self.arguments}
        return hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()

    @property
    def decision(self) -> Decision:
        """What the agent is told."""
        approve = self.answered == "approve"
        return Decision(approve=approve, by_client=True, message=self.denial, content=self.content)


class Approval(msgspec.Struct, frozen=True, tag="approval"):
    """A client's answer. `denial`: what the model is told of a denial; empty: that there is one."""

    request_id: str
    choice: Choice
    denial: str = ""
    once: bool = False
    """Whether the same answer again is an error."""
    digest: str = ""
    """That of the question as it was shown; empty if the client does not tell it."""
    for_session: bool = False
    """Whether the question's rule is permitted for the rest of the session."""
    content: dict[str, Any] = {}
    """The values of a form."""
    by_approver: bool = False
    """Whether the client that answers may approve: without keys the session's owner does not tell."""

    def applied_to(self, ask: Ask) -> Ask:
        """Returns the question with this answer."""
        answer = {"answered": self.choice, "denial": self.denial, "content": self.content}
        return replace(ask, for_session=self.for_session, **answer)


def request_id_of(item: str) -> str:
    """Returns the id of the question about a call, by the id of the call's entry. A client that knows the call can
    answer before the agent has asked.
    """
    return f"mcpr_{item.partition('_')[2]}"


class TurnRules(NamedTuple):
    """What rules need to know of a turn: its folder, without links, and what needs no answer in it."""

    folder: str = ""
    permitted: tuple[Rule, ...] = ()


class TurnAsks:
    """The questions of a run: those that the agent has asked, and those that were answered before it has."""

    def __init__(self) -> None:
        self._asked: set[str] = set()
        self._early: dict[str, Ask] = {}
        """Questions with an answer that the agent has not asked yet."""
        self._answered: list[Ask] = []
        """Those of them that it has asked now."""

    def undo(self) -> Callable[[], None]:
        """Returns a function that takes back what clients answer from now on."""
        early = dict(self._early)

        def restore() -> None:
            self._early = early

        return restore

    def expected(self, id: str, calls: Iterable[tuple[str, ToolUse]], turn: str) -> Ask | None:
        """Returns the question with this id, if the agent has not asked it yet: one that was answered, or one about a
        call that is open. `calls`: the open calls of which the client is asked, by the ids of their entries.
        """
        if id in self._early:
            return self._early[id]
        found = (each for each in calls if request_id_of(each[0]) == id and id not in self._asked)
        return next((_expected_ask(use, item, turn) for item, use in found), None)

    def add_early(self, ask: Ask) -> None:
        """Adds a question with an answer that the agent has not asked yet."""
        self._early[ask.request_id] = ask

    def ask(
        self,
        event: ApprovalRequested,
        call: tuple[str, str],
        turn: str,
        new_id: Callable[[], str],
        rules: TurnRules,
    ) -> Ask:
        """Returns a question that the agent asks now, with its answer if it has one. `call`: the id of the entry of the
        call, empty if it is not known; and that of the subagent that asks, empty if it is the session's own agent.
        """
        item, subagent = call
        id = request_id_of(item) if item else ""
        if not id or id in self._asked:  # an agent may ask twice about a call
            id = new_id()
        self._asked.add(id)
        ask, early = replace(ask_of(event, id, turn), item=item, subagent=subagent), self._early.pop(id, None)
        ask = replace(ask, rule=rule_of(event, rules.folder))
        if early is not None:
            answered = replace(ask, answered=early.answered, denial=early.denial)
        elif ask.rule is not None and ask.rule in rules.permitted:
            answered = replace(ask, answered="approve", for_session=True)
        else:
            return ask
        self._answered.append(answered)
        return answered

    def take_answered(self) -> list[Ask]:
        """Returns the questions that the agent has asked since the last call, and that had their answer already."""
        answered, self._answered = self._answered, []
        return answered


def _expected_ask(use: ToolUse, item: str, turn: str) -> Ask:
    name, arguments = use.name, json_value(use.input)
    wish = _sentence(f"use its tool {name}")
    return Ask(request_id_of(item), "", turn, OWN_LABEL, name, arguments, wish, item=item)


def ask_of(event: ApprovalRequested, request_id: str, turn: str) -> Ask:
    """Returns the question of an event, which the client is to be asked."""
    details = event.details or ActionDetails()
    label, name, arguments = OWN_LABEL, "permissions", dict[str, Any]()
    match event.kind:
        case "command":
            name = "run_command"
            arguments = {"command": details.command, "cwd": details.cwd}
            wish = f"run a command: {details.command}"
        case "file_change":
            name = "apply_patch"
            arguments = {"changes": [_change(each) for each in details.changes]}
            wish = f"change files: {' '.join(each.path for each in details.changes)}"
        case "mcp":
            label, name = details.server, details.tool
            wish = f"call the tool {name} of the MCP server {label}"
            label = _LABEL_OF_NAMESAKE if label == OWN_LABEL else label
            return Ask(
                request_id,
                event.request_id,
                turn,
                label,
                name,
                json_value(details.arguments),
                _sentence(wish),
            )
        case "form":
            asked = json_value(details.arguments)
            wish = "have a form filled in" if details.tool == ASK_USER else "have a page opened"
            said = _sentence(f"{wish}: {event.text}")
            return Ask(request_id, event.request_id, turn, label, details.tool, asked, said, is_form=True)
        case _:
            arguments = {"tool": details.tool, "arguments": json_value(details.arguments)}
            wish = f"use its tool {details.tool}"
    arguments["reason"] = event.reason or None
    return Ask(request_id, event.request_id, turn, label, name, arguments, _sentence(wish))


def _sentence(wish: str) -> str:
    return one_line(f"The agent wants to {wish}")


def _change(change: FileDiff) -> dict[str, Any]:
    moved = {"moved_to": change.moved_to} if change.moved_to else {}
    return {"path": change.path, "kind": change.kind or None, "diff": change.diff, **moved}


def json_value(text: str) -> object:
    """Returns the value of the JSON text of a call's arguments; the text itself if it is none, or nested too deep."""
    try:
        return msgspec.json.decode(text or "{}")
    except UNREADABLE:
        return text


def ask_object(ask: Ask) -> dict[str, Any]:
    """Returns the required action."""
    return {
        "type": "mcp_approval_request",
        "turn_id": ask.turn,
        "request_id": ask.request_id,
        "request": {
            "type": "mcp_tool_call",
            "server_label": ask.server_label,
            "name": ask.name,
            "arguments": ask.arguments,
            "message": ask.message,
        },
    }


class SessionAsk(TypedDict):
    """An open question, as a person is shown it. `digest` goes back with the answer; `rule` is the sentence that says
    what an answer for the session permits, null if there is none. `form`: whether it wants more than a permission.
    """

    request_id: str
    turn_id: str
    name: str
    arguments: Any
    message: str
    server_label: str
    digest: str
    rule: str | None
    form: bool


def session_ask(ask: Ask) -> SessionAsk:
    """Returns an open question. Its `arguments` are as the agent has told them: escape them where they are shown."""
    return {
        "request_id": ask.request_id,
        "turn_id": ask.turn,
        "name": ask.name,
        "arguments": ask.arguments,
        "message": escape(ask.message),
        "server_label": ask.server_label,
        "digest": ask.digest,
        "rule": None if ask.rule is None else ask.rule.sentence,
        "form": ask.is_form,
    }
