"""The recordings of real agents, which other clients have made, are in the format of cassettes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.agents.claude_code.dialect import ClaudeCodeTurn
from codex_proxy.agents.codex_app_server.dialect import AppServerTurn
from codex_proxy.agents.codex_exec.dialect import CodexExec
from codex_proxy.agents.codex_proto.dialect import CodexProto
from codex_proxy.agents.dialect import RemakeContext
from codex_proxy.agents.recorded import facts_of, name_of, remake
from codex_proxy.cassettes.folder import Folder
from codex_proxy.cassettes.format import read_capture, text_of
from codex_proxy.cassettes.settings import CassetteError
from tests.captures import FOLDER, names_of

DIALECTS = ("acp", "app-server", "claude-code", "exec", "proto")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_recording_that_is_read_and_written_is_the_same_file(dialect: str) -> None:
    for name in names_of(dialect)[::10]:
        path = FOLDER / dialect / f"{name}.jsonl"
        capture = read_capture(path)
        assert capture.name == name
        assert [session.dialect for session in capture.sessions] == [dialect]
        assert b"".join(text_of(capture)) == path.read_bytes()


def test_a_recording_without_a_request_cannot_be_replayed() -> None:
    with pytest.raises(CassetteError, match=r"text\.jsonl, line 9: there is no `request`"):
        Folder(FOLDER / "exec" / "text.jsonl")


@pytest.mark.parametrize(
    "dialect",
    [
        CodexExec(),
        *(CodexProto(extended=on) for on in (False, True)),
        *(ClaudeCodeTurn(takes_mark=on) for on in (False, True)),
        *(AppServerTurn(1, parallel_calls=on) for on in (False, True)),
    ],
)
def test_a_dialect_is_made_again_from_the_facts_that_are_recorded_of_it(dialect: Any) -> None:
    facts = json.loads(json.dumps(facts_of(dialect)))
    again = remake(name_of(dialect), facts, RemakeContext("codex-5", lambda prefix: prefix, lambda: 0.0))
    assert (type(again), facts_of(again)) == (type(dialect), facts)
