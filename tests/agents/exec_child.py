"""A `codex exec --json` child played to the dialect: its recordings, hand-written lines, and the resulting events."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from codex_proxy.agents.codex_exec.dialect import CodexExec
from codex_proxy.agents.dialect import Ended
from codex_proxy.core import events as ev
from codex_proxy.core.turn import Turn
from tests.agents.proto_child import PROMPT, events_to_end
from tests.captures import child, names_of

ALL = {name: child("exec", name) for name in names_of("exec")}


def begin_turn(turn: Turn | None = None) -> CodexExec:
    dialect = CodexExec()
    dialect.begin(turn or Turn(model="m", history=(PROMPT,)))
    return dialect


def events_of(lines: Iterable[bytes], ended: Ended | None = None) -> list[ev.Event]:
    """Returns all events of one child, read line by line, its end included."""
    return events_to_end(begin_turn(), lines, ended)


def line(kind: str, **fields: Any) -> bytes:
    return json.dumps({"type": kind, **fields}).encode()


def item(kind: str, id: str = "item_1", *, at: str = "completed", **fields: Any) -> bytes:
    return line(f"item.{at}", item={"id": id, "type": kind, **fields})


DONE = line("turn.completed", usage={"input_tokens": 10, "output_tokens": 2})
