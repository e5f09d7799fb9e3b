"""A turn on a thread of `codex app-server`: its states, the table of the changes between them, and the parameters
of `thread/start`, `thread/inject_items` and `turn/start`. Avoids that Codex silently drops system messages,
refuses all items because of an empty message, and replaces images of low detail by a text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.calls import agent_name, dynamic_tools, name_for_agent
from codex_proxy.agents.codex_app_server.own_tools import tool_settings
from codex_proxy.agents.codex_app_server.questions import asks
from codex_proxy.agents.sessions.session import MAX_LINE_BYTES, too_large
from codex_proxy.agents.shared.conversation import ConversationStates
from codex_proxy.agents.shared.history_items import history_item
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import (
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    texts_of,
)
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.states import StateTable
from codex_proxy.core.turn import Turn


class TurnState(Enum):
    """The client's turn runs in ACTIVE; in the others the agent's turn and thread may not have ended."""

    ACTIVE = "the agent is starting the turn, works on it, or waits for outputs of its calls"
    ABANDONED = "the client's turn has ended, while the agent may still work on it"
    REUSABLE = "the agent's turn ended well: another one can be started on the thread"
    UNUSABLE = "the agent's turn has ended, and no other can be started on the thread"
    CLOSING = "the thread is no longer needed, while the agent may still work on its turn"
    UNSUBSCRIBING = "the agent's turn has ended or was interrupted, and its thread is being unsubscribed"
    DONE = "nothing is left to read or write"


class TurnChange(Enum):
    ENDED_WELL = "the agent has completed its turn"
    ENDED_BADLY = "the agent's turn has ended in any other way, or its thread cannot be resumed"
    GIVEN_UP = "the client's turn cannot continue, but the agent may still work on it"
    RESUMED = "another turn starts on the thread"
    UNWANTED = "the thread is no longer needed"
    INTERRUPTED = "the agent was asked to stop its turn"
    UNSUBSCRIBED = "the thread was unsubscribed, or never started"
    PROCESS_ENDED = "the agent's process has ended"


TABLE = StateTable(
    TurnState.ACTIVE,
    {
        TurnState.ACTIVE: {
            TurnChange.ENDED_WELL: TurnState.REUSABLE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.GIVEN_UP: TurnState.ABANDONED,
        },
        TurnState.ABANDONED: {
            TurnChange.GIVEN_UP: TurnState.ABANDONED,
            TurnChange.UNWANTED: TurnState.CLOSING,
        },
        TurnState.REUSABLE: {
            TurnChange.RESUMED: TurnState.ACTIVE,
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.UNSUBSCRIBING,
        },
        TurnState.UNUSABLE: {
            TurnChange.ENDED_BADLY: TurnState.UNUSABLE,
            TurnChange.UNWANTED: TurnState.UNSUBSCRIBING,
        },
        TurnState.CLOSING: {
            TurnChange.GIVEN_UP: TurnState.CLOSING,
            TurnChange.INTERRUPTED: TurnState.UNSUBSCRIBING,
            TurnChange.UNSUBSCRIBED: TurnState.DONE,
        },
        TurnState.UNSUBSCRIBING: {
            TurnChange.ENDED_BADLY: TurnState.UNSUBSCRIBING,
            TurnChange.UNSUBSCRIBED: TurnState.DONE,
        },
        TurnState.DONE: {TurnChange.ENDED_BADLY: TurnState.DONE},
    },
    always={TurnChange.PROCESS_ENDED: TurnState.DONE},
)
"""The changes of state. ENDED_BADLY is possible in most states: a turn on a thread that cannot be resumed fails."""

STATES = ConversationStates(
    TABLE,
    client_waits=frozenset({TurnState.ACTIVE}),
    reusable=TurnState.REUSABLE,
    process_ended=TurnChange.PROCESS_ENDED,
)
ACTIVE = TurnState.ACTIVE
AGENT_MAY_WORK = frozenset({TurnState.ACTIVE, TurnState.ABANDONED, TurnState.CLOSING})
UNWANTED = frozenset({TurnState.CLOSING, TurnState.UNSUBSCRIBING, TurnState.DONE})


MAX_TURN_INPUT = 1_000_000
"""Maximum characters of `turn/start.input`: Codex refuses more than 1,048,576. Injected items may have any size."""

MAX_MESSAGE_BYTES = MAX_LINE_BYTES - (64 << 10)
"""The largest message, as JSON. Codex repeats each in a line of its own, with some fields around it."""
_MOST_BYTES_OF_A_CHARACTER = 6
"""In JSON."""

MENTION = re.compile("[$@]")
"""Matches what Codex may look for in `turn/start.input`: `$NAME` adds a skill, and there are mentions of apps and
plugins. Injected items are not searched.
"""

ID_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_"}
"""The prefixes of ids that the provider requires."""
MAX_ID_CHARS = 64
"""The longest id that the provider accepts."""


def with_raw_items(turn: Turn) -> Turn:
    """Returns the turn with `RawHistoryItem`s, as `history_items` converts them, in place of all but its last item: a
    long history costs the event loop nothing any more.
    """
    *before, last = turn.history
    raw: list[HistoryItem] = []
    name_of = name_for_agent(turn.tools, plain=turn.mode == "model")
    for index, each in enumerate(before):
        converted = history_items([each], first=index, behind=_before(turn), name_of=name_of)
        raw.append(RawHistoryItem(encode_json(converted[0])) if converted else each)
    return msgspec.structs.replace(turn, history=(*raw, last))


def history_items(
    history: Sequence[HistoryItem],
    *,
    first: int = 0,
    behind: str = "",
    name_of: Callable[[str], str] = agent_name,
) -> list[Any]:
    """Converts a history to Responses items. An item without an id gets one that is made from content and position
    (counted from `first`, and from what the history begins `behind`): an id that Codex makes would defeat the
    provider's cache. `name_of` returns Codex's name of a tool.
    """
    out: list[Any] = []
    for index, each in enumerate(history, first):
        if isinstance(each, RawHistoryItem):
            out.append(msgspec.Raw(each.json))
        elif not isinstance(each, HistoryMessage) or each.parts:
            item = history_item(each, detail_of=_detail, name_of=name_of)
            given = None if isinstance(each, HistoryOutput) else each.id
            item["id"] = _usable_id(item["type"], given) or ID_PREFIXES[item["type"]] + _digest(
                behind, index, item
            )
            out.append(item)
    return out


def _usable_id(type: str, id: str | None) -> str | None:
    fits = id is not None and id.startswith(ID_PREFIXES[type]) and len(id) <= MAX_ID_CHARS
    return id if fits else None


def _digest(behind: str, index: int, item: dict[str, Any]) -> str:
    place: list[Any] = [behind, index] if behind else [index]
    content = json.dumps([*place, item], ensure_ascii=True).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _detail(part: ImagePart) -> str:
    """Returns an image's detail, but never `low`: Codex would replace the image by a text."""
    return "auto" if part.detail in (None, "low") else str(part.detail)


