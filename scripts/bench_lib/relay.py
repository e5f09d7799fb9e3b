"""The two smallest servers that could replace the proxy: one request, one child, one process.

python -m scripts.bench_lib.relay loop|bytes DIALECT PROGRAM

`loop` reads the pipe, splits, decodes each line, joins template frames and sends one write per read; `bytes` sends what
it reads. Prints its port, serves one connection, then prints the CPU seconds that this took.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys

import msgspec

from codex_proxy.agents.sessions.session import LineFramer

READ_BYTES = 64 * 1024
HEADERS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
BEFORE = (
    b'data: {"id":"chatcmpl-00000000000000000000000000000000","object":"chat.completion.chunk",'
    b'"created":1795221139,"model":"bench","choices":[{"index":0,"delta":{"content":'
)
AFTER = b'},"finish_reason":null}]}\n\n'
RESPONSES_BEFORE = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
    b'"item_id":"msg_00000000000000000000000000000000","output_index":0,"content_index":0,"logprobs":[],'
    b'"sequence_number":'
)
DONE = b"data: [DONE]\n\n"


class ProtoMsg(msgspec.Struct):
    type: str = ""
    delta: str | None = None


class ProtoLine(msgspec.Struct):
    msg: ProtoMsg


class AppParams(msgspec.Struct):
    delta: str | None = None


class AppLine(msgspec.Struct):
    method: str = ""
    params: AppParams = msgspec.field(default_factory=AppParams)


def requests(dialect: str) -> bytes:
    """Returns the bytes that start a turn; this child reads no more of them."""
    if dialect == "proto":
        return b'{"id":"1","op":{"type":"user_input","items":[]}}\n'
    return b'{"id":1,"method":"turn/start","params":{}}\n'


def loop(pipe: int, client: socket.socket, dialect: str, surface: str) -> None:
    """Relays a turn: each delta is decoded and framed; nothing else is done."""
    number = 0
    proto = msgspec.json.Decoder(ProtoLine)
    app_server = msgspec.json.Decoder(AppLine)
    encode = msgspec.json.Encoder().encode
    framer = LineFramer()
    while chunk := os.read(pipe, READ_BYTES):
        frames = []
        ended = False
        for line in framer.feed(chunk):
            if dialect == "proto":
                msg = proto.decode(line).msg
                kind, delta = msg.type, msg.delta
            else:
                message = app_server.decode(line)
                kind, delta = message.method, message.params.delta
            if delta is not None and surface == "chat":
                frames.append(BEFORE + encode(delta) + AFTER)
            elif delta is not None:
                frames.append(b'%b%d,"delta":%b}\n\n' % (RESPONSES_BEFORE, number, encode(delta)))
                number += 1
            elif kind in ("task_complete", "turn/completed"):
                ended = True
        client.sendall(b"".join(frames))
        if ended:
            client.sendall(DONE)
            return


def plain(pipe: int, client: socket.socket) -> None:
    """Relays the child's bytes unread."""
    tail = b""
    while chunk := os.read(pipe, READ_BYTES):
        client.sendall(chunk)
        tail = (tail + chunk)[-2000:]
        if b"task_complete" in tail or b"turn/completed" in tail:
            client.sendall(DONE)
            return


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(kind: str, dialect: str, surface: str, program: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen([program, dialect], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        print(listener.getsockname()[1], flush=True)
        client, _ = listener.accept()
        with client:
            before = cpu_seconds()
            client.recv(READ_BYTES)
            client.sendall(HEADERS)
            child.stdin.write(requests(dialect))
            child.stdin.flush()
            if kind == "loop":
                loop(child.stdout.fileno(), client, dialect, surface)
            else:
                plain(child.stdout.fileno(), client)
            used = cpu_seconds() - before
        child.kill()
        print(used, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
