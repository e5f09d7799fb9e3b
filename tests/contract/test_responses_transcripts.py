"""What the contract says of the golden transcripts of `test-results/responses/`. `test_transcripts` compares them with
live answers.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from scripts.golden import TIMESTAMP, manifest_of, serving, transcript

NAMES = (
    *("nonstream-minimal", "nonstream-tool-call", "nonstream-previous-response", "streaming-text"),
    *("streaming-tool-call", "streaming-reasoning", "streaming-error", "streaming-incomplete"),
    *("gt-1-nonstream-text", "gt-2-streaming-text"),
)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
EACH = pytest.mark.parametrize("name", NAMES)
LUNA = "Under the soft glow of the moon, Luna the unicorn…"


def committed(name: str) -> dict[str, Any]:
    return transcript("responses", f"{name}.json")


def events_of(name: str) -> list[dict[str, Any]]:
    """The events of a committed stream before `[DONE]`."""
    events: list[dict[str, Any]]
    *events, done = committed(name)["stream"]
    assert done == {"event": "done", "data": "[DONE]"}
    return events


def types_of(name: str) -> list[str]:
    return list(dict.fromkeys(event["event"] for event in events_of(name)))


@EACH
def test_ids_and_times_are_replaced_and_the_rest_are_the_sdks_own_types(name: str) -> None:
    transcript = committed(name)
    text = json.dumps(transcript)
    assert not re.search(r"(resp|msg|rs|fc)_[0-9a-f]{32}", text)
    timed = json.loads(text.replace(f'"{TIMESTAMP}"', "1"))
    if "response" in timed:
        Response.model_validate(timed["response"])
    for number, event in enumerate(timed.get("stream", ())[:-1]):
        assert event["event"] == event["data"]["type"]
        assert event["data"]["sequence_number"] == number
        EVENT.validate_python(event["data"])


async def test_the_name_of_a_live_event_is_its_type(tmp_path: Path) -> None:
    request = committed("streaming-reasoning")["request"]
    async with (
        serving(tmp_path) as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/responses", json=request) as reply,
    ):
        *events, done, _ = (await reply.text()).split("\n\n")
    assert done == "event: done\ndata: [DONE]"
    for event in events:
        name, _, data = event.partition("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


def test_the_transcripts_that_the_contract_names_are_all_there_and_no_others() -> None:
    assert {entry["file"] for entry in manifest_of("responses")} == {f"{name}.json" for name in NAMES}


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


def test_the_error_is_reported_twice_and_the_failed_response_comes_last() -> None:
    error, failed = events_of("streaming-error")[-2:]
    assert (error["event"], failed["event"]) == ("error", "response.failed")
    assert error["data"]["message"] == failed["data"]["response"]["error"]["message"]


def test_a_cut_answer_is_incomplete_and_so_is_its_last_item() -> None:
    last = events_of("streaming-incomplete")[-1]
    assert last["event"] == "response.incomplete"
    assert last["data"]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["data"]["response"]["output"][-1]["status"] == "incomplete"


def test_reasoning_is_reported_as_a_summary_in_parts() -> None:
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
