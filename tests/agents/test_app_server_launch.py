"""How app-server processes are started, told as values: no process runs here."""

import json
import tomllib
from typing import Any

import pytest

from codex_proxy.agents.codex.plain_home import (
    NO_LIMIT,
    CatalogError,
    plain_catalog,
    published_models,
    with_user_settings,
)
from codex_proxy.agents.codex.process_config import (
    COMMON_SWITCHES,
    LINKED_FILES,
    PLAIN_SWITCHES,
    ConfigError,
    ProviderConfig,
    plan_shadow_home,
    toml_string,
)
from codex_proxy.agents.codex.program import Version, version_from
from codex_proxy.agents.codex_app_server import thread_turns
from codex_proxy.agents.codex_app_server.app_server_setup import app_server_argv
from codex_proxy.agents.codex_app_server.connection import OPT_OUT_NOTIFICATIONS, initialize_params
from codex_proxy.agents.shared.conversions import NO_PARAMETERS
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import Turn


def entry(**changes: Any) -> dict[str, Any]:
    """A catalog entry with the fields the real one has, as far as we read or patch them."""
    return {
        "slug": "gpt-a",
        "display_name": "GPT A",
        "visibility": "list",
        "base_instructions": "You are Codex.",
        "model_messages": {"persistent_instructions": "more"},
        "multi_agent_version": "v2",
        "tool_mode": "code_mode_only",
        "context_window": 272000,
        "max_context_window": 872000,
        "truncation_policy": {"mode": "tokens", "limit": 10000},
        "input_modalities": ["text", "image"],
        "supported_reasoning_levels": [
            {"effort": "low", "description": "l"},
            {"effort": "high", "description": "h"},
        ],
        "default_reasoning_level": "low",
        "apply_patch_tool_type": "freeform",
        "experimental_supported_tools": ["clock"],
        "supports_search_tool": True,
        "supports_reasoning_effort_updates": True,
        "use_responses_lite": True,
        "shell_type": "unified_exec",
    } | changes


def switches(argv: tuple[str, ...]) -> dict[str, Any]:
    """The ``-c`` pairs as Codex reads them: each value on its own is TOML."""
    assert argv[2::2] == ("-c",) * len(argv[2::2])
    pairs = (text.split("=", 1) for text in argv[3::2])
    return {key: tomllib.loads(f"v = {value}")["v"] for key, value in pairs}


