"""A JavaScript program against the fake agent, and against recorded turns: the server is a real one, on a real port."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="node is not installed")


def ask(server: Any, question: str) -> subprocess.CompletedProcess[str]:
    program = Path(__file__).with_name("ask.mjs")
    command = [str(NODE), str(program), server.base_url, server.api_key, question]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_prints_what_the_model_says(openai_server: Any) -> None:
    openai_server.say("Good morning.")
    assert ask(openai_server, "Hello?").stdout == "Good morning."


def test_the_program_says_why_the_model_failed(openai_server: Any) -> None:
    openai_server.fail(status=503, message="Come back later.")
    assert ask(openai_server, "Hello?").stderr == "503: Come back later.\n"


@pytest.mark.cassette("greeting")
def test_the_program_prints_what_was_recorded(openai_server: Any) -> None:
    assert ask(openai_server, "Say hello. [[fake:text]]").stdout == "Hello from the deterministic fake agent."
