"""The subagents of a thread of Codex: each is a thread of its own on the same process, the *child*, whose messages come
under its own id. Codex tells its model's calls about children in one of two forms, by the model: `collabAgentToolCall`,
and `subAgentActivity` for models with encrypted messages between agents, whose texts nobody else can read.

A child works beside its parent, also while that waits for its client. So its events are passed on item by item, whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from codex_proxy.agents.codex_app_server import item_reader
from codex_proxy.agents.codex_app_server.item_reader import (
    SUBAGENT_ACTIVITY,
    SUBAGENT_CALL,
    ItemReader,
    ThreadItem,
    action_of,
)
from codex_proxy.agents.codex_app_server.questions import QUESTIONS, decision_answer
from codex_proxy.agents.codex_app_server.wire import (
    TEXT_DELTA,
    Message,
    Params,
    RawItemCall,
    RawItemHead,
    TurnPayload,
    decode_usage,
    output_answer,
    refusal,
    turn_end,
)
from codex_proxy.agents.dialect import Decision, HeldSize, ToolReply
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    StepCompleted,
    Stop,
    SubagentClosed,
    SubagentOpened,
    TaskGiven,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.items import ActionDetails, Activity, SubagentAction, TextPart
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.limits import ITEM_SIZE

ITEM_METHODS: Final = frozenset({"item/started", "item/completed"})
_ABOUT_CHILDREN: Final = (SUBAGENT_CALL.encode(), SUBAGENT_ACTIVITY.encode())
_TYPE_FIRST: Final = re.compile(rb'\s*\{\s*"type"\s*:\s*"([A-Za-z]*)"')
"""Matches the beginning of an item whose type stands first."""
MAX_EARLY: Final = 1000
"""Maximum messages of a thread before it is named as a child."""
ROOT_PATH: Final = "/root"
PAYLOAD: Final = "Payload:\n"
"""What stands before the text of a message between agents."""
NOT_OFFERED: Final = ToolReply(
    (TextPart("Only the main agent can call this tool. Tell it what you need."),), success=False
)
STARTS_TURN: Final = "followup_task"
"""The call that gives an idle child a task. `send_message` is told in the same way, and leaves it idle."""


def children_named(message: Message) -> tuple[str, ...]:
    """Returns the threads of the children that an item's message names; none for other items."""
    if not _may_name_children(message.params.item):
        return ()
    try:
        action = action_of(_item_of(message.params))
    except UnreadableError:
        return ()
    return () if action is None else action.recipients


def _may_name_children(item: msgspec.Raw) -> bool:
    """Whether an item may be about children. Most tell their type first, so that megabytes are neither copied nor
    searched.
    """
    first = _TYPE_FIRST.match(item)
    if first is not None:
        return first[1] in _ABOUT_CHILDREN
    whole = bytes(item)
    return any(type in whole for type in _ABOUT_CHILDREN)


def _item_of(params: Params) -> ThreadItem:
    return decode_part(params.item, ThreadItem, loosely=True)


