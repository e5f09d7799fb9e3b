"""The smoke script against a running proxy: the raw stream, its digest, a summary, and an honest exit status."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.smoke.stream_tool_call import summary_of
from tests.http.serving import fake_proxy

SCRIPT = Path(__file__).parents[2] / "scripts" / "smoke" / "stream_tool_call.py"


async def run_example(url: str, output: Path, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, summary, and what it said on stderr."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SCRIPT), "--base-url", f"{url}/v1", "--output", str(output)),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, json.loads(out) if out else None, err.decode()


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("dialect", ["proto", "app-server"])
@pytest.mark.parametrize("usage", [True, False])
async def test_the_smoke_script_writes_the_raw_log_and_its_digest_and_prints_a_summary(
    tmp_path: Path, dialect: str, usage: bool
) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        status, summary, err = await run_example(
            proxy.url, tmp_path / "out", *(["--include-usage"] if usage else [])
        )
    assert (status, summary["problems"]) == (0, []), err
    (log,) = (tmp_path / "out").glob("*.sse")
    assert summary["log"] == str(log)
    assert log.read_bytes().endswith(b"data: [DONE]\n\n")
    digest = hashlib.sha256(log.read_bytes()).hexdigest()
    assert summary["sha256"] == digest
    assert log.with_suffix(".sha256").read_text() == f"{digest}  {log.name}\n"
    assert [(call["name"], json.loads(call["arguments"])) for call in summary["tool_calls"]] == [
        ("get_weather", {"city": "Nashville"})
    ]
    assert summary["finish_reason"] == "tool_calls"
    assert (summary["usage"] is not None) is usage
    assert summary["request_id"].startswith("req_")


@pytest.mark.exhaustive
@pytest.mark.parametrize("scenario", ["text", "error_mid_text", "error_500"])
async def test_a_proxy_that_gives_no_call_makes_it_fail_and_the_summary_says_why(
    tmp_path: Path, scenario: str
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        status, summary, _ = await run_example(
            proxy.url, tmp_path / "out", "--prompt", f"[[fake:{scenario}]]"
        )
    assert status == 1
    assert '"error"' in summary["problems"][0]


def frame(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


CALL = frame({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}]})
END, DONE = frame({}, "tool_calls"), b"data: [DONE]\n\n"
USAGE = b'data: {"choices": [], "usage": {"total_tokens": 1}}\n\n'
BAD_CALL = CALL.replace(b'"{}"', b'"{"')


@pytest.mark.parametrize(
    ("raw", "include_usage", "problems"),
    [
        (CALL + END + DONE, False, []),
        (CALL + END + USAGE + DONE, True, []),
        (END + DONE, False, ["no tool call"]),
        (BAD_CALL + END + DONE, False, ["arguments are not JSON"]),
        (CALL + frame({}, "stop") + DONE, False, ["finish_reason is not tool_calls"]),
        (CALL + END, False, ["the last line is not [DONE]"]),
        (CALL + END + DONE, True, ["usage was asked for and is missing"]),
        (CALL + END + USAGE + DONE, False, ["usage was not asked for"]),
        (CALL + END + b'data: {"error": {}}\n\n' + DONE, False, ["an error came"]),
    ],
)
def test_the_event_that_a_stream_lacks_is_named(raw: bytes, include_usage: bool, problems: list[str]) -> None:
    assert summary_of(raw, include_usage=include_usage)["problems"] == problems


@pytest.mark.exhaustive
async def test_without_a_server_the_error_names_the_url(tmp_path: Path) -> None:
    status, summary, err = await run_example("http://127.0.0.1:9", tmp_path / "out")
    assert (status, summary) == (1, None)
    assert "http://127.0.0.1:9/v1" in err
