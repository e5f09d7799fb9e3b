"""Old names of the settings of model servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from codex_proxy.agents.configured.agents import configured_agents, settings_without_effect
from codex_proxy.commands.doctor import settings_check
from codex_proxy.commands.serve import serve_to_the_end
from codex_proxy.core.faults import UserError
from codex_proxy.parts import own_settings
from codex_proxy.parts.upstream import PART
from codex_proxy.parts.upstream.config import UpstreamConfig
from codex_proxy.parts.upstream.upstream_specs import UpstreamSettings
from codex_proxy.settings.load import load

CASES: dict[str, tuple[str, Any]] = {
    "upstream_ca_file": ("/a.pem", Path("/a.pem")),
    "upstream_connect_timeout": ("7", 7.0),
    "upstream_first_byte_timeout": ("7", 7.0),
    "upstream_retries": ("7", 7),
    "upstream_retry_wait": ("7", 7.0),
    "upstream_breaker_failures": ("7", 7),
    "upstream_key_file": ("/key", Path("/key")),
    "upstream_idle_timeout": ("7", 7.0),
}
"""Each old name: a value, and what the key of the same name in `[upstreams.default]` then is."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def upstreams_in(settings: object) -> dict[str, UpstreamConfig]:
    return own_settings(settings, UpstreamSettings).upstreams


def test_every_old_name_has_a_case() -> None:
    assert CASES.keys() == PART.old_names.keys()


@pytest.mark.parametrize("place", ["variable", "file"])
@pytest.mark.parametrize("name", CASES)
def test_an_old_name_sets_a_key_of_the_only_upstream(
    name: str, place: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, expected = CASES[name]
    if place == "variable":
        monkeypatch.setenv(f"PROXY_{name.upper()}", value)
    else:
        file.write_text(f"{name} = {value if value.isdigit() else repr(value)}\n")
    settings = load({}, file)
    assert getattr(upstreams_in(settings)["default"], name.removeprefix("upstream_")) == expected
    assert settings.old_names == (name,)
    assert f"`{name}` (PROXY_{name.upper()}) is an old name" in settings_check(settings, file, {}).advice


def test_a_new_name_wins_over_the_old_one(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("[upstreams.default]\nretries = 1\n")
    monkeypatch.setenv("PROXY_UPSTREAM_RETRIES", "7")
    monkeypatch.setenv("PROXY_UPSTREAM_RETRY_WAIT", "8")
    default = upstreams_in(load({}, file))["default"]
    assert (default.retries, default.retry_wait) == (1, 8.0)


def test_an_old_limit_of_all_upstreams_still_holds_for_each_table(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[upstreams.a]\nurl = 'http://a'\n[upstreams.b]\nurl = 'http://b'\nconnect_timeout = 1\n")
    monkeypatch.setenv("PROXY_UPSTREAM_CONNECT_TIMEOUT", "7")
    upstreams = upstreams_in(load({}, file))
    assert {name: table.connect_timeout for name, table in upstreams.items()} == {"a": 7.0, "b": 1.0}


def test_an_old_limit_in_the_table_of_an_upstream_agent_still_holds(file: Path) -> None:
    file.write_text("[agents.a]\nagent = 'openai-chat'\nupstream_idle_timeout = 7\n")
    assert configured_agents(load({}, file))[0].settings.idle_timeout == 7.0


def test_settings_without_old_names_have_no_other_values(file: Path) -> None:
    assert upstreams_in(load({}, file)) == {}
    assert UpstreamConfig().retries == 2


async def test_a_server_says_at_its_start_what_replaces_an_old_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_UPSTREAM_RETRIES", "7")
    settings = load(
        {"agent": "openai-chat", "upstream_url": "ftp://no-address", "state_dir": file.parent}, file
    )
    with capture_logs() as logged:
        assert await serve_to_the_end(settings, lambda *text, **more: None) == 1
    told = [line["text"] for line in logged if line["event"] == "old_setting"]
    assert len(told) == 1
    assert "use `retries` of [upstreams.default]" in told[0]


def test_an_old_name_as_a_variable_changes_no_table_of_an_agent(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_UPSTREAM_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("PROXY_UPSTREAM_RETRIES", "1")
    file.write_text('[agents.x]\nagent = "openai-chat"\nupstream_url = "http://127.0.0.1:8/v1"\n')
    found = {each.name: each for each in configured_agents(load({}, file))}
    assert own_settings(found["x"].settings, UpstreamSettings).upstream_url == "http://127.0.0.1:8/v1"


@pytest.mark.parametrize("wrong", ["upstreams = 3", '[agents.x]\nagent = "openai-chat"\nupstreams = "foo"'])
def test_a_table_that_is_none_is_named_beside_an_old_name(
    wrong: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_UPSTREAM_RETRIES", "3")
    file.write_text(wrong + "\n")
    with pytest.raises(UserError, match="upstreams"):
        configured_agents(load({}, file))


@pytest.mark.parametrize("key", ["sk-1", "client"])
def test_the_short_key_of_the_only_table_has_an_effect(
    key: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_UPSTREAM_KEY", key)
    file.write_text('[upstreams.default]\nurl = "http://127.0.0.1:9/v1"\n')
    assert settings_without_effect(load({}, file)) == ()