def split_input(
    turn: Turn, history: Sequence[HistoryItem], *, first: int = 0
) -> tuple[list[Any], list[dict[str, Any]]]:
    """Splits a history into items to inject and the `input` of `turn/start`: in the mode `agent` a last user message
    without a `MENTION`, of at most `MAX_TURN_INPUT` characters; else nothing, so that the model sees exactly the
    client's items.
    """
    plain = turn.mode == "model"
    name_of, behind = name_for_agent(turn.tools, plain=plain), _before(turn)
    if not plain and history:
        last = history[-1]
        if isinstance(last, HistoryMessage) and last.role == "user" and last.parts:
            texts = texts_of(last.parts)
            if sum(map(len, texts)) <= MAX_TURN_INPUT and not any(MENTION.search(text) for text in texts):
                given = [_input(part) for part in last.parts]
                return history_items(history[:-1], first=first, behind=behind, name_of=name_of), given
    return history_items(history, first=first, behind=behind, name_of=name_of), []


def _before(turn: Turn) -> str:
    return "" if turn.stored_session is None else turn.stored_session.before


def steered_input(messages: Sequence[HistoryMessage]) -> list[dict[str, Any]]:
    """Returns the `input` of `turn/steer`, in which Codex looks for no mention: the messages as one. Empty if it would
    not take that much.
    """
    parts = [part for message in messages for part in message.parts]
    input = list(map(_input, parts))
    too_long = sum(map(len, texts_of(parts))) > MAX_TURN_INPUT
    return [] if too_long or message_fault([encoded(input)]) is not None else input


