"""Schemas and texts that may take long to check: in a process that can be killed, and never on the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psutil
import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import Tool
from codex_proxy.core.turn import Turn
from codex_proxy.tools.schemas import TextCheck, Verdict
from codex_proxy.workers import schema_checks
from codex_proxy.workers.pool import NoAnswer
from codex_proxy.workers.schema_checks import STOPPING, TOO_LONG, SchemaChecks, check_schemas
from codex_proxy.workers.schema_worker import MEMORY_BYTES, Question
from tests.cpu_time import cpu_seconds, slowness
from tests.process.children import have_ended
from tests.runs.virtual import virtual
from tests.waiting import eventually

DOUBLING = {
    "$defs": {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(60)} | {"a60": {}},
    "$ref": "#/$defs/a0",
}
"""A few kilobytes that take years."""
STRING = {"type": "string"}
LONG = {"type": "object", "properties": {"a": STRING}, "description": "x" * 20_000}
"""Too large to be looked at on the loop."""
DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}


def raw(schema: Any) -> bytes:
    return json.dumps(schema).encode()


@pytest.fixture
async def checks() -> AsyncIterator[SchemaChecks]:
    made = SchemaChecks()
    yield made
    await made.close()
    assert made.pool.workers == []


async def of_text(checks: SchemaChecks, schema: Any, text: str) -> Verdict:
    (verdict,) = await checks.check_texts([TextCheck(raw(schema), text)])
    return verdict


async def test_a_small_schema_needs_no_process(checks: SchemaChecks) -> None:
    right, wrong = await checks.check_schemas([raw(STRING), raw({"type": 5})])
    assert right == Verdict()
    assert wrong.wrong is not None
    assert wrong.wrong.startswith("$.type: 5")
    assert await of_text(checks, STRING, '"a"') == Verdict()
    assert checks.pool.workers == []


async def test_a_large_schema_is_looked_at_in_a_process_that_serves_the_next_one_too(
    checks: SchemaChecks,
) -> None:
    assert await checks.check_schemas([raw(LONG)]) == [Verdict()]
    first = checks.pool.workers
    assert len(first) == 1
    assert (await of_text(checks, LONG, '{"a":1}')).wrong == 'at $.a: 1 is not of type "string"'
    assert await of_text(checks, LONG, '{"a":"x"}') == Verdict()
    assert checks.pool.workers == first


async def test_the_strict_form_of_a_large_schema_is_made_in_a_process_and_once(checks: SchemaChecks) -> None:
    form = await checks.strict_form(raw(LONG))
    assert form is not None
    assert form.to_undo
    assert json.loads(form.schema)["required"] == ["a"]
    (worker,) = checks.pool.workers
    assert await checks.strict_form(raw(LONG)) is form
    assert checks.pool.workers == [worker]


async def test_the_strict_form_of_a_small_schema_needs_no_process(checks: SchemaChecks) -> None:
    assert await checks.strict_form(raw({"type": "object", "properties": {"a": STRING}})) is not None
    assert await checks.strict_form(raw({"type": "object"})) is None
    assert checks.pool.workers == []


async def test_strict_forms_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_checks, "MAX_FORM_BYTES", 2_000)
    checks = SchemaChecks()
    first, *others = [raw({"type": "object", "properties": {f"a{n}": STRING}}) for n in range(20)]
    form = await checks.strict_form(first)
    for each in others:
        await checks.strict_form(each)
    assert await checks.strict_form(first) is not form
    assert await checks.strict_form(first) == form


async def test_nulls_are_taken_out_of_a_text_that_is_checked_in_a_process(checks: SchemaChecks) -> None:
    (verdict,) = await checks.check_texts([TextCheck(raw(LONG), '{"a":null}', in_strict_form=True)])
    assert verdict == Verdict(rewritten="{}")
    assert len(checks.pool.workers) == 1


async def test_a_check_without_end_is_given_up_and_the_next_one_is_made(checks: SchemaChecks) -> None:
    assert await of_text(checks, DOUBLING, "1") == TOO_LONG
    assert checks.pool.workers == []
    assert await of_text(checks, LONG, "{}") == Verdict()


def strict_tools(count: int) -> Turn:
    """A turn with so many tools whose schemas are too large to be checked on the loop."""
    tools = tuple(
        Tool(f"f{number}", parameters=msgspec.Raw(raw({**LONG, "title": str(number)})), strict=True)
        for number in range(count)
    )
    return Turn(model="m", history=(), tools=tools)


@virtual
async def test_a_request_is_refused_at_its_first_schema_that_takes_too_long() -> None:
    checks, asked = SchemaChecks(), []

    async def ask(question: Question, **_: Any) -> NoAnswer:
        asked.append(question)
        return NoAnswer.GAVE_UP

    checks.pool.ask = ask  # type: ignore[method-assign, assignment]
    with pytest.raises(Fault) as raised:
        await check_schemas(
            checks, strict_tools(30), answer="text.format.schema", tool="tools[{}].parameters"
        )
    assert (raised.value.failure.param, len(asked)) == ("tools[0].parameters", 1)
    assert raised.value.failure.kind is FaultKind.INVALID_REQUEST


@virtual
async def test_all_schemas_of_a_request_share_one_time_limit() -> None:
    checks = SchemaChecks()
    waits: list[float] = []

    async def ask(question: Question, *, wait_seconds: float) -> Verdict:
        waits.append(wait_seconds)
        await asyncio.sleep(2)
        return Verdict()

    checks.pool.ask = ask  # type: ignore[method-assign, assignment]
    with pytest.raises(Fault) as raised:
        await check_schemas(
            checks, strict_tools(30), answer="text.format.schema", tool="tools[{}].parameters"
        )
    assert waits == pytest.approx([5, 3, 1])
    failure = raised.value.failure
    assert (failure.param, failure.kind) == ("tools[3].parameters", FaultKind.UNAVAILABLE)


async def test_a_schema_that_takes_too_long_is_given_up_once_for_all_texts_of_an_answer(
    checks: SchemaChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def ask(question: Question, **_: Any) -> NoAnswer:
        asked.append(question)
        return NoAnswer.GAVE_UP

    monkeypatch.setattr(checks.pool, "ask", ask)
    trap = TextCheck(raw(DOUBLING), '{"a":1}')
    assert await checks.check_texts([trap, TextCheck(raw(STRING), '"a"'), *[trap] * 50]) == [
        TOO_LONG,
        Verdict(),
        *[TOO_LONG] * 50,
    ]
    assert len(asked) == 1


@pytest.mark.exhaustive
async def test_the_loop_goes_on_while_a_check_is_made(checks: SchemaChecks) -> None:
    under_way = asyncio.ensure_future(of_text(checks, DOUBLING, "1"))
    longest, last = 0.0, cpu_seconds()
    while not under_way.done():
        await asyncio.sleep(0)
        longest, last = max(longest, cpu_seconds() - last), cpu_seconds()
    assert await under_way == TOO_LONG
    assert longest / slowness() < 0.1


@pytest.mark.parametrize(
    "schemas",
    [
        [{**DRAFT_4, "enum": [each for n in range(11_000) for each in (n, str(n))][:18_000]}],
        [{"$defs": {f"a{n}": {"$anchor": f"n{n}", "$ref": "#n0"} for n in range(500)}}],
        [{"type": "object", "title": str(n), "description": "x" * 20_000} for n in range(128)],
    ],
)
async def test_schemas_that_held_the_server_up_for_minutes_hold_the_loop_for_no_time(
    checks: SchemaChecks, schemas: list[Any]
) -> None:
    """The third is a request with 128 tools; asked again, it costs what their digests cost."""
    given = [raw(each) for each in schemas]
    began = cpu_seconds()
    assert await checks.check_schemas(given) == [Verdict()] * len(given)
    first = cpu_seconds() - began
    assert await checks.check_schemas(given) == [Verdict()] * len(given)
    again = cpu_seconds() - began - first
    assert first / slowness() < 0.5
    assert again / slowness() < 0.05


@pytest.mark.exhaustive
async def test_the_sixty_fifth_schema_costs_what_the_others_cost(checks: SchemaChecks) -> None:
    given = [raw({"type": "object", "title": str(n), "enum": list(range(100))}) for n in range(500)]
    await checks.check_schemas(given)
    began = cpu_seconds()
    for _ in range(10):
        await checks.check_schemas(given)
    assert (cpu_seconds() - began) / 10 / slowness() < 0.02


@pytest.mark.exhaustive
async def test_one_schema_that_takes_too_long_affects_no_other_of_its_batch(checks: SchemaChecks) -> None:
    trap = {"allOf": [{"pattern": rf"(?:\p{{L}}{{30}}|{n}){{9}}"} for n in range(2_000)]}
    before, behind = {**LONG, "title": "before"}, {**LONG, "title": "behind"}
    verdicts = await checks.check_schemas([raw(before), raw(trap), raw(behind)])
    assert verdicts[::2] == [Verdict(), Verdict()]
    assert verdicts[1] == TOO_LONG


async def test_a_process_that_dies_under_a_check_has_made_none(checks: SchemaChecks) -> None:
    """Of too much memory, for instance."""
    under_way = asyncio.ensure_future(of_text(checks, DOUBLING, "1"))
    await eventually(lambda: checks.pool.workers)
    psutil.Process(checks.pool.workers[0]).kill()
    assert await under_way == TOO_LONG


async def test_a_client_that_leaves_ends_its_check(checks: SchemaChecks) -> None:
    under_way = asyncio.ensure_future(of_text(checks, DOUBLING, "1"))
    await eventually(lambda: checks.pool.workers)
    (pid,) = checks.pool.workers
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    assert checks.pool.workers == []
    assert not psutil.pid_exists(pid)


async def test_the_end_of_the_server_waits_for_no_check() -> None:
    checks = SchemaChecks()
    under_way = [asyncio.ensure_future(of_text(checks, DOUBLING, "1")) for _ in range(5)]
    await eventually(lambda: len(checks.pool.workers) == 2)
    pids = checks.pool.workers
    await checks.close()
    assert not any(map(psutil.pid_exists, pids))
    assert await asyncio.gather(*under_way) == [STOPPING] * 5
    assert await of_text(checks, LONG, "1") == STOPPING


async def test_a_process_gets_nothing_of_our_environment_and_only_so_much_memory(
    checks: SchemaChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_API_KEY", "secret")
    await checks.check_schemas([raw(LONG)])
    (pid,) = checks.pool.workers
    process = psutil.Process(pid)
    assert process.environ() == {}
    assert process.rlimit(psutil.RLIMIT_AS) == (MEMORY_BYTES, MEMORY_BYTES)
    assert process.cwd() == "/"


ORPHAN = """
import asyncio, sys
from codex_proxy.workers.schema_checks import SchemaChecks
from codex_proxy.tools.schemas import TextCheck
async def main():
    checks = SchemaChecks()
    for text in sys.argv[2:]:
        work = asyncio.ensure_future(checks.check_texts([TextCheck(sys.argv[1].encode(), text)]))
        while not checks.pool.workers: await asyncio.sleep(0.01)
    print(checks.pool.workers[0], flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("schema", [DOUBLING, LONG])
async def test_nothing_is_left_of_a_server_that_was_killed(schema: Any) -> None:
    """While a check is made, and while none is."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, json.dumps(schema), "1"], stdout=subprocess.PIPE, cwd=os.getcwd()
    ) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    await eventually(lambda: have_ended([pid]))
