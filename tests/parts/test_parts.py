"""The parts of the program, each of which may be absent: a copy of the program without the part's folder works."""

from __future__ import annotations

import json
import pkgutil
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices

from codex_proxy.agents.names import BUILT_IN
from codex_proxy.agents.registry import specs
from codex_proxy.cli import SETTINGS_OPTION
from codex_proxy.core.passing import PASSED_PATHS
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.parts import KNOWN, KnownPart, Part, own_settings_of, parts
from codex_proxy.settings.fields import Settings
from tests import every_agent

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 120
ASKS = """
import asyncio, sys, aiohttp, json
from pathlib import Path
import codex_proxy
assert codex_proxy.__file__.startswith({root!r}), codex_proxy.__file__
from codex_proxy.app.server import make_server
from codex_proxy.settings.fields import Settings

async def main():
    headers = json.loads({headers!r})
    settings = Settings(agent="fake", port=0, state_dir=Path({state!r}), workdir=Path({state!r}))
    server = await make_server(settings, {{"PATH": "/usr/bin:/bin"}})
    await server.start()
    try:
        url = f"http://127.0.0.1:{{server.port}}/v1/{path}"
        body = json.loads({body!r})
        async with aiohttp.ClientSession(headers=headers) as session, session.post(url, json=body) as reply:
            print(reply.status, await reply.text())
    finally:
        await server.stop()

asyncio.run(main())
"""


def test_every_part_of_the_project_is_there_and_declares_what_the_core_knows_of_it() -> None:
    folders = {path.parent.name for path in (ROOT / "codex_proxy" / "parts").glob("*/__init__.py")}
    assert folders == set(KNOWN)
    assert {part.name: known_of(part) for part in parts()} == KNOWN


@pytest.mark.parametrize("part", parts(), ids=lambda part: part.name)
def test_a_part_has_a_page(part: Part) -> None:
    page, _, heading = part.page.partition("#")
    text = (ROOT / "docs" / page).read_text()
    assert re.search(rf"^#+ {heading}", text, re.MULTILINE | re.IGNORECASE)


def known_of(part: Part) -> KnownPart:
    names = sorted(own_settings_of(part))
    aliases = [Settings.model_fields[name].validation_alias for name in names]
    choices = [str(each) for found in aliases if isinstance(found, AliasChoices) for each in found.choices]
    variables = [each for each in choices if not each.startswith("PROXY_")]
    return KnownPart(
        agents=tuple(part.agents),
        settings=(*names, *variables),
        tools=part.tools,
        stores=tuple(part.stores),
        flags=tuple(flag.name for flag in part.flags),
        paths=PASSED_PATHS if part.name == "upstream" else paths_of(part),
        commands=commands_of(part),
        fake_dialects=tuple(part.fake_dialects),
    )


def paths_of(part: Part) -> tuple[str, ...]:
    """Returns the paths of a part's endpoints, with one for all that are below a first name which the core has not."""
    paths = [each.path for each in pkgutil.resolve_name(part.endpoints)] if part.endpoints else []
    of_parts = {
        each.path for other in parts() if other.endpoints for each in pkgutil.resolve_name(other.endpoints)
    }
    of_core = {each.path[1:].partition("/")[0] for each in ENDPOINTS if each.path not in of_parts}
    used = [other for other in parts() if other.name in part.uses and other.endpoints]
    of_used = {each.path for other in used for each in pkgutil.resolve_name(other.endpoints)}
    if of_used.isdisjoint(paths):  # else both are asked at the same paths, by clients of different vendors
        of_core |= {path[1:].partition("/")[0] for path in of_used}
    names = {path: path[1:].partition("/")[0] for path in paths}
    names = {path: name for path, name in names.items() if name not in of_core}
    return tuple(
        dict.fromkeys(f"/{name}" if path == f"/{name}" else f"/{name}/" for path, name in names.items())
    )


def commands_of(part: Part) -> tuple[str, ...]:
    made = pkgutil.resolve_name(part.commands)(print, SETTINGS_OPTION) if part.commands else ()
    return tuple(each.name for each in made)


CORE_AGENTS = {"codex-app-server", "codex-proto", "codex-exec", "fake"}


def test_the_agents_of_the_registry_are_those_of_the_core_and_of_all_parts() -> None:
    of_parts = {agent for known in KNOWN.values() for agent in known.agents}
    assert set(BUILT_IN) == {spec.name for spec in specs()} == CORE_AGENTS | of_parts


