"""The calls of tools. Those of the client are tools of an MCP server, with the prefix `mcp__<server>__`; Claude Code
replaces unusual characters, so a name with one is replaced by a generated name. The program, or its provider, may share
an id between calls, give it again, name a call anew, or leave its id out; the client gets each id once. Claude Code's
own calls are activities; its requests for permission are decided without regard to text of the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialect import MAX_UNANSWERED, TooMuchHeld
from codex_proxy.agents.shared.conversions import (
    WHOLE_OUTPUTS,
    custom_input,
    cut_detail,
    marked_lines,
    mcp_tool,
)
from codex_proxy.agents.shared.tool_schemas import plain_parameters
from codex_proxy.core.events import ApprovalKind, ApprovalRequested, ToolCallRequested
from codex_proxy.core.items import ActionDetails, Activity, ActivityKind, FileDiff, PlanStep, Tool, plan_of
from codex_proxy.core.json_values import UNREADABLE, canonical_json, encode_json, objects_in, text_at
from codex_proxy.core.shown_text import one_line
from codex_proxy.core.tool_names import generated_name
from codex_proxy.core.turn import Turn
from codex_proxy.parts.claude_code.messages import CLIENT_SERVER, ControlRequest
from codex_proxy.parts.claude_code.own_tools import WITHIN_SANDBOX, with_use

MODEL_PREFIX: Final = f"mcp__{CLIENT_SERVER}__"
MAX_CHARS: Final = 128 - len(MODEL_PREFIX)
"""Maximum characters of a name: the provider accepts 128 with the prefix."""
_VALID: Final = re.compile(r"[A-Za-z0-9_-]+")
_GENERATED_NAME: Final = re.compile(r"client_.*_[0-9a-f]{16}", re.DOTALL)


def agent_name(name: str) -> str:
    """Returns the tool's own name if Claude Code keeps it, else a generated one."""
    if _VALID.fullmatch(name) and len(name) <= MAX_CHARS and not _GENERATED_NAME.fullmatch(name):
        return name
    return generated_name(name, "client_", kept=MAX_CHARS - 24, digits=16)


def model_name(name: str) -> str:
    return MODEL_PREFIX + agent_name(name)


def tool_entry(tool: Tool) -> dict[str, Any]:
    meta = {"anthropic/alwaysLoad": True, **WHOLE_OUTPUTS}
    return mcp_tool(agent_name(tool.name), tool, plain_parameters(tool), meta)


def call_input(arguments: str, kind: str) -> dict[str, Any]:
    """Returns the `input` of a `tool_use` block. Arguments that are no JSON object become its field `arguments`, a
    custom tool's `input`.
    """
    if kind == "custom":
        return {"input": arguments}
    try:
        value = msgspec.json.decode(arguments) if arguments.strip() else {}
    except UNREADABLE:
        return {"arguments": arguments}
    return value if isinstance(value, dict) else {"arguments": value}


class Call(msgspec.Struct, eq=False):
    """A call of a client's tool: its arguments in pieces (`parts`), and from a complete message (`whole`)."""

    id: str
    """What the client gets."""
    tool: Tool
    parts: list[str] = []
    whole: str = ""
    is_requested: bool = False
    """Whether the program has requested the output."""
    compared: tuple[int, str, str] = (0, "", "")
    """The number of parts and `whole` that `canonical` was made of, and the result."""

    @property
    def arguments(self) -> str:
        text = "".join(self.parts) or self.whole
        return text if text.strip() else "{}"

    @property
    def canonical(self) -> str:
        made_of = (len(self.parts), self.whole)
        if self.compared[:2] != made_of or not self.compared[2]:
            self.compared = (*made_of, canonical_json(self.arguments))
        return self.compared[2]

    def request(self) -> ToolCallRequested:
        text = self.arguments
        if self.tool.kind == "custom":
            text = custom_input(text)
        return ToolCallRequested(self.id, self.id, self.tool.name, text, self.id, self.tool.kind)