def _input(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text, "text_elements": []}
    return {"type": "image", "url": part.url}


def encoded(value: Any) -> msgspec.Raw:
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(encode_json(value))


def output_fault(parts: Sequence[Part]) -> Failure | None:
    """Returns the failure of a turn with an output that is too large to be repeated; None if it is not."""
    texts = [part.text if isinstance(part, TextPart) else part.url for part in parts]
    may_be_large = _MOST_BYTES_OF_A_CHARACTER * sum(map(len, texts)) > MAX_MESSAGE_BYTES
    return message_fault([encoded(texts)]) if may_be_large else None


def message_fault(messages: Sequence[msgspec.Raw]) -> Failure | None:
    """Returns the failure of a turn with a message that is too large to be repeated; None if all can be."""
    size = max(map(len, messages), default=0)
    if size <= MAX_MESSAGE_BYTES:
        return None
    return too_large(f"a message of {size} bytes, and takes up to {MAX_MESSAGE_BYTES} in one")


def thread_params(turn: Turn) -> dict[str, Any]:
    """Returns the parameters of `thread/start`. A plain-model turn has no prompt, no environment, and only the client's
    tools; its folder should be empty, because Codex looks there for a project's configuration.
    """
    plain = turn.mode == "model"
    params: dict[str, Any] = {
        "cwd": turn.workdir,
        # nothing of the client's conversation is written to the user's home, unless it is to be continued there
        "ephemeral": turn.stored_session is None,
        # With `never` nobody is asked; `questions.py` says why the other is none but this.
        "approvalPolicy": "untrusted" if asks(turn) else "never",
        "sandbox": "read-only" if plain else turn.sandbox,
        # usage per model call, and the only sure sign that no further tool call of a step will come
        "experimentalRawEvents": True,
    }
    if turn.model:
        params["model"] = turn.model
    if plain:
        params |= {"environments": [], "baseInstructions": ""}
    elif turn.permissions is not None:
        del params["sandbox"]  # Codex refuses both
        params["permissions"] = turn.permissions
    if plain or turn.tools:
        params["dynamicTools"] = dynamic_tools(turn.tools, plain=plain)
    config: dict[str, Any] = {"model_verbosity": turn.verbosity} if turn.verbosity else {}
    if turn.web_search:
        config["web_search"] = "live"  # replaces the process's setting, which is for turns without it
    if turn.subagents:
        config |= subagent_settings(turn.subagents)
    config |= tool_settings(turn.toolset)
    return params | {"config": config} if config else params


NOT_RESUMED = frozenset({"ephemeral", "experimentalRawEvents", "dynamicTools"})
"""Parameters of `thread/start` that `thread/resume` lacks, because a thread keeps them."""


def resume_params(turn: Turn, thread: str) -> dict[str, Any]:
    """Returns the parameters of `thread/resume` for an agent turn. The policies are those of this turn, not those that
    the thread had.
    """
    settings = {name: value for name, value in thread_params(turn).items() if name not in NOT_RESUMED}
    return {"threadId": thread, "excludeTurns": True, **settings}


def subagent_settings(count: int) -> dict[str, Any]:
    """Returns the settings of a thread that may have `count` subagents at a time, which have none themselves."""
    return {
        "agents.enabled": True,
        "agents.max_concurrent_threads_per_session": count,
        "agents.max_depth": 1,
    }


def turn_settings(turn: Turn) -> dict[str, Any]:
    optional = {
        "effort": turn.effort,
        "summary": turn.summary,
        "serviceTier": turn.service_tier,
        "outputSchema": turn.output_schema,
    }
    return {name: value for name, value in optional.items() if value is not None}
