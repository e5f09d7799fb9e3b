"""Live conversations with tools against the golden transcripts of `test-results/tools/`. Nothing here writes them:
that is `scripts/generate_tool_transcripts.py`'s work, done on purpose and seen in the diff.
"""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.tools.policy import DEFERRED
from scripts.generate_chat_transcripts import includes_usage
from scripts.generate_tool_transcripts import OUTPUT, WAYS, Way, echo_of, played, transcripts
from scripts.golden import DYNAMIC_ID, MANIFEST, TIMESTAMP, digest, write_all
from scripts.tool_cases import CASES, HIDDEN, Case, Dialect

PLAYS = tuple((case, dialect) for case in CASES for dialect in case.dialects)
METADATA = {"captured_at", "commit", "codex_bin", "cli_version", "scenario", "include_usage", "status"}
NAMES = (
    *("single-call", "parallel-calls", "parallel-calls-swapped-outputs", "two-rounds"),
    *("text-before-calls", "error-output", "parts-output", "image-output", "custom-tool"),
    *("forbidden-names", "strict-violation-hidden", "strict-violation-handed-on"),
    *("strict-violation-beside-a-valid-call", "one-call-at-a-time", "bad-json"),
    *("bad-json-never-learned", "tool-not-offered", "tool-not-offered-beside-a-valid-call"),
    *("tool-choice-none", "tool-choice-required", "tool-choice-required-not-honoured"),
    *(
        "tool-choice-named",
        "tool-choice-allowed-tools",
        "json-schema-outside-the-subset",
        "json-schema-not-kept",
    ),
    *("output-of-an-unknown-call", "output-missing", "output-given-twice", "output-without-a-call"),
)
STREAMED = (
    *("single-call", "parallel-calls", "text-before-calls", "custom-tool", "strict-violation-hidden"),
    *("tool-choice-required-not-honoured",),
)
"""Of which there is a transcript with streams as well."""

UNKNOWN_TO_THE_SDK = {"custom-tool-streamed"}
"""Its type of a chunk has no custom calls, though OpenAI streams them."""

EACH = pytest.mark.parametrize(
    ("case", "dialect"), PLAYS, ids=[f"{dialect}-{case.name}" for case, dialect in PLAYS]
)


def committed(name: str, dialect: str = "app-server", folder: Path = OUTPUT) -> dict[str, Any]:
    transcript: dict[str, Any] = json.loads((folder / dialect / f"{name}.json").read_text("utf-8"))
    return transcript


def messages(name: str, dialect: str = "app-server") -> list[dict[str, Any]]:
    """What the model said in each answer of a committed transcript."""
    return [echo_of(exchange) for exchange in committed(name, dialect)["exchanges"]]


