"""Tables and variables of model servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.agents.configured.agents import configured_agents, settings_without_effect
from codex_proxy.core.faults import UserError
from codex_proxy.parts import own_settings
from codex_proxy.parts.upstream.upstream_specs import UpstreamSettings
from codex_proxy.settings.load import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def test_a_variable_changes_no_table_of_an_agent(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_UPSTREAM_URL", "http://127.0.0.1:9/v1")
    file.write_text('[agents.x]\nagent = "openai-chat"\nupstream_url = "http://127.0.0.1:8/v1"\n')
    found = {each.name: each for each in configured_agents(load({}, file))}
    assert own_settings(found["x"].settings, UpstreamSettings).upstream_url == "http://127.0.0.1:8/v1"


@pytest.mark.parametrize("wrong", ["upstreams = 3", '[agents.x]\nagent = "openai-chat"\nupstreams = "foo"'])
def test_a_table_that_is_none_is_named(wrong: str, file: Path) -> None:
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
