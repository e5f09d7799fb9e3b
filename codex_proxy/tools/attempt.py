"""One try of a turn: what the agent is given for it, and who watches what comes back.

A turn is tried once, and once more where its model did not do what the client required (a call, a text under a
schema): then with a reminder that is not remembered.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.turn import Turn
from codex_proxy.tools.broker import Broker
from codex_proxy.tools.choice import told
from codex_proxy.tools.output_check import ANY_OBJECT, OutputCheck, told_of_schema


class Attempt(msgspec.Struct, frozen=True):
    """`turn` is for the agent; `as_asked`: nothing was added to what the client said."""

    turn: Turn
    broker: Broker
    check: OutputCheck | None
    as_asked: bool


def first_attempt(turn: Turn) -> Attempt:
    return _attempt(turn, again=False, wrong=None)


def second_attempt(turn: Turn, wrong: str | None) -> Attempt:
    """`wrong`: what was the matter with the first answer's text, where that was the matter."""
    return _attempt(turn, again=True, wrong=wrong)


def _attempt(turn: Turn, *, again: bool, wrong: str | None) -> Attempt:
    given = told(turn, again=again and wrong is None)
    check = None
    schema = bytes(turn.output_schema) if turn.output_schema is not None else None
    if schema is not None and not _is_strict(schema):
        check = OutputCheck(schema, second_try=again)
        # For any object the surface has told the model already.
        if schema != ANY_OBJECT or wrong is not None:
            given = told_of_schema(given, schema, wrong=wrong)
        given = msgspec.structs.replace(given, output_schema=None)
    as_asked = given.history is turn.history
    return Attempt(given, Broker(turn, second_try=again), check, as_asked)


def _is_strict(schema: bytes) -> bool:
    from codex_proxy.tools.schemas import is_strict_schema  # brings jsonschema, which most turns do without

    return is_strict_schema(schema)
