"""The main loop of a worker process: it answers questions, one at a time, and may be killed at any time.

Reads frames from stdin (see `frame`), each with a question, and writes a frame with the answer to each to stdout.
The process ends at the end of its input, with its parent (on Linux), and when a question takes more CPU time than
permitted: the kernel enforces that, since the interpreter cannot be interrupted while a library works. The kernel
also limits the memory of the process.
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
    """Returns a value encoded for the pipe: the length of its MessagePack bytes in four bytes, big-endian, then
    these bytes.
    """
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def run(questions: type[Q], answer: Callable[[Q], Any], *, cpu_seconds: float, memory_bytes: int) -> None:
    """Answers questions from stdin until it ends. `questions` is their type, `answer` returns the answer to one.
    `cpu_seconds` limits the CPU time of each question: after that the kernel kills the process. `memory_bytes`
    limits the address space of the process: beyond it, `answer` gets a `MemoryError`.
    """
    _limit_process(memory_bytes)
    _serve(sys.stdin.buffer, sys.stdout.buffer, questions, answer, cpu_seconds)


def _limit_process(memory_bytes: int) -> None:
    """Limits the address space of this process (in bytes), makes it ignore Ctrl-C and, on Linux, makes it end when
    its parent ends.
    """
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
