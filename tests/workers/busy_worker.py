"""A worker for tests: it works for ever where it is asked to, and else answers at once."""

from __future__ import annotations

import msgspec

from codex_proxy.workers.worker_process import run


class Work(msgspec.Struct, frozen=True):
    endless: bool = False


class Done(msgspec.Struct, frozen=True):
    pass


def answer(work: Work) -> Done:
    while work.endless:
        pass
    return Done()


def main() -> None:
    run(Work, answer, cpu_seconds=20.0, memory_bytes=1 << 30)
