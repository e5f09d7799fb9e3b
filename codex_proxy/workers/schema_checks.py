"""Checks schemas and texts: quick checks at once, others in a worker. A check that was not made never counts as
passed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import Final

from codex_proxy.core.caches import LruCache
from codex_proxy.core.faults import Fault, FaultKind, bad_request
from codex_proxy.core.turn import Turn
from codex_proxy.tools.schemas import QUICK_SCHEMA, TextCheck, Verdict, is_quick
from codex_proxy.tools.strict_schemas import StrictForm
from codex_proxy.workers.pool import WAIT_SECONDS, NoAnswer, WorkerPool
from codex_proxy.workers.schema_worker import Question, answer

WALL_SECONDS: Final = 4.0
"""Seconds for one check; usually its CPU time ends it long before."""
REQUEST_SECONDS: Final = 5.0
"""Seconds for all schemas of a request, with the wait for a worker."""
BATCH_SECONDS: Final = 20.0
"""Seconds for all schemas of an MCP server, or all texts of an answer."""
MAX_KNOWN: Final = 20_000
"""Maximum cached results of 200 bytes; the largest MCP servers have a thousand schemas."""
MAX_FORM_BYTES: Final = 4 << 20

TOO_LONG: Final = Verdict(unchecked="checking it would take too long; ask with a simpler one")
BUSY: Final = Verdict(unchecked="too many other checks are under way")
STOPPING: Final = Verdict(unchecked="the server is stopping")
BROKEN: Final = Verdict(unchecked="no process could be started for it")

_UNCHECKED: Final = {
    NoAnswer.GAVE_UP: TOO_LONG,
    NoAnswer.BUSY: BUSY,
    NoAnswer.STOPPING: STOPPING,
    NoAnswer.NOT_STARTED: BROKEN,
}


class SchemaChecks:
    """Checks schemas, and texts against them: quick checks at once, others in a worker process. A check is made once:
    its result is kept.
    """

    def __init__(self) -> None:
        self._known: LruCache[bytes, Verdict] = LruCache(MAX_KNOWN)
        """Results by digest of the schema."""
        self._forms: LruCache[bytes, StrictForm | None] = LruCache(MAX_FORM_BYTES, _form_size)
        """Strict forms by digest of the schema."""
        self.pool: WorkerPool[Question, Verdict] = WorkerPool(
            "codex_proxy.workers.schema_worker", Verdict, wall_seconds=WALL_SECONDS
        )

    async def check_schemas(
        self, schemas: Sequence[bytes], seconds: float = BATCH_SECONDS, *, all_or_none: bool = False
    ) -> list[Verdict]:
        """Returns a verdict on each schema, in order: `BUSY` if it was not checked after `seconds` or, with
        `all_or_none`, comes after one that is invalid or takes too long.
        """
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
            verdicts |= await self._check_in_workers(slow, seconds, all_or_none=all_or_none)
        for digest, schema in by_digest.items():
            found = verdicts[schema]
            assert found is not None
            self._remember(digest, found)
            verdicts[schema] = found
        return [found for schema in schemas if (found := verdicts[schema]) is not None]

    async def check_texts(self, checks: Sequence[TextCheck]) -> list[Verdict]:
        """Returns a verdict on each text, in order, within about `BATCH_SECONDS`."""
        until = asyncio.get_running_loop().time() + BATCH_SECONDS
        given_up: set[bytes] = set()
        """Schemas that took too long with a text."""
        verdicts: list[Verdict] = []
        for check in checks:
            question = Question(check.schema, check.text, check.in_strict_form)
            if is_quick(check.schema, check.text):
                verdict = answer(question)
            elif check.schema in given_up or asyncio.get_running_loop().time() >= until:
                verdict = TOO_LONG
            else:
                verdict = await self._ask_worker(question)
            if verdict == TOO_LONG:
                given_up.add(check.schema)
            verdicts.append(verdict)
        return verdicts

    async def strict_form(self, schema: bytes) -> StrictForm | None:
        """Returns a schema's strict form; None also if that takes too long to find."""
        digest = hashlib.sha256(schema).digest()
        if digest in self._forms:
            return self._forms.get(digest)
        question = Question(schema, wants_form=True)
        verdict = answer(question) if len(schema) <= QUICK_SCHEMA else await self._ask_worker(question)
        if verdict.unchecked is None or verdict == TOO_LONG:
            self._forms.put(digest, verdict.form)
        return verdict.form

    async def close(self) -> None:
        await self.pool.close()

    def _remember(self, digest: bytes, verdict: Verdict) -> None:
        if verdict.unchecked is not None and verdict != TOO_LONG:
            return  # of the server's state, and not of the schema
        self._known.put(digest, verdict)

    async def _check_in_workers(
        self, schemas: Sequence[bytes], seconds: float, *, all_or_none: bool
    ) -> dict[bytes, Verdict | None]:
        # Other requests get workers in between.
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        verdicts: dict[bytes, Verdict | None] = dict.fromkeys(schemas, BUSY)
        for schema in schemas:
            left = until - loop.time()
            if left <= 0:
                break
            verdicts[schema] = found = await self._ask_worker(Question(schema), left)
            if all_or_none and (found.wrong is not None or found == TOO_LONG):
                break
        return verdicts

    async def _ask_worker(self, question: Question, seconds: float = WAIT_SECONDS) -> Verdict:
        answered = await self.pool.ask(question, wait_seconds=seconds)
        return _UNCHECKED[answered] if isinstance(answered, NoAnswer) else answered


def _form_size(digest: bytes, form: StrictForm | None) -> int:
    return 256 + (0 if form is None else len(form.schema))


async def check_schemas(checks: SchemaChecks, turn: Turn, *, answer: str, tool: str) -> None:
    """Checks the schemas of the answer and of strict tools, in the fields `answer` and `tool` (with `{}` for the
    index). Raises `Fault`: INVALID_REQUEST for one that is invalid or slow, else UNAVAILABLE.
    """
    fields: list[tuple[bytes, str]] = []
    if turn.output_schema is not None:
        fields.append((bytes(turn.output_schema), answer))
    for place, each in enumerate(turn.tools):
        if each.strict and each.parameters is not None:
            fields.append((bytes(each.parameters), tool.format(place)))
    if not fields:
        return
    verdicts = await checks.check_schemas([schema for schema, _ in fields], REQUEST_SECONDS, all_or_none=True)
    for (_, field), verdict in zip(fields, verdicts, strict=True):
        wrong = TOO_LONG.unchecked if verdict == TOO_LONG else verdict.wrong
        if wrong is not None:
            raise bad_request(f"Invalid schema in '{field}': {wrong}.", field, "invalid_json_schema")
        if verdict.unchecked is not None:
            message = f"The schema in '{field}' could not be checked: {verdict.unchecked}. Try again later."
            raise Fault.of(FaultKind.UNAVAILABLE, message, param=field, retry_after=5)
