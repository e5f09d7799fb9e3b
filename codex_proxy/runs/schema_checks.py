"""Looks at schemas, and at texts under them, without holding up the event loop.

What is quick is done at once. What may take long goes to a process of its own (`schema_worker`), of which there are
two at most: started when first needed, ended when idle, killed where a check takes too long. What is known of a schema
is remembered by its digest, and so is its strict form. No check is ever a success because it was not made: it has a
reason instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import structlog

from codex_proxy.runs.schema_worker import LENGTH_BYTES, Question, answer, frame
from codex_proxy.tools.checks import Check, StrictForm, Verdict

log = structlog.get_logger(__name__)

MAX_WORKERS: Final = 2
WALL_SECONDS: Final = 10.0
"""Of one check: a worker limits itself to a second of CPU time, which on a busy machine is longer."""
WAIT_SECONDS: Final = 10.0
"""For a worker that is free."""
BATCH_SECONDS: Final = 20.0
"""Of all the schemas of one request or one MCP server."""
IDLE_SECONDS: Final = 60.0
MAX_KNOWN: Final = 20_000
"""Schemas of which a verdict is kept, some 200 bytes each: those of a score of the largest MCP servers."""
MAX_FORM_BYTES: Final = 4 << 20
"""Of strict forms that are kept for the next turn."""

TOO_LONG: Final = Verdict(unchecked="checking it would take too long; ask with a simpler one")
BUSY: Final = Verdict(unchecked="too many other checks are under way")
STOPPING: Final = Verdict(unchecked="the server is stopping")
BROKEN: Final = Verdict(unchecked="no process could be started for it")

_START: Final = (
    "import sys; sys.path[:] = sys.argv[1:]; from codex_proxy.runs.schema_worker import main; main()"
)


class SchemaChecks:
    """The checks of one server. `close` it at the end: nothing waits for a check that is under way."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()
        """Of schemas, by digest; the one that was asked for last stands last."""
        self._forms: OrderedDict[bytes, StrictForm | None] = OrderedDict()
        """By the schema's digest; the one that was asked for last stands last."""
        self._form_bytes = 0
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._places = asyncio.Semaphore(MAX_WORKERS)
        self._closed = False

    @property
    def workers(self) -> list[int]:
        """The process ids of those that run."""
        return [worker.pid for worker in (*self._idle, *self._busy)]

    async def of_schemas(self, schemas: Sequence[bytes]) -> list[Verdict]:
        """Whether each is a JSON schema that can be applied."""
        # It brings the validator, which most turns do without.
        from codex_proxy.tools.schemas import QUICK_SCHEMA, is_quick

        by_digest = {hashlib.sha256(schema).digest(): schema for schema in schemas}
        verdicts = {schema: self._known.get(digest) for digest, schema in by_digest.items()}
        slow: list[bytes] = []
        room = QUICK_SCHEMA
        for schema, verdict in verdicts.items():
            if verdict is not None:
                continue
            room -= len(schema)
            if room >= 0 and is_quick(schema):
                verdicts[schema] = answer(Question(schema))
            else:
                slow.append(schema)
        if slow:
            verdicts |= await self._in_workers(slow)
        for digest, schema in by_digest.items():
            found = verdicts[schema]
            assert found is not None
            self._remember(digest, found)
            verdicts[schema] = found
        return [found for schema in schemas if (found := verdicts[schema]) is not None]

    async def of_texts(self, checks: Sequence[Check]) -> list[Verdict]:
        """Whether each text is valid under its schema."""
        from codex_proxy.tools.schemas import is_quick

        questions = [Question(check.schema, check.text, check.fitted) for check in checks]
        return [
            answer(question) if is_quick(check.schema, check.text) else await self._asked(question)
            for check, question in zip(checks, questions, strict=True)
        ]

    async def strict_form(self, schema: bytes) -> StrictForm | None:
        """What the provider can be given of a schema; None also where that could not be found out in time: then the
        model is told the schema in words, as it is told those that have no such form."""
        from codex_proxy.tools.schemas import QUICK_SCHEMA

        digest = hashlib.sha256(schema).digest()
        if digest in self._forms:
            self._forms.move_to_end(digest)
            return self._forms[digest]
        question = Question(schema, wants_form=True)
        verdict = answer(question) if len(schema) <= QUICK_SCHEMA else await self._asked(question)
        if verdict.unchecked is None or verdict == TOO_LONG:
            self._keep_form(digest, verdict.form)
        return verdict.form

    async def close(self) -> None:
        """Kills every worker; checks that are under way are given up."""
        self._closed = True
        workers = (*self._idle, *self._busy)
        self._idle.clear()
        for worker in workers:
            worker.kill()
        await asyncio.gather(*(worker.ended() for worker in workers))

    def _remember(self, digest: bytes, verdict: Verdict) -> None:
        if verdict.unchecked is not None and verdict != TOO_LONG:
            return  # of the server's state, and not of the schema
        self._known[digest] = verdict
        self._known.move_to_end(digest)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _keep_form(self, digest: bytes, form: StrictForm | None) -> None:
        if digest in self._forms:
            return  # two turns have asked at once
        self._forms[digest] = form
        self._form_bytes += _kept_size(form)
        while self._form_bytes > MAX_FORM_BYTES:
            self._form_bytes -= _kept_size(self._forms.popitem(last=False)[1])

    async def _in_workers(self, schemas: Sequence[bytes]) -> dict[bytes, Verdict | None]:
        """One after the other, so that those of others come in between. After a while the rest is given up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + BATCH_SECONDS
        return {
            schema: await self._asked(Question(schema)) if loop.time() < until else BUSY for schema in schemas
        }

    async def _asked(self, question: Question) -> Verdict:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._places.acquire()
        except TimeoutError:
            return BUSY
        try:
            return STOPPING if self._closed else await self._asked_worker(question)
        finally:
            self._places.release()

    async def _asked_worker(self, question: Question) -> Verdict:
        try:
            worker = self._idle.pop() if self._idle else await _Worker.started()
        except OSError as error:
            log.warning("schema_worker_not_started", reason=os.strerror(error.errno or 0))
            return BROKEN
        if self._closed:
            worker.kill()
            await worker.ended()
            return STOPPING
        worker.cancel_idle_end()
        self._busy.add(worker)
        verdict = None
        try:
            async with asyncio.timeout(WALL_SECONDS):
                verdict = await worker.ask(question)
        except (TimeoutError, EOFError, ConnectionError):
            log.info("schema_check_given_up", size=len(question.schema))
        finally:
            self._busy.discard(worker)
            if verdict is None or self._closed:
                worker.kill()
                await asyncio.shield(worker.ended())
            else:
                self._idle.append(worker)
                worker.end_later(self._end_idle)
        if verdict is None:
            return STOPPING if self._closed else TOO_LONG
        return verdict

    def _end_idle(self, worker: _Worker) -> None:
        if worker in self._idle:
            self._idle.remove(worker)
            worker.end()


class _Worker:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def started(cls) -> _Worker:
        """Raises `OSError`. It gets nothing of this process's environment."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", "-c", _START, *_import_paths()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
            start_new_session=True,
        )
        return cls(process)

    async def ask(self, question: Question) -> Verdict:
        """Raises `EOFError` or `ConnectionError` where it ended, and `asyncio.CancelledError`: then kill it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(frame(question))
        await stdin.drain()
        length = int.from_bytes(await stdout.readexactly(LENGTH_BYTES), "big")
        return msgspec.msgpack.decode(await stdout.readexactly(length), type=Verdict)

    def end_later(self, end: Callable[[_Worker], None]) -> None:
        """Has it ended when nobody has asked for a while."""
        self._timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, end, self)

    def cancel_idle_end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """It ends with its input."""
        self.cancel_idle_end()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill(self) -> None:
        self.cancel_idle_end()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        await self._process.wait()


def _kept_size(form: StrictForm | None) -> int:
    """Bytes that a form takes, with its digest and its place."""
    return 256 + (0 if form is None else len(form.schema))


def _import_paths() -> list[str]:
    """Where this process finds its modules, however it was started."""
    return [os.path.abspath(path) for path in sys.path]
