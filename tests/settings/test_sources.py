"""Where the values of tables come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.core.faults import UserError
from codex_proxy.settings.load import load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "config.toml").write_text("")
    return tmp_path / "config.toml"


def test_each_key_of_a_table_has_a_variable_which_wins_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(
        "[webhooks]\nurls = ['http://a', 'http://b']\nsecret = 'x'\n[child_limits]\nprocesses = 5\n"
    )
    monkeypatch.setenv("PROXY_WEBHOOKS_SECRET", "y")
    monkeypatch.setenv("PROXY_CHILD_LIMITS_OPEN_FILES", "7")
    settings = load({}, file)
    secret = settings.webhooks.secret
    assert (settings.webhooks.urls, secret and secret.get_secret_value()) == ("http://a,http://b", "y")
    assert settings.child_limits == {"open_files": 7, "processes": 5}


def test_variables_of_other_programs_are_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "0.0.0.0")
    monkeypatch.setenv("PORT", "77")
    settings = load({}, file)
    assert (settings.host, settings.port) == ("127.0.0.1", 11435)


@pytest.mark.part("machines")
def test_a_store_in_a_database_is_a_url(file: Path) -> None:
    assert not load({"store": "postgresql://u:p@h/d"}, file).in_file


def test_a_store_is_a_word_or_a_path(file: Path) -> None:
    for store, place in (("sqlite", "state/store.sqlite3"), ("./a.db", "a.db"), ("/b/c.db", "/b/c.db")):
        settings = load({"store": store, "state_dir": "state"}, file)
        assert (settings.in_file, settings.store_file) == (True, Path(place).absolute())
    with pytest.raises(UserError, match="with a /"):
        load({"store": "a.db"}, file)


def test_a_key_has_no_white_space_around_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXY_API_KEY", " secretkey\n")
    key = load({}, file).api_key
    assert key is not None
    assert key.get_secret_value() == "secretkey"
