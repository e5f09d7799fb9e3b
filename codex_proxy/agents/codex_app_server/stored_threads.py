"""The turns of a stored thread, as `thread/turns/list` and `thread/items/list` tell them: those that another program,
such as `codex resume` in a terminal, has run. No IO.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from codex_proxy.agents.codex_app_server.item_reader import ItemReader
from codex_proxy.agents.codex_app_server.wire import Params
from codex_proxy.agents.shared.json_lines import UnreadableError, decode_part
from codex_proxy.core.events import Event, Stop, TurnElsewhere, TurnEnded, TurnStarted
from codex_proxy.core.items import HistoryMessage, ImagePart, Part, TextPart
from codex_proxy.core.repair import TurnRepair

MAX_TURNS: Final = 50
"""Maximum turns that are read at once; of more the oldest are left out."""
MAX_PAGE: Final = 100
"""Maximum items of a page."""
USER_MESSAGE: Final = "userMessage"
IN_PROGRESS: Final = "inProgress"
STOPS: Final = {"completed": Stop.STOP, "interrupted": Stop.INTERRUPTED}


class _Content(msgspec.Struct, frozen=True):
    type: str = ""
    text: str = ""
    url: str = ""


class _Item(msgspec.Struct, frozen=True, rename="camel"):
    type: str = ""
    client_id: str | None = None
    content: msgspec.Raw = msgspec.Raw()


class ListedTurn(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    status: str = ""
    items: list[_Item] = []
    """Those of the summary: the first and the last."""
    started_at: int | None = None
    completed_at: int | None = None


class TurnPage(msgspec.Struct, frozen=True):
    data: list[ListedTurn]
    """The newest first."""


class _Listed(msgspec.Struct, frozen=True):
    item: msgspec.Raw


class ItemPage(msgspec.Struct, frozen=True, rename="camel"):
    data: list[_Listed]
    next_cursor: str | None = None


def new_turns(page: TurnPage, conversation: str, known: str) -> list[ListedTurn]:
    """Returns the turns of other programs behind the last one of this server and the one that is `known`, oldest first.
    This server's messages have the conversation as their `clientId`; a turn without a message has injected items.
    """
    found: list[ListedTurn] = []
    for turn in page.data:
        said = next((item for item in turn.items if item.type == USER_MESSAGE), None)
        if turn.id == known or said is None or said.client_id == conversation:
            break
        if turn.status != IN_PROGRESS:
            found.append(turn)
    return found[::-1]


def turn_elsewhere(turn: ListedTurn, items: Iterable[msgspec.Raw]) -> TurnElsewhere:
    """Returns a turn with all of its `items`. One that cannot be read is left out."""
    reader, repair = ItemReader(), TurnRepair()
    parts: list[HistoryMessage | tuple[Event, ...]] = []
    for item in items:
        try:
            head = decode_part(item, _Item, loosely=True)
            if head.type == USER_MESSAGE:
                if content := _content(decode_part(head.content, list[_Content], loosely=True)):
                    parts.append(HistoryMessage("user", content))
                continue
            reader.on_item_completed(Params(item=item))
        except UnreadableError:
            continue
        events = tuple(
            each for each in repair.feed(reader.events[:]) if not isinstance(each, TurnStarted | TurnEnded)
        )
        reader.events.clear()
        if events:
            parts.append(events)
    return TurnElsewhere(
        id=turn.id,
        stop=STOPS.get(turn.status, Stop.FAILED),
        parts=tuple(parts),
        started_at=turn.started_at,
        completed_at=turn.completed_at,
    )


def _content(given: Sequence[_Content]) -> tuple[Part, ...]:
    """Returns the texts and images of a message; files of the terminal's machine are left out."""
    parts: list[Part] = []
    for each in given:
        if each.type == "text" and each.text:
            parts.append(TextPart(each.text))
        elif each.type == "image" and each.url:
            parts.append(ImagePart(each.url))
    return tuple(parts)
