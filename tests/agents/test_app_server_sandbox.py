"""What commands may do to files, as switches of the agent's process: read back as the TOML that Codex sees."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.codex.process_config import (
    ConfigError,
    Profiles,
    WorkspaceWrite,
    outermost_paths,
    plan_shadow_home,
    workspace_write_pairs,
)

PATHS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12).map(lambda name: f"/{name}")
POLICIES = st.builds(
    WorkspaceWrite,
    st.lists(PATHS, max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


def toml_values(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    return {key: tomllib.loads(f"value={value}")["value"] for key, value in pairs}


@given(POLICIES)
def test_what_is_given_as_switches_is_what_the_users_table_says(policy: WorkspaceWrite) -> None:
    table = "\n".join(f"{key}={value}" for key, value in workspace_write_pairs(policy))
    assert plan_shadow_home(table).write_policy == policy


@given(st.lists(PATHS, max_size=4), POLICIES)
def test_both_profiles_deny_every_hidden_path_whatever_else_may_be_written(
    hidden: list[str], policy: WorkspaceWrite
) -> None:
    profiles = Profiles("random", tuple(hidden), policy)
    switches = toml_values(profiles.pairs())
    for name, extends in (("random_read", ":read-only"), ("random_write", ":workspace")):
        table = switches[f"permissions.{name}"]
        assert table["extends"] == extends
        assert all(table["filesystem"][path] == "deny" for path in hidden)
    assert ":slash_tmp" not in switches["permissions.random_read"]["filesystem"]
    assert set(switches["permissions.random_read"]["filesystem"].values()) <= {"deny"}
    assert "network" not in switches["permissions.random_read"]
    written = switches["permissions.random_write"]
    assert (written.get("network") == {"enabled": True}) is policy.network_access
    assert (written["filesystem"].get(":slash_tmp") == "read") is policy.exclude_slash_tmp
    assert (written["filesystem"].get(":tmpdir") == "read") is policy.exclude_tmpdir_env_var
    assert switches["default_permissions"] == profiles.of("read-only")


def test_a_turn_without_a_sandbox_has_no_profile() -> None:
    assert Profiles("random", ()).of("danger-full-access") is None


def test_a_path_in_a_hidden_folder_is_not_named_again() -> None:
    assert outermost_paths(["/state/keys", "/state", "/state-2", "/state"]) == ("/state", "/state-2")


@pytest.mark.parametrize("value", ['"/a"', "[1]", "7"])
def test_roots_that_are_no_list_of_paths_are_refused_by_name(value: str) -> None:
    with pytest.raises(ConfigError, match=r"sandbox_workspace_write\.writable_roots"):
        plan_shadow_home(f"[sandbox_workspace_write]\nwritable_roots = {value}")
