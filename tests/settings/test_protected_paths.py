"""No sandbox that writes holds the server's own files, wherever they are and whatever leads to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import codex_proxy
from codex_proxy.agents.codex.plain_home import user_config
from codex_proxy.agents.codex.process_config import WorkspaceWrite
from codex_proxy.app.start_checks import check
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.checks import workspace_check
from codex_proxy.core.faults import Fault, UserError
from codex_proxy.core.safety import ProtectedPath, find_endangered
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load
from codex_proxy.settings.protected_paths import paths_to, safe_write_policy, write_conflict
from tests.waiting import PATIENCE

ROOT = Path(codex_proxy.__file__).parents[1]


@pytest.fixture
def top(tmp_path: Path) -> Path:
    for name in ("work", "codex-home", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "codex").write_text("#!/bin/sh\n")
    return tmp_path


def settings_of(top: Path, **more: Any) -> Settings:
    """Settings of a server that writes, with every file of its own beside the workspace."""
    given: dict[str, Any] = {
        "agent": "codex-app-server",
        "codex_bin": str(top / "bin" / "codex"),
        "codex_home": top / "codex-home",
        "workdir": top / "work",
        "state_dir": top / "state",
        "sandbox": "workspace-write",
    }
    return Settings(**(given | more))


def test_a_workspace_beside_the_servers_own_files_is_fine(top: Path) -> None:
    assert write_conflict(settings_of(top), {}) is None
    check(settings_of(top), SystemClock(), {})


OWN: list[tuple[str, dict[str, str]]] = [
    ("the state folder", {"state_dir": "work/.local/state"}),
    ("the keys file", {"keys_file": "work/keys.toml"}),
    ("the store", {"store": "work/store.sqlite3"}),
    *((what, {name: "work/file"}) for part in parts() for name, what in part.files.items()),
    ("Codex's home", {"codex_home": "work/.codex"}),
    ("the Codex program", {"codex_bin": "work/codex"}),
]


@pytest.mark.parametrize(("what", "given"), OWN)
def test_a_workspace_that_holds_one_of_them_is_refused_with_both_paths(
    top: Path, what: str, given: dict[str, str]
) -> None:
    more: dict[str, Any] = {name: str(top / path) for name, path in given.items()}
    settings = settings_of(top, **more)
    conflict = write_conflict(settings, {}) or ""
    assert what in conflict
    assert all(str(path) in conflict for path in (top / "work", next(iter(more.values()))))
    assert "another folder" in conflict
    assert write_conflict(settings_of(top, **more, sandbox="read-only"), {}) is None
    assert write_conflict(settings_of(top, **more, builtin_tools="never"), {}) is None
    assert workspace_check(settings, {}).status == "failed"


UPSTREAM = {"url": "http://127.0.0.1:9/v1"}


@pytest.mark.part("upstream")
@pytest.mark.parametrize(
    ("agents", "starts"),
    [
        ({"agent": "openai-chat", "upstream_url": UPSTREAM["url"]}, True),
        ({"agent": "openai-responses", "upstream_url": UPSTREAM["url"]}, True),
        ({"agent": "a", "upstreams": {"a": UPSTREAM, "b": UPSTREAM}}, True),
        ({"agent": "a", "upstreams": {"a": UPSTREAM}, "agents": {"fake": {}}}, False),
    ],
)
def test_agents_without_commands_start_in_any_folder(top: Path, agents: dict[str, Any], starts: bool) -> None:
    settings = settings_of(top, **agents, state_dir=top / "work" / "state")
    if starts:
        check(settings, SystemClock(), {})
        return
    with pytest.raises(UserError, match="the state folder"):
        check(settings, SystemClock(), {})


@pytest.mark.parametrize(
    ("folder", "what"),
    [
        (ROOT, "the server's code"),
        (ROOT / "codex_proxy" / "process", "the server's code"),
        (ROOT / "fake_proto", "the server's code"),
        (Path(sys.prefix), "the Python environment"),
        (Path(sys.prefix) / "bin", "the Python environment"),
        (Path("/"), "the state folder"),
    ],
)
def test_a_workspace_with_the_code_or_within_it_is_refused(top: Path, folder: Path, what: str) -> None:
    with pytest.raises(UserError, match=what):
        check(settings_of(top, workdir=folder), SystemClock(), {})


def test_the_settings_file_counts_wherever_it_was_read_from(
    top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = top / "work" / "settings.toml"
    file.write_text(
        f'sandbox = "workspace-write"\nworkdir = "{top / "work"}"\nstate_dir = "{top / "state"}"\n'
    )
    assert "the settings file" in (write_conflict(load({"agent": "fake"}, file), {}) or "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(top / "work"))
    assert "the settings file" in (write_conflict(settings_of(top), {}) or "")


def test_a_link_on_the_way_counts_like_what_it_leads_to(top: Path) -> None:
    (top / "work" / "link").symlink_to("../real")
    (top / "real" / "state").mkdir(parents=True)
    conflict = write_conflict(settings_of(top, state_dir=top / "work" / "link" / "state"), {}) or ""
    assert str(top / "work" / "link") in conflict
    (top / "to-work").symlink_to("work")
    assert write_conflict(settings_of(top, workdir=top / "to-work", state_dir=top / "work" / "state"), {})


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert str(tmp_path / "a") in paths_to(tmp_path / "a" / "file")


def test_a_writable_root_of_codexs_own_configuration_counts_like_the_workspace(top: Path) -> None:
    (top / "codex-home" / "config.toml").write_text(
        f'[sandbox_workspace_write]\nwritable_roots = ["{top / "fine"}", "{top}"]\nnetwork_access = true\n'
    )
    conflict = write_conflict(settings_of(top), {}) or ""
    assert f"names {top} in sandbox_workspace_write.writable_roots" in conflict
    assert str(top / "state") in conflict
    policy = user_config(top / "codex-home").write_policy
    policy = safe_write_policy(policy, settings_of(top), {})
    assert (policy.writable_roots, policy.network_access) == ((str(top / "fine"),), True)


def test_a_pipe_in_the_place_of_codexs_own_configuration_is_not_waited_for(top: Path) -> None:
    (top / "codex-home" / "config.toml").unlink(missing_ok=True)
    os.mkfifo(top / "codex-home" / "config.toml")
    with pytest.raises(Fault, match="it is no regular file"):
        user_config(top / "codex-home")


def test_a_temporary_folder_with_something_of_this_server_is_left_out_of_what_may_be_written(
    top: Path,
) -> None:
    policy = safe_write_policy(WorkspaceWrite(), settings_of(top), {"TMPDIR": str(top)})
    assert policy.exclude_tmpdir_env_var
    ours = [os.path.realpath(each) for each in (top, ROOT)]  # this server's code is ours, too
    assert policy.exclude_slash_tmp is any(each.startswith(os.path.realpath("/tmp") + "/") for each in ours)


def test_a_temporary_folder_with_nothing_of_this_server_may_be_written(top: Path) -> None:
    policy = safe_write_policy(WorkspaceWrite(), settings_of(top), {"TMPDIR": str(top / "other")})
    assert not policy.exclude_tmpdir_env_var
    assert policy.writable_roots == ()


PATHS = st.lists(st.sampled_from(["a", "b", "ab"]), max_size=4).map(lambda names: "/" + "/".join(names))


@given(PATHS, PATHS, st.booleans())
def test_a_path_is_in_danger_from_what_contains_it_and_from_what_it_contains(
    root: str, place: str, whole: bool
) -> None:
    upper, lower = Path(root), Path(place)
    found = find_endangered(root, (ProtectedPath("x", place, whole),))
    assert (found is not None) is (lower.is_relative_to(upper) or (whole and upper.is_relative_to(lower)))


@pytest.mark.exhaustive
def test_a_server_that_is_started_in_the_checkout_says_to_start_it_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "codex_proxy", "serve", "--agent", "fake"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--sandbox", "workspace-write", "--port", "0"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert f"--sandbox workspace-write would let the agent's commands write to {ROOT}" in done.stderr
    assert "Work in another folder (start the server there" in done.stderr
