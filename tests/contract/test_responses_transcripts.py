"""Live answers against the golden transcripts of `test-results/responses/`. Nothing here writes them: that is
`scripts/transcripts`'s work, done on purpose and seen in the diff.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from scripts.generate_responses_transcripts import (
    ALIASES,
    LUNA,
    OUTPUT,
    SCENARIOS,
    Scenario,
    recorded,
    transcripts,
)
from scripts.golden import MANIFEST, TIMESTAMP, digest, server, write_all
from tests.waiting import PATIENCE

NAMES = (
    *("nonstream-minimal", "nonstream-tool-call", "nonstream-previous-response", "streaming-text"),
    *("streaming-tool-call", "streaming-reasoning", "streaming-error", "streaming-incomplete"),
    *("gt-1-nonstream-text", "gt-2-streaming-text"),
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
EACH_SCENARIO = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)


def committed(name: str, folder: Path = OUTPUT) -> dict[str, Any]:
    transcript: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return transcript


def content(transcript: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in transcript.items() if key != "metadata"}


def events_of(name: str) -> list[dict[str, Any]]:
    """The events of a committed stream before `[DONE]`."""
    events: list[dict[str, Any]]
    *events, done = committed(name)["stream"]
    assert done == {"event": "done", "data": "[DONE]"}
    return events


def types_of(name: str) -> list[str]:
    return list(dict.fromkeys(event["event"] for event in events_of(name)))


@pytest.fixture
async def live() -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with server(model_aliases=ALIASES) as url, aiohttp.ClientSession(timeout=timeout) as session:
        yield session, url


@pytest.mark.sampled(every=2)
@EACH_SCENARIO
async def test_a_live_answer_is_the_committed_one(
    live: tuple[aiohttp.ClientSession, str], scenario: Scenario
) -> None:
    status, answer = await recorded(*live, scenario)
    transcript = committed(scenario.name)
    assert answer == content(transcript)
    assert status == transcript["metadata"]["status"]


@EACH_SCENARIO
def test_ids_and_times_are_replaced_and_the_rest_are_the_sdks_own_types(scenario: Scenario) -> None:
    transcript = committed(scenario.name)
    text = json.dumps(transcript)
    assert not re.search(r"(resp|msg|rs|fc)_[0-9a-f]{32}", text)
    timed = json.loads(text.replace(f'"{TIMESTAMP}"', "1"))
    if "response" in timed:
        Response.model_validate(timed["response"])
    for number, event in enumerate(timed.get("stream", ())[:-1]):
        assert event["event"] == event["data"]["type"]
        assert event["data"]["sequence_number"] == number
        EVENT.validate_python(event["data"])


def test_the_transcripts_that_the_contract_names_are_all_there_and_no_others() -> None:
    assert {scenario.name for scenario in SCENARIOS} == set(NAMES)
    assert {path.name for path in OUTPUT.iterdir()} == {MANIFEST, *(f"{name}.json" for name in NAMES)}


def test_the_manifest_names_every_transcript_with_the_digest_of_its_content() -> None:
    manifest = json.loads((OUTPUT / MANIFEST).read_text())
    assert [entry["file"] for entry in manifest["transcripts"]] == [f"{each.name}.json" for each in SCENARIOS]
    for entry in manifest["transcripts"]:
        assert entry["sha256"] == digest(content(committed(entry["file"].removesuffix(".json"))))


@pytest.mark.exhaustive
async def test_regenerating_gives_no_difference_except_metadata(tmp_path: Path) -> None:
    await write_all(tmp_path, transcripts())
    for name in NAMES:
        assert content(committed(name, tmp_path)) == content(committed(name))


# --- what the contract says of the single transcripts ---------------------------------------------


def test_gt_1_is_the_example_of_the_contract() -> None:
    response = committed("gt-1-nonstream-text")["response"]
    assert response["model"] == "gpt-4o"
    assert response["output"][0]["content"][0]["text"] == LUNA
    usage = {name: response["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")}
    assert usage == {"input_tokens": 12, "output_tokens": 24, "total_tokens": 36}


def test_gt_2_has_the_events_of_the_contract_in_its_order() -> None:
    types = types_of("gt-2-streaming-text")
    wanted = [
        "response.created",
        "response.output_text.delta",
        "response.output_text.done",
        "response.completed",
    ]
    assert [type for type in types if type in wanted] == wanted
    deltas = [
        event["data"]["delta"] for event in events_of("gt-2-streaming-text") if "delta" in event["data"]
    ]
    assert "".join(deltas) == LUNA


def test_the_error_is_told_twice_and_the_failed_response_comes_last() -> None:
    error, failed = events_of("streaming-error")[-2:]
    assert (error["event"], failed["event"]) == ("error", "response.failed")
    assert error["data"]["message"] == failed["data"]["response"]["error"]["message"]


def test_a_cut_answer_is_incomplete_and_so_is_its_last_item() -> None:
    last = events_of("streaming-incomplete")[-1]
    assert last["event"] == "response.incomplete"
    assert last["data"]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["data"]["response"]["output"][-1]["status"] == "incomplete"


def test_reasoning_is_told_as_a_summary_in_parts() -> None:
    types = types_of("streaming-reasoning")
    assert "response.reasoning_summary_text.delta" in types
    added = [
        event for event in events_of("streaming-reasoning") if event["event"].endswith("summary_part.added")
    ]
    assert [event["data"]["summary_index"] for event in added] == [0, 1]


def test_the_output_of_a_call_is_seen_by_the_turn_that_continues_it() -> None:
    transcript = committed("nonstream-previous-response")
    assert transcript["response"]["previous_response_id"] == transcript["earlier"]["response"]["id"]
    assert "sunny" in transcript["response"]["output"][-1]["content"][0]["text"]


# --- docs/responses.md ------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "responses.md").read_text()


@pytest.mark.parametrize(("file", "name"), re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE))
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    assert f"def {name}(" in (Path(__file__).parents[2] / file).read_text()
