"""A Codex that prints a precomputed stream as fast as the pipe takes it. A program of its own.

python -I flood.py FOLDER ARGUMENT...

It answers `--version`, `debug models --bundled`, `proto` and `app-server` (its schema, too) from the files in FOLDER,
and spends no time of its own between two deltas. It plays only what the proxy requests of a Codex before and after a
turn.
"""

import json
import os
import sys

THREAD = "01a1fb84-adfb-7313-8d3e-12f1bc8f0630"
TURN = "01a1fb84-aed4-7a30-899c-db6837a231b3"
ITEM = "msg_732_0"
STREAM, CATALOG, VERSION = "stream", "catalog", "version"
SCHEMA = "codex_app_server_protocol.schemas.json"

ANSWERS = {
    "initialize": {"userAgent": "bench/0.163.0 (bench)"},
    "account/read": {"account": None, "requiresOpenaiAuth": False},
    "model/list": {"data": [], "nextCursor": None},
    "thread/start": {"thread": {"id": THREAD}, "model": "bench"},
    "turn/start": {"turn": {"id": TURN, "items": [], "status": "inProgress"}},
}


def write_all(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def proto(stream: bytes) -> None:
    """Plays `codex proto`: the first line of input starts the turn."""
    if os.read(0, 1 << 20):
        write_all(stream)
        while os.read(0, 1 << 20):
            pass


def app_server(stream: bytes) -> None:
    """Plays `codex app-server`: every request gets its answer, and a turn its stream."""
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        if "id" in message and method is not None:
            answer = {"id": message["id"], "result": ANSWERS.get(method, {})}
            write_all(json.dumps(answer).encode() + b"\n")
        if method == "turn/start":
            write_all(stream)


def read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def main(folder: str, arguments: list[str]) -> None:
    if "--version" in arguments:
        write_all(read(folder, VERSION))
    elif "debug" in arguments:
        write_all(read(folder, CATALOG))
    elif "--help" in arguments:
        write_all(b"Usage: codex proto [OPTIONS]\n")
    elif "generate-json-schema" in arguments:
        with open(os.path.join(arguments[-1], SCHEMA), "wb") as file:
            file.write(read(folder, SCHEMA))
    elif "proto" in arguments:
        proto(read(folder, STREAM))
    else:
        app_server(read(folder, STREAM))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
