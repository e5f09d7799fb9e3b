"""Names of tools, there and back: whatever the client calls them, the agent takes them, and no two meet."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.agents.codex_app_server.calls import (
    IGNORED_NAMES,
    MAX_CHARS,
    PREFIX,
    RESERVED_PREFIX,
    agent_name,
)

VALID_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
NAMES = st.text(max_size=140) | st.text("ab_.0", max_size=8) | st.text("ab", min_size=60, max_size=140)
STARTS = st.sampled_from(["", PREFIX, RESERVED_PREFIX, PREFIX + PREFIX, PREFIX + RESERVED_PREFIX])
NASTY = st.builds(str.__add__, STARTS, NAMES | st.sampled_from(sorted(IGNORED_NAMES)))


def digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


@given(NASTY)
@example("mcp__\ud800")
@example("weather\n")
@example("")
def test_every_name_is_one_that_the_agent_accepts(name: str) -> None:
    given_name = agent_name(name)
    assert VALID_NAME.match(given_name)
    assert given_name not in IGNORED_NAMES
    assert not given_name.startswith(RESERVED_PREFIX)
    assert given_name == name or len(given_name) <= MAX_CHARS


@given(st.sets(NASTY, max_size=20))
def test_no_two_names_become_the_same(names: set[str]) -> None:
    assert len({agent_name(name) for name in names}) == len(names)


@given(NASTY)
def test_a_name_that_is_made_to_look_like_a_renamed_one_does_not_collide_with_it(name: str) -> None:
    """What the agent was given for one name, less what was put in front, is itself a name."""
    renamed = agent_name(name)
    for other in (renamed, renamed.removeprefix(PREFIX)):
        if other != name:
            assert agent_name(other) != renamed


def test_a_reserved_name_that_ends_as_another_ones_digest_does_not_collide_with_it() -> None:
    broken = "mcp__a.b"
    forged = f"mcp__a_b_{digest(broken)}"
    assert agent_name(broken) == f"{PREFIX}mcp__a_b_{digest(broken)}"
    assert agent_name(forged) != agent_name(broken)


@given(st.sets(NASTY, max_size=20))
def test_every_name_is_converted_back(names: set[str]) -> None:
    known = {agent_name(name): name for name in names}
    assert set(known.values()) == names


@pytest.mark.parametrize("name", ["get_weather", "a", "A-b_9", "x" * 128, "mcp_", "client"])
def test_a_tool_whose_name_is_valid_keeps_it(name: str) -> None:
    assert agent_name(name) == name


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        ("exec_command", "client_exec_command"),
        ("shell_command", "client_shell_command"),
        ("mcp__github__search", "client_mcp__github__search"),
        ("client_x", "client_client_x"),
        ("files.read", f"client_files_read_{digest('files.read')}"),
        ("mcp__" + "x" * 60, f"client_mcp__{'x' * 35}_{digest('mcp__' + 'x' * 60)}"),
    ],
)
def test_a_name_that_is_invalid_stays_readable(name: str, renamed: str) -> None:
    assert agent_name(name) == renamed
