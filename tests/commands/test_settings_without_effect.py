"""What is configured is used, or said: every setting that has no effect with the agent that serves is named."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents import registry
from codex_proxy.agents.configured.agents import SHARED_SETTINGS, settings_without_effect
from codex_proxy.commands.doctor import settings_check
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load
from tests.http.serving import GivenSettings, fake_proxy, settings_of
from tests.upstreams.serving import upstream

OF_AN_AGENT = sorted(
    frozenset().union(*(spec.effective_settings for spec in registry.specs())) - SHARED_SETTINGS
)


def test_a_setting_is_named_with_the_agents_that_do_not_use_it_and_with_no_other(tmp_path: Path) -> None:
    for spec in registry.specs():
        for name in OF_AN_AGENT:
            given: dict[str, Any] = {"agent": spec.name, name: Settings.model_fields[name].default}
            unused = settings_without_effect(settings_of(tmp_path, **given))
            assert (name in unused) == (name not in spec.effective_settings), f"{name} with {spec.name}"


def test_a_setting_that_only_one_kind_of_agent_uses_is_declared_by_it() -> None:
    """Settings whose name says which agents they are for."""
    beginnings = ("codex_", "claude_", "app_server_", "upstream_", "fake_", "child_")
    named = {name for name in Settings.model_fields if name.startswith(beginnings)}
    assert named <= set(OF_AN_AGENT) | SHARED_SETTINGS
    assert {"sandbox", "workdir", "builtin_tools"} <= set(OF_AN_AGENT)


def test_tables_use_what_their_agents_use(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        agents={"claude": {"agent": "claude-code"}},
        upstreams={"a": {"url": "http://127.0.0.1:1/v1"}},
        agent="claude",
        claude_bin="/bin/true",
        codex_home=tmp_path,
        upstream_url="http://127.0.0.1:2/v1",
        upstream_key="key",
    )
    assert settings_without_effect(settings) == ("codex_home", "upstream_url", "upstream_key")


async def test_the_banner_and_doctor_name_them(tmp_path: Path) -> None:
    async with upstream() as server:
        given: dict[str, Any] = {
            "agent": "openai-chat",
            "upstream_url": server.url,
            "sandbox": "read-only",
        }
        async with fake_proxy(tmp_path, **given, codex_home=tmp_path) as proxy:
            assert "CODEX_HOME, PROXY_WORKDIR, PROXY_SANDBOX: not with this agent" in banner(proxy.server)
            check = settings_check(settings_of(tmp_path, **given), None, {})
            assert (check.status, "PROXY_WORKDIR, PROXY_SANDBOX" in check.message) == ("warning", True)
    used = GivenSettings(agent="fake", workdir=tmp_path, state_dir=tmp_path / "state")
    assert settings_check(used, None, {}).status == "ok"


@pytest.mark.parametrize("name", ["PROXY_UPSTREAM_URL", "OPENAI_BASE_URL_INTERNAL"])
def test_the_address_of_a_model_server_chooses_its_agent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("")
    assert load({}, file).agent == "auto"
    monkeypatch.setenv(name, "http://127.0.0.1:1/v1")
    assert load({}, file).agent == "openai-chat"
    for agent in ("auto", "fake", "openai-responses"):
        assert load({"agent": agent}, file).agent == agent
    assert load({"agent_plugin": "my_package:SPEC"}, file).agent == "auto"
    file.write_text('[upstreams.a]\nurl = "http://127.0.0.1:2/v1"\n')
    assert load({}, file).agent == "auto"


def test_an_array_in_the_file_is_a_list_of_each_setting_that_is_one(tmp_path: Path) -> None:
    """A list in the environment is one text; TOML has arrays."""
    file = tmp_path / "config.toml"
    fields = dict(Settings.model_fields)
    for table in ("acp", "cassettes", "webhooks"):
        keys = type(fields[table].default).model_fields
        fields |= {f"{table}.{key}": field for key, field in keys.items()}
    lists = [name for name, field in fields.items() if "separated by" in (field.description or "")]
    assert len(lists) >= 11
    for name in lists:
        file.write_text(f'{name} = ["a=b", "c=d"]')
        separator = ":" if "by colons" in (fields[name].description or "") else ","
        assert attrgetter(name)(load({}, file)) == f"a=b{separator}c=d"
    file.write_text('host = ["a", "b"]')
    with pytest.raises(UserError, match="host"):
        load({}, file)
