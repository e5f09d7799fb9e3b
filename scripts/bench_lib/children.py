"""Writes precomputed children into folders: a program called `codex`, and the stream that it prints."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any, Literal

from scripts.bench_lib import flood, paced
from tests.codex_schemas import schema_file
from tests.real.codex_home import bundled_catalog

Dialect = Literal["proto", "app-server"]

USAGE = {"totalTokens": 120, "inputTokens": 100, "cachedInputTokens": 40, "outputTokens": 20}
PROTO_USAGE = {"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 20, "total_tokens": 120}
VERSIONS = {"proto": "codex-cli 0.42.0", "app-server": "codex-cli 0.163.0"}


def make_child(folder: Path, dialect: Dialect, deltas: int) -> Path:
    """Writes a program into `folder` that plays a Codex with this dialect, each of whose turns has `deltas` deltas.
    Returns its path.
    """
    folder.mkdir(parents=True)
    lines = proto_lines(deltas) if dialect == "proto" else app_server_lines(deltas)
    (folder / flood.STREAM).write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / flood.VERSION).write_text(VERSIONS[dialect] + "\n")
    (folder / flood.CATALOG).write_bytes(bundled_catalog())
    (folder / flood.SCHEMA).write_bytes(schema_file().read_bytes())
    program = folder / "codex"
    words = (sys.executable, "-I", flood.__file__, str(folder))
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return program


def make_paced_child(folder: Path, *, deltas: int, every: float) -> Path:
    """Writes a program into `folder` that plays an app-server with many threads, at a pace (see `paced`). Returns its
    path.
    """
    program = make_child(folder, "app-server", 1)
    (folder / paced.PLAN).write_text(json.dumps({"deltas": deltas, "every": every}))
    serve = shlex.join((sys.executable, "-I", paced.__file__, str(folder)))
    other = program.read_text().partition("\n")[2]
    case = f'case " $* " in *" generate-json-schema "*) ;; *" app-server "*) exec {serve};; esac'
    program.write_text(f"#!/bin/sh\n{case}\n{other}")
    return program


def words(deltas: int) -> list[str]:
    return [f"word{number % 1000} " for number in range(deltas)]


def _line(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def proto_lines(deltas: int) -> list[bytes]:
    """Returns the lines of a turn of `codex proto` 0.42, exactly as it writes them."""

    def event(**msg: Any) -> bytes:
        return _line({"id": "1", "msg": msg})

    text = words(deltas)
    limits = {"primary": None, "secondary": None}
    info = {"total_token_usage": PROTO_USAGE, "last_token_usage": PROTO_USAGE}
    session = {"type": "session_configured", "session_id": flood.THREAD, "model": "bench"}
    return [
        _line({"id": "", "msg": session}),
        event(type="task_started", model_context_window=272000),
        *(event(type="agent_message_delta", delta=word) for word in text),
        event(type="agent_message", message="".join(text)),
        event(type="token_count", info=info, rate_limits=limits),
        event(type="task_complete", last_agent_message=None),
    ]


def app_server_lines(deltas: int) -> list[bytes]:
    """Returns the lines of a turn of `codex app-server` 0.163, exactly as it writes them."""

    def notification(method: str, **params: Any) -> bytes:
        return _line({"method": method, "params": params, "emittedAtMs": 1795221139412})

    place = {"threadId": flood.THREAD, "turnId": flood.TURN}
    text = words(deltas)
    item = {"type": "agentMessage", "id": flood.ITEM, "text": "", "phase": None}
    usage = {"total": USAGE, "last": USAGE, "modelContextWindow": 272000}
    ended: dict[str, Any] = {"id": flood.TURN, "items": [], "status": "completed", "error": None}
    return [
        notification("turn/started", threadId=flood.THREAD, turn={"id": flood.TURN, "status": "inProgress"}),
        notification("item/started", item=item, **place),
        *(notification("item/agentMessage/delta", **place, itemId=flood.ITEM, delta=word) for word in text),
        notification("item/completed", item=item | {"text": "".join(text)}, **place),
        notification("rawResponse/completed", **place, responseId="resp_1", usage=USAGE),
        notification("thread/tokenUsage/updated", **place, tokenUsage=usage),
        notification("turn/completed", threadId=flood.THREAD, turn=ended),
    ]
