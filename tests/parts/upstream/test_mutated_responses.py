"""A server of the Responses API gets ids, indexes or events wrong: the client's answer is the right one or an error."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

import pytest

from codex_proxy.core.events import Event, ItemStarted, RawItem, Stop, TurnEnded
from codex_proxy.core.items import Activity, HistoryMessage, Reasoning, TextPart, Tool, ToolCall
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.failures import ErrorReader
from codex_proxy.parts.upstream.openai_responses.responses_dialect import OpenAIResponses
from codex_proxy.parts.upstream.stream import End, Head
from codex_proxy.parts.upstream.turn import UpstreamContext
from codex_proxy.tools.policy import ToolPolicy
from tests.core.well_formed import violations
from tests.parts.upstream.mutated_responses import (
    ALL_WORDS,
    ANSWERS,
    HELLO,
    IDS,
    INDEXES,
    OSLO,
    PATCH,
    THOUGHT,
    TOOLS,
    Form,
    Known,
    body_of,
    is_decidable,
)

STRICT: Final = tuple(Tool(name=tool.name, kind=tool.kind, strict=True) for tool in TOOLS)
"""Tools whose calls reach the client only when they are complete."""


def log_of(body: bytes, tools: Sequence[Tool] = TOOLS) -> list[Event]:
    """What reaches the log when the upstream answers with this body."""
    numbers = itertools.count()
    context = UpstreamContext(
        ErrorReader(()), set(), lambda prefix: f"{prefix}new{next(numbers)}", lambda: 1.0
    )
    made = OpenAIResponses("m", context)
    turn = Turn(model="m", history=(HistoryMessage("user", (TextPart("?"),)),), tools=tuple(tools))
    policy, repair = ToolPolicy(turn), TurnRepair()
    steps = [made.begin(turn), *(made.receive([message]) for message in (Head(200), body, End()))]
    log = [event for step in steps for event in repair.feed(policy.feed(step.events).events)]
    assert violations(log, ended=any(isinstance(each, TurnEnded) for each in log)) == []
    return log


def answer_in(log: Sequence[Event]) -> list[tuple[str, str, str]]:
    """Kind, name and text of each item, sorted."""
    items: dict[str, tuple[str, str]] = {}
    texts: dict[str, list[str]] = {}
    for each in log:
        if isinstance(each, ItemStarted):
            item = each.item
            if isinstance(item, ToolCall):
                items[item.id] = (item.kind, item.name)
            else:
                kinds = {Reasoning: "reasoning", Activity: "search"}
                items[item.id] = (kinds.get(type(item), "message"), "")
            texts[item.id] = [item.text] if isinstance(item, Activity) else []
        elif (text := getattr(each, "text", None)) is not None and getattr(each, "id", None) in texts:
            texts[each.id].append(text)  # type: ignore[union-attr]
    return sorted((*items[id], "".join(said)) for id, said in texts.items())


def known_answer(items: Sequence[Known]) -> list[tuple[str, str, str]]:
    kinds = {"refusal": "message"}
    return sorted((kinds.get(item.kind, item.kind), item.name, item.text) for item in items)


def raw_answer(log: Sequence[Event]) -> list[tuple[str, str]]:
    """Type and text of each item that goes back to the model, sorted."""
    found = []
    for raw in (json.loads(each.json) for each in log if isinstance(each, RawItem)):
        parts = [*raw.get("content", ()), *raw.get("summary", ())]
        said = "".join(part.get("text") or part.get("refusal") or "" for part in parts)
        action = raw.get("action", {}).get("query", "")
        found.append((raw["type"], said or action or raw.get("arguments") or raw.get("input") or ""))
    return sorted(found)


def has_failed(log: Sequence[Event]) -> bool:
    return isinstance(log[-1], TurnEnded) and log[-1].stop == Stop.FAILED


def fault_of(items: Sequence[Known], form: Form, tools: Sequence[Tool] = TOOLS) -> str:
    """What is wrong with what becomes of this answer; empty if nothing is."""
    log = log_of(body_of(items, form), tools)
    if has_failed(log):
        return "it failed" if is_decidable(form) and not form.wrong else ""
    if (found := answer_in(log)) != (known := known_answer(items)):
        return f"{found}, not {known}"
    calls = [
        each.item.call_id for each in log if isinstance(each, ItemStarted) and isinstance(each.item, ToolCall)
    ]
    if len(set(calls)) < len(calls):
        return f"two calls have the same id: {calls}"
    texts = [text for _, text in raw_answer(log)]
    if not form.wrong and Counter(texts) != Counter(item.text for item in items):
        return f"the model gets back {texts}"
    return ""


def faults(forms: Sequence[Form], answers: Sequence[Sequence[Known]] = ANSWERS) -> list[Any]:
    made = [
        (form, items, fault_of(items, form, tools))
        for form in forms
        for items in answers
        for tools in (TOOLS, STRICT)
    ]
    return [each for each in made if each[-1]]


WORDS: Final = tuple(
    frozenset(words) for size in range(1, 5) for words in combinations(sorted(ALL_WORDS), size)
)
ORDERS: Final = (False, True)


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("interleaved", ORDERS, ids=["in turn", "interleaved"])
@pytest.mark.parametrize("indexes", INDEXES)
@pytest.mark.parametrize("ids", IDS)
def test_each_item_comes_once_whatever_names_it_has(ids: str, indexes: str, interleaved: bool) -> None:
    base = Form(ids=ids, indexes=indexes, interleaved=interleaved)
    forms = [
        base,
        Form(ids=ids, indexes=indexes, interleaved=interleaved, output="empty"),
        Form(ids=ids, indexes=indexes, interleaved=interleaved, call_ids="at the end"),
    ]
    assert faults(forms) == []


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("call_ids", IDS)
@pytest.mark.parametrize("ids", ["stable", "at the end", "each event", "missing"])
def test_each_call_comes_once_whatever_call_id_it_has(ids: str, call_ids: str) -> None:
    forms = [
        Form(ids=ids, call_ids=call_ids, output=output, interleaved=interleaved)
        for output in ("full", "empty", "missing")
        for interleaved in ORDERS
    ]
    assert faults(forms) == []


@pytest.mark.sampled(every=7)
@pytest.mark.parametrize("output", ["full", "empty"])
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(sorted(words)))
def test_the_fullest_word_wins_whichever_event_has_it(words: frozenset[str], output: Any) -> None:
    if output == "empty" and words == {"final"}:
        return
    names = [("stable", "stable"), ("at the end", "stable"), ("each event", "stable"), ("stable", "missing")]
    forms = [
        Form(ids=ids, indexes=indexes, words=words, output=output, begins=begins, interleaved=interleaved)
        for ids, indexes in names
        for begins in (True, False)
        for interleaved in ORDERS
        if begins or (output == "full" and "final" in words)
    ]
    assert faults(forms) == []


@pytest.mark.parametrize("wrong", sorted(ALL_WORDS))
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(sorted(words)))
def test_a_word_that_contradicts_what_was_sent_is_an_error(words: frozenset[str], wrong: str) -> None:
    if wrong not in words or len(words) == 1:
        return
    for item in (HELLO, OSLO, PATCH, THOUGHT):
        log = log_of(body_of([item], Form(words=words, wrong=wrong)))
        assert has_failed(log) or answer_in(log) in (
            known_answer([item]),
            [(item.kind, item.name, '{"city":"Paris"}' if item.name else "Quite another.")],
        )
        if "deltas" in words:
            assert has_failed(log), "a delta was sent"