class _Part(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""


class _UserItem(msgspec.Struct, frozen=True):
    type: str = ""
    content: list[_Part] = []


class _AgentMessage(msgspec.Struct, frozen=True):
    """A message between agents, as a raw item."""

    id: str = ""
    author: str = ""
    recipient: str = ""
    content: list[_Part] = []

    @property
    def text(self) -> str:
        """The text behind the words about the message; empty if it is encrypted."""
        if any(part.type != "input_text" for part in self.content):
            return ""
        whole = "".join(part.text for part in self.content)
        return whole.partition(PAYLOAD)[2] if PAYLOAD in whole else whole


class _Named(msgspec.Struct, frozen=True):
    """The output of the call that makes a child."""

    agent_id: str = ""
    nickname: str | None = None


class _Output(msgspec.Struct, frozen=True):
    output: str = ""


class Child:
    """One child. `working`: it has a turn, or was given what begins one. `open`: the client was told that it is there.
    `loaded`: its thread is.
    """

    def __init__(self, thread: str, add: Callable[[Event], None], path: str = "") -> None:
        self.thread = thread
        self.path = path
        self.turn_id: str | None = None
        self.ended_turn: str | None = None
        """The last turn, of which messages may still arrive."""
        self.working = False
        self.running: str | None = None
        """The turn on which Codex may still work, also when the client was told that it has ended. Empty: its id is not
        known.
        """
        self.open = self.loaded = True
        self.ran_commands = False
        self._add = add
        self._reader = ItemReader()
        self._told = False
        """Whether the message that begins the turn has been told."""

    @property
    def name(self) -> str:
        """The name by which the model has called it; empty if Codex gives it one."""
        return self.path.rpartition("/")[2]

    def begin(self, text: str = "", turn_id: str | None = None) -> None:
        """Begins a turn, which `text` asks for if it is known, unless one has begun."""
        self.turn_id = turn_id or self.turn_id
        self.running = turn_id or self.running or ""
        if self.working:
            return
        self.working, self.turn_id, self._told = True, turn_id, bool(text)
        self._reader.start_turn()
        self._pass_on(TurnStarted(self.thread))
        if text:
            self._pass_on(TaskGiven(text))

    def receive(self, message: Message) -> None:
        """Takes a notification. Raises `UnreadableError`."""
        params, method = message.params, message.method or ""
        if method == "turn/completed":
            self._on_turn_completed(params)
        elif method == "turn/started":
            self.begin(turn_id=decode_part(params.turn, TurnPayload).id)
        elif method == "thread/closed":
            self.end(Stop.INTERRUPTED)
            self.loaded = False
        elif params.turn_id not in (None, self.ended_turn) and method.startswith(("item/", "rawResponse/")):
            if not self.working or self.turn_id is None:
                self.begin(turn_id=params.turn_id)
            if params.turn_id == self.turn_id:
                self._on_work(method, params)
        elif method == "error" and params.will_retry:
            self._reader.discard_for_retry()
            self._reader.events.clear()

    def _on_work(self, method: str, params: Params) -> None:
        if method == "rawResponse/completed":
            self._pass_on(StepCompleted(decode_usage(params.usage)))
            return
        if method == "item/completed":
            self._note_message(params)
        handler = item_reader.NOTIFICATIONS.get(method)
        if handler is not None:
            handler(self._reader, params)
        elif method == TEXT_DELTA and params.delta and (id := self._reader.message_of(params.item_id)):
            self._reader.seen_messages.add(id)
            self._reader.events.append(TextDelta(id, params.delta))
        if not self._reader.open_items:
            self._flush()

    def _note_message(self, params: Params) -> None:
        item = decode_part(params.item, _UserItem, loosely=True)
        if item.type != "userMessage":
            return
        told, self._told = self._told, False
        text = "".join(part.text for part in item.content)
        if text and not told:
            self._flush()
            self._pass_on(TaskGiven(text))

    def _on_turn_completed(self, params: Params) -> None:
        state = decode_part(params.turn, TurnPayload)
        if self.running in ("", state.id):
            self.running = None
        if self.working and self.turn_id in (None, state.id):
            self.ran_commands = self._reader.ran_commands
            self._end(turn_end(state))

    def end(self, stop: Stop) -> None:
        """Ends the turn, if one goes on."""
        if self.working:
            self._end(TurnEnded(stop))

    def _end(self, ended: TurnEnded) -> None:
        self._reader.flush_outputs()
        self._flush()
        self._pass_on(ended)
        self.working, self.turn_id, self.ended_turn = False, None, self.turn_id

    def _flush(self) -> None:
        for event in self._reader.events:
            self._pass_on(event)
        self._reader.events.clear()

    def _pass_on(self, event: Event) -> None:
        self._add(OfSubagent(self.thread, event))


class Children:
    """The children of a thread, by their own threads. `threads` is empty unless the turn may have any."""

    def __init__(self) -> None:
        self.threads: dict[str, Child] = {}
        self._events: list[Event] = []
        self._held = HeldSize("what its subagents did while it waited for outputs")
        self._calls: dict[str, str] = {}
        """The names of the model's calls, by their ids."""
        self._unexplained: dict[str, Child] = {}
        """The children to whom calls were told whose names are not known, by the ids of these."""
        self._early: dict[str, list[Message]] = {}
        """Messages that came before it was told that their threads are children."""
        self._unnamed: dict[str, list[Event]] = {}
        """Events of children whose names are about to be told, by their threads."""

    @property
    def working(self) -> bool:
        return any(child.working for child in self.threads.values())

    @property
    def open(self) -> tuple[str, ...]:
        return tuple(child.thread for child in self.threads.values() if child.open)

    def take(self) -> list[Event]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        self._held.clear()
        return events

    def _add(self, event: Event) -> None:
        if isinstance(event, OfSubagent) and event.id in self._unnamed:
            self._unnamed[event.id].append(event)
            return
        self._held.add(ITEM_SIZE + len(getattr(getattr(event, "event", event), "text", "")))
        self._events.append(event)

    # --- what the root does -----------------------------------------------------------------------

    def on_item(self, params: Params, *, ended: bool) -> None:
        """Takes an item of the root about children, when it begins and ends."""
        item = _item_of(params)
        action = action_of(item)
        if action is None or item.status == "failed":
            return
        # An activity's end repeats its beginning, behind which the child may have worked already.
        if ended is (item.type == SUBAGENT_ACTIVITY):
            return
        for thread in action.recipients:
            if action.kind == "create":
                self._open(thread, item, action)
            elif action.kind == "resume":
                self._reopen(thread, item)
            elif action.kind == "send":
                self._on_sent(thread, item, action)
            elif action.kind == "close" and thread in self.threads:
                self.threads[thread].loaded = False
                self._close(self.threads[thread])

    def _open(self, thread: str, item: ThreadItem, action: SubagentAction) -> None:
        if thread in self.threads:
            return
        child = self.threads[thread] = Child(thread, self._add, item.agent_path or "")
        opened = SubagentOpened(thread, name=child.name, task=action.text)
        if opened.name:
            self._add(opened)
        else:
            self._unnamed[thread] = [opened]
        child.begin(action.text)
        self._replay(child)

    def _replay(self, child: Child) -> None:
        for message in self._early.pop(child.thread, ()):
            self.receive(child, message)

    def _reopen(self, thread: str, item: ThreadItem) -> Child:
        """Opens a child again that was closed: by Codex itself where it is given a task."""
        child = self.threads.get(thread)
        if child is None or not child.open:
            child = child or Child(thread, self._add, item.agent_path or "")
            child.open = child.loaded = True
            self.threads[thread] = child
            self._add(SubagentOpened(thread, name=child.name))
            self._replay(child)
        return child

    def _on_sent(self, thread: str, item: ThreadItem, action: SubagentAction) -> None:
        child = self._reopen(thread, item)
        if item.type == SUBAGENT_ACTIVITY and item.id not in self._calls:
            self._unexplained[item.id] = child
        elif item.type != SUBAGENT_ACTIVITY or self._calls[item.id] == STARTS_TURN:
            child.begin(action.text)

    def _close(self, child: Child) -> None:
        if child.open:
            self._name(child.thread)
            child.end(Stop.INTERRUPTED)
            child.open = False
            self._add(SubagentClosed(child.thread))

    def on_raw_item(self, head: RawItemHead, item: bytes) -> None:
        """Takes a raw item of the root: names of children, and their messages to it."""
        if head.type == "function_call":
            call = decode_part(item, RawItemCall)
            self._calls[call.call_id] = call.name
            child = self._unexplained.pop(call.call_id, None)
            if child is not None and call.name == STARTS_TURN:
                child.begin()
        elif head.type == "function_call_output" and self._unnamed:
            self._on_output(item)
        elif head.type == "agent_message":
            self._on_message(decode_part(item, _AgentMessage, loosely=True))

    def _on_output(self, item: bytes) -> None:
        try:
            named = msgspec.json.decode(decode_part(item, _Output).output, type=_Named)
        except (UnreadableError, *UNREADABLE):
            return
        if named.agent_id in self._unnamed:
            self._name(named.agent_id, named.nickname or "")

    def _name(self, thread: str, name: str = "") -> None:
        """Tells of a child, now that its name is known, or will not be."""
        for event in self._unnamed.pop(thread, ()):
            self._add(
                msgspec.structs.replace(event, name=name) if isinstance(event, SubagentOpened) else event
            )

    def _name_all(self) -> None:
        for thread in list(self._unnamed):
            self._name(thread)

    def _on_message(self, message: _AgentMessage) -> None:
        sender = next((child.thread for child in self.threads.values() if child.path == message.author), None)
        if message.recipient == ROOT_PATH and sender is not None and message.text:
            details = ActionDetails(subagent=SubagentAction("message", sender, text=message.text))
            id = message.id or f"message of {sender}"
            self._add(ItemStarted(Activity(id, "subagent", "message", details=details)))
            self._add(ItemEnded(id))

    # --- what the children do ---------------------------------------------------------------------

    def receive_early(self, message: Message) -> bytes:
        """Takes a message of a thread that no item has named as a child yet. Returns what to write."""
        if message.id is not None:
            return _refused(message, message.id)
        early = self._early.setdefault(message.params.thread_id or "", [])
        if len(early) < MAX_EARLY:
            early.append(message)
        return b""

    def receive(self, child: Child, message: Message) -> bytes:
        """Takes a message of a child. Returns what to write: what a child asks for is declined, because nobody could
        be asked at any time. Raises `TooMuchHeld`.
        """
        if message.id is not None:
            return _refused(message, message.id)
        try:
            child.receive(message)
        except UnreadableError:
            if message.method == "turn/completed":
                child.end(Stop.INTERRUPTED)
        if not child.working:
            self._name(child.thread)
        return b""

    def end(self, *, closes: bool) -> list[Event]:
        """Returns the last events of a turn of the root that ends. `closes`: its thread is let go, and they with it."""
        self._name_all()
        if closes:
            for child in self.threads.values():
                self._close(child)
        self._calls.clear()
        self._early.clear()
        self._unexplained.clear()
        return self.take()

    def stop(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the requests that end the children: a child outlives its parent's turn and thread."""
        for child in self.threads.values():
            if child.running is not None:  # for Codex the empty id is the one that runs
                yield "turn/interrupt", {"threadId": child.thread, "turnId": child.running}
            if child.ran_commands or child.running is not None:
                yield "thread/backgroundTerminals/clean", {"threadId": child.thread}
            if child.loaded:
                yield "thread/unsubscribe", {"threadId": child.thread}


def _refused(message: Message, id: int | str) -> bytes:
    if message.method == "item/tool/call":
        return output_answer(id, NOT_OFFERED)
    if message.method in QUESTIONS:
        return decision_answer(id, f"{message.method}:{id}", Decision())
    return refusal(id)
