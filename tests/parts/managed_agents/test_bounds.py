"""Definitions of any size and form: within the limits they are stored, and an answer that is sent back changes nothing;
beyond them the error names the field.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.core.faults import Fault
from codex_proxy.core.items import TOOL_NAMES
from codex_proxy.parts.managed_agents import wire
from codex_proxy.parts.managed_agents.agents import agent_object, changed, servers_of, settings_of, tools_of
from codex_proxy.parts.managed_agents.pages import Cursor, page_query, time_range, time_text
from codex_proxy.parts.sessions.agents import StoredAgent
from codex_proxy.parts.sessions.commands import patched
from codex_proxy.parts.sessions.wire import parse_body_of
from tests.parts.managed_agents.driving import TOOLSET, WEATHER, check_object

AGENT = {"model": "codex-5", "name": "a"}
POLICIES = st.sampled_from([None, {"type": "always_allow"}, {"type": "always_ask"}])
SETTINGS = st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "permission_policy": POLICIES})
ALLOWED = {"permission_policy": {"type": "always_allow"}}


@st.composite
def toolsets(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(TOOL_NAMES), unique=True))
    configs = [{"name": name, **draw(SETTINGS)} for name in names]
    return {**TOOLSET, "default_config": draw(st.none() | SETTINGS), "configs": configs}


@st.composite
def definitions(draw: st.DrawFn) -> dict[str, Any]:
    servers = draw(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=3))
    functions = draw(st.lists(st.text("xyz", min_size=1, max_size=3), unique=True, max_size=3))
    tools = [
        *draw(st.lists(toolsets(), max_size=1)),
        *({**WEATHER, "name": name} for name in functions),
        *({"type": "mcp_toolset", "mcp_server_name": name, "default_config": ALLOWED} for name in servers),
    ]
    return {
        **AGENT,
        "model": draw(
            st.just("codex-5")
            | st.builds(lambda e: {"id": "codex-5", "effort": e}, st.sampled_from(("low", "max")))
        ),
        "system": draw(st.none() | st.text(max_size=50)),
        "description": draw(st.none() | st.text(max_size=50)),
        "tools": draw(st.permutations(tools)),
        "mcp_servers": [{"type": "url", "name": name, "url": f"https://{name}.example"} for name in servers],
        "metadata": draw(st.dictionaries(st.text(min_size=1, max_size=9), st.text(max_size=9), max_size=16)),
    }


def stored(body: dict[str, Any]) -> StoredAgent:
    given, _ = parse_body_of(wire.ManagedAgentBody, json.dumps(body).encode())
    settings = settings_of(given, None)
    return StoredAgent(
        id="agent_1", settings=settings, created_at=1, updated_at=1, metadata=given.metadata or {}
    )


@given(definitions())
def test_an_answer_that_is_sent_back_changes_nothing(body: dict[str, Any]) -> None:
    agent = stored(body)
    shown: Any = json.loads(json.dumps(agent_object(agent)))
    check_object(shown)
    fields = ("model", "name", "description", "system", "tools", "mcp_servers", "multiagent", "metadata")
    update, ignored = parse_body_of(
        wire.ManagedAgentUpdate, json.dumps({name: shown[name] for name in fields}).encode()
    )
    assert (changed(agent, update), ignored) == (agent, ())
    assert [tool["type"] for tool in shown["tools"]] == [tool["type"] for tool in body["tools"]]
    assert {each["name"] for each in servers_of(agent.settings.tools)} == {
        each["name"] for each in body["mcp_servers"]
    }
    assert len(tools_of(agent.settings.tools)) == len(body["tools"])


def custom_tools(count: int) -> list[dict[str, Any]]:
    return [{**WEATHER, "name": f"tool_{number}"} for number in range(count)]


def servers(count: int) -> dict[str, Any]:
    names = [f"s{number}" for number in range(count)]
    tools = [{"type": "mcp_toolset", "mcp_server_name": name, "default_config": ALLOWED} for name in names]
    return {
        "mcp_servers": [{"type": "url", "name": name, "url": "https://a.example"} for name in names],
        "tools": tools,
    }


def many_configs(count: int) -> dict[str, Any]:
    found = servers(2)
    for number, tool in enumerate(found["tools"]):
        share = count // 2 + (count % 2 if number else 0)
        tool["configs"] = [{"name": f"t{each}"} for each in range(share)]
    return found


LIMITS: list[tuple[str, int, Any]] = [
    ("name", 256, lambda n: {"name": "x" * n}),
    ("description", 2048, lambda n: {"description": "x" * n}),
    ("system", 100_000, lambda n: {"system": "x" * n}),
    ("tools", 128, lambda n: {"tools": custom_tools(n)}),
    ("tools[0].name", 64, lambda n: {"tools": [{**WEATHER, "name": "x" * n}]}),
    ("tools", 256, many_configs),
    ("mcp_servers", 20, servers),
    ("metadata", 16, lambda n: {"metadata": {str(number): "" for number in range(n)}}),
    ("metadata", 64, lambda n: {"metadata": {"x" * n: ""}}),
    ("metadata.a", 512, lambda n: {"metadata": {"a": "x" * n}}),
]


@pytest.mark.parametrize(("field", "limit", "make"), LIMITS)
def test_a_limit_is_reached_but_not_passed(field: str, limit: int, make: Any) -> None:
    agent = stored(AGENT | make(limit))
    with pytest.raises(Fault) as beyond:
        stored(AGENT | make(limit + 1))
    assert beyond.value.failure.param is not None
    assert beyond.value.failure.param.startswith(field)
    check_object(json.loads(json.dumps(agent_object(agent))))


@pytest.mark.parametrize("field", ["name", "model", "metadata"])
def test_a_text_that_must_not_be_empty_is_refused(field: str) -> None:
    with pytest.raises(Fault):
        stored(AGENT | {field: {"": "x"} if field == "metadata" else ""})


KEYS = st.integers(0, 25).map(str)
PAIRS = st.dictionaries(KEYS, st.text(max_size=2), min_size=8, max_size=16)
PATCHES = st.dictionaries(KEYS, st.none() | st.text(max_size=2), max_size=20)


@example({str(number): "" for number in range(16)}, {"0": None, "x": ""})
@example({str(number): "" for number in range(16)}, {"0": "y", "x": ""})
@given(PAIRS, PATCHES)
def test_a_patch_of_metadata_sets_and_deletes_keys_up_to_the_limit(
    before: dict[str, str], patch: dict[str, str | None]
) -> None:
    expected = {key: value for key, value in {**before, **patch}.items() if value is not None}
    if len(expected) > 16:
        with pytest.raises(Fault):
            patched(before, patch)
    else:
        assert patched(before, patch) == expected


@given(st.text(max_size=600))
def test_any_text_is_a_cursor_or_a_400(text: str) -> None:
    param = None
    try:
        page_query({"page": text})
    except Fault as fault:
        param = fault.failure.param
    assert param in (None, "page")


@given(st.text(max_size=99), st.floats(0, 1e10), st.sampled_from(("asc", "desc")))
def test_a_cursor_holds_its_place_and_its_order(id: str, created: float, order: Any) -> None:
    cursor = Cursor(order, id, created)
    assert page_query({"page": str(cursor), "order": order}, ordered=True).cursor == cursor
    other = "asc" if order == "desc" else "desc"
    with pytest.raises(Fault):
        page_query({"page": str(cursor), "order": other}, ordered=True)


@given(st.integers(0, 4_000_000_000))
def test_a_time_that_was_answered_is_a_limit_of_a_list(seconds: int) -> None:
    text = time_text(seconds)
    assert text.endswith("Z")
    at = time_range({"created_at[gte]": text, "created_at[lte]": text})
    assert (seconds in at, seconds - 1 in at, seconds + 1 in at) == (True, False, False)
