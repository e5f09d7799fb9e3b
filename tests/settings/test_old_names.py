"""The old names of settings: each still sets what replaces it, and the operator is told what that is."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.configured.agents import configured_agents
from codex_proxy.commands.doctor import settings_check
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load
from codex_proxy.settings.old_names import OLD_NAMES


def of_child(limit: str) -> Any:
    """What a limit of child processes is."""
    return lambda settings: settings.child_limits[limit]


WITHOUT_EFFECT = [name for name, old in OLD_NAMES.items() if old.now.startswith("nothing")]

CASES: dict[str, tuple[str, Any, Any]] = {
    "sse_keepalive_ms": ("500", attrgetter("heartbeat_interval"), 0.5),
    "mcp_start_wait": ("7", attrgetter("queue_wait"), 7.0),
    "child_open_files": ("7", of_child("open_files"), 7),
    "child_address_space": ("7", of_child("address_space"), 7),
    "child_processes": ("7", of_child("processes"), 7),
    "webhook_urls": ("http://a", attrgetter("webhooks.urls"), "http://a"),
    "webhook_secret": ("s", lambda settings: settings.webhooks.secret.get_secret_value(), "s"),
    "store_path": ("/a/b", attrgetter("store_file"), Path("/a/b")),
    **{name: ("7", lambda settings: None, None) for name in WITHOUT_EFFECT},
}
"""Each old name: a value, how what replaces it is read, and what that then is."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def test_every_old_name_has_a_case_and_is_no_setting() -> None:
    of_parts = {name for part in parts() for name in part.old_names}
    assert CASES.keys() == OLD_NAMES.keys() - of_parts
    assert not OLD_NAMES.keys() & Settings.model_fields.keys()


@pytest.mark.parametrize("place", ["variable", "file"])
@pytest.mark.parametrize("name", CASES)
def test_an_old_name_sets_what_replaces_it(
    name: str, place: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, read, expected = CASES[name]
    if name == "webhook_urls":
        monkeypatch.setenv("PROXY_WEBHOOKS_SECRET", "needed")
    if place == "variable":
        monkeypatch.setenv(f"PROXY_{name.upper()}", value)
    else:
        file.write_text(f"{name} = {value if value.isdigit() or value == 'true' else repr(value)}\n")
    settings = load({}, file)
    assert read(settings) == expected
    assert settings.old_names == (name,)
    assert settings_check(settings, file, {}).status == "warning"
    assert f"`{name}` (PROXY_{name.upper()}) is an old name" in settings_check(settings, file, {}).advice


def test_limits_of_children_under_old_names_are_put_together(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[child_limits]\nopen_files = 1\n")
    monkeypatch.setenv("PROXY_CHILD_OPEN_FILES", "7")
    monkeypatch.setenv("PROXY_CHILD_PROCESSES", "8")
    assert load({}, file).child_limits == {"open_files": 1, "processes": 8}


def test_the_old_path_of_a_store_counts_unless_the_store_is_no_file(file: Path) -> None:
    file.write_text("store = 'sqlite'\nstore_path = 'a.db'\n")
    assert load({}, file).store_file == Path("a.db").absolute()
    file.write_text("store = 'memory'\nstore_path = 'a.db'\n")
    assert load({}, file).store == "memory"


def test_an_old_name_in_the_table_of_an_agent_keeps_no_server_from_starting(file: Path) -> None:
    file.write_text("[agents.mine]\nagent = 'codex-proto'\napp_server_processes = 2\n")
    settings = load({}, file)
    assert settings.old_names == ("app_server_processes",)
    assert [each.name for each in configured_agents(settings)] == ["mine"]


def test_settings_without_old_names_have_no_other_values(file: Path) -> None:
    assert load({}, file).old_names == ()
