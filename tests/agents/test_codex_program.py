"""Which binary is started: the one that was named, the one on PATH, or the one that came along; never Node."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from codex_proxy.agents.codex import program as codex_binary
from codex_proxy.agents.codex.program import find_codex, find_native_binary

NODE = "#!/usr/bin/env node\nconsole.log('a wrapper')\n"
TRIPLE = f"{platform.machine()}-unknown-linux-musl"
OTHER = "riscv64-unknown-linux-musl"


def program(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_named_binary_wins_over_the_one_on_path(tmp_path: Path) -> None:
    named, on_path = program(tmp_path / "mine" / "codex"), program(tmp_path / "bin" / "codex")
    assert find_codex(str(named), str(on_path.parent)) == str(named)


def test_a_named_binary_is_not_replaced_when_it_is_missing(tmp_path: Path) -> None:
    on_path = program(tmp_path / "bin" / "codex")
    missing = str(tmp_path / "nowhere" / "codex")
    assert find_codex(missing, str(on_path.parent)) == missing


def test_a_relative_name_is_seen_from_here_since_children_start_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = program(tmp_path / "mine" / "codex")
    monkeypatch.chdir(tmp_path)
    assert find_codex("./mine/codex", "") == str(named)
    assert find_codex("mine/codex", "") == str(named)
    assert find_codex(None, "mine") == str(named)


def test_a_bare_name_is_looked_up_on_path(tmp_path: Path) -> None:
    named = program(tmp_path / "bin" / "codex-0.42")
    assert find_codex("codex-0.42", str(named.parent)) == str(named)
    assert find_codex("codex-9", str(named.parent)) == "codex-9"


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = program(tmp_path / "codex")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_codex("~/codex", "") == str(named)


def test_without_a_codex_on_path_that_of_the_extra_is_used(tmp_path: Path) -> None:
    found = find_codex(None, str(tmp_path))
    assert found == codex_binary.bundled_codex()
    assert found is not None
    assert Path(found).is_file()


def test_without_any_codex_none_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert find_codex(None, str(tmp_path)) is None


@pytest.mark.skipif(sys.platform != "linux", reason="the folders are named after the system")
@pytest.mark.parametrize(
    "place",
    [
        "lib/node_modules/@openai/codex/vendor/{triple}/codex/codex",
        "lib/node_modules/@openai/codex/vendor/{triple}/bin/codex",
        "lib/node_modules/@openai/codex/node_modules/@openai/codex-linux-x64/vendor/{triple}/codex/codex",
        "lib/node_modules/@openai/codex-linux-x64/vendor/{triple}/codex/codex",
    ],
)
def test_behind_a_node_wrapper_the_native_binary_of_this_machine_is_found(tmp_path: Path, place: str) -> None:
    wrapper = program(tmp_path / "lib/node_modules/@openai/codex/bin/codex.js", NODE)
    link = tmp_path / "bin" / "codex"
    link.parent.mkdir()
    link.symlink_to(wrapper)
    for foreign in (OTHER, TRIPLE.replace("unknown-linux-musl", "apple-darwin")):
        program(tmp_path / place.format(triple=foreign))
    native = program(tmp_path / place.format(triple=TRIPLE))
    assert find_codex(None, str(link.parent)) == str(native)


def test_a_node_wrapper_without_a_native_binary_is_used_as_it_is(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "codex" / "bin" / "codex.js", NODE)
    program(tmp_path / f"codex/vendor/{OTHER}/codex/codex")
    assert find_native_binary(str(wrapper)) == str(wrapper)


def test_a_native_binary_that_may_not_be_executed_is_no_choice(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "codex" / "bin" / "codex.js", NODE)
    program(tmp_path / f"codex/vendor/{TRIPLE}/codex/codex").chmod(0o644)
    assert find_native_binary(str(wrapper)) == str(wrapper)


def test_another_script_is_no_node_wrapper(tmp_path: Path) -> None:
    script = program(tmp_path / "codex" / "bin" / "codex", "#!/bin/sh\nexec node\n")
    program(tmp_path / f"codex/vendor/{TRIPLE}/codex/codex")
    assert find_native_binary(str(script)) == str(script)
