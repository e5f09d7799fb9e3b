"""Which agent `scripts/start` falls back to where no Codex is on PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.settings.fields import Settings
from scripts import fallback_agent


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A Codex home in which nobody has signed in: it does not exist."""
    return tmp_path / "codex-home"


def warning(home: Path, *, asked_for: bool = False) -> str | None:
    return fallback_agent.warning(
        Settings(agent="auto", codex_bin=None, codex_home=home), asked_for=asked_for
    )


def test_a_codex_that_came_with_the_tests_serves_only_if_somebody_has_signed_in(home: Path) -> None:
    said = warning(home)
    assert said is not None
    assert f"{home} does not exist" in said
    assert said.endswith("/codex login")
    home.mkdir()
    assert warning(home) is None


def test_a_codex_that_was_asked_for_serves_or_says_itself_what_is_wrong(home: Path) -> None:
    assert warning(home, asked_for=True) is None


def test_without_any_codex_it_says_how_to_get_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback_agent, "bundled_codex", lambda: None)
    said = warning(home, asked_for=True)
    assert said is not None
    assert "scripts/start --with-codex" in said
    assert "npm install -g @openai/codex" in said


@pytest.mark.parametrize(
    "arguments", [["codex", "--port", "many"], ["runtime", "--config", "/nowhere/settings.toml"]]
)
def test_wrong_settings_are_left_to_the_server(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fallback_agent.main(arguments)
    assert capsys.readouterr() == ("", "")
