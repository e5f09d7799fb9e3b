"""The schemas of a turn, looked at before anything is spent on it: one that is none is the client's fault."""

from __future__ import annotations

from codex_proxy.core.faults import Failure, Fault, FaultKind, bad_request
from codex_proxy.core.turn import Turn
from codex_proxy.workers.schema_checks import TOO_LONG, SchemaChecks


async def check_schemas(checks: SchemaChecks, turn: Turn, *, answer: str, tool: str) -> None:
    """Raises `Fault`: INVALID_REQUEST, or UNAVAILABLE. `answer` and `tool` name the fields, the latter with `{}` for
    its place.

    Only what is held to a schema here is looked at: the others are the provider's to judge.
    """
    fields: list[tuple[bytes, str]] = []
    if turn.output_schema is not None:
        fields.append((bytes(turn.output_schema), answer))
    for place, each in enumerate(turn.tools):
        if each.strict and each.parameters is not None:
            fields.append((bytes(each.parameters), tool.format(place)))
    if not fields:
        return
    verdicts = await checks.of_schemas([schema for schema, _ in fields])
    for (_, field), verdict in zip(fields, verdicts, strict=True):
        wrong = TOO_LONG.unchecked if verdict == TOO_LONG else verdict.wrong
        if wrong is not None:
            raise bad_request(f"Invalid schema in '{field}': {wrong}.", field, "invalid_json_schema")
        if verdict.unchecked is not None:
            message = f"The schema in '{field}' could not be checked: {verdict.unchecked}. Try again later."
            raise Fault(Failure(kind=FaultKind.UNAVAILABLE, message=message, param=field, retry_after=5))