@pytest.mark.parametrize(
    "matrix",
    [
        *("access/test_output_size.py", "secrecy/test_environment.py", "real/test_client_text.py"),
        *("parts/test_reader_damage.py", "parts/test_child_growth.py"),
    ],
)
def test_what_is_tried_with_every_agent_has_a_case_for_an_agent_that_is_new(
    matrix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An absent part, or an agent that nobody has thought of, would be a hole that nobody sees."""
    monkeypatch.setattr(every_agent, "KNOWN", {**KNOWN, "planted": KnownPart(agents=("planted-agent",))})
    with pytest.raises(AssertionError, match="agents without a case"):
        runpy.run_path(str(ROOT / "tests" / matrix))


@pytest.fixture
def without(tmp_path: Path) -> Callable[[str], Path]:
    """Copies the program without a part, and returns the folder of the copy."""

    def copy(part: str) -> Path:
        for package in ("codex_proxy", "fake_proto"):
            shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.rmtree(tmp_path / "codex_proxy" / "parts" / part)
        return tmp_path

    return copy


def python(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on the copy. Nothing of the tested program itself can be imported."""
    own = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(folder), **environment}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        env=own,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def asked(folder: Path, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    """Asks a server of the copy. Returns the status and the body of its answer."""
    values = {"body": json.dumps(body), "headers": json.dumps(headers)}
    script = ASKS.format(root=str(folder), state=str(folder), path=path, **values)
    told = python(folder, "-c", script)
    assert told.returncode == 0, told.stderr
    status, _, answer = told.stdout.splitlines()[-1].partition(" ")
    return int(status), json.loads(answer)


@pytest.mark.parametrize("name", KNOWN)
def test_a_server_without_a_part_answers(name: str, without: Callable[[str], Path]) -> None:
    folder = without(name)
    body = {"model": "codex-5", "messages": [{"role": "user", "content": "hi"}]}
    status, answer = asked(folder, "chat/completions", body)
    assert (status, answer["choices"][0]["finish_reason"]) == (200, "stop")


@pytest.mark.parametrize(
    ("name", "tool"), [(name, tool) for name, known in KNOWN.items() for tool in known.tools]
)
def test_a_request_with_tools_of_an_absent_part_is_refused_with_its_name(
    name: str, tool: str, without: Callable[[str], Path]
) -> None:
    tools = [{"type": tool, "server_label": "desk", "server_url": "https://localhost/"}]
    status, answer = asked(without(name), "responses", {"model": "codex-5", "input": "hi", "tools": tools})
    assert status == 400
    assert f"the part {name}, which is not in this installation" in answer["error"]["message"]
    assert answer["error"]["param"].startswith("tools[0]")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (name, f"{path}x" if path.endswith("/") else path)
        for name, known in KNOWN.items()
        for path in known.paths[-2:]
    ],
)
def test_a_path_of_an_absent_part_is_refused_with_its_name(
    name: str, path: str, without: Callable[[str], Path]
) -> None:
    status, answer = asked(without(name), path.removeprefix("/"), {"model": "m", "input": "hi"})
    expected = f"{path} is served by the part {name}, which is not in this installation."
    assert (status, answer["error"]["message"]) == (404, expected)


def test_a_path_of_two_vendors_serves_the_one_whose_part_is_there(without: Callable[[str], Path]) -> None:
    folder = without("managed_agents")
    status, answer = asked(folder, "agents", {"model": "codex-5"}, **{"OpenAI-Beta": "agents=v1"})
    assert (status, answer["object"]) == (201, "agent")
    status, answer = asked(folder, "agents", {"model": "codex-5"}, **{"anthropic-version": "2023-06-01"})
    expected = "/agents is served by the part managed_agents, which is not in this installation."
    assert (status, answer["type"], answer["error"]["message"]) == (404, "error", expected)


def test_a_part_is_absent_without_the_part_that_it_uses(without: Callable[[str], Path]) -> None:
    status, answer = asked(without("sessions"), "environments", {"name": "here"})
    expected = "/environments is served by the part sessions, which is not in this installation."
    assert (status, answer["error"]["message"]) == (404, expected)


@pytest.mark.parametrize(
    "name", [name for name, known in KNOWN.items() if known.agents or known.settings or known.stores]
)
def test_what_belongs_to_an_absent_part_is_refused_with_its_name(
    name: str, without: Callable[[str], Path]
) -> None:
    folder = without(name)
    expected = f"the part {name}, which is not in this installation"
    for scheme in KNOWN[name].stores:
        told = python(folder, "-m", "codex_proxy", "serve", "--agent", "fake", PROXY_STORE=f"{scheme}://h/d")
        assert (told.returncode, expected in told.stderr) == (2, True)
    for agent in KNOWN[name].agents:
        assert expected in python(folder, "-m", "codex_proxy", "doctor", "--agent", agent).stdout
    for setting in KNOWN[name].settings:
        variable = f"PROXY_{setting.upper()}" if setting.islower() else setting
        told = python(folder, "-m", "codex_proxy", "serve", "--agent", "fake", **{variable: "x"})
        assert (told.returncode, expected in told.stderr, variable in told.stderr) == (2, True, True)
        if setting.islower():
            file = folder / "settings.toml"
            file.write_text(f'{setting} = "x"\n')
            told = python(folder, "-m", "codex_proxy", "serve", "--config", str(file))
            assert (told.returncode, expected in told.stderr, setting in told.stderr) == (2, True, True)
    for flag in KNOWN[name].flags:
        option = f"--{flag.replace('_', '-')}"
        told = python(folder, "-m", "codex_proxy", "serve", option, "x")
        assert (told.returncode, expected in told.stderr, option in told.stderr) == (2, True, True)
    for command in KNOWN[name].commands:
        for more in (("--help",), ("one", "two", "--three=4")):
            told = python(folder, "-m", "codex_proxy", *command.split(), *more)
            assert (told.returncode, expected in told.stderr, command in told.stderr) == (2, True, True)
        told = python(folder, "-m", "codex_proxy", *command.split()[:-1], "--help")
        assert (told.returncode, f"\n  {command.split()[-1]} " in told.stdout) == (0, False)
    for dialect in KNOWN[name].fake_dialects:
        told = python(folder, "-m", "codex_proxy", "serve", "--agent", "fake", PROXY_FAKE_DIALECT=dialect)
        assert (told.returncode, expected in told.stderr) == (2, True)
    if KNOWN[name].stores:
        told = python(folder, "-m", "codex_proxy", "keys", "list", "--store")
        assert (told.returncode, expected in told.stderr) == (1, True)
