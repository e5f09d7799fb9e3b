"""Tests whose packages are not installed are skipped with the command that installs them, but fail in CI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.missing import command_for, missing_package

ERROR = "E   ModuleNotFoundError: No module named '{}'"


@pytest.mark.parametrize("ci", ["", "true"])
def test_a_package_that_only_some_tests_need_may_be_missing_outside_of_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    assert missing_package(ERROR.format("opentelemetry.sdk")) == ("" if ci else "opentelemetry")
    assert missing_package("UserError: MCP servers need the extra `mcp`: install it") == ("" if ci else "mcp")


@pytest.mark.parametrize(
    "error", [ERROR.format("aiohttp"), ERROR.format("codex_proxy.gone"), "AssertionError", ""]
)
def test_any_other_error_is_a_failure(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    monkeypatch.delenv("CI", raising=False)
    assert missing_package(error) == ""


def test_the_command_names_the_tests() -> None:
    assert command_for(Path("tests/page")) == "scripts/test --all tests/page installs it"
