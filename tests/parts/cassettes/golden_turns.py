"""The events that today's dialects make of the recordings of real agents and of answers of model servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from unittest import mock

import msgspec

from codex_proxy.core.events import Event
from tests.agents import app_server_replayer, proto_child
from tests.captures import child, names_of
from tests.model_server import CASES
from tests.parts.acp import replayer as acp_replayer
from tests.parts.claude_code import replayer as claude_code_replayer
from tests.parts.upstream import test_openai_chat_dialect

Change = Callable[[bytes], bytes]
"""Changes a line of an agent."""

DIALECTS: Final = ("acp", "app-server", "claude-code", "proto", "chat")


def names_of_turns(dialect: str) -> Sequence[str]:
    if dialect == "chat":
        return [name for name, case in CASES.items() if not case.cut]
    return names_of(dialect)


def events_of(dialect: str, name: str, change: Change = bytes) -> list[Event]:
    """Returns the events of a recording's first turn, with its lines changed."""
    if dialect == "acp":
        return _acp_events(name, change)
    if dialect == "app-server":
        lines = [
            app_server_replayer.Line(line.dir, change(line.data))
            for line in app_server_replayer.lines_of_recording(name)
        ]
        return app_server_replayer.play(lines, app_server_replayer.recorded_turn(lines, 0)).events
    if dialect == "claude-code":
        return claude_code_replayer.events_of(
            name, list(map(change, claude_code_replayer.output_lines(name)))
        )
    if dialect == "chat":
        asked = test_openai_chat_dialect
        messages = asked.messages_of(CASES[name], [change(CASES[name].body)])
        return asked.events_of(asked.turn_with_tool(), messages)
    printed, ended = child(dialect, name)
    return proto_child.events_of(list(map(change, printed)), ended)


def _acp_events(name: str, change: Change) -> list[Event]:
    sessions = acp_replayer.sessions_of(name)

    def changed(value: Any) -> Any:
        return json.loads(change(json.dumps(value, separators=(",", ":")).encode()))

    others = tuple(
        msgspec.convert(
            {"opened": changed(each.opened), "prompts": changed(each.prompts)}, acp_replayer.Session
        )
        for each in sessions
    )
    if not others:
        return []
    with mock.patch.object(acp_replayer, "sessions_of", return_value=others):
        return acp_replayer.play(name, tools=acp_replayer.TOOLS).events
