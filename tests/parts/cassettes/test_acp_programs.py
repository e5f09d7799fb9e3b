"""Turns of programs that speak ACP, played from their recordings by a program of ours: `cassettes check` finds today's
answers to be those that were sent.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.cassettes.check import check_folder, report
from codex_proxy.parts.cassettes.replay import Folder
from tests.captures import lines_of
from tests.parts.cassettes.talking import openai_client, running_server

PLAYER = '''#!{python}
"""Answers each request as the recorded program has answered the next one of its method."""
import json, sys

said = [(kind, json.loads(line)) for kind, line in {lines!r}]
asked = [(at, message) for at, (kind, message) in enumerate(said) if kind == "to" and "id" in message]

def put_out(message):
    print(json.dumps(message), flush=True)

for text in sys.stdin:
    request = json.loads(text)
    if "id" not in request:
        continue
    found = next((each for each in asked if each[1].get("method") == request.get("method")), None)
    if found is None:
        put_out({{"jsonrpc": "2.0", "id": request["id"], "result": {{}}}})
        continue
    if request["method"] == "session/prompt":
        asked.remove(found)
    at, recorded = found
    for kind, message in said[at + 1 :]:
        if kind == "from" and "method" not in message and message.get("id") == recorded["id"]:
            put_out({{**message, "id": request["id"]}})
            break
        if kind == "from" and message.get("method") == "session/update":
            put_out(message)
'''


@pytest.mark.parametrize(
    "agent",
    [
        "gemini",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("opencode", "qwen", "copilot")),
    ],
)
async def test_a_recorded_turn_of_a_program_that_speaks_acp_is_as_recorded(
    agent: str, tmp_path: Path
) -> None:
    folder, place = tmp_path / "cassettes", tmp_path / "bin"
    place.mkdir()
    text = PLAYER.format(
        python=sys.executable,
        lines=lines_of("acp", f"{agent}-text"),
    )
    (place / agent).write_text(text)
    (place / agent).chmod(0o700)
    environ = {"PATH": f"{place}:/usr/bin:/bin", "HOME": str(tmp_path)}
    async with (
        running_server(tmp_path, environ, agent=agent, cassettes={"record": folder}) as server,
        openai_client(server) as client,
    ):
        messages: Any = [{"role": "user", "content": "Hello."}]
        answer = await client.chat.completions.create(model="codex-5", messages=messages)
    (result,) = await check_folder(Folder(folder))
    assert result.same, report([result])
    assert (
        result.cassette.answer.body["choices"][0]["message"]["content"] == answer.choices[0].message.content
    )
    assert answer.choices[0].message.content
