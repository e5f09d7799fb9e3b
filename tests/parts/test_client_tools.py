"""Names of tools, there and back: whatever the client calls them, the agent takes them, and no two meet."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.agents.codex_app_server.calls import (
    IGNORED_NAMES,
    MAX_CHARS,
    OWN_TOOLS,
    PREFIX,
    RESERVED_PREFIX,
    agent_name,
    agent_names,
    javascript_name,
)
from codex_proxy.core.items import HistoryMessage, TextPart, Tool
from codex_proxy.core.turn import Turn
from codex_proxy.parts.acp.content import first_prompt, later_prompt
from codex_proxy.parts.claude_code.history import conversation
from codex_proxy.tools.policy import with_tool_choice

VALID_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
NAMES = st.text(max_size=140) | st.text("ab_-.01", max_size=8) | st.text("ab", min_size=60, max_size=140)
STARTS = st.sampled_from(["", PREFIX, RESERVED_PREFIX, PREFIX + PREFIX, PREFIX + RESERVED_PREFIX])
TAKEN = sorted(IGNORED_NAMES | OWN_TOOLS | {"apply-patch", "clock__sleep", "exec-command", "clock-_sleep"})
NASTY = st.builds(str.__add__, STARTS, NAMES | st.sampled_from(TAKEN))
PLAIN = st.booleans()
"""Whether Codex has no tools of its own."""


def digest(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@given(NASTY, PLAIN)
@example("mcp__\ud800", True)
@example("weather\n", True)
@example("", True)
def test_every_name_is_one_that_the_agent_accepts(name: str, plain: bool) -> None:
    given_name = agent_name(name, plain=plain)
    assert VALID_NAME.match(given_name)
    assert given_name not in IGNORED_NAMES
    called = given_name if plain else javascript_name(given_name)
    assert called not in IGNORED_NAMES
    assert plain or called not in OWN_TOOLS
    assert not called.startswith(RESERVED_PREFIX)
    assert given_name == name or len(given_name) <= MAX_CHARS


@given(st.sets(NASTY, max_size=20), PLAIN)
def test_no_two_names_become_the_same(names: set[str], plain: bool) -> None:
    assert len({agent_name(name, plain=plain) for name in names}) == len(names)


def forged(name: str) -> st.SearchStrategy[str]:
    """Names that may meet what the agent is given for this one."""
    given_names = {name, agent_name(name, plain=False), f"{PREFIX}{name}_{digest(name)}"}
    looks_alike = st.sampled_from(sorted(given_names | {each.removeprefix(PREFIX) for each in given_names}))
    return (
        looks_alike.map(javascript_name) | looks_alike.map(lambda each: each.replace("_", "-")) | looks_alike
    )


@given(NASTY.flatmap(lambda name: st.sets(forged(name) | st.just(name), max_size=8)), st.sets(NASTY))
@example({"get-weather", "get_weather"}, set())
@example({"client-x", "client_x"}, set())
@example({"1x", "2x", "_x"}, set())
@example({"mcp--x", "mcp-_x"}, set())
def test_no_two_names_become_the_same_in_javascript(like: set[str], others: set[str]) -> None:
    names = agent_names(Tool(name) for name in like | others)
    assert names == {name: agent_name(name) for name in like | others}
    names = agent_names((Tool(name) for name in like | others), plain=False)
    assert names.keys() == like | others
    assert all(VALID_NAME.match(given_name) for given_name in names.values())
    called = set(map(javascript_name, names.values()))
    assert len(called) == len(names)
    assert not called & (OWN_TOOLS | IGNORED_NAMES)


@pytest.mark.parametrize("name", ["get-weather", "1x", "-x", "resolve-library-id"])
def test_a_name_that_javascript_cannot_have_stays_if_it_meets_no_other(name: str) -> None:
    tools = [Tool(name), Tool("get_time")]
    assert agent_names(tools, plain=False) == {name: name, "get_time": "get_time"}


@given(NASTY, PLAIN)
def test_a_name_that_is_made_to_look_like_a_renamed_one_does_not_collide_with_it(
    name: str, plain: bool
) -> None:
    """What the agent was given for one name, less what was put in front, is itself a name."""
    renamed = agent_name(name, plain=plain)
    for other in (renamed, renamed.removeprefix(PREFIX)):
        if other != name:
            assert agent_name(other, plain=plain) != renamed


def test_a_reserved_name_that_ends_as_another_ones_digest_does_not_collide_with_it() -> None:
    broken = "mcp__a.b"
    forged = f"mcp__a_b_{digest(broken)}"
    assert agent_name(broken) == f"{PREFIX}mcp__a_b_{digest(broken)}"
    assert agent_name(forged) != agent_name(broken)


@given(st.sets(NASTY, max_size=20))
def test_every_name_is_converted_back(names: set[str]) -> None:
    known = {agent_name(name): name for name in names}
    assert set(known.values()) == names


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("name", ["get_weather", "a", "A-b_9", "x" * 128, "mcp_", "client"])
def test_a_tool_whose_name_is_valid_keeps_it(name: str, plain: bool) -> None:
    assert agent_name(name, plain=plain) == name


@pytest.mark.parametrize(
    "name",
    [
        *(*sorted(OWN_TOOLS), "apply-patch", "exec-command", "shell-command", "mcp--files--read", "client-x"),
        *("clock__sleep", "clock--sleep", "collaboration__x", "multi_agent_v1__x"),
    ],
)
def test_a_tool_named_as_one_of_the_agents_own_has_another_name_beside_it_alone(name: str) -> None:
    assert agent_name(name) == name
    assert agent_name(name, plain=False) == f"client_{name}"


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("exec_command", "client_exec_command"),
        ("shell_command", "client_shell_command"),
        ("mcp", "client_mcp"),
        ("mcp__github__search", "client_mcp__github__search"),
        ("client_x", "client_client_x"),
        ("files.read", f"client_files_read_{digest('files.read')}"),
        ("mcp__" + "x" * 60, f"client_mcp__{'x' * 35}_{digest('mcp__' + 'x' * 60)}"),
    ],
)
def test_a_name_that_is_invalid_stays_readable(name: str, renamed: str) -> None:
    assert agent_name(name) == renamed


def test_a_message_about_a_required_tool_does_not_mean_the_agents_own_of_that_name() -> None:
    history = (HistoryMessage("user", (TextPart("List it."),)),)
    asked = Turn(model="m", history=history, tools=(Tool("Bash"),), tool_choice="required")
    given = with_tool_choice(asked).history
    words = "Call the tool {} now. Do not answer with text."
    told = json.dumps(conversation(given).lines[-1].blocks)
    assert words.format("`mcp__client__Bash`") in told
    for prompt in (first_prompt(given, takes_system=True), later_prompt(given), later_prompt(given[1:])):
        assert words.format("`Bash` of the MCP server `client`") in json.dumps(prompt.blocks)
