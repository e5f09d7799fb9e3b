"""Live answers against the golden transcripts of `test-results/messages/`. Nothing here writes them: that is
`scripts/transcripts`'s work, done on purpose and seen in the diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from anthropic.types import Message

from scripts.generate_messages_transcripts import OUTPUT, SCENARIOS, Scenario, answer_to, served, transcripts
from scripts.golden import DYNAMIC_ID, MANIFEST, digest, write_all
from tests.surfaces.messages.answering import fold
from tests.waiting import PATIENCE

EACH_SCENARIO = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def committed(name: str, folder: Path = OUTPUT) -> dict[str, Any]:
    transcript: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return transcript


def content(transcript: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in transcript.items() if key != "metadata"}


@pytest.mark.sampled(every=2)
@EACH_SCENARIO
async def test_a_live_answer_is_the_committed_one(scenario: Scenario) -> None:
    transcript = committed(scenario.name)
    assert transcript["request"] == scenario.request
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with served(scenario.dialect) as url, aiohttp.ClientSession(timeout=timeout) as session:
        status, answer = await answer_to(session, url, transcript["request"])
    assert {"request": transcript["request"], **answer} == content(transcript)
    assert status == transcript["metadata"]["status"]


@EACH_SCENARIO
def test_ids_are_replaced_and_the_rest_is_the_sdks_own(scenario: Scenario) -> None:
    transcript = committed(scenario.name)
    answer = transcript.get("response")
    if answer is None and transcript["stream"][-1]["type"] == "message_stop":
        answer = fold(transcript["stream"])
    if answer is not None and answer["type"] == "message":
        assert answer["id"] == DYNAMIC_ID
        Message.model_validate(answer)
    assert '"msg_' not in json.dumps(transcript)
    assert '"req_' not in json.dumps(transcript)


def test_the_manifest_names_every_transcript_with_the_digest_of_its_content() -> None:
    manifest = json.loads((OUTPUT / MANIFEST).read_text())
    assert [entry["file"] for entry in manifest["transcripts"]] == [f"{each.name}.json" for each in SCENARIOS]
    for entry in manifest["transcripts"]:
        assert entry["sha256"] == digest(content(committed(entry["file"].removesuffix(".json"))))


@pytest.mark.exhaustive
async def test_regenerating_gives_no_difference_except_metadata(tmp_path: Path) -> None:
    await write_all(tmp_path, transcripts())
    for each in SCENARIOS:
        assert content(committed(each.name, tmp_path)) == content(committed(each.name))
