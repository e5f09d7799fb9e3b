"""The worker process that checks schemas, and texts against schemas, if that may take long."""

from __future__ import annotations

from typing import Final

import msgspec

from codex_proxy.tools.checks import TextCheck, Verdict
from codex_proxy.workers.worker_process import run

CPU_SECONDS: Final = 1.0
"""The most seconds of CPU time for one question. The largest harmless schema takes a tenth of it."""
MEMORY_BYTES: Final = 768 << 20
"""The most bytes of address space. Python and the validator take some 100 MiB of it."""


class Question(msgspec.Struct, frozen=True):
    """A question to the worker: whether `text` is valid under `schema` (JSON). If `text` is None: whether the
    schema is valid or, with `wants_form`, what its strict form is.
    """

    schema: bytes
    text: str | None = None
    in_strict_form: bool = False
    """Whether the model wrote the text for the schema's strict form (see `StrictForm`). If so, placeholders for
    absent properties are removed from it before the check.
    """
    wants_form: bool = False


def answer(question: Question) -> Verdict:
    """Returns the answer to one question. Called by the worker's main loop, and in the server's process for a quick
    question.
    """
    from codex_proxy.tools.schemas import (  # not in the server's process
        NotASchemaError,
        check_schema,
        verdict_on,
    )
    from codex_proxy.tools.strict_schemas import strict_form

    if question.text is not None:
        return verdict_on(TextCheck(question.schema, question.text, question.in_strict_form))
    if question.wants_form:
        return Verdict(form=strict_form(question.schema))
    try:
        check_schema(question.schema)
    except NotASchemaError as error:
        return Verdict(str(error))
    return Verdict()


def main() -> None:
    run(Question, answer, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)
