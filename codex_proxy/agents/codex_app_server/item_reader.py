"""Converts notifications about a thread's items to events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

import msgspec

from codex_proxy.agents.codex_app_server.own_tools import tool_use
from codex_proxy.agents.codex_app_server.wire import TEXT_DELTA, Message, Params
from codex_proxy.agents.dialect import Decision
from codex_proxy.agents.shared.conversions import MAX_DETAIL, cut_detail
from codex_proxy.agents.shared.json_lines import decode_loosely, decode_part, decode_read_part
from codex_proxy.core import items
from codex_proxy.core.events import (
    Event,
    FullReasoning,
    FullText,
    HistoryCompacted,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    ReasoningKind,
    RefusalDelta,
)
from codex_proxy.core.items import (
    ActionDetails,
    Activity,
    ActivityKind,
    FileDiff,
    SubagentAction,
    SubagentActionKind,
    ToolUse,
    plan_of,
)
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.limits import DELTA_SIZE
from codex_proxy.core.turn import Toolset

REFUSED = "The model refused to answer. The agent does not report the text of the refusal."


MAX_CHANGES = 1000
"""Maximum changed files that one activity tells."""
MAX_OUTPUT_CHARS = 8 << 20
"""Maximum characters of all running commands' outputs; Codex keeps 1 MiB of each."""


class ChangeKind(msgspec.Struct, frozen=True, gc=False):
    type: str = ""
    move_path: str | None = None


class FileChange(msgspec.Struct, frozen=True, gc=False):
    path: str = ""
    kind: ChangeKind = ChangeKind()
    diff: str = ""


class McpError(msgspec.Struct, frozen=True, gc=False):
    message: str = ""


class ThreadItem(msgspec.Struct, frozen=True, gc=False):
    type: str
    id: str = ""
    text: str | None = None
    phase: str | None = None
    """`commentary`, `final_answer`, or None."""
    summary: list[str] | None = None
    content: msgspec.Raw = msgspec.Raw()
    """The parts of raw reasoning, as a JSON list."""
    command: str | None = None
    changes: list[FileChange] | None = None
    server: str | None = None
    tool: str | None = None
    query: str | None = None
    path: str | None = None
    status: str | None = None
    output: str | None = msgspec.field(default=None, name="aggregatedOutput")
    cwd: str | None = None
    exit_code: int | None = msgspec.field(default=None, name="exitCode")
    duration_ms: int | None = msgspec.field(default=None, name="durationMs")
    arguments: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: McpError | None = None
    # Of subagents:
    prompt: str | None = None
    receivers: list[str] | None = msgspec.field(default=None, name="receiverThreadIds")
    model: str | None = None
    effort: str | None = msgspec.field(default=None, name="reasoningEffort")
    kind: str | None = None
    agent_thread: str | None = msgspec.field(default=None, name="agentThreadId")
    agent_path: str | None = msgspec.field(default=None, name="agentPath")


class UserItem(msgspec.Struct, frozen=True, gc=False):
    """A message of the user."""

    type: str = ""
    client_id: str | None = msgspec.field(default=None, name="clientId")
    """The id that the message was given with, if any."""


class _Item(msgspec.Struct, frozen=True, gc=False):
    """What can be read of an item that breaks off."""

    type: str = ""
    id: str = ""


class PlanStep(msgspec.Struct, frozen=True, gc=False):
    step: str = ""
    status: str = ""


def _files(item: ThreadItem) -> str:
    return ", ".join(change.path for change in item.changes or ())


SUBAGENT_CALL: Final = "collabAgentToolCall"
SUBAGENT_ACTIVITY: Final = "subAgentActivity"
ACTIONS: Final[Mapping[str, SubagentActionKind]] = {
    "spawnAgent": "create",
    "sendInput": "send",
    "resumeAgent": "resume",
    "wait": "wait",
    "closeAgent": "close",
    "started": "create",
    "interacted": "send",
    "interrupted": "interrupt",
}
"""By the tool of a `SUBAGENT_CALL`, or the kind of a `SUBAGENT_ACTIVITY`."""


def action_of(item: ThreadItem) -> SubagentAction | None:
    """Returns what an item says of subagents; None if it is about something else, or no call of the model."""
    if item.type == SUBAGENT_CALL:
        name, recipients = item.tool, tuple(item.receivers or ())
    elif item.type == SUBAGENT_ACTIVITY and item.agent_thread:
        name, recipients = item.kind, (item.agent_thread,)
    else:
        return None
    kind = ACTIONS.get(name or "")
    if kind is None:
        return None
    text = cut_detail(item.prompt or "")
    return SubagentAction(kind, "", recipients, text, item.model or None, item.effort)


