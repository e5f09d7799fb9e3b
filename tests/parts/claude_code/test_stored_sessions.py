"""Claude Code's own sessions that are stored, so that a later turn goes on with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from codex_proxy.core.events import Event, TurnEnded, TurnStarted
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.turn import StoredSession, Turn
from codex_proxy.parts.claude_code.agent import delete_stored
from codex_proxy.parts.claude_code.claude_dialect import ClaudeCodeTurn
from codex_proxy.parts.claude_code.launch import LaunchKey, claude_argv
from tests.parts.claude_code.test_dialect import INITIALIZED, RESULT, lines_in, message

ID = "527ca38f-e97f-4094-abb6-4b6d48a031fb"
INIT = json.dumps(
    {"type": "system", "subtype": "init", "session_id": ID, "model": "claude-opus-5-5"}
).encode()
GONE = b'{"type":"result","subtype":"error_during_execution","is_error":true,"num_turns":0}'
HISTORY = (
    HistoryMessage("developer", (TextPart("Be brief."),)),
    message("one"),
    message("two", "assistant"),
    message("three"),
)


STORED = StoredSession("sess_1")


def turn(stored: StoredSession | None = STORED) -> Turn:
    return Turn(model="", history=HISTORY, workdir="/w", stored_session=stored)


def said(writes: bytes) -> list[str]:
    """The texts of what the program is told."""
    lines = [line["message"] for line in lines_in(writes) if line["type"] in ("user", "assistant")]
    return [
        block["text"]
        for line in lines
        for block in line["content"]
        if isinstance(line["content"], list) and block["type"] == "text"
    ]


def starts(events: list[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, TurnStarted)]


def test_only_a_process_of_a_stored_session_writes_one_and_resumes_it_by_its_id() -> None:
    def argv(**key: Any) -> tuple[str, ...]:
        return claude_argv("claude", LaunchKey("agent", "/w", **key))

    assert "--no-session-persistence" in argv()
    new, resumed = argv(session=""), argv(session=ID)
    assert "--no-session-persistence" not in new + resumed
    assert "--resume" not in new
    assert resumed[resumed.index("--resume") + 1] == ID
    assert "--no-session-persistence" in claude_argv("claude", LaunchKey("model", "/w", session=ID))


def test_a_resumed_session_gets_the_instructions_and_only_its_new_message() -> None:
    dialect = ClaudeCodeTurn()
    begun = dialect.reopen(turn(), ID, HISTORY[-1:])
    [initialize] = [line["request"] for line in lines_in(begun.writes)]
    assert initialize["appendSystemPrompt"] == "Be brief."
    asked = dialect.receive([INITIALIZED])
    assert said(asked.writes) == ["three"]
    assert starts(dialect.receive([INIT]).events) == [TurnStarted(ID, "claude-opus-5-5", stored=True)]


def test_a_session_that_cannot_be_resumed_is_lost_and_says_nothing() -> None:
    dialect = ClaudeCodeTurn()
    dialect.reopen(turn(), ID, HISTORY[-1:])
    assert dialect.receive([GONE]).events == []
    assert dialect.lost


def test_a_stored_session_is_told_when_it_has_the_whole_history() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(turn())
    assert said(dialect.receive([INITIALIZED]).writes) == ["one"]
    assert dialect.receive([INIT]).events == []
    confirmed = dialect.receive([RESULT])
    assert said(confirmed.writes) == ["two", "three"]
    assert starts(confirmed.events) == [TurnStarted(ID, "claude-opus-5-5", stored=True)]


def test_a_turn_that_is_not_stored_tells_its_session_at_once() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(turn(None))
    dialect.receive([INITIALIZED])
    assert starts(dialect.receive([INIT]).events) == [TurnStarted(ID, "claude-opus-5-5")]


def test_another_error_at_the_start_does_not_lose_a_session() -> None:
    dialect = ClaudeCodeTurn()
    dialect.begin(turn())
    dialect.receive([GONE])
    assert not dialect.lost
    refusal = INITIALIZED.replace(b'"success"', b'"error"', 1)
    [end] = dialect.receive([refusal]).events
    assert isinstance(end, TurnEnded)


def test_a_stored_session_is_deleted_by_its_id_and_nothing_by_another_text(tmp_path: Path) -> None:
    folder = tmp_path / "projects" / "-w"
    (folder / ID).mkdir(parents=True)
    mine, others = folder / f"{ID}.jsonl", folder / "other.jsonl"
    mine.touch()
    others.touch()
    for text in ("other", "*", f"../-w/{ID}", "", f"{ID}\n"):
        delete_stored(str(tmp_path / "projects"), text)
    assert mine.exists()
    delete_stored(str(tmp_path / "projects"), ID)
    delete_stored(str(tmp_path / "projects"), ID)
    assert list(folder.iterdir()) == [others]