class Calls:
    """The calls of a turn. The program's ids are empty where they are missing."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}
        """The ids that the conversation has, each with the number in the last one that was made from it."""
        self._unasked: dict[str, Call] = {}
        """The step's calls of which the client was not asked yet, by `Call.id`."""
        self._step: list[Call] = []
        self._named: dict[str, list[Call]] = {}
        """The step's calls by the program's ids."""
        self._apart: dict[str, Call] = {}
        """The calls that were in no step (a sub-agent's), the newest of each of the program's ids."""
        self._of_sub_agents: set[str] = set()
        """The program's ids of calls that a sub-agent has made, and whose outputs were not requested yet."""

    def start_turn(self, given: Iterable[str]) -> None:
        """Begins a turn, and forgets the calls of the one before. `given`: the ids of the calls in the conversation."""
        self.start_step()
        self._given = dict.fromkeys(given, 1)
        self._apart.clear()
        self._of_sub_agents.clear()

    def start_step(self) -> None:
        """Forgets the calls of the step before. Those of which the client was not asked are repeated."""
        for id in self._unasked:
            self._given.pop(id, None)
        self._unasked.clear()
        self._step.clear()
        self._named.clear()

    def begin(self, id: str, tool: Tool, otherwise: str) -> Call:
        """Adds a call of the step. `otherwise`: its id if the program gives none. Raises `TooMuchHeld`."""
        call = Call(self._unused(id or otherwise), tool)
        self._unasked[call.id] = call
        self._step.append(call)
        self._add_name(id, call)
        if len(self._step) > MAX_UNANSWERED:
            raise TooMuchHeld(f"it called more than {MAX_UNANSWERED} tools at once")
        return call

    def begin_apart(self, id: str, tool: Tool, arguments: str, waits: Callable[[str], bool]) -> Call:
        """Adds a call that was in no step. `waits`: whether the call with this `Call.id` is still unanswered."""
        self._apart = {name: call for name, call in self._apart.items() if waits(call.id)}
        call = self._apart[id] = Call(self._unused(id), tool, [arguments], is_requested=True)
        return call

    def note_sub_agent(self, id: str) -> None:
        """Notes that a sub-agent has made a call with this id, which is none of the step."""
        if len(self._of_sub_agents) < MAX_UNANSWERED:
            self._of_sub_agents.add(id)

    def take_unasked(self) -> list[Call]:
        calls = list(self._unasked.values())
        self._unasked.clear()
        return calls

    def find_own_ids(self, id: str) -> list[str]:
        """Returns the calls that the program may mean by an id, by `Call.id`."""
        apart = self._apart.get(id)
        return [call.id for call in self._named.get(id, ())] + ([] if apart is None else [apart.id])

    def find_complete(self, id: str, tool: Tool, arguments: str, open: Iterable[Call]) -> Call | None:
        """Returns the call of the step that a complete message has; None for another one. `open`: those whose blocks
        are open.
        """
        canonical = canonical_json(arguments)
        for call in self._candidates(id, open):
            if call.tool is tool and not call.whole and (not call.parts or call.canonical == canonical):
                return call
        # The arguments as other text, or the same line again.
        named = [call for call in self._named.get(id, ()) if call.tool is tool]
        return next((call for call in named if not call.whole or call.canonical == canonical), None)

    def _candidates(self, id: str, open: Iterable[Call]) -> Iterator[Call]:
        yield from open
        yield from self._named.get(id, ())
        yield from self._step

    def find_requested(
        self, id: str, tool: Tool, arguments: str, waits: Callable[[str], bool]
    ) -> Call | None:
        """Returns the call whose output the program requests; None for one of which the client was not asked. `waits`:
        see `begin_apart`.
        """
        canonical = canonical_json(arguments)
        named = [call for call in self._named.get(id, ()) if call.tool is tool]
        fresh = [call for call in named if not call.is_requested]
        found = _first_with(canonical, fresh)
        if found is None and id not in self._of_sub_agents:
            found = next(iter(fresh), None)
            if found is None and (not id or id not in self._named):  # named anew
                free = (call for call in self._step if call.tool is tool and not call.is_requested)
                found = _first_with(canonical, free)
                if found is not None:
                    self._add_name(id, found)
        if found is None:  # the same request again
            apart = self._apart.get(id)
            again = [*named, *([apart] if apart is not None and apart.tool is tool else [])]
            waiting = (call for call in again if waits(call.id) or call.id in self._unasked)
            found = _first_with(canonical, waiting)
        self._of_sub_agents.discard(id)
        if found is not None:
            found.is_requested = True
        return found

    def _add_name(self, id: str, call: Call) -> None:
        if id:
            self._named.setdefault(id, []).append(call)

    def _unused(self, id: str) -> str:
        own = id
        while own in self._given:
            self._given[id] += 1
            own = f"{id}_{self._given[id]}"
        self._given[own] = 1
        return own


