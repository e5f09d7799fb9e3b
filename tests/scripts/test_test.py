"""`scripts/test` and `.ci/run`: everything is checked, in an environment with everything."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from tests.scripts.checkout import ROOT, Checkout
from tests.waiting import PATIENCE


def tools(checkout: Checkout) -> list[str]:
    """The tools that ran, with their arguments."""
    return [line for line in checkout.told if line.startswith(("ruff|", "mypy|", "pytest|"))]


def test_it_installs_the_lock_for_development_and_runs_every_check(checkout: Checkout) -> None:
    done = checkout.run("test")
    assert done.returncode == 0, done.stderr
    assert "requirements/dev.txt" in checkout.installs[0]
    assert [line.split("|")[0:2] for line in tools(checkout)] == [
        ["ruff", "check"],
        ["ruff", "format"],
        ["mypy", ""],
        ["pytest", "-n"],
    ]


def test_arguments_go_to_pytest(checkout: Checkout) -> None:
    checkout.run("test", "tests/core", "-k", "a or b")
    assert tools(checkout)[-1].endswith("|tests/core|-k|a or b|")


def test_what_is_compiled_once_is_kept_and_the_tests_are_compiled_beside_the_first_look_at_the_types(
    checkout: Checkout,
) -> None:
    checkout.install_program("a-tool", '#!/bin/sh\necho "${0##*/}|$PYTHONDONTWRITEBYTECODE" >>"$NOTES"\n')
    checkout.run("test", "tests/core", PYTHONDONTWRITEBYTECODE="1")
    assert set(tools(checkout)) == {"ruff|", "mypy|", "pytest|"}
    compiling = "-m pytest --collect-only -qq tests/core"
    assert checkout.told.count(compiling) == 1
    (checkout.folder / ".mypy_cache").mkdir()
    checkout.run("test", "tests/core")
    assert checkout.told.count(compiling) == 1, "mypy takes no time now"


@pytest.mark.parametrize("failing", ["ruff", "mypy", "pytest"])
def test_a_check_that_fails_is_the_last_one_and_fails_the_whole(checkout: Checkout, failing: str) -> None:
    done = checkout.run("test", FAILING=failing)
    assert done.returncode == 1
    assert tools(checkout)[-1].startswith(failing)


def test_what_the_user_set_for_a_server_of_their_own_does_not_reach_the_tests(checkout: Checkout) -> None:
    (checkout.folder / "requirements" / "dev.txt").write_text("")
    checkout.run("test")
    checkout.install_program("env-of-pytest", '#!/bin/sh\nexec env >"$NOTES"\n')
    shutil.copy(checkout.tools / "env-of-pytest", checkout.folder / ".venv" / "bin" / "pytest")
    checkout.run("test", PROXY_AGENT="fake", CODEX_HOME="/home/codex", OPENAI_API_KEY="key", KEPT="yes")
    names = {line.partition("=")[0] for line in checkout.told}
    assert "KEPT" in names
    assert not {"PROXY_AGENT", "CODEX_HOME", "OPENAI_API_KEY"} & names


def test_continuous_integration_runs_the_same_and_the_exhaustive_tests_too(checkout: Checkout) -> None:
    shutil.copytree(ROOT / ".ci", checkout.folder / ".ci")
    done = checkout.run("../.ci/run", "--some-flag")
    assert tools(checkout)[-1].endswith("|--all|--some-flag|")
    assert "there is no npm" in done.stderr


def test_continuous_integration_runs_the_tests_of_the_real_binary_with_a_second_release(
    checkout: Checkout,
) -> None:
    shutil.copytree(ROOT / ".ci", checkout.folder / ".ci")
    shutil.copy(ROOT / "scripts" / "codex-matrix", checkout.folder / "scripts" / "codex-matrix")
    checkout.install_program("npm", "#!/bin/sh\n")
    done = checkout.run("../.ci/run")
    assert done.returncode == 0, done.stderr
    assert [line for line in checkout.told if "scripts.matrix_lib --install" in line] == [
        "-m scripts.matrix_lib --install 0.169.0",
        "-m scripts.matrix_lib --install 0.42.0",
    ]
    assert tools(checkout)[-1].endswith("|tests/real|")


def test_continuous_integration_drives_the_agents_programs_that_npm_can_install(checkout: Checkout) -> None:
    shutil.copytree(ROOT / ".ci", checkout.folder / ".ci")
    shutil.copy(ROOT / "scripts" / "agent-programs", checkout.folder / "scripts" / "agent-programs")
    checkout.install_program("claude", "#!/bin/sh\n")
    done = checkout.run("../.ci/run", AGENTS=str(checkout.tools))
    assert done.returncode == 0, done.stderr
    assert "tests/real/test_acp.py" in tools(checkout)[-1]
    without = checkout.run("../.ci/run")
    assert without.returncode == 0, without.stderr
    assert "no agent's program could be installed" in without.stderr
    assert tools(checkout)[-1].endswith("|--all|")


def collected(*arguments: str) -> list[str]:
    """The tests that would run, in order."""
    files = [
        f"tests/{name}" for name in ("scripts/test_test.py", "store/test_crash.py", "core/test_limits.py")
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-o",
        "addopts=--import-mode=importlib",
    ]
    command += ["-p", "no:langsmith_plugin", "-p", "no:schemathesis", *files, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=2 * PATIENCE)
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_fast_tests_run_first_and_the_exhaustive_ones_only_when_all_are_asked_for() -> None:
    names = collected()
    folders = [name.split("/")[1] for name in names]
    assert list(dict.fromkeys(folders)) == ["core", "store", "scripts"]
    more = [name for name in collected("--all") if name not in names]
    assert more == ["tests/store/test_crash.py::test_every_acknowledged_write_survives_many_kills[100]"]