def _action_line(item: ThreadItem) -> str:
    action = action_of(item)
    return "" if action is None else f"{action.kind} {item.agent_path or ''}".rstrip()


ACTIVITIES: Final[Mapping[str, tuple[ActivityKind, Callable[[ThreadItem], str]]]] = {
    "commandExecution": ("command", lambda item: item.command or ""),
    "fileChange": ("file_change", _files),
    "mcpToolCall": ("mcp_call", lambda item: f"{item.server or '?'}.{item.tool or '?'}"),
    "webSearch": ("web_search", lambda item: item.query or ""),
    "imageView": ("image", lambda item: item.path or ""),
    SUBAGENT_CALL: ("subagent", _action_line),
    SUBAGENT_ACTIVITY: ("subagent", _action_line),
}
DESCRIBED_AT_END = frozenset({"webSearch"})
"""Types of items that can be described only when completed."""

_STEP_MARKS = {"completed": "[x]", "inProgress": "[>]", "in_progress": "[>]"}


def activity_of(item: ThreadItem) -> Activity | None:
    known = ACTIVITIES.get(item.type)
    if known is None:
        return None
    kind, described = known
    if kind == "subagent" and action_of(item) is None:
        return None
    return Activity(item.id, kind, " ".join(described(item).split()), details=details_of(item))


def details_of(item: ThreadItem) -> ActionDetails | None:
    """Returns what an item says of a command, changed files, or a call of an MCP server; None for other items."""
    if item.type == COMMAND:
        return ActionDetails(
            command=cut_detail(item.command or ""),
            cwd=item.cwd,
            exit_code=item.exit_code,
            duration_ms=item.duration_ms,
        )
    if item.type == "fileChange":
        changes = (
            FileDiff(each.path, each.kind.type, cut_detail(each.diff), each.kind.move_path or "")
            for each in item.changes or ()
        )
        return ActionDetails(changes=tuple(islice(changes, MAX_CHANGES)))
    if (action := action_of(item)) is not None:
        return ActionDetails(subagent=action)
    if item.type != "mcpToolCall":
        return None
    return ActionDetails(
        server=item.server or "",
        tool=item.tool or "",
        arguments=_json_text(item.arguments),
        result=_json_text(item.result),
        error=None if item.error is None else cut_detail(item.error.message),
        duration_ms=item.duration_ms,
    )


def _json_text(json: msgspec.Raw) -> str:
    """Returns JSON of at most `MAX_DETAIL` bytes; empty for null, or for more."""
    text = bytes(json)
    return "" if text in (b"", b"null") or len(text) > MAX_DETAIL else text.decode("utf-8", "replace")


MESSAGE: Final = "agentMessage"
REASONING: Final = "reasoning"
COMMAND: Final = "commandExecution"
DECLINED: Final = "This call was declined and did not run."
"""What is told of a call that nobody has denied with words of their own."""
ITEMS_OF_DELTAS: Final = {MESSAGE: items.Message, REASONING: items.Reasoning}