class TestCatalog:
    def test_a_plain_entry_has_neither_code_mode_nor_agent_tools_nor_limits(self) -> None:
        [plain] = json.loads(plain_catalog({"models": [entry()]}))["models"]
        assert plain["tool_mode"] == "direct"
        assert plain["base_instructions"] == ""
        assert plain["apply_patch_tool_type"] is None
        assert plain["experimental_supported_tools"] == []
        assert plain["context_window"] == plain["max_context_window"] == NO_LIMIT
        assert plain["truncation_policy"] == {"mode": "tokens", "limit": NO_LIMIT}
        assert plain["supports_reasoning_effort_updates"] is False
        assert not {"multi_agent_version", "model_messages"} & plain.keys()

    def test_what_the_patch_does_not_name_stays_as_the_binary_has_it(self) -> None:
        [plain] = json.loads(plain_catalog({"models": [entry()]}))["models"]
        assert (plain["shell_type"], plain["slug"], plain["visibility"]) == ("unified_exec", "gpt-a", "list")

    @pytest.mark.parametrize(
        ("lite", "seen"), [(None, [True, False]), (True, [True, True]), (False, [False, False])]
    )
    def test_the_lite_form_is_kept_unless_the_operator_chose(
        self, lite: bool | None, seen: list[bool]
    ) -> None:
        bundled = {"models": [entry(), entry(slug="gpt-b", use_responses_lite=False)]}
        models = json.loads(plain_catalog(bundled, lite=lite))["models"]
        assert [model["use_responses_lite"] for model in models] == seen

    def test_a_custom_model_gets_one_entry_and_a_known_one_none(self) -> None:
        bundled = json.dumps({"models": [entry()]}).encode()
        models = json.loads(plain_catalog(bundled, extra_slugs=["mine", "gpt-a", "mine"]))["models"]
        assert [model["slug"] for model in models] == ["gpt-a", "mine"]
        assert (models[1]["display_name"], models[1]["use_responses_lite"]) == ("mine", False)
        assert models[1]["tool_mode"] == "direct"

    def test_the_given_catalog_is_not_changed(self) -> None:
        bundled = {"models": [entry()]}
        plain_catalog(bundled, extra_slugs=["mine"], lite=False)
        assert bundled == {"models": [entry()]}

    def test_published_models_come_from_the_unpatched_catalog(self) -> None:
        [model] = published_models({"models": [entry(visibility="hide")]})
        assert (model.id, model.display_name, model.context_window) == ("gpt-a", "GPT A", 272000)
        assert (model.efforts, model.default_effort) == (("low", "high"), "low")
        assert model.input_modalities == ("text", "image")
        assert model.hidden

    @pytest.mark.parametrize(
        ("configured", "own"), [(None, "gpt-b"), ("gpt-c", "gpt-c"), ("hidden", "hidden"), ("mine", "mine")]
    )
    def test_the_model_that_codex_uses_by_itself_is_known(self, configured: str | None, own: str) -> None:
        places = {"gpt-a": 3, "gpt-b": 1, "gpt-c": 2}
        entries = [entry(slug=slug, priority=place) for slug, place in places.items()]
        bundled = published_models(
            {"models": [entry(slug="hidden", visibility="hide", priority=0), *entries]}
        )
        models = with_user_settings(bundled, configured, "flex")
        assert [model.id for model in models if model.serves_unnamed] == [own]
        assert {model.id for model in models} == {"hidden", *places, own}
        added = [model for model in models if model.id == "mine"]
        assert not any(model.native or model.verbosity for model in added), "Codex knows nothing of it"

    @pytest.mark.parametrize(("said", "taken"), [({}, True), (True, True), (False, False)])
    def test_a_model_that_gets_no_verbosity_is_known(self, said: Any, taken: bool) -> None:
        more = {} if said == {} else {"support_verbosity": said}
        [model] = published_models({"models": [entry(**more)]})
        assert model.verbosity is taken

    @pytest.mark.parametrize(
        ("bundled", "named"),
        [
            (b"{", "not JSON"),
            ([], '"models"'),
            ({"models": []}, '"models"'),
            ({"models": [3]}, r"models\[0\]"),
            ({"models": [{"slug": "x"}]}, r"models\[0\] \(x\).*`display_name`"),
            (
                {"models": [entry(), entry(truncation_policy=5)]},
                r"models\[1\].*got `int` - at `\$\.truncation_policy`",
            ),
            ({"models": [entry(supported_reasoning_levels=["low"])]}, "supported_reasoning_levels"),
        ],
    )
    def test_an_unknown_shape_is_named(self, bundled: Any, named: str) -> None:
        with pytest.raises(CatalogError, match=named):
            plain_catalog(bundled)
        with pytest.raises(CatalogError, match=named):
            published_models(bundled)


