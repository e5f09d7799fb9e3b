"""What the contract says of the golden transcripts of `test-results/responses/`. `test_transcripts` compares them with
live answers.
"""

from __future__ import annotations

from typing import Any

from scripts.golden import manifest_of, transcript

NAMES = (
    *("nonstream-minimal", "nonstream-tool-call", "nonstream-previous-response", "streaming-text"),
    *("streaming-tool-call", "streaming-reasoning", "streaming-error", "streaming-incomplete"),
    *("gt-1-nonstream-text", "gt-2-streaming-text"),
)
LUNA = "Under the soft glow of the moon, Luna the unicorn…"


def committed_transcript(name: str) -> dict[str, Any]:
    return transcript("responses", f"{name}.json")


def events_of(name: str) -> list[dict[str, Any]]:
    """The events of a committed stream before `[DONE]`."""
    events: list[dict[str, Any]]
    *events, done = committed_transcript(name)["stream"]
    assert done == {"event": "done", "data": "[DONE]"}
    return events


def types_of(name: str) -> list[str]:
    return list(dict.fromkeys(event["event"] for event in events_of(name)))


def test_the_transcripts_that_the_contract_names_are_all_there_and_no_others() -> None:
    assert {entry["file"] for entry in manifest_of("responses")} == {f"{name}.json" for name in NAMES}


def test_gt_1_is_the_example_of_the_contract() -> None:
    response = committed_transcript("gt-1-nonstream-text")["response"]
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
