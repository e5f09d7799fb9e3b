"""The golden transcripts of `test-results/ollama/` are what Ollama's package reads."""

from __future__ import annotations

import pytest
from ollama import ChatResponse, GenerateResponse

from scripts.golden import manifest_of, transcript


@pytest.mark.parametrize("file", [entry["file"] for entry in manifest_of("ollama")])
def test_every_line_is_one_that_ollamas_package_reads(file: str) -> None:
    answer = transcript("ollama", file)
    for line in answer.get("stream") or [answer["response"]]:
        if "error" not in line:
            (ChatResponse if answer["path"] == "/api/chat" else GenerateResponse).model_validate(
                {**line, "created_at": "2026-01-01T00:00:00Z"}
            )
