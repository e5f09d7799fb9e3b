"""docs/configuration.md says what the settings are."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load
from scripts import gen_configuration


@pytest.mark.part("acp", "cassettes", "claude_code", "machines", "mcp", "upstream")
def test_the_document_is_current() -> None:
    written = gen_configuration.TARGET.read_text("utf-8")
    assert written == gen_configuration.document(), "run scripts/gen_configuration.py"


def test_every_setting_says_what_it_is_for() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_the_names_in_the_document_are_the_keys_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(gen_configuration.variable(name, Settings.model_fields[name]), raising=False)
    example = re.search(r"```toml\n(.*?)```", gen_configuration.document(), re.DOTALL)
    assert example is not None
    file = tmp_path / "config.toml"
    file.write_text(example[1] + 'codex_model = "a-model"\n')
    settings = load({}, file)
    assert (settings.agent, settings.port, settings.max_running_turns) == ("codex-app-server", 8080, 4)
    assert settings.codex_model == "a-model"


def test_a_flag_wins_over_a_variable_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('host = "file"\nport = 1\nlog_level = "error"\n')
    monkeypatch.setenv("PROXY_PORT", "2")
    monkeypatch.setenv("PROXY_LOG_LEVEL", "warning")
    settings = load({"log_level": "debug"}, file)
    assert (settings.host, settings.port, settings.log_level) == ("file", 2, "debug")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("prot = 1", "no setting `prot`; is `port` meant?"),
        ('PROXY_SANDBOX = "read-only"', "no setting `PROXY_SANDBOX`; is `sandbox` meant?"),
        ("qqqqqq = 1", "no setting `qqqqqq`; docs/configuration.md"),
        ("port == 1", "is not valid TOML"),
        ("x = " + "[" * 100_000, "nested too deeply"),
        ("\ufeffport = 1", "byte order mark"),
    ],
)
def test_a_file_with_a_misspelt_setting_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=re.escape(complaint)) as refusal:
        load({}, file)
    assert str(file) in str(refusal.value)


def test_a_relative_folder_of_the_user_is_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, ".here")
    settings = load({}, None)
    assert settings.state_dir == tmp_path / ".local/state/codex-proxy"
    assert settings.config_file == tmp_path / ".config/codex-proxy/config.toml"


@pytest.mark.parametrize("home", ["", "home"])
def test_a_home_that_is_no_absolute_path_is_refused(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    with pytest.raises(UserError, match=f"HOME is '{home}'"):
        load({}, None)


def test_a_pipe_in_the_place_of_the_default_file_is_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "codex-proxy").mkdir()
    os.mkfifo(tmp_path / "codex-proxy" / "config.toml")
    with pytest.raises(UserError, match="it is no regular file"):
        load({}, None)


def test_a_file_that_is_refused_is_not_read_by_settings_that_are_made_later(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("port == 1")
    with pytest.raises(UserError, match="is not valid TOML"):
        load({}, file)
    assert Settings().port == 11435
