"""The process that looks at schemas, and at texts under them, where that may take long: it may be killed at any time.

In: frames on stdin, each a `Question` in MessagePack behind its length. Out: a `Verdict` for each, on stdout, in the
same form. It ends with its input, with its parent, and by itself once a question takes more CPU time or memory than
it may: the interpreter cannot be interrupted while the validator works, the kernel can.
"""

from __future__ import annotations

import ctypes
import resource
import signal
import sys
from typing import BinaryIO, Final

import msgspec

from codex_proxy.tools.checks import Check, Verdict

CPU_SECONDS: Final = 1.0
"""Of one question. The largest schema that is no trap takes a tenth."""
MEMORY_BYTES: Final = 768 << 20
"""Address space, of which Python and the validator take some 100 MiB."""
LENGTH_BYTES: Final = 4
PR_SET_PDEATHSIG: Final = 1


class Question(msgspec.Struct, frozen=True):
    """What comes of the check of `text`; without a text, whether the schema is one, or what its strict form is."""

    schema: bytes
    text: str | None = None
    fitted: bool = False
    """As in `Check`."""
    wants_form: bool = False


def frame(value: Question | Verdict) -> bytes:
    """The value as it goes through the pipe."""
    body = msgspec.msgpack.encode(value)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def answer(question: Question) -> Verdict:
    """What the question has for an answer."""
    from codex_proxy.tools.schemas import (  # not in the server's process
        NotASchemaError,
        check_schema,
        verdict_on,
    )
    from codex_proxy.tools.strict_schemas import strict_form

    if question.text is not None:
        return verdict_on(Check(question.schema, question.text, question.fitted))
    if question.wants_form:
        return Verdict(form=strict_form(question.schema))
    try:
        check_schema(question.schema)
    except NotASchemaError as error:
        return Verdict(str(error))
    return Verdict()


def limit_process() -> None:
    """Bounds what this process may take, and binds its life to its parent's."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the server, which ends us
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answers until the input ends."""
    while len(head := source.read(LENGTH_BYTES)) == LENGTH_BYTES:
        body = source.read(int.from_bytes(head, "big"))
        signal.setitimer(
            signal.ITIMER_PROF, CPU_SECONDS
        )  # whose signal ends a process that does not handle it
        verdict = answer(msgspec.msgpack.decode(body, type=Question))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sink.write(frame(verdict))
        sink.flush()


def main() -> None:
    limit_process()
    serve(sys.stdin.buffer, sys.stdout.buffer)
