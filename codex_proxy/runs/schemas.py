"""The schemas of a turn, looked at before anything is spent on it: one that is none is the client's fault."""

from __future__ import annotations

from codex_proxy.core.faults import bad_request
from codex_proxy.core.turn import Turn


def check_schemas(turn: Turn, *, answer: str, tool: str) -> None:
    """Raises `Fault` INVALID_REQUEST. `answer` and `tool` name the fields, the latter with `{}` for its place.

    Only what is held to a schema here is looked at: the others are the provider's to judge.
    """
    if turn.output_schema is not None:
        _check(bytes(turn.output_schema), answer)
    for place, each in enumerate(turn.tools):
        if each.strict and each.parameters is not None:
            _check(bytes(each.parameters), tool.format(place))


def _check(schema: bytes, field: str) -> None:
    # It brings jsonschema, which most turns do without.
    from codex_proxy.tools.schemas import NotASchemaError, check_schema

    try:
        check_schema(schema)
    except NotASchemaError as wrong:
        raise bad_request(f"Invalid schema in '{field}': {wrong}.", field, "invalid_json_schema") from None