def _first_with(canonical: str, calls: Iterable[Call]) -> Call | None:
    return next((call for call in calls if call.canonical == canonical), None)


KINDS: Final[dict[str, ActivityKind]] = {
    "Bash": "command",
    "BashOutput": "command",
    "KillShell": "command",
    "Monitor": "command",
    "PowerShell": "command",
    "Edit": "file_change",
    "MultiEdit": "file_change",
    "NotebookEdit": "file_change",
    "Write": "file_change",
    "WebFetch": "web_search",
    "WebSearch": "web_search",
    "TodoWrite": "plan",
    "TaskCreate": "plan",
    "TaskUpdate": "plan",
    "ExitPlanMode": "plan",
    "AskUserQuestion": "question",
}


PERMISSIONS: Final[Mapping[ActivityKind, ApprovalKind]] = {
    "command": "command",
    "file_change": "file_change",
    "mcp_call": "mcp",
}
DESCRIBING: Final = (
    "command", "file_path", "notebook_path", "url", "query", "pattern", "path", "subject", "description",
)  # fmt: skip
"""The arguments that may describe a call; the first text among them is shown."""


def kind_of(tool: str) -> ActivityKind:
    return "mcp_call" if tool.startswith("mcp__") else KINDS.get(tool, "other")


def activity(id: str, tool: str, input: msgspec.Raw | None) -> Activity:
    """Returns the item for a call of one of the agent's own tools. `input`: its arguments as JSON, if known."""
    kind = kind_of(tool)
    said = _text(input)
    details = _details(kind, tool, said, input)
    if kind in ("command", "file_change", "web_search") and said:
        return Activity(id, kind, said, details=details)
    return Activity(id, kind, f"{tool} {said}".strip(), details=details)


def _plan(input: msgspec.Raw | None) -> tuple[PlanStep, ...]:
    """Returns the plan of a call of `TodoWrite`; empty for other arguments."""
    try:
        given = msgspec.json.decode(input or b"{}")
    except UNREADABLE:
        return ()
    todos = objects_in(given.get("todos")) if isinstance(given, dict) else []
    return plan_of((text_at(each, "content"), text_at(each, "status")) for each in todos)


def _details(kind: ActivityKind, tool: str, said: str, input: msgspec.Raw | None) -> ActionDetails | None:
    if kind == "command":
        return ActionDetails(command=said)
    if kind == "file_change":
        return ActionDetails(changes=(_change(input) or FileDiff(said),))
    if kind == "plan":
        plan = _plan(input)
        return ActionDetails(plan=plan) if plan else None
    if kind != "mcp_call":
        return None
    server, _, name = tool.removeprefix("mcp__").partition("__")
    return ActionDetails(server=server, tool=name, arguments=bytes(input or b"").decode("utf-8", "replace"))


def permission_of(tool: str) -> ApprovalKind:
    return PERMISSIONS.get(kind_of(tool), "permission")


