"""What is configured is used, or said: every setting that has no effect with the agent that serves is named."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from codex_proxy.agents import registry
from codex_proxy.agents.codex.codex_specs import AUTO
from codex_proxy.agents.configured.agents import (
    SHARED_SETTINGS,
    needed_capabilities,
    settings_without_effect,
    targets_without_agent,
)
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import settings_check
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import UserError
from codex_proxy.parts import parts
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load, needs_one_of, unused_settings
from tests.http.serving import ENVIRONMENT, GivenSettings, fake_proxy, running_proxy, settings_of
from tests.model_server import upstream

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


@pytest.mark.part("claude_code", "upstream")
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


@pytest.mark.part("upstream")
async def test_the_banner_and_doctor_name_settings_without_effect(tmp_path: Path) -> None:
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


@pytest.mark.part("upstream")
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
    tables = {name: field.default for name, field in fields.items() if isinstance(field.default, BaseModel)}
    for table, default in tables.items():
        keys = type(default).model_fields
        fields |= {f"{table}.{key}": field for key, field in keys.items()}
    lists = [name for name, field in fields.items() if "separated by" in (field.description or "")]
    assert len(lists) >= 7
    for name in lists:
        file.write_text(f'{name} = ["a=b", "c=d"]')
        separator = ":" if "by colons" in (fields[name].description or "") else ","
        assert attrgetter(name)(load({}, file)) == f"a=b{separator}c=d"
    file.write_text('host = ["a", "b"]')
    with pytest.raises(UserError, match="host"):
        load({}, file)


def value_for(name: str) -> dict[str, Any]:
    """A value for a setting, in the table that it is a key of."""
    values = {
        "cassettes.match": "model",
        "metrics": True,
        "max_tool_call_iterations": 3,
        "mcp_call_timeout": 3.0,
    }
    table, _, key = name.rpartition(".")
    value = values.get(name, 2.5 if name == "mcp_tool_refresh_interval" else "2")
    return {table: {key: value}} if table else {name: value}


@pytest.mark.parametrize(("name", "needed"), needs_one_of().items())
def test_a_setting_that_needs_another_one_is_named_without_it(
    name: str, needed: tuple[str, ...], tmp_path: Path
) -> None:
    def unused(*names: str) -> list[str]:
        tables: dict[str, Any] = {}
        for table, value in (pair for each in names for pair in value_for(each).items()):
            tables[table] = {**tables[table], **value} if table in tables else value
        return unused_settings(Settings(agent="fake", workdir=tmp_path, **tables))

    [found] = unused(name)
    assert found.startswith((f"PROXY_{name.replace('.', '_')}".upper(), name.upper()))
    for each in needed:
        assert unused(name, each) == []
    assert unused() == []


@pytest.mark.part("upstream")
def test_a_target_of_a_route_without_an_agent_is_named(tmp_path: Path) -> None:
    route = {"to": "claud-code/opus", "fallback": ["codex/gpt-5.5", "Local/any/name", "mine", "own/2"]}
    several: dict[str, Any] = {
        "agents": {"codex": {"agent": "fake"}},
        "upstreams": {"local": {"url": "http://127.0.0.1:1/v1"}},
        "model_aliases": "own/*=codex/gpt-5.5",
        "routes": {"long": route},
    }
    settings = Settings(workdir=tmp_path, agent="codex", **several)
    assert targets_without_agent(settings) == ("claud-code/opus of [routes.long]",)
    assert "claud-code/opus of [routes.long]" in settings_check(settings, None, {}).message
    routes = {"a": {"to": "codex/gpt-5.5"}}
    alone = Settings(workdir=tmp_path, agent="fake", routes=routes)
    assert targets_without_agent(alone) == ("codex/gpt-5.5 of [routes.a]",)
    upstream = Settings(
        workdir=tmp_path, agent="openai-chat", upstream_url="http://127.0.0.1:1/v1", routes=routes
    )
    assert targets_without_agent(upstream) == ()


async def test_the_banner_names_settings_without_effect_and_routes_without_an_agent(tmp_path: Path) -> None:
    routes = {"long": {"to": "none/model"}}
    settings = GivenSettings(
        agent="fake",
        port=0,
        workdir=tmp_path,
        state_dir=tmp_path / "state",
        routes=routes,
        metrics_key="key",
        web_search=False,
    )
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        lines = banner(proxy.server)
    assert "  NO EFFECT  PROXY_METRICS_KEY (only with PROXY_METRICS)\n" in lines
    assert "  NO EFFECT  PROXY_WEB_SEARCH: not with this agent\n" in lines
    assert "  NO AGENT   none/model of [routes.long]\n" in lines


NEEDS_CAPABILITY: dict[str, Any] = {
    "image_fetch": "a.com",
    "web_search": False,
    **{name: "http://localhost:1/" for part in parts() for name in part.capabilities},
}
FAKE = registry.chosen_spec(GivenSettings(agent="fake"))
ABLE = {(spec.name, ""): spec.capabilities for spec in registry.specs() if not spec.variants}
ABLE |= {("fake", dialect): able for dialect, able in FAKE.variants.items()}


def settings_for(kind: tuple[str, str], folder: Path, table: bool, **more: Any) -> GivenSettings:
    """An agent of this kind alone, chosen by `--agent` or in a table of its own."""
    name, dialect = kind
    own = {"agent": name} | ({"fake_dialect": dialect} if dialect else {})
    if name.startswith("openai-"):
        return GivenSettings(workdir=folder, upstream_url="http://127.0.0.1:1/v1", **own, **more)
    return GivenSettings(workdir=folder, **({"agents": {"one": own}} if table else own), **more)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("kind", ABLE)
def test_a_setting_has_an_effect_exactly_with_the_agents_that_have_the_capability_for_it(
    kind: tuple[str, str], table: bool, tmp_path: Path
) -> None:
    for name, value in NEEDS_CAPABILITY.items():
        unused = settings_without_effect(settings_for(kind, tmp_path, table, **{name: value}))
        assert (name in unused) == (needed_capabilities()[name] not in ABLE[kind]), name


@pytest.mark.parametrize("given", [{}, {"agent": "auto"}, {"agents": {"mine": {"agent": "auto"}}}])
@pytest.mark.parametrize("name", NEEDS_CAPABILITY)
def test_auto_may_be_able_to_do_what_its_codexes_can(
    name: str, given: dict[str, Any], tmp_path: Path
) -> None:
    settings = GivenSettings(workdir=tmp_path, **given, **{name: NEEDS_CAPABILITY[name]})
    assert settings_without_effect(settings) == ()
    assert "no effect" not in settings_check(settings, None, {}).message


def test_auto_uses_the_settings_that_its_codexes_use(tmp_path: Path) -> None:
    codexes = [registry.chosen_spec(GivenSettings(agent=name)) for name in AUTO.variants]
    assert AUTO.effective_settings == frozenset().union(*(spec.effective_settings for spec in codexes))
    assert AUTO.variants == {spec.name: spec.capabilities for spec in codexes}
    for name in OF_AN_AGENT:
        given: dict[str, Any] = {"agent": "auto", name: Settings.model_fields[name].default}
        unused = settings_without_effect(settings_of(tmp_path, **given))
        assert (name in unused) == (name not in AUTO.effective_settings), name


def test_of_several_agents_one_that_uses_a_setting_is_enough(tmp_path: Path) -> None:
    agents = {"chat": {"agent": "codex-proto"}, "codex": {"agent": "auto"}}
    for name, value in NEEDS_CAPABILITY.items():
        assert settings_without_effect(GivenSettings(workdir=tmp_path, agents=agents, **{name: value})) == ()
    plugin = GivenSettings(workdir=tmp_path, agent_plugin="a:SPEC", **NEEDS_CAPABILITY)
    assert settings_without_effect(plugin) == ()


def test_every_setting_that_needs_a_capability_is_in_the_matrix() -> None:
    assert NEEDS_CAPABILITY.keys() == needed_capabilities().keys()
