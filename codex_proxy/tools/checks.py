"""The values of schema checks: what is to be checked, and the result. Checks may take long, so that some of them
run in a worker process (`workers/schema_checks.py`).
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind


class TextCheck(msgspec.Struct, frozen=True):
    """A text, and the JSON schema (as JSON) under which it must be valid. `in_strict_form`: the text follows the
    schema's strict form, and its placeholders are removed before the check.
    """

    schema: bytes
    text: str
    in_strict_form: bool = False
    """Whether the text follows the schema's strict form. If so, it is converted back before the check."""


class StrictForm(msgspec.Struct, frozen=True):
    """A client's JSON schema in a form that OpenAI's structured outputs accept. `to_undo`: answers under it have
    placeholders for absent properties, which must be removed (see `strict_answers`).
    """

    schema: bytes
    to_undo: bool = False
    """Whether answers contain placeholders for absent properties, which must be removed."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check. `wrong` says what is invalid, None for a valid text; `unchecked` is the reason if the
    check could not be made, None if it was made. `rewritten` is the text without its placeholders, None if it had
    none. `form` is the schema's strict form, if that was asked for and exists.
    """

    wrong: str | None = None
    unchecked: str | None = None
    rewritten: str | None = None
    """The text for the client, where it differs from the model's; else None."""
    form: StrictForm | None = None
    """The strict form of the schema, where one was asked for and exists; else None."""


def not_checked(what: str, reason: str) -> Failure:
    """Returns the failure of a turn whose text could not be checked against a schema. `what` is the text, as the
    beginning of a sentence (`The answer`); `reason` is why, as the end of one.
    """
    return Failure(
        kind=FaultKind.UPSTREAM_ERROR,
        code="schema_check_failed",
        message=f"{what} could not be checked against its schema: {reason}.",
    )
