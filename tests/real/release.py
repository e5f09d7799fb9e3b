"""The release of Codex that the tests of this folder drive, and what it cannot do.

It is the binary that the variable ``TEST_CODEX`` names, else that of the installed package. A test that some releases
cannot pass says so, with the reason: by ``since``, where its number tells, or by ``needs`` and ``knows``,
where the release itself tells by its schema and its switches. `scripts/codex-matrix` runs the tests with one release
after the other, and writes down what was left out and why.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import codex_cli_bin
import pytest

from codex_proxy.agents.codex.program import Version, version_from
from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck, ask_binary
from codex_proxy.agents.codex_app_server.contract import Feature
from tests.waiting import PATIENCE

VARIABLE = "TEST_CODEX"
PROTO_VARIABLE = "TEST_CODEX_PROTO"
"""Names a Codex that has `codex proto`, which no release of the installed package has."""


def codex_path() -> Path:
    """The native binary of every test. ``FileNotFoundError`` where there is none."""
    named = os.environ.get(VARIABLE)
    return _file(VARIABLE, named) if named else _file("the package", str(codex_cli_bin.bundled_codex_path()))


def proto_path() -> Path | None:
    """A binary that has `codex proto`; None where none is named."""
    named = os.environ.get(PROTO_VARIABLE)
    return _file(PROTO_VARIABLE, named) if named else None


def _file(source: str, named: str) -> Path:
    path = Path(named)
    if not path.is_file():
        raise FileNotFoundError(f"{source} names {path}, which is no file")
    return path


@cache
def release() -> Version:
    """What the binary says that it is."""
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(
            [str(codex_path()), "--version"],
            capture_output=True,
            check=True,
            timeout=PATIENCE,
            env={"CODEX_HOME": home, "HOME": home},
        )
    version = version_from(done.stdout.decode())
    assert version is not None, done.stdout
    return version


@cache
def check() -> BinaryCheck:
    """What the binary says of itself, as the server asks it."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ask_binary(str(codex_path()), folder, {"PATH": os.environ["PATH"], "HOME": folder})
        with ThreadPoolExecutor(1) as thread:  # the event loop of a test may be running in this one
            return thread.submit(asyncio.run, asked).result()


def since(first: str, reason: str) -> pytest.MarkDecorator:
    """For a test that releases before `first` (like "0.147") cannot pass."""
    numbers = [int(number) for number in first.split(".")]
    wanted = Version(*numbers, *[0] * (3 - len(numbers)))
    return pytest.mark.skipif(release() < wanted, reason=f"before {first}: {reason}")


def needs(feature: Feature) -> pytest.MarkDecorator:
    """For a test of a feature that is off with releases that lack what it needs."""
    lacks = check().contract.missing_features.get(feature, ())
    return pytest.mark.skipif(bool(lacks), reason=f"{feature} is off: it has no {', no '.join(lacks)}")


def knows(*switches: str) -> pytest.MarkDecorator:
    """For a test of what the process does with these ``-c`` switches, which some releases do not have."""
    unknown = [key for key in switches if key in check().unknown_switches]
    return pytest.mark.skipif(bool(unknown), reason=f"it has no switch {', '.join(unknown)}")


PLAIN_MODEL = knows("tools.update_plan.enabled", "tools.experimental_request_user_input.enabled")
"""For a test that a plain model is offered no tool but the client's: releases without these switches offer harmless
ones of the agent."""

ENDS_MODEL_CALLS = since("0.154", "an interrupted model call stays open until its next event")
