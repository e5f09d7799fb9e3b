"""What all golden transcripts have in common, whatever surface they are of; one command writes them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.golden import MANIFEST, RESULTS, ROOT
from tests.scripts.checkout import make_checkout

KINDS = ("chat-completions", "responses", "messages", "ollama", "tools")
METADATA = {"captured_at", "commit", "codex_bin", "cli_version", "scenario", "include_usage", "status"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_transcript_says_when_of_what_and_with_which_agent_it_was_made(kind: str) -> None:
    files = [path for path in (RESULTS / kind).rglob("*.json") if path.name != MANIFEST]
    assert files
    for path in files:
        metadata = json.loads(path.read_text("utf-8"))["metadata"]
        assert set(metadata) == METADATA, path
        assert metadata["include_usage"] in (True, False)
        assert metadata["codex_bin"].startswith("python -m fake_proto ")


def test_one_command_writes_the_transcripts_of_every_surface(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    done = checkout.run("transcripts")
    assert done.returncode == 0, done.stderr
    generators = sorted(path.stem for path in (ROOT / "scripts").glob("generate_*_transcripts.py"))
    assert len(generators) == len(KINDS)
    assert [line for line in checkout.told if "generate" in line] == [
        f"-m scripts.{name}" for name in generators
    ]
