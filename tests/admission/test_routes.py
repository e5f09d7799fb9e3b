from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codex_proxy.admission.routes import RequestFacts, Route, Router, choose_route, facts_of
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryMessage, ImagePart, TextPart, Tool
from codex_proxy.core.turn import ForwardedRequest, Turn
from tests.mcp.serving import ManualClock

FACTS = RequestFacts(
    client="anna",
    api="messages",
    model="claude-haiku-4",
    tokens=100,
    thinking=False,
    tools=True,
    images=False,
)


def route(**conditions: Any) -> Route:
    return Route(to="a/b", **conditions)


@pytest.mark.parametrize(
    ("conditions", "matches"),
    [
        ({}, True),
        ({"client": "an*"}, True),
        ({"client": "bob"}, False),
        ({"api": "messages"}, True),
        ({"api": "chat"}, False),
        ({"model": "*HAIKU*"}, True),
        ({"model": "haiku"}, False),
        ({"min_tokens": 100}, True),
        ({"min_tokens": 101}, False),
        ({"thinking": False}, True),
        ({"thinking": True}, False),
        ({"tools": True, "images": False}, True),
        ({"tools": True, "images": True}, False),
    ],
)
def test_a_route_matches_if_all_of_its_conditions_hold(conditions: dict[str, Any], matches: bool) -> None:
    assert (choose_route({"x": route(**conditions)}, FACTS) is not None) is matches


def test_the_first_route_that_matches_counts() -> None:
    routes = {"no": route(api="chat"), "first": route(tools=True), "second": route()}
    assert choose_route(routes, FACTS) == "first"


def test_the_facts_are_those_of_the_turn_or_of_the_request_that_is_forwarded() -> None:
    parts = (TextPart("words " * 50), ImagePart("data:image/png;base64,AA"))
    turn = Turn(model="m", history=(HistoryMessage("user", parts),), tools=(Tool("t"),), summary="auto")
    facts = facts_of(turn, client="anna", api="chat", model="m")
    assert (facts.tools, facts.images, facts.thinking) == (True, True, True)
    assert facts.tokens >= 50
    fields = {
        "messages": msgspec.Raw(b'[{"role":"user","content":"Hi there."}]'),
        "tools": msgspec.Raw(b"[]"),
    }
    forwarded = ForwardedRequest(fields=fields, stream=False, include_usage=False, model_asked="m")
    facts = facts_of(Turn(model="m", history=(), forwarded=forwarded), client="", api="chat", model="m")
    assert (facts.tools, facts.images, facts.thinking) == (True, False, False)
    assert facts.tokens > 0


def test_a_target_whose_account_is_used_up_is_asked_last_until_it_is_reset() -> None:
    clock = ManualClock()
    router = Router({"x": Route(to="a/b", fallback=("c/d",))}, clock)
    assert router.targets("x") == ["a/b", "c/d"]
    assert router.note_failure("a/b", Failure(kind=FaultKind.USAGE_LIMIT_REACHED, message="", retry_after=60))
    assert router.targets("x") == ["c/d", "a/b"]
    clock.now += 61
    assert router.targets("x") == ["a/b", "c/d"]
    assert not router.note_failure("a/b", Failure(kind=FaultKind.INVALID_REQUEST, message=""))
