"""`codex app-server` names items anew, shares ids, leaves events out or repeats them: each item comes once, whole."""

from __future__ import annotations

import itertools
from typing import Any, Final

import pytest

from codex_proxy.core.events import ItemEnded, ItemStarted, OutputDelta, ReasoningDelta, TextDelta
from codex_proxy.core.items import Activity, HistoryMessage, Message, Reasoning, TextPart
from codex_proxy.core.repair import TurnRepair
from tests.agents.app_server_dialogue import Dialogue
from tests.core.well_formed import violations

Item = tuple[str, tuple[str, ...]]
THINK: Final[Item] = ("reasoning", ("Let me ", "think."))
HELLO: Final[Item] = ("agentMessage", ("Hel", "lo ", "wörld"))
BYE: Final[Item] = ("agentMessage", ("Good", "bye"))
AGAIN: Final[Item] = ("reasoning", ("Once ", "more."))
LIST: Final[Item] = ("commandExecution", ("a.txt\n", "b.txt\n"))
SHOW: Final[Item] = ("commandExecution", ("c.txt",))
ANSWERS: Final = (
    (HELLO,),
    (THINK, HELLO),
    (HELLO, LIST, BYE),
    (THINK, HELLO, LIST, AGAIN, BYE),
    (LIST, SHOW, HELLO),
)
IDS: Final = ("own", "each event", "at the end", "shared", "missing", "empty")
EVENTS: Final = ("all", "no start", "no deltas", "end alone")
REPEATS: Final = ("nothing", "the end")
DELTAS: Final = {
    "agentMessage": "item/agentMessage/delta",
    "reasoning": "item/reasoning/summaryTextDelta",
    "commandExecution": "item/commandExecution/outputDelta",
}


def notifications(
    items: tuple[Item, ...], ids: str, events: str, repeats: str
) -> list[tuple[str, dict[str, Any]]]:
    """The method and the parameters of each notification."""
    numbers = itertools.count()
    found: list[tuple[str, dict[str, Any]]] = []
    for place, (kind, pieces) in enumerate(items):
        own = f"item_{place}"

        def id(when: str, own: str = own) -> str | None:
            renewed = {"each event": f"{own}_{next(numbers)}", "at the end": own + "_end" * (when == "end")}
            return {"shared": "item", "missing": None, "empty": "", **renewed}.get(ids, own)

        def item(when: str, kind: str = kind, **fields: Any) -> dict[str, Any]:
            name = id(when)
            return {"item": {"type": kind, **fields} | ({} if name is None else {"id": name})}

        whole = "".join(pieces)
        command = {"command": "ls"} if kind == "commandExecution" else {}
        if events in ("all", "no deltas"):
            found.append(("item/started", item("start", **command)))
        if events in ("all", "no start"):
            for piece in pieces:
                name = id("delta")
                found.append((DELTAS[kind], {"delta": piece} | ({} if name is None else {"itemId": name})))
        said: dict[str, dict[str, Any]] = {
            "agentMessage": {"text": whole},
            "reasoning": {"summary": [whole]},
            "commandExecution": {"command": "ls", "aggregatedOutput": whole, "status": "completed"},
        }
        end = item("end", **said[kind])
        found += [("item/completed", end)] * (2 if repeats == "the end" else 1)
    return found


def shown(log: list[Any]) -> list[tuple[str, str]]:
    """What the client gets: kind and text of each item."""
    items = {event.item.id: event.item for event in log if isinstance(event, ItemStarted)}
    texts = dict.fromkeys(items, "")
    for event in log:
        if isinstance(event, TextDelta | ReasoningDelta | OutputDelta):
            texts[event.id] += event.text
    assert sorted(items) == sorted(event.id for event in log if isinstance(event, ItemEnded))
    kinds = {Message: "agentMessage", Reasoning: "reasoning", Activity: "commandExecution"}
    return [(kinds[type(item)], texts[id]) for id, item in items.items()]


@pytest.mark.parametrize("repeats", REPEATS)
@pytest.mark.parametrize("events", EVENTS)
@pytest.mark.parametrize("ids", IDS)
def test_each_item_comes_once_and_whole(ids: str, events: str, repeats: str) -> None:
    if repeats != "nothing" and ids not in ("own", "at the end"):
        return  # nobody can tell a repetition
    for items in ANSWERS:
        talk = Dialogue(mode="agent", tools=()).start()
        for method, params in notifications(items, ids, events, repeats):
            talk.agent_notifies(method, turnId="U", **params)
        talk.ends()
        log = TurnRepair().feed(talk.events)
        assert violations(log) == []
        assert all(event.item.id for event in log if isinstance(event, ItemStarted))
        assert shown(log) == [(kind, "".join(pieces)) for kind, pieces in items], items


def test_items_of_the_turn_before_are_in_no_other_answer() -> None:
    talk = Dialogue(keeps_thread=True).start()
    talk.agent_notifies("item/started", item={"type": "agentMessage", "id": "m"})
    talk.agent_notifies("item/agentMessage/delta", itemId="m", delta="One")
    talk.ends()
    talk.events.clear()
    talk.client_resumes(HistoryMessage("user", (TextPart("next"),)))
    for turn in ("U", "V"):
        if turn == "V":
            talk.agent_starts_turn("V")
        talk.agent_notifies("item/agentMessage/delta", turnId="U", itemId="m", delta=" late")
        late = {"type": "agentMessage", "id": "n", "text": "Late."}
        talk.agent_notifies("item/completed", turnId="U", item=late)
        talk.agent_notifies("item/reasoning/summaryTextDelta", turnId="U", itemId="r", delta="Late.")
    talk.agent_notifies("item/agentMessage/delta", turnId="V", itemId="o", delta="Two")
    talk.ends(id="V")
    log = TurnRepair().feed(talk.events)
    assert shown(log) == [("agentMessage", "Two")]


def test_reasoning_that_is_open_when_a_message_has_its_id_takes_no_text_of_it() -> None:
    talk = Dialogue(mode="agent", tools=()).start()
    for kind in ("reasoning", "agentMessage"):
        talk.agent_notifies("item/started", item={"type": kind, "id": "x"})
    talk.agent_notifies("item/reasoning/summaryTextDelta", itemId="x", delta="Hm")
    talk.agent_notifies("item/agentMessage/delta", itemId="x", delta="Yes")
    talk.agent_notifies("item/completed", item={"type": "agentMessage", "id": "x", "text": "Yes."})
    talk.agent_notifies("item/completed", item={"type": "reasoning", "id": "x", "summary": ["Hm."]})
    talk.ends()
    assert shown(TurnRepair().feed(talk.events)) == [("reasoning", "Hm."), ("agentMessage", "Yes.")]
