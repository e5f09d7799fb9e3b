"""The main loop of a worker process: answers questions, as frames on stdin and stdout. It ends with its input, with its
parent (Linux), and for too much CPU time or memory.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any, BinaryIO, Final, TypeVar

import msgspec

Q = TypeVar("Q")

LENGTH_BYTES: Final = 4
PR_SET_PDEATHSIG: Final = 1


def frame(value: Any) -> bytes:
    """Returns a value as MessagePack behind its length (four bytes, big-endian)."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def run(questions: type[Q], answer: Callable[[Q], Any], *, cpu_seconds: float, memory_bytes: int) -> None:
    """Answers questions until stdin ends. Beyond `cpu_seconds` for a question the kernel kills the process, beyond
    `memory_bytes` of address space `answer` gets a `MemoryError`.
    """
    _limit_process(memory_bytes)
    _serve(sys.stdin.buffer, sys.stdout.buffer, questions, answer, cpu_seconds)


def _limit_process(memory_bytes: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the server, which ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _serve(
    source: BinaryIO, sink: BinaryIO, questions: type[Q], answer: Callable[[Q], Any], cpu_seconds: float
) -> None:
    decoder = msgspec.msgpack.Decoder(questions)
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        body = source.read(int.from_bytes(head, "big"))
        # Its signal ends a process that does not handle it.
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        answered = answer(decoder.decode(body))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(frame(answered))
        sink.flush()