class ItemReader:
    """Converts notifications about a thread's items to `events`, which the caller empties. An item is known by its id
    and type. A message with an unknown id is about the newest open item of its type: some releases name an item anew.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.open_items: dict[str, str] = {}
        """The types of open items by their ids in events, which are the agent's if these tell them apart."""
        self.seen_messages: set[str] = set()
        """Messages with a text or raw item; one without either is a refusal."""
        self._ended: dict[tuple[str, str], int] = {}
        """What the ended items have said (`_digest_of`), by type and id."""
        self._lines: dict[str, str] = {}
        """The lines of the turn's activities."""
        self._used: set[str] = set()
        """The ids that items have had in the turn."""
        self._nameless = 0
        self.toolset: Toolset | None = None
        """That of the turn."""
        self._uses: dict[str, ToolUse] = {}
        """The open calls of the toolset, by the ids of their items."""
        self._denials: dict[str, str] = {}
        """What the client has said of the calls that it denied, by the ids of their items."""
        self.ran_commands = False
        self._plans = 0
        self._outputs: dict[str, list[str]] = {}
        self._output_room = MAX_OUTPUT_CHARS

    def start_turn(self) -> None:
        self.open_items.clear()
        self.seen_messages.clear()
        self._ended.clear()
        self._used.clear()
        self._lines.clear()
        self._uses.clear()
        self._denials.clear()
        self._forget_outputs()
        self.ran_commands = False

    def note_decision(self, item_id: str, decision: Decision) -> None:
        """Keeps the words of a denial for the end of the item, which Codex tells without any."""
        if not decision.approve:
            self._denials[item_id] = decision.message

    def discard_for_retry(self) -> None:
        """Forgets the open items: Codex repeats its model call, and never completes them."""
        self.open_items.clear()

    def discard_text(self) -> None:
        """Forgets what the model was writing: Codex never completes it."""
        kept = {id: type for id, type in self.open_items.items() if type not in ITEMS_OF_DELTAS}
        self.open_items.clear()
        self.open_items.update(kept)

    def message_of(self, id: str | None) -> str:
        """Returns the id of the open message to which a delta with this item id belongs, and opens one if there is
        none. Empty for a delta of a message that has ended.
        """
        return self._item_of_delta(id or "", MESSAGE)

    def _item_of_delta(self, id: str, type: str) -> str:
        if self._has_ended(type, id):
            return ""
        found = self._find_open(id, type)
        if found or not id or id in self._used:
            return found or self._start(ITEMS_OF_DELTAS[type](self._free_id(id, type)), type)
        self._used.add(id)
        self.open_items[id] = type  # the delta implies its beginning
        return id

    def _has_ended(self, type: str, id: str) -> bool:
        return bool(id) and (type, id) in self._ended and self.open_items.get(id) != type

    def _find_open(self, id: str, type: str, line: str | None = None) -> str:
        """Returns the open item with this id, else the newest of this type, and with this line if it is an activity;
        empty if there is none.
        """
        if self.open_items.get(id) == type:
            return id
        for each in reversed(self.open_items):
            if self.open_items[each] == type and line in (None, self._lines.get(each)):
                return each
        return ""

    def loses_text(self, message: Message) -> bool:
        """Whether a message that cannot be read has text of the answer that has come nowhere else."""
        if message.method == "item/completed":
            item = decode_loosely(message.params.item, _Item)
            return item is None or (item.type in ("", MESSAGE) and item.id not in self.seen_messages)
        return message.method == TEXT_DELTA and message.error is not None

    def add_refusals(self) -> None:
        """Adds a fixed refusal to open messages without text or raw item: Codex does not pass on the model's text."""
        self.events += [
            RefusalDelta(id, REFUSED)
            for id, kind in self.open_items.items()
            if kind == MESSAGE and id not in self.seen_messages
        ]

    def flush_outputs(self) -> None:
        self.events += [OutputDelta(id, "".join(pieces)) for id, pieces in self._outputs.items()]
        self._forget_outputs()

    def _forget_outputs(self) -> None:
        self._outputs.clear()
        self._output_room = MAX_OUTPUT_CHARS

    def on_item_started(self, params: Params) -> None:
        """Adds an item's beginning, or tells that Codex has shortened the history."""
        item = _item_of(params)
        if item.type == "contextCompaction":
            self.events.append(HistoryCompacted())
        elif self.open_items.get(item.id) != item.type and item.type not in DESCRIBED_AT_END:
            self._begin(item)

    def _begin(self, item: ThreadItem) -> str:
        """Begins an item. Returns its id; empty for a type that no event has."""
        if item.type == MESSAGE:
            return self._start(items.Message(self._free_id(item.id, MESSAGE), phase=item.phase), MESSAGE)
        if item.type == REASONING:
            return self._start(items.Reasoning(self._free_id(item.id, REASONING)), REASONING)
        activity = activity_of(item)
        if activity is None:
            return ""
        self.ran_commands |= activity.kind == "command"
        activity = msgspec.structs.replace(activity, id=self._free_id(item.id, item.type))
        use = tool_use(activity.kind, activity.text, activity.details, self.toolset)
        if use is not None:
            self._uses[activity.id] = use
            activity = msgspec.structs.replace(activity, details=_with_use(activity.details, use))
        id = self._start(activity, item.type)
        self._lines[id] = activity.text
        return id

    def _free_id(self, id: str, type: str) -> str:
        """Returns the agent's id of an item; a new one if that is missing or another open item has it."""
        if id and id not in self.open_items:
            return id
        self._nameless += 1
        return f"{id or type}~{self._nameless}"

    def _start(self, item: items.Item, type: str) -> str:
        self._used.add(item.id)
        self.open_items[item.id] = type
        self.events.append(ItemStarted(item))
        return item.id

    def on_item_completed(self, params: Params) -> None:
        """Adds an item's text or output, its end, and a missing beginning. Ignores an end that comes again."""
        item = _item_of(params)
        digest, has_ended, activity = _digest_of(item), self._has_ended(item.type, item.id), activity_of(item)
        if has_ended and self._ended[item.type, item.id] == digest:
            return
        line = None if activity is None else activity.text
        id = ("" if has_ended else self._find_open(item.id, item.type, line)) or self._begin(item)
        if not id:
            return
        if item.type == MESSAGE:
            if item.text:
                self.seen_messages.add(id)
                self.events.append(FullText(id, item.text))
        elif item.type == REASONING:
            for part, text in enumerate(item.summary or ()):
                self.events.append(FullReasoning(id, text, part))
            for part, text in enumerate(_texts(item.content)):
                self.events.append(FullReasoning(id, text, part, "raw"))
        else:
            pieces = self._outputs.pop(id, ())
            self._output_room += sum(map(len, pieces)) + DELTA_SIZE * len(pieces)
            if output := "".join(pieces) if item.output is None else item.output:
                self.events.append(OutputDelta(id, output))
        failed, details = item.status in ("failed", "declined"), details_of(item)
        use = self._uses.pop(id, None)
        if details is not None and use is not None:
            details = _with_use(details, use)
        if details is not None and item.status == "declined":
            details = msgspec.structs.replace(details, error=self._denials.pop(item.id, "") or DECLINED)
        self.events.append(ItemEnded(id, "failed" if failed else "completed", details))
        self.open_items.pop(id)
        self._lines.pop(id, None)
        self._ended[item.type, item.id] = digest

    def on_summary_delta(self, params: Params) -> None:
        self._add_reasoning(params, params.summary_index, "summary")

    def on_raw_delta(self, params: Params) -> None:
        self._add_reasoning(params, params.content_index, "raw")

    def _add_reasoning(self, params: Params, part: int, kind: ReasoningKind) -> None:
        if params.delta and (id := self._item_of_delta(params.item_id or "", REASONING)):
            self.events.append(ReasoningDelta(id, params.delta, part, kind))

    def on_output_delta(self, params: Params) -> None:
        # Kept back: the first part of an output, often all of it, comes only with the end of the command.
        id = self._find_open(params.item_id or "", COMMAND)
        if id and params.delta:
            size = len(params.delta) + DELTA_SIZE
            if size <= self._output_room:
                self._output_room -= size
                self._outputs.setdefault(id, []).append(params.delta)

    def plan_updated(self, params: Params) -> None:
        self._plans += 1
        steps = decode_part(params.plan, list[PlanStep])
        text = "; ".join(f"{_STEP_MARKS.get(each.status, '[ ]')} {each.step}" for each in steps)
        details = ActionDetails(plan=plan_of((each.step, each.status) for each in steps))
        plan = Activity(f"plan_{self._plans}", "plan", text, details=details)
        self.events += [ItemStarted(plan), ItemEnded(plan.id)]