def called(message: dict[str, Any]) -> list[Any]:
    """The arguments of a message's calls."""
    return [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.sampled(every=12)
@pytest.mark.parametrize(
    ("case", "dialect", "way"),
    [
        pytest.param(
            *(case, dialect, way),
            id=f"{dialect}-{case.name}-{way}",
            marks=[pytest.mark.exhaustive] if (dialect, way) == ("proto", "restarted") else [],
        )
        for case, dialect in PLAYS
        for way in (WAYS if case.replies else WAYS[:1])
    ],
)
async def test_a_live_conversation_is_the_committed_one_whichever_way_a_step_is_taken_up(
    tmp_path: Path, case: Case, dialect: Dialect, way: Way
) -> None:
    transcript = committed(case.name, dialect)
    live = await played(case, dialect, tmp_path, way)
    assert live.exchanges == transcript["exchanges"]
    assert live.statuses == transcript["metadata"]["status"]


@EACH
def test_a_transcript_holds_the_conversation_of_its_case_and_the_metadata(
    case: Case, dialect: Dialect
) -> None:
    transcript = committed(case.name, dialect)
    assert set(transcript) == {"metadata", "exchanges"}
    assert transcript["exchanges"][0]["request"] == case.request
    assert len(transcript["exchanges"]) == len(case.replies) + 1
    kind = "stream" if case.request.get("stream") else "response"
    for exchange, status in zip(transcript["exchanges"], transcript["metadata"]["status"], strict=True):
        assert set(exchange) == {"request", kind if status == 200 else "response"}
    assert set(transcript["metadata"]) == METADATA
    assert transcript["metadata"]["codex_bin"] == f"python -m fake_proto {dialect}"
    assert transcript["metadata"]["scenario"] == case.scenario
    assert transcript["metadata"]["include_usage"] is includes_usage(case.request)


@EACH
def test_every_request_begins_with_the_one_before_and_the_echo_of_its_answer(
    case: Case, dialect: Dialect
) -> None:
    exchanges = committed(case.name, dialect)["exchanges"]
    for before, after in pairwise(exchanges):
        said = [*before["request"]["messages"], echo_of(before)]
        assert after["request"]["messages"][: len(said)] == said
        assert len(after["request"]["messages"]) > len(said)


@EACH
def test_ids_and_times_are_replaced_and_the_rest_are_the_sdks_own_types(case: Case, dialect: Dialect) -> None:
    transcript = committed(case.name, dialect)
    for exchange in transcript["exchanges"]:
        for frame in exchange.get("stream") or [exchange["response"]]:
            if frame == "[DONE]" or "error" in frame:
                continue
            assert (frame["id"], frame["created"]) == (DYNAMIC_ID, TIMESTAMP)
            if case.name not in UNKNOWN_TO_THE_SDK:
                kind = ChatCompletionChunk if "stream" in exchange else ChatCompletion
                kind.model_validate({**frame, "created": 1})
    assert "chatcmpl-" not in json.dumps(transcript)


def test_the_cases_are_all_there_and_no_others() -> None:
    names = [*NAMES, *(f"{name}-streamed" for name in STREAMED)]
    assert sorted(case.name for case in CASES) == sorted(names)
    files = {f"{dialect}/{case.name}.json" for case, dialect in PLAYS}
    assert set(files_in(OUTPUT)) == {MANIFEST, *files}


def test_the_manifest_names_every_transcript_with_the_digest_of_its_content() -> None:
    manifest = json.loads((OUTPUT / MANIFEST).read_text("utf-8"))
    assert sorted(entry["file"] for entry in manifest["transcripts"]) == sorted(
        f"{dialect}/{case.name}.json" for case, dialect in PLAYS
    )
    for entry in manifest["transcripts"]:
        dialect, _, name = entry["file"].removesuffix(".json").partition("/")
        assert entry["sha256"] == digest({"exchanges": committed(name, dialect)["exchanges"]})


@pytest.mark.exhaustive  # the live conversations above are all of them, played in the same way
async def test_regenerating_gives_no_difference_except_metadata_and_touches_nothing_committed(
    tmp_path: Path,
) -> None:
    before = files_in(OUTPUT)
    await write_all(tmp_path, transcripts())
    assert set(files_in(tmp_path)) == set(before)
    for case, dialect in PLAYS:
        again = committed(case.name, dialect, tmp_path)
        assert again["exchanges"] == committed(case.name, dialect)["exchanges"]
    manifests = [json.loads((folder / MANIFEST).read_text("utf-8")) for folder in (tmp_path, OUTPUT)]
    assert manifests[0]["transcripts"] == manifests[1]["transcripts"]
    assert files_in(OUTPUT) == before


# --- what docs/tools.md says of the single transcripts ------------------------------------------------


@pytest.mark.parametrize("name", STREAMED)
def test_a_streamed_conversation_says_what_the_whole_one_says(name: str) -> None:
    whole, streamed = committed(name), committed(f"{name}-streamed")
    assert whole["metadata"]["status"] == streamed["metadata"]["status"]
    if whole["metadata"]["status"] == [502]:
        assert whole["exchanges"][0]["response"] == streamed["exchanges"][0]["response"]
    else:
        assert messages(name) == messages(f"{name}-streamed")


def test_swapped_outputs_reach_the_model_in_the_order_of_its_calls() -> None:
    request = committed("parallel-calls-swapped-outputs")["exchanges"][1]["request"]
    outputs = [message["content"] for message in request["messages"] if message["role"] == "tool"]
    assert outputs == ["wet in Rome", "sunny in Paris"]
    for dialect in ("app-server", "proto"):
        assert messages("parallel-calls-swapped-outputs", dialect)[-1]["content"] == (
            "sunny in Paris; wet in Rome"
        )


@pytest.mark.parametrize("name", [case.name for case in HIDDEN if not case.name.endswith("-never-learned")])
def test_the_model_is_told_of_a_hidden_call_and_the_client_is_not(name: str) -> None:
    told = {"strict": "The arguments break", "one": DEFERRED, "bad": "failed to parse", "tool": "unsupported"}
    words = told[name.partition("-")[0]]
    *steps, last = messages(name)
    assert words in last["content"]
    assert words not in json.dumps(steps)
    assert all(len(called(step)) == 1 for step in steps)


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("strict-violation-hidden", {"city": "Paris"}),
        ("strict-violation-handed-on", {"town": "Paris"}),
        ("strict-violation-beside-a-valid-call", {"city": "Rome"}),
        ("one-call-at-a-time", {"city": "Paris"}),
        ("bad-json", {"city": "Paris"}),
        ("tool-not-offered-beside-a-valid-call", {"city": "Rome"}),
    ],
)
def test_the_client_sees_the_one_call_that_it_may_answer(name: str, seen: Any) -> None:
    first, last = messages(name)
    assert called(first) == [seen]
    assert last.get("tool_calls") is None