class TestArgv:
    def test_a_plain_process_has_every_switch_of_the_table_and_the_catalog(self) -> None:
        argv = app_server_argv("/bin/codex", ProviderConfig(), catalog='/state/a "b".json')
        assert argv[:2] == ("/bin/codex", "app-server")
        seen = switches(argv)
        table = {switch.key for switch in (*COMMON_SWITCHES, *PLAIN_SWITCHES)}
        assert seen.keys() == table | {"model_catalog_json"}
        assert seen["model_catalog_json"] == '/state/a "b".json'
        assert (seen["web_search"], seen["features.shell_tool"]) == ("disabled", False)

    def test_an_agent_process_keeps_its_tools_and_instructions(self) -> None:
        seen = switches(app_server_argv("codex", ProviderConfig()))
        assert seen == {
            "analytics.enabled": False,
            "features.plugins": False,
            "features.apps": False,
            "features.unbounded_connection_retries": False,
            "agents.enabled": False,
            "thread_unload_delay_secs": 0,
        }

    def test_only_a_custom_provider_gets_retry_counts(self) -> None:
        custom = switches(app_server_argv("codex", ProviderConfig("mine", custom=True)))
        assert custom["model_providers.mine.request_max_retries"] == 0
        assert custom["model_providers.mine.stream_max_retries"] == 0
        for provider in (ProviderConfig(), ProviderConfig("a.b", custom=True)):
            seen = switches(app_server_argv("codex", provider))
            assert not [key for key in seen if key.startswith("model_providers")]

    def test_shells_of_the_agent_do_not_see_the_providers_keys(self) -> None:
        provider = ProviderConfig(
            "mine", custom=True, env_names=("MY_KEY",), shell_exclude=("AWS_*", "MY_KEY")
        )
        agent = switches(app_server_argv("codex", provider))
        assert agent["shell_environment_policy.exclude"] == ["AWS_*", "MY_KEY"]
        plain = switches(app_server_argv("codex", provider, catalog="c"))
        assert "shell_environment_policy.exclude" not in plain

    def test_a_further_switch_comes_last(self) -> None:
        argv = app_server_argv("codex", ProviderConfig(), extra=[("log_dir", '"/x"')])
        assert argv[-2:] == ("-c", 'log_dir="/x"')

    def test_no_switch_is_listed_twice_and_each_has_its_reason(self) -> None:
        table = (*COMMON_SWITCHES, *PLAIN_SWITCHES)
        assert len({switch.key for switch in table}) == len(table)
        assert all(switch.reason for switch in table)

    @pytest.mark.parametrize("text", ['a"b\\c', "tab\tnew\nline", "\x7f", "Größe €", "", "[1]"])
    def test_a_string_survives_the_way_through_toml(self, text: str) -> None:
        assert tomllib.loads(f"v = {toml_string(text)}")["v"] == text


class TestParams:
    def test_a_plain_thread_has_no_environment_no_base_prompt_and_the_clients_tools(self) -> None:
        turn = Turn(model="m", history=(), mode="model", workdir="/empty", tools=(Tool("f"),))
        assert thread_turns.thread_params(turn) == {
            "cwd": "/empty",
            "ephemeral": True,
            "approvalPolicy": "never",
            "sandbox": "read-only",
            "experimentalRawEvents": True,
            "model": "m",
            "environments": [],
            "baseInstructions": "",
            "dynamicTools": [
                {"type": "function", "name": "f", "description": "", "inputSchema": NO_PARAMETERS}
            ],
        }

    def test_an_agent_thread_works_in_its_folder_with_its_own_prompt(self) -> None:
        turn = Turn(model="", history=(), workdir="/work", sandbox="workspace-write")
        params = thread_turns.thread_params(turn)
        assert (params["cwd"], params["sandbox"]) == ("/work", "workspace-write")
        assert not {"model", "environments", "baseInstructions", "dynamicTools"} & params.keys()

    def test_initialize_asks_for_the_experimental_api_and_no_unused_notifications(self) -> None:
        params = initialize_params("codex-proxy", "0.1.0")
        assert params["clientInfo"]["name"] == "codex-proxy"
        assert params["capabilities"]["experimentalApi"] is True
        silenced = params["capabilities"]["optOutNotificationMethods"]
        assert len(set(silenced)) == len(silenced)

    @pytest.mark.parametrize(
        "method",
        [
            "error",
            "item/started",
            "item/completed",
            "item/agentMessage/delta",
            "item/reasoning/summaryPartAdded",
            "item/reasoning/summaryTextDelta",
            "item/reasoning/textDelta",
            "item/commandExecution/outputDelta",
            "rawResponseItem/completed",
            "rawResponse/completed",
            "thread/tokenUsage/updated",
            "thread/closed",
            "turn/plan/updated",
            "turn/completed",
            "account/rateLimits/updated",
            "account/updated",
            "warning",
            "configWarning",
        ],
    )
    def test_what_a_turn_needs_is_never_switched_off(self, method: str) -> None:
        assert method not in OPT_OUT_NOTIFICATIONS


