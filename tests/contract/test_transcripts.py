"""Live answers against the golden transcripts of `test-results/`, whatever API they are of. Nothing here writes them:
that is `scripts/transcripts`'s work, done on purpose and seen in the diff.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.golden import (
    KINDS,
    MANIFEST,
    RESULTS,
    content,
    digest,
    manifest_of,
    play,
    transcript,
    write_all,
)
from tests.scripts.checkout import make_checkout

METADATA = {"captured_at", "commit", "codex_bin", "cli_version", "scenario", "include_usage", "status"}
ALL = [(kind, entry["file"]) for kind in KINDS for entry in manifest_of(kind)]
EACH = pytest.mark.parametrize(("kind", "file"), ALL)
WAYS: dict[str, dict[str, Any]] = {
    "kept": {"kept_threads": 32},
    "replayed": {"kept_threads": 0},
    "restarted": {"restarted": True},
}
"""How a request continues a conversation: on the turn that waits for it, from the history, or on a server that was
started anew."""


def of_part(kind: str) -> list[pytest.MarkDecorator]:
    """The marks of what answers only with a part: sessions."""
    return [pytest.mark.part("sessions")] if kind == "agents" else []


def is_conversation(kind: str, file: str) -> bool:
    return len(transcript(kind, file).get("exchanges", ())) > 1


def requests_of(kind: str, file: str) -> list[dict[str, Any]]:
    recorded = transcript(kind, file)
    return [each["request"] for each in recorded.get("exchanges", [recorded])]


def fingerprints() -> dict[str, str]:
    files = (path for path in RESULTS.rglob("*") if path.is_file())
    return {str(path.relative_to(RESULTS)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.sampled(every=13)
@pytest.mark.parametrize(
    ("kind", "file", "way"),
    [
        pytest.param(
            *(kind, file, way),
            marks=[
                *of_part(kind),
                *([pytest.mark.exhaustive] if file.startswith("proto/") and way == "restarted" else []),
            ],
        )
        for kind, file in ALL
        for way in (WAYS if is_conversation(kind, file) else ["kept"])
    ],
)
async def test_a_live_answer_is_the_committed_one_whichever_way_a_step_is_continued(
    kind: str, file: str, way: str, tmp_path: Path
) -> None:
    recorded = transcript(kind, file)
    live, statuses = await play(kind, file, tmp_path, **WAYS[way])
    assert live == content(recorded)
    assert statuses == (
        recorded["metadata"]["status"] if "exchanges" in recorded else [recorded["metadata"]["status"]]
    )


@EACH
def test_a_transcript_says_when_of_what_and_with_which_agent_it_was_made(kind: str, file: str) -> None:
    metadata = transcript(kind, file)["metadata"]
    assert set(metadata) == METADATA
    assert metadata["codex_bin"] in ("python -m fake_proto proto", "python -m fake_proto app-server")
    request = requests_of(kind, file)[0]
    asked = json.dumps(request).partition("[[fake:")[2]
    assert not asked or asked.startswith(metadata["scenario"])
    if kind in ("chat-completions", "tools"):
        wanted = (request.get("stream_options") or {}).get("include_usage", False)
        assert metadata["include_usage"] is wanted


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_names_every_transcript_with_the_digest_of_its_content(kind: str) -> None:
    entries = manifest_of(kind)
    files = [str(path.relative_to(RESULTS / kind)) for path in (RESULTS / kind).rglob("*.json")]
    assert sorted([MANIFEST, *(entry["file"] for entry in entries)]) == sorted(files)
    for entry in entries:
        assert entry["about"]
        assert entry["sha256"] == digest(content(transcript(kind, entry["file"])))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "kind",
    ["ollama", *(pytest.param(kind, marks=[pytest.mark.exhaustive, *of_part(kind)]) for kind in KINDS)],
)
async def test_regenerating_gives_no_difference_except_metadata_and_touches_nothing_committed(
    kind: str, tmp_path: Path
) -> None:
    before = fingerprints()
    assert await write_all(kind, tmp_path) == len(manifest_of(kind))
    for entry in manifest_of(kind):
        again, committed = (transcript(kind, entry["file"], folder) for folder in (tmp_path, RESULTS))
        assert content(again) == content(committed)
        assert list(again["metadata"]) == list(committed["metadata"])
        assert again["metadata"]["status"] == committed["metadata"]["status"]
    assert manifest_of(kind, tmp_path) == manifest_of(kind)
    assert fingerprints() == before


def test_one_command_writes_the_transcripts_of_every_api(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path)
    done = checkout.run("transcripts")
    assert done.returncode == 0, done.stderr
    assert [line for line in checkout.calls if "golden" in line] == ["-m scripts.golden"]
