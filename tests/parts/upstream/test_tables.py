"""What the table of an upstream says, what `doctor` says of it, and what is told of a wrong one."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.app.store_lifecycle import retention_of
from codex_proxy.cli import load_settings, main
from codex_proxy.commands.doctor import examine
from codex_proxy.core.faults import FaultKind, UserError
from codex_proxy.parts import own_settings
from codex_proxy.parts.mcp import McpSettings
from codex_proxy.parts.upstream.config import CHAT, PRESETS
from codex_proxy.parts.upstream.openai_chat.request_body import OPTIONAL
from codex_proxy.parts.upstream.upstream_specs import UpstreamSettings
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load
from codex_proxy.surfaces.answers.fault_table import TABLE
from tests.model_server import CASES, NOWHERE, Case, Upstream, ask, call, raw_upstream, stream, text
from tests.parts.upstream.serving import several
from tests.parts.upstream.test_connections import silent
from tests.waiting import eventually
from tests.weather_tool import CHAT_WEATHER


async def test_the_operators_list_of_models_is_the_one_that_counts(a: Upstream, tmp_path: Path) -> None:
    a.models += [{"id": "large-2"}, {"id": "other"}]
    upstreams = {"a": {"url": a.url, "models": ["own", "large*"], "default_model": "large-2"}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        listed = (await proxy.send("GET", "/v1/models")).body["data"]
        assert [each["id"] for each in listed] == ["a/own", "a/large", "a/large-2"]
        assert (await proxy.ask(ask("other"))).status == 404
        assert (await proxy.ask(ask("a"))).status == 200
        assert a.requests[-1].body["model"] == "large-2"


async def test_each_upstream_is_asked_for_its_models_as_often_as_its_table_says(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    upstreams = {"a": {"url": a.url, "health_interval": 0.01}, "b": {"url": b.url, "health_interval": 600}}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        asked = a.listed
        a.models = [{"id": "new"}]
        await eventually(lambda: a.listed > asked + 1)
        assert (await proxy.ask(ask("a/new"))).status == 200
        assert b.listed == 1


async def test_each_upstream_gets_its_own_key_and_headers_and_no_other(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("key-of-b\n")
    upstreams = {
        "a": {"url": a.url, "key_env": "KEY_OF_A", "headers": {"x-team": "one-of-them"}},
        "b": {"url": b.url, "key_file": file},
    }
    async with several(tmp_path, {"KEY_OF_A": "key-of-a"}, upstreams=upstreams) as proxy:
        await proxy.ask(ask("a/small"))
        await proxy.ask(ask("b/small"))
        assert a.requests[-1].headers["Authorization"] == "Bearer key-of-a"
        assert a.requests[-1].headers["x-team"] == "one-of-them"
        assert b.requests[-1].headers["Authorization"] == "Bearer key-of-b"
        assert "x-team" not in b.requests[-1].headers
        assert "key-of-a" not in str(proxy.server.settings)
        assert "one-of-them" not in str(proxy.server.settings)


async def test_the_key_of_a_preset_goes_to_no_other_address(a: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "preset": "openai"}}
    async with several(tmp_path, {"OPENAI_API_KEY": "sk-openais"}, upstreams=upstreams) as proxy:
        assert (await proxy.ask(ask("a/small", max_completion_tokens=5))).status == 200
        assert "Authorization" not in a.requests[-1].headers


async def test_headers_that_the_operator_names_are_passed_on_and_no_others(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    tables = {"a": {"url": a.url, "forward_headers": ["X-Request-Id", "x-team"]}, "b": {"url": b.url}}
    given = {
        "x-request-id": "req-7",
        "x-team": "search",
        "x-other": "1",
        "cookie": "a=b",
        "authorization": "Bearer k",
    }
    async with several(tmp_path, upstreams=tables) as proxy:
        for server, name in ((a, "a/small"), (b, "b/small")):
            assert (await proxy.ask(ask(name), headers=given)).status == 200
            sent = {name.lower(): value for name, value in server.requests[-1].headers.items()}
            passed = {name: value for name, value in given.items() if sent.get(name) == value}
            assert passed == ({"x-request-id": "req-7", "x-team": "search"} if server is a else {})


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_context_window_is_the_lists_or_the_tables(wire: str, a: Upstream, tmp_path: Path) -> None:
    a.models = [{"id": "v", "max_model_len": 4096}, {"id": "l", "meta": {"n_ctx": 2048}}, {"id": "o"}]
    table = {"url": a.url, "wire": wire, "context_window": 1024, "models": ["*", "mine"]}
    async with several(tmp_path, upstreams={"a": table}) as proxy:
        listed = (await proxy.send("GET", "/v1/models")).body["data"]
    assert {each["id"]: each["context_window"] for each in listed} == {
        "a/v": 4096,
        "a/l": 2048,
        "a/o": 1024,
        "a/mine": 1024,
    }


async def test_reasoning_goes_back_to_its_upstream_with_the_clients_calls(
    a: Upstream, tmp_path: Path
) -> None:
    table = {"url": a.url, "reasoning_back": "reasoning_content"}
    called = stream({"reasoning_content": "Hm."}, call("get_weather", "{}"), finish="tool_calls")
    async with several(tmp_path, upstreams={"a": table}) as proxy:
        a.script = [called, text("Sunny.")]
        asked = ask("a/small", tools=[CHAT_WEATHER])
        made = (await proxy.ask(asked)).body["choices"][0]["message"]
        output = {"role": "tool", "tool_call_id": "call_a", "content": "sunny"}
        messages = [*asked["messages"], {"role": "assistant", "tool_calls": made["tool_calls"]}, output]
        assert (await proxy.ask({**asked, "messages": messages})).status == 200
    assert [each.get("reasoning_content") for each in a.requests[-1].body["messages"]] == [None, "Hm.", None]


@pytest.mark.parametrize(
    ("limit", "scheme", "code", "words"),
    [
        ("connect_timeout", "https", "upstream_unreachable", "no connection within its time limit"),
        ("first_byte_timeout", "http", "request_timeout", "did not begin to answer within 0.2 s"),
        ("total_timeout", "http", "request_timeout", "took longer than 0.2 s"),
    ],
)
async def test_each_time_limit_of_a_table_holds(
    limit: str, scheme: str, code: str, words: str, tmp_path: Path
) -> None:
    async with raw_upstream(silent) as url:
        table = {"url": url.replace("http:", f"{scheme}:"), "models": ["m"], "retries": 0, limit: 0.2}
        async with several(tmp_path, upstreams={"a": table}) as proxy:
            answer = await proxy.ask(ask("a/m"))
    assert answer.error["code"] == code
    assert words in answer.error["message"]


def test_the_names_of_open_responses_server_set_what_they_set_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROXY_PORT", raising=False)
    monkeypatch.delenv("PROXY_HOST", raising=False)
    for name, value in {
        "API_ADAPTER_HOST": "0.0.0.0",
        "API_ADAPTER_PORT": "9876",
        "OPENAI_BASE_URL_INTERNAL": "http://127.0.0.1:1",
        "STREAM_TIMEOUT": "7",
        "MCP_SERVERS_CONFIG_PATH": "/etc/mcp.json",
        "MAX_CONVERSATION_HISTORY": "5",
        "MAX_TOOL_CALL_ITERATIONS": "3",
        "HEARTBEAT_INTERVAL": "4",
    }.items():
        monkeypatch.setenv(name, value)
    settings = load({}, None)
    assert (settings.host, settings.port) == ("0.0.0.0", 9876)
    assert own_settings(settings, UpstreamSettings).upstream_url == "http://127.0.0.1:1"
    assert own_settings(settings, McpSettings).mcp_config == Path("/etc/mcp.json")
    assert (settings.idle_timeout, settings.heartbeat_interval) == (7, 4)
    assert (settings.max_conversation_history, settings.max_tool_call_iterations) == (5, 3)
    assert retention_of(settings).max_conversations == 5, "since it was set"


async def test_an_upstream_without_a_system_prompt_has_the_user_say_it(a: Upstream, tmp_path: Path) -> None:
    async with several(tmp_path, upstreams={"a": {"url": a.url, "cannot": ["system_prompt"]}}) as proxy:
        said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}]
        answer = await proxy.ask({"model": "a/small", "messages": said})
        assert (answer.status, answer.headers["x-codex-history"]) == (200, "system-as-user")
        assert a.requests[-1].body["messages"] == [
            {"role": "user", "content": "[system]\nBe brief."},
            {"role": "user", "content": "Hello."},
        ]
        assert "x-codex-history" not in (await proxy.ask(ask("a/small"))).headers


async def test_an_upstream_that_takes_no_schema_gets_it_in_the_prompt_and_the_answer_is_checked(
    a: Upstream, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    async with several(tmp_path, upstreams={"a": {"url": a.url, "cannot": ["structured_output"]}}) as proxy:
        answer = await proxy.ask(ask("a/small", response_format=wanted))
        assert (answer.status, answer.error["code"]) == (502, "invalid_structured_output")
        assert len(a.requests) >= 2
        body = a.requests[-1].body
        assert body["response_format"] == {"type": "json_object"}
        assert "It must be valid under this JSON schema" in str(body["messages"])


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"upstreams": {"a": {}}}, "needs the address"),
        *(
            ({"upstreams": {"default": {"url": "http://h/v1", "fallback": [name]}}}, "there is none")
            for name in ("x", "default")
        ),
        (
            {"upstreams": {"a": {"url": "http://h/v1", "fallback": ["b"]}}},
            "the fallback b is no other upstream; there is none",
        ),
        (
            {
                "upstreams": {
                    "a": {"url": "http://h/v1", "fallback": ["fake/m"]},
                    "c": {"url": "http://h/v1"},
                },
                "agents": {"fake": {}},
            },
            "the fallback fake/m is an agent, and no upstream; write one of c, or NAME/MODEL",
        ),
        ({"upstreams": {"a": {"url": "http://h"}}, "agents": {"a": {"agent": "fake"}}}, "have the same name"),
        ({"agents": {"x": {}}}, "there is no agent 'x'"),
        (
            {"agents": {"fake": {"codex_bin": "c"}}},
            "codex_bin is not a setting of the agent fake; its own settings are fake_dialect",
        ),
        ({"agents": {"fake": {"fake_dialect": "x"}}}, "fake_dialect is invalid"),
        ({"agents": {"gemini": {"acp": {"usage": "x"}}}}, "acp.usage is invalid"),
    ],
)
async def test_tables_that_mean_nothing_keep_the_server_from_starting(
    tables: dict[str, Any], words: str, tmp_path: Path
) -> None:
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", **tables}
    with pytest.raises(NoAgentError, match=words):
        await make_server(Settings(**flags), {})
    check = (await examine(flags, None, {})).checks[1]
    assert check.status == "failed"
    assert re.search(words, check.message)


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        ({"agent": "acp"}, "acp.command"),
        ({"agent": "acp", "acp": {"command": "nothing-here --acp"}}, "acp.command"),
        ({"agent": "gemini"}, "acp.command"),
        ({"agent": "claude-code"}, "claude_bin"),
        ({"agent": "claude-code", "claude_bin": "/nothing/here"}, "claude_bin"),
        ({"agent": "codex-app-server", "codex_bin": "/nothing/here"}, "codex_bin"),
    ],
)
async def test_the_program_of_an_agent_that_is_not_found_is_named_in_its_table(
    table: dict[str, Any], setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "agents": {"x": table}}
    checks = (await examine(flags, None, {"PATH": str(tmp_path)})).checks
    advice = next(
        check.advice for check in checks if check.name.startswith("x: ") and check.status == "failed"
    )
    assert f"{setting} of [agents.x]" in advice  # a flag would name it for the other agents, too
    assert "--" not in advice.replace("--acp", "").replace("--agent fake", "")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[upstreams.a]\nurl = 7", "upstreams.a.url"),
        ("[upstreams.A]\nurl = 'http://h'", "upstreams.A"),
        ("[upstreams.'a/b']\nurl = 'http://h'", "upstreams.a/b"),
        ("[upstreams.a]\nurl = 'http://h'\nheaders = {authorization = 'Bearer x'}", "upstreams.a.headers"),
        ("[upstreams.a]\nurl = 'http://h'\ncannot = ['fly']", "upstreams.a.cannot"),
        ("[upstreams.a]\nurl = 'http://h'\nforward_headers = ['Cookie']", "upstreams.a.forward_headers"),
        ("[upstreams.a]\nurl = 'http://h'\nforward_headers = ['x-api-key']", "upstreams.a.forward_headers"),
        ("[upstreams.a]\nurl = 'http://h'\nreasoning_back = 'thoughts'", "upstreams.a.reasoning_back"),
        ("[upstreams.a]\npreset = 'acme'", "upstreams.a.preset"),
    ],
)
def test_a_wrong_table_is_refused_by_the_name_of_its_key(text: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(UserError, match="is invalid") as refusal:
        load({}, file)
    assert str(refusal.value).startswith(f"{file}: {where}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[upstreams.a]\nmodel = 'x'", "there is no setting `model` in [upstreams.a]; is `models` meant?"),
        (
            "[upstreams.a]\nzzz = 'x'",
            "`zzz` in [upstreams.a]; docs/configuration.md lists all of them.",
        ),
        (
            "[upstreams.a]\nkey = 'sk-secret'",
            "in [upstreams.a]; `key_env` or `key_file` names what holds it.",
        ),
        (
            "[upstreams.a]\nwire = 'auto'",
            "config.toml: upstreams.a.wire is invalid: it should be 'chat' or 'responses'.",
        ),
        (
            "[upstreams.A]\nurl = 'http://h'",
            "config.toml: upstreams.A is invalid: a name has up to 64 lower-case letters",
        ),
        ("[acp]\ncomand = 'x'", "there is no setting `comand` in [acp]; is `command` meant?"),
        (
            "[routes.a]\nto = 'm'\nmodell = 'x'",
            "there is no setting `modell` in [routes.a]; is `model` meant?",
        ),
        ("[upstream.a]\nurl = 'http://h'", "there is no setting `upstream`; is `upstreams` meant?"),
    ],
)
def test_a_wrong_key_of_a_table_is_reported_in_words_that_help(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(click.UsageError) as refusal:
        load_settings({}, file)
    shown = " ".join(CliRunner().invoke(main, ["doctor", "--config", str(file)]).output.split())
    assert words.lower() in shown.lower()
    assert words.rstrip(".").lower() in refusal.value.message.lower()
    assert "sk-secret" not in shown + refusal.value.message


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"url": "h:1/v1"}, "url of [upstreams.a] must be an address"),
        ({"url": "http://u:pw@h/v1"}, "Set a key with key_env of [upstreams.a]"),
        (
            {"url": "http://h/v1", "key_file": "/nowhere"},
            "key_file of [upstreams.a]: /nowhere cannot be read",
        ),
        ({"url": "http://h/v1", "key_env": "BAD_KEY"}, "Check key_env of [upstreams.a]"),
        ({"url": "https://h/v1", "ca_file": "/nowhere"}, "ca_file of [upstreams.a]"),
        (NOWHERE, "set another address with url of [upstreams.a]"),
    ],
)
async def test_doctor_names_what_to_change_as_the_table_has_it(
    table: dict[str, Any], words: str, tmp_path: Path, log_lines: list[Any]
) -> None:
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "upstreams": {"a": table}}
    checkup = await examine({**flags, "agent": "a"}, None, {"PATH": os.defpath, "BAD_KEY": "a\nb"})
    check = next(check for check in checkup.checks if check.name == "a: upstream")
    assert check.status == "failed"
    assert words in check.message + check.advice
    assert "PROXY_UPSTREAM_URL" not in check.message + check.advice
    assert log_lines == [], "it is told once"


async def test_an_error_for_the_client_names_the_table(a: Upstream, b: Upstream, tmp_path: Path) -> None:
    a.key, b.models = "another", []
    dead = NOWHERE | {"fallback": ["b/m"]}
    upstreams = {"a": {"url": a.url, "models": ["m"]}, "b": {"url": b.url}, "dead": dead}
    async with several(tmp_path, upstreams=upstreams) as proxy:
        refused = await proxy.ask(ask("a/m"))
        assert (refused.status, refused.error["code"]) == (502, "upstream_unauthorized")
        assert "key_env of [upstreams.a]" in refused.error["message"]
        nameless = await proxy.ask(ask("b"))
        assert (nameless.status, nameless.error["param"]) == (404, "model")
        assert "default_model of [upstreams.b]" in nameless.error["message"]
        answer = await proxy.ask(ask("dead"))
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b"), (
            "nobody could list its models"
        )


@pytest.mark.parametrize(("wire", "path"), [("chat", "/chat/completions"), ("responses", "/responses")])
@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_upstream_without_the_endpoint_of_its_wire_is_asked_once_and_the_setting_is_named(
    status: int, wire: str, path: str, a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    a.script = [Case(status, {}, ['{"detail":"Not there"}'], [], "failed")] * 2
    table = {"url": a.url, "wire": wire}
    async with several(tmp_path, upstreams={"a": table, "b": {"url": b.url}}) as proxy:
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.error["code"]) == (500, "agent_misconfigured")
        for said in (
            f"no {path} (HTTP {status}: Not there)",
            "url of [upstreams.a]",
            "wire of [upstreams.a]",
        ):
            assert said in answer.error["message"]
        assert answer.headers["x-codex-attempts"] == "1"
    spare = {"a": {**table, "fallback": ["b"]}, "b": {"url": b.url}}
    async with several(tmp_path, upstreams=spare) as proxy:
        answer = await proxy.ask(ask("a/small"))
        assert (answer.status, answer.headers["x-codex-upstream"]) == (200, "b")


async def test_doctor_looks_at_each_and_shows_no_key(a: Upstream, tmp_path: Path) -> None:
    upstreams = {"a": {"url": a.url, "headers": {"x-secret": "sk-in-a-header"}}, "b": NOWHERE}
    flags = {"port": 0, "workdir": tmp_path, "state_dir": tmp_path / "state", "upstreams": upstreams}
    checkup = await examine({**flags, "agent": "a"}, None, {"PATH": os.defpath})
    found = {check.name: check.status for check in checkup.checks}
    assert (found["a: upstream"], found["b: upstream"], found["workspace"]) == ("ok", "failed", "skipped")
    assert "sk-in-a-header" not in str(checkup)
    assert next(setting.value for setting in checkup.settings if setting.name == "upstreams") == "a,b"


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize("preset", PRESETS)
async def test_every_dialect_means_the_same_with_every_preset(
    preset: str, a: Upstream, tmp_path: Path
) -> None:
    table = {"preset": preset, "url": a.url, "retries": 0, "breaker_failures": 1000}
    a.models = [{"id": name} for name in CASES]
    async with several(tmp_path, upstreams={"p": table}) as proxy:
        for name, case in CASES.items():
            whole = await proxy.ask(ask(f"p/{name}", tools=[CHAT_WEATHER]))
            streamed = await proxy.ask(ask(f"p/{name}", tools=[CHAT_WEATHER], stream=True))
            response = await proxy.send("POST", "/v1/responses", {"model": f"p/{name}", "input": "weather?"})
            if case.stop == "failed":
                wanted = TABLE[FaultKind(case.fault or "")]
                assert whole.status == wanted.status, name
                words = case.message.replace("PROXY_UPSTREAM_KEY", "key_env of [upstreams.p]")
                assert words in whole.error["message"]
                assert '"finish_reason":"' not in streamed.text, name
                assert response.status == wanted.status or response.body["status"] == "failed", name
                continue
            choice = whole.body["choices"][0]
            assert choice["finish_reason"] == case.stop, name
            text = "".join(text for kind, _, text in case.items if kind == "Message")
            assert (choice["message"].get("content") or choice["message"].get("refusal") or "") == text, name
            calls = [
                [name, json.loads(arguments)] for kind, name, arguments in case.items if kind == "ToolCall"
            ]
            made = [each["function"] for each in choice["message"].get("tool_calls") or ()]
            assert [[each["name"], json.loads(each["arguments"])] for each in made] == calls, name
            ends = [frame["choices"] for frame in streamed.frames if isinstance(frame, dict)]
            assert case.stop in [choice["finish_reason"] for choices in ends for choice in choices], name
            if case.usage:
                usage = whole.body["usage"]
                assert (usage["prompt_tokens"], usage["completion_tokens"]) == case.usage, name
        asked = a.requests[-1].body
        assert ("stream_options" in asked) is ("stream_options" not in PRESETS[preset].refuses)  # type: ignore[index]


def test_every_preset_has_an_address_and_names_its_key() -> None:
    for name, preset in PRESETS.items():
        assert preset.url.startswith("http"), name
        assert preset.key_env or not preset.needs_key
        assert preset.cannot <= CHAT.capabilities
        assert preset.refuses <= set(OPTIONAL)