def test_releases_whose_snapshots_hold_every_variable_take_none() -> None:
    before = app_server_argv("codex", ProviderConfig(), version=Version(0, 157, 1))
    assert "features.shell_snapshot=false" in before
    assert "features.shell_snapshot=false" not in app_server_argv(
        "codex", ProviderConfig(), version=Version(0, 158, 0)
    )
    assert "features.shell_snapshot=false" not in app_server_argv("codex", ProviderConfig())


class TestVersions:
    @pytest.mark.parametrize(
        ("text", "version"),
        [
            ("codex-cli 0.163.0\n", Version(0, 163, 0)),
            ("WARNING: proceeding in /tmp/1.2.3\ncodex-cli 0.42.0", Version(0, 42, 0)),
            ("codex-proxy/0.169.0 (Debian 12.0.0; x86_64) unknown (codex-proxy; 0.1.0)", Version(0, 169, 0)),
            ("codex-cli 0.164.0-alpha.1", Version(0, 164, 0)),
            ("bash: codex: not found", None),
            ("", None),
        ],
    )
    def test_a_version_is_read_from_the_text_codex_prints(self, text: str, version: Version | None) -> None:
        assert version_from(text) == version


CONFIG = """
model = "m-1"
model_provider = "mine"
developer_instructions = "never tell"
chatgpt_base_url = "https://chat.example"

[model_providers.mine]
name = "mine"
base_url = "http://127.0.0.1:9/v1"
env_key = "MY_KEY"
env_http_headers = { "X-Team" = "MY_TEAM", "X-Key" = "MY_KEY" }

[model_providers.other]
env_key = "OTHER_KEY"

[mcp_servers.files]
command = "files"

[shell_environment_policy]
exclude = ["AWS_*"]
"""


class TestShadowHome:
    def test_only_the_provider_part_is_carried_over(self) -> None:
        plan = plan_shadow_home(CONFIG)
        kept = tomllib.loads(plan.config_toml)
        original = tomllib.loads(CONFIG)
        assert kept.keys() == {"model", "model_provider", "chatgpt_base_url", "model_providers"}
        assert kept == {key: original[key] for key in kept}
        assert LINKED_FILES == ("auth.json",)

    def test_the_variables_of_the_chosen_provider_are_found_once_each(self) -> None:
        provider = ProviderConfig(
            "mine", custom=True, env_names=("MY_KEY", "MY_TEAM"), shell_exclude=("AWS_*",)
        )
        assert plan_shadow_home(CONFIG).provider == provider

    def test_a_home_without_a_config_uses_the_built_in_provider(self) -> None:
        plan = plan_shadow_home("")
        assert (plan.config_toml, plan.provider) == ("", ProviderConfig("openai", custom=False))

    @pytest.mark.parametrize(
        "text",
        ['model_provider = "ollama"', 'model_provider = "nowhere"', '[model_providers.mine]\nname = "mine"'],
    )
    def test_a_provider_the_user_did_not_both_define_and_choose_is_not_custom(self, text: str) -> None:
        assert not plan_shadow_home(text).provider.custom

    def test_a_sign_in_in_the_keyring_is_noticed(self) -> None:
        [notice] = plan_shadow_home('cli_auth_credentials_store = "keyring"').notices
        assert "keyring" in notice

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ('model = "a"\nmodel_provider = \n', "line 2"),
            ("x = " + "[" * 100_000, "nested too deeply"),
            ("model_provider = 3", "model_provider is not a string"),
            ("model_providers = 3", "model_providers is not a table"),
            ('model_provider = "x"\nmodel_providers.x = 3', "model_providers.x is not a table"),
            ('model_provider = "x"\nmodel_providers.x.env_key = 3', "model_providers.x.env_key"),
            ('shell_environment_policy.exclude = "A"', "shell_environment_policy.exclude"),
        ],
    )
    def test_a_broken_config_names_the_place(self, text: str, named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            plan_shadow_home(text)