def test_usage_counts_the_steps_that_the_client_did_not_see() -> None:
    hidden = [each["response"]["usage"] for each in committed("strict-violation-hidden")["exchanges"]]
    assert [usage["total_tokens"] for usage in hidden] == [240, 120]


def test_forbidden_names_come_back_as_they_were_and_the_model_has_others() -> None:
    calls, _, echo = messages("forbidden-names")
    names = ["exec_command", "mcp__files__read", "client_side"]
    assert [call["function"]["name"] for call in calls["tool_calls"]] == names
    seen = json.loads(echo["content"])
    mapped = [f"client_{name}" for name in names]
    assert seen["tools"] == mapped
    assert [item["name"] for item in seen["history"] if "name" in item] == mapped


def test_a_custom_call_carries_its_input_and_the_image_of_an_output_reaches_the_model() -> None:
    [call] = messages("custom-tool")[0]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "run_sql", "input": "select 1;"})
    assert messages("image-output")[-1]["content"] == "The tool said: look [image]"


@pytest.mark.parametrize("dialect", ["app-server", "proto"])
def test_tool_choice_offers_no_tool_the_allowed_ones_or_the_named_one_alone(dialect: str) -> None:
    assert json.loads(messages("tool-choice-none", dialect)[0]["content"])["tools"] == []
    assert json.loads(messages("tool-choice-allowed-tools", dialect)[0]["content"])["tools"] == ["get_time"]
    [call] = messages("tool-choice-named", dialect)[0]["tool_calls"]
    assert call["function"]["name"] == "get_time"


@pytest.mark.parametrize(
    ("name", "status", "code", "param"),
    [
        ("tool-choice-required-not-honoured", 502, "tool_choice_not_honoured", None),
        ("bad-json-never-learned", 502, "invalid_tool_calls", None),
        ("json-schema-not-kept", 502, "invalid_structured_output", None),
        ("output-of-an-unknown-call", 400, None, "messages[3].tool_call_id"),
        ("output-missing", 400, None, "messages[1].tool_calls"),
        ("output-given-twice", 400, None, "messages[3].tool_call_id"),
        ("output-without-a-call", 400, None, "messages[0].role"),
    ],
)
def test_what_cannot_be_answered_is_an_error_that_says_why(
    name: str, status: int, code: str | None, param: str | None
) -> None:
    transcript = committed(name)
    error = transcript["exchanges"][-1]["response"]["error"]
    assert transcript["metadata"]["status"][-1] == status
    assert (error["code"], error["param"]) == (code, param)
