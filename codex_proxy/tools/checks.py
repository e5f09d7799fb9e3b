"""The values of schema checks: what is to be checked, and the result. Checks may take long, so that some of them
run in a worker process (`workers/schema_checks.py`).
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema (as JSON) under which it must be valid."""

    schema: bytes
    text: str
    in_strict_form: bool = False
    """Whether the model wrote the text for the schema's strict form (see `StrictForm`). If so, placeholders are
    removed from it before the check.
    """


class StrictForm(msgspec.Struct, frozen=True):
    """A client's JSON schema in a form that OpenAI's structured outputs accept: every property is required, and a
    placeholder stands for an absent one (see `strict_answers`).
    """

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders for absent properties, which must be removed."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check of a text or a schema, which is valid if both `wrong` and `unchecked` are None."""

    wrong: str | None = None
    """What is invalid, in words; None if nothing is, or if the check could not be made."""
    unchecked: str | None = None
    """The reason why the check could not be made; None if it was made."""
    rewritten: str | None = None
    """The text without its placeholders, which the client gets; None if it had none."""
    form: StrictForm | None = None
    """The strict form of the schema; None if the check did not ask for it, or the schema has none."""


def not_checked(what: str, reason: str) -> Failure:
    """Returns an UPSTREAM_ERROR failure of a turn whose text could not be checked against a schema. `what` is the
    text, as the beginning of a sentence (`The answer`); `reason` is why, as the end of one.
    """
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
