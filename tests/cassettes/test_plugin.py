"""The pytest plugin, as a project that is not this one uses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = (
    "tests_with_openai",
    pytest.param("tests_with_langchain", marks=pytest.mark.exhaustive),
    pytest.param("tests_with_javascript", marks=pytest.mark.exhaustive),
)


def run_pytest(
    folder: Path, *arguments: str, python: str = sys.executable
) -> subprocess.CompletedProcess[str]:
    """Runs the tests of a project in its own folder, without this project's settings."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PROXY_", "PYTEST_"))
    }
    environ |= {"PROXY_AGENT": "fake", "PROXY_FAKE_DIALECT": "app-server", "FAKE_CODEX_MODELS": "any"}
    environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:langsmith_plugin",
        *arguments,
    ]
    return subprocess.run(
        [*command, "-p", "codex_proxy.cassettes.plugin", "--rootdir", str(folder), "-c", os.devnull, str(folder)],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_pass(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(ROOT / "examples" / name, folder)
    done = run_pytest(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        path.name for path in (ROOT / "examples" / name).iterdir() if path.name != "__pycache__"
    }


@pytest.mark.exhaustive
def test_a_project_records_and_replays(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "tests_with_openai", folder)
    shutil.rmtree(folder / "cassettes")
    missing = run_pytest(folder)
    assert missing.returncode == 1
    assert "--cassettes=record" in missing.stdout
    for mode in ("record", "replay", "missing"):
        done = run_pytest(folder, f"--cassettes={mode}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((folder / "cassettes" / "two-cities").iterdir())) == 2


def test_the_plugin_imports_nothing_until_it_is_used(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text(
        "import sys\n\ndef test_nothing():\n"
        "    assert not [name for name in sys.modules if name.startswith(('aiohttp', 'pydantic', 'msgspec'))]\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
