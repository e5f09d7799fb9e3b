"""Live answers of Ollama's API against the golden transcripts of `test-results/ollama/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ollama import ChatResponse, GenerateResponse

from scripts.generate_ollama_transcripts import OUTPUT, SCENARIOS, transcripts
from scripts.golden import MANIFEST, digest, write_all


def content(file: Path) -> dict[str, Any]:
    """What a transcript has, without its metadata."""
    return {key: value for key, value in json.loads(file.read_text("utf-8")).items() if key != "metadata"}


async def test_live_answers_are_the_committed_ones(tmp_path: Path) -> None:
    assert await write_all(tmp_path, transcripts()) == len(SCENARIOS)
    for each in SCENARIOS:
        name = f"{each.name}.json"
        assert content(tmp_path / name) == content(OUTPUT / name)


def test_every_line_is_one_that_ollamas_package_reads() -> None:
    for each in SCENARIOS:
        answer = content(OUTPUT / f"{each.name}.json")
        for line in answer.get("stream") or [answer["response"]]:
            if "error" not in line:
                (ChatResponse if each.path == "/api/chat" else GenerateResponse).model_validate(
                    {**line, "created_at": "2026-01-01T00:00:00Z"}
                )


def test_the_manifest_has_the_digest_of_every_transcript() -> None:
    entries = json.loads((OUTPUT / MANIFEST).read_text())["transcripts"]
    assert [entry["file"] for entry in entries] == [f"{each.name}.json" for each in SCENARIOS]
    for entry in entries:
        assert entry["sha256"] == digest(content(OUTPUT / entry["file"]))
