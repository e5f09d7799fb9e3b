"""The pytest plugin, as a project that is not this one uses it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from codex_proxy.parts.cassettes.stream_faults import KINDS
from codex_proxy.parts.cassettes.testing import Servers
from tests.waiting import PATIENCE

ROOT = Path(__file__).parent.parent.parent.parent
EXAMPLES = (
    "tests_with_openai",
    pytest.param("tests_with_langchain", marks=pytest.mark.exhaustive),
    pytest.param("tests_with_javascript", marks=pytest.mark.exhaustive),
)
OPENAI_STATUSES = {400, 401, 403, 404, 429, 500, 502, 503, 504}
ANTHROPIC_STATUSES = {400, 401, 403, 404, 429, 500, 504, 529}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    yield servers
    servers.stop()


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
        [*command, "-p", "codex_proxy.parts.cassettes.plugin", "--rootdir", str(folder), "-c", os.devnull, str(folder)],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_pass(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(ROOT / "examples" / name, folder)
    done = run_pytest(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {
        path.name for path in (ROOT / "examples" / name).iterdir() if path.name != "__pycache__"
    }


def test_the_cassettes_of_the_examples_name_no_folder_of_a_machine() -> None:
    cassettes = list((ROOT / "examples").glob("*/cassettes/**/*.jsonl"))
    assert cassettes
    for path in cassettes:
        assert '"cwd":"/' not in path.read_text("utf-8"), f"record {path} anew"


@pytest.mark.exhaustive
def test_a_project_records_and_replays(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "tests_with_openai", folder)
    shutil.rmtree(folder / "cassettes")
    (folder / "cassettes" / "two-cities").mkdir(parents=True)  # what a recording that failed leaves
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
        "    assert not [name for name in sys.modules if name.startswith(('aiohttp', 'pydantic', 'codex_proxy.app'))]\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_a_project_of_three_files_passes_with_the_installed_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    built = subprocess.run(build, capture_output=True, text=True, timeout=280, check=False)
    if built.returncode and "hatchling" in built.stderr:
        pytest.skip("pip finds no hatchling, with which the wheel is built")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True)
    # What the wheel requires comes from the environment of these tests; of this project there is only the wheel.
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "required.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "hello.py").write_text(
        "import openai\n\n"
        "def hello(client):\n"
        '    messages = [{"role": "user", "content": "Say hello. [[fake:text]]"}]\n'
        '    return client.chat.completions.create(model="gpt-5", messages=messages).choices[0].message.content\n'
    )
    (folder / "test_hello.py").write_text(
        "import codex_proxy, openai, pytest\n"
        "from hello import hello\n\n"
        "def client(server):\n"
        "    return openai.OpenAI(base_url=server.base_url, api_key=server.api_key, max_retries=0)\n\n"
        "def test_said(openai_server):\n"
        f'    assert codex_proxy.__file__.startswith("{packages}")\n'
        '    openai_server.say("Good morning.")\n'
        '    assert hello(client(openai_server)) == "Good morning."\n\n'
        '@pytest.mark.cassette("greeting")\n'
        "def test_recorded(openai_server):\n"
        '    assert hello(client(openai_server)) == "Hello from the deterministic fake agent."\n'
    )
    shutil.copytree(ROOT / "examples/tests_with_javascript/cassettes", folder / "cassettes")
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("PROXY_", "PYTEST_"))
    }
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "."]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


@pytest.mark.parametrize(
    ("path", "statuses"), [("/v1/chat/completions", OPENAI_STATUSES), ("/v1/messages", ANTHROPIC_STATUSES)]
)
def test_a_request_fails_with_the_status_that_the_test_asks_for(
    servers: Servers, path: str, statuses: set[int]
) -> None:
    server = servers.fake().for_test("")
    body = {"model": "codex-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello."}]}
    for status in KINDS:
        server.fail(status)
        answer = httpx.post(f"{server.base_url}{path}", json=body, timeout=PATIENCE)
        if status in statuses:
            assert answer.status_code == status
        else:
            assert answer.status_code in statuses


def test_several_texts_are_said_in_order_and_the_last_one_again(servers: Servers) -> None:
    server = servers.fake().for_test("")
    server.say("One.")
    server.say("Two.")
    body = {"model": "codex-5", "messages": [{"role": "user", "content": "Hello."}]}
    said = [
        httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
        for _ in range(3)
    ]
    assert [each["choices"][0]["message"]["content"] for each in said] == ["One.", "Two.", "Two."]
    server.say("Three.")
    answer = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=PATIENCE).json()
    assert answer["choices"][0]["message"]["content"] == "Three."


def test_what_is_said_is_a_text_and_a_scenario_takes_json(servers: Servers) -> None:
    server = servers.fake().for_test("")
    with pytest.raises(TypeError, match="`say` takes a text, not int"):
        server.say(5)  # type: ignore[arg-type]
    server.say("half \ud83d")
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    body = {"model": "codex-5", "messages": [{"role": "user", "content": "Hello."}], "tools": [tool]}

    def message() -> dict[str, Any]:
        url = f"{server.base_url}/v1/chat/completions"
        answer: dict[str, Any] = httpx.post(url, json=body, timeout=PATIENCE).json()
        found: dict[str, Any] = answer["choices"][0]["message"]
        return found

    assert message()["content"] == "half \ufffd"
    server.scenario("tool_calls", name="get_weather", args={"city": "Oslo"})
    call = message()["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}


def test_an_answer_has_the_fault_that_the_test_asks_for_once(servers: Servers) -> None:
    server = servers.fake().for_test("")
    body = {"model": "codex-5", "messages": [{"role": "user", "content": "Hello."}], "stream": True}
    server.spoil("end; events=1")
    answers = [
        httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=PATIENCE).text
        for _ in range(2)
    ]
    assert [answer.count("data: ") == 1 for answer in answers] == [True, False]
    with pytest.raises(ValueError, match="refused by `fail`"):
        server.spoil("refuse; status=429")


def test_files_are_recorded_and_replayed_in_the_folder_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_files.py").write_text(
        "import openai, pytest\n\n"
        'PROMPT = "[[fake:text files=\'[{\\"path\\": \\"a\\", \\"text\\": \\"new\\"}]\']]"\n\n'
        '@pytest.mark.parametrize("nth", [1, 2])\n'
        '@pytest.mark.cassette("change", files=True)\n'
        "def test_change(openai_server, nth):\n"
        '    (openai_server.folder / "a").write_text("old")\n'
        '    (openai_server.folder / "a").chmod(0o644)\n'
        "    client = openai.OpenAI(base_url=openai_server.base_url, api_key=openai_server.api_key, max_retries=0)\n"
        '    client.responses.create(model="gpt-5", input=PROMPT)\n'
        '    assert (openai_server.folder / "a").read_text() == "new"\n\n'
        "def test_no_folder(openai_server):\n"
        '    with pytest.raises(ValueError, match="files=True"):\n'
        "        openai_server.folder\n"
    )
    for mode in ("record", "replay", "missing"):
        done = run_pytest(tmp_path, f"--cassettes={mode}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 passed" in done.stdout
    cassettes = sorted((tmp_path / "cassettes" / "change").glob("*.jsonl"))
    assert ['"file":' in each.read_text() for each in cassettes] == [True, True]
