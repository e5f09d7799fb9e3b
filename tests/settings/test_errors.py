"""What is wrong with a setting, and where it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from codex_proxy.commands.doctor import settings_check
from codex_proxy.commands.serve import serve_to_the_end
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load, unknown_variables, variables_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


@pytest.mark.parametrize(
    ("flags", "variable", "text", "says"),
    [
        ({"port": 99999}, "", "", "--port is invalid: it should be less than or equal to 65535"),
        ({}, "PROXY_PORT=x", "port = 1", "PROXY_PORT is invalid: it should be a valid integer"),
        ({}, "STREAM_TIMEOUT=x", "", "STREAM_TIMEOUT is invalid: it should be a valid number"),
        ({}, "PROXY_CHILD_LIMITS_OPEN_FILES=x", "", "PROXY_CHILD_LIMITS_OPEN_FILES is invalid"),
        ({}, "", "port = 'x'", "{file}: port is invalid: it should be a valid integer"),
        ({}, "", "[child_limits]\nopen_files = 'x'", "{file}: child_limits.open_files is invalid"),
        pytest.param(
            {},
            "",
            "[upstreams.a]\nurll = 'x'",
            "{file}: there is no setting `urll` in [upstreams.a]; is `url` meant?",
            marks=pytest.mark.part("upstream"),
        ),
        (
            {},
            "PROXY_WEBHOOKS_URL=x",
            "",
            "PROXY_WEBHOOKS_URL: there is no setting `url` in [webhooks]; is `urls` meant?",
        ),
        ({"api_key": ""}, "", "", "--api-key is invalid: a key must not be empty"),
        (
            {"api_key": "s\u00e9cret"},
            "",
            "",
            "--api-key is invalid: a key has printable ASCII characters only",
        ),
        ({}, "", 'metrics_key = "a\\nb"', "{file}: metrics_key is invalid: a key has printable ASCII"),
        ({}, "", "metrics_key = ''", "{file}: metrics_key is invalid: a key must not be empty"),
        ({}, "PROXY_MODEL_ALIASES=a=b,c", "", "PROXY_MODEL_ALIASES is invalid: 'c' is not NAME=MODEL"),
        ({}, "PROXY_MODEL_ALIASES==b", "", "PROXY_MODEL_ALIASES is invalid: '=b' is not NAME=MODEL"),
    ],
)
def test_an_error_names_the_flag_the_variable_or_the_file_with_the_invalid_value(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: dict[str, Any],
    variable: str,
    text: str,
    says: str,
) -> None:
    file.write_text(text)
    if variable:
        name, _, value = variable.partition("=")
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"is invalid|there is no setting") as caught:
        load(flags, file)
    assert str(caught.value).startswith(says.format(file=file))


def test_variables_that_set_nothing_are_named_with_the_one_that_is_meant() -> None:
    known = {variable: "1" for name in Settings.model_fields for variable in variables_of(name)}
    of_tables = {
        "PROXY_WEBHOOKS_URLS": "1",
        "PROXY_WEBHOOKS_SECRET": "1",
        "proxy_port": "1",
    }
    of_others = {"HTTP_PROXY": "1", "PORT": "1", "PROXY_EMPTY": ""}
    assert unknown_variables({**known, **of_tables, **of_others}) == {}
    found = unknown_variables({"PROXY_PROT": "1", "PROXY_SANDBOX_MODE": "1", "PROXY_STORE_PATH": "1"})
    assert found["PROXY_STORE_PATH"] == "is `PROXY_STORE` meant?"
    assert found["PROXY_PROT"] == "is `PROXY_PORT` meant?"
    assert found["PROXY_SANDBOX_MODE"] == "it is `PROXY_SANDBOX` here"


@pytest.mark.part("upstream")
async def test_doctor_and_the_log_name_a_variable_that_sets_nothing(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_PROT", "1")
    monkeypatch.delenv("CLAUDE_BIN", raising=False)
    check = settings_check(load({"state_dir": file.parent}, file), file, {})
    assert (check.status, check.advice) == ("warning", "PROXY_PROT: is `PROXY_PORT` meant?")
    no_server = {"agent": "openai-chat", "upstream_url": "ftp://no-address", "state_dir": file.parent}
    with capture_logs() as logged:
        assert await serve_to_the_end(load(no_server, file), lambda *text, **more: None) == 1
    assert [line["name"] for line in logged if line["event"] == "unknown_variable"] == ["PROXY_PROT"]


def test_doctor_names_all_that_has_no_effect_at_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_PROT", "1")
    given = {"state_dir": file.parent, "workdir": file.parent, "agent": "fake", "metrics_key": "key"}
    check = settings_check(load({**given, "codex_bin": "codex"}, file), file, {})
    named = ("PROXY_PROT", "PROXY_METRICS_KEY (only with PROXY_METRICS)", "CODEX_BIN")
    assert [name for name in named if name not in check.message] == []
    assert "is `PROXY_PORT` meant? Remove them" in check.advice


def test_a_path_with_the_sign_of_a_scheme_is_a_file(tmp_path: Path) -> None:
    settings = Settings(store=f"{tmp_path}/a://b", state_dir=tmp_path)
    assert (settings.in_file, settings.in_database) == (True, False)


def test_a_scheme_that_no_store_has_is_answered_with_those_there_are() -> None:
    for store in ("postgres", "mysql://h/d"):
        with pytest.raises(ValueError, match="choose sqlite, the path of a file"):
            Settings(store=store)


def test_a_key_is_read_without_the_newline_of_its_file(file: Path) -> None:
    file.write_text('api_key = " secret\\n"')
    key = load({}, file).api_key
    assert key is not None
    assert key.get_secret_value() == "secret"