def _with_use(details: ActionDetails | None, use: ToolUse) -> ActionDetails:
    return msgspec.structs.replace(details or ActionDetails(), use=use)


def _item_of(params: Params) -> ThreadItem:
    """Returns the item, without fields of an unexpected type. Raises `UnreadableError`."""
    return decode_read_part(params.item, ThreadItem, loosely=True)


def _digest_of(item: ThreadItem) -> int:
    """Returns a number that is the same for the same text, reasoning or activity."""
    return hash((item.text, *(item.summary or ()), bytes(item.content), item.command, item.output))


def _texts(content: msgspec.Raw) -> list[str]:
    try:
        return msgspec.json.decode(content, type=list[str]) if content else []
    except UNREADABLE:
        return []


NOTIFICATIONS: dict[str, Callable[[ItemReader, Params], None]] = {
    "item/started": ItemReader.on_item_started,
    "item/completed": ItemReader.on_item_completed,
    "item/reasoning/summaryTextDelta": ItemReader.on_summary_delta,
    "item/reasoning/textDelta": ItemReader.on_raw_delta,
    "item/commandExecution/outputDelta": ItemReader.on_output_delta,
    "turn/plan/updated": ItemReader.plan_updated,
}
"""Handlers by method, without the frequent `item/agentMessage/delta`."""