UNCONFINED: Final = "No sandbox confines what Claude Code does."
"""Why a permission reaches beyond the turn's sandbox. Where a call has paths, these tell it."""


def question_event(request_id: str, request: ControlRequest, turn: Turn) -> ApprovalRequested:
    """Returns the event of a request for permission."""
    tool, input = request.tool_name, request.input or msgspec.Raw(b"{}")
    kind, details = permission_of(tool), asked_details(tool, input, turn.workdir)
    if details is not None:
        details = with_use(details, tool, input, turn.toolset)
    within = turn.sandbox == "danger-full-access" or kind == "file_change"
    if details is not None and details.use is not None:
        within = within or details.use.name in WITHIN_SANDBOX
    return ApprovalRequested(
        request_id,
        kind,
        activity("", tool, request.input).text,
        details,
        request.description,
        "" if within else UNCONFINED,
        item_id=request.tool_use_id or "",
        subagent=request.agent_id if turn.subagents else "",
    )


def asked_details(tool: str, input: msgspec.Raw, cwd: str) -> ActionDetails | None:
    """Returns in full what a permission for one of the agent's own tools is asked for; None if the arguments do not
    tell.
    """
    kind = kind_of(tool)
    try:
        given = msgspec.json.decode(input, type=dict[str, Any])
    except UNREADABLE:
        return None
    if kind == "command":
        command = given.get("command")
        return ActionDetails(command=command, cwd=cwd) if isinstance(command, str) and command else None
    if kind == "file_change":
        path, change = _path_and_change(given)
        diff = _diff(change)
        if diff is None:  # it is asked for as it is
            diff = encode_json(change).decode()
        return ActionDetails(changes=(FileDiff(path, diff=diff),)) if path else None
    if kind == "mcp_call":
        return _details(kind, tool, "", input)
    return None if kind == "question" else ActionDetails(tool=tool, arguments=bytes(input).decode())


def _change(input: msgspec.Raw | None) -> FileDiff | None:
    """Returns the file that a call changes, and how, if these are lines; None if the arguments do not tell it."""
    try:
        path, change = _path_and_change(msgspec.json.decode(input or b"{}", type=dict[str, Any]))
    except UNREADABLE:
        return None
    return FileDiff(path, diff=cut_detail(_diff(change) or "")) if path else None


def _path_and_change(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the file that a call changes, empty if it is not told, and the other arguments."""
    path = given.pop("file_path", None) or given.pop("notebook_path", None)
    return path if isinstance(path, str) else "", given


def _diff(change: dict[str, Any]) -> str | None:
    """Returns the other arguments of a tool that changes a file as removed and added lines; None if they are not
    texts.
    """
    if change.keys() == {"content"} and isinstance(change["content"], str):
        return marked_lines("+", change["content"])
    old, new = change.get("old_string"), change.get("new_string")
    if (
        change.keys() <= {"old_string", "new_string", "replace_all"}
        and isinstance(old, str)
        and isinstance(new, str)
    ):
        every = "every occurrence:\n" if change.get("replace_all") else ""
        return f"{every}{marked_lines('-', old)}{marked_lines('+', new)}"
    return None


class _Block(msgspec.Struct, frozen=True):
    text: str | None = None


def output_text(content: msgspec.Raw) -> str:
    """Returns a tool's output, which is a text or a list of blocks; empty for other JSON."""
    try:
        value = msgspec.json.decode(content, type=str | list[_Block]) if content else ""
    except UNREADABLE:
        return ""
    if isinstance(value, str):
        return value
    return "\n".join(block.text for block in value if block.text is not None)


def _text(input: msgspec.Raw | None) -> str:
    if not input:
        return ""
    try:
        value = msgspec.json.decode(input)
    except UNREADABLE:
        return ""
    return one_line(next((text for name in DESCRIBING if (text := text_at(value, name))), ""))
