"""The worker process that checks schemas, and texts against schemas."""

from __future__ import annotations

from typing import Final

import msgspec

from codex_proxy.tools.schemas import NotASchemaError, TextCheck, Verdict, check_schema, verdict_on
from codex_proxy.tools.strict_schemas import strict_form
from codex_proxy.workers.worker_process import run

CPU_SECONDS: Final = 0.5
"""CPU time for one question; the largest harmless schema takes a fifth."""
MEMORY_BYTES: Final = 768 << 20
"""Maximum address space; Python and the validator take some 100 MiB."""


class Question(msgspec.Struct, frozen=True):
    """What a worker has to find out: whether `text` is valid under the schema; without a text, whether the schema is
    valid or, with `wants_form`, its strict form.
    """

    schema: bytes
    text: str | None = None
    in_strict_form: bool = False
    """Whether the text is for the strict form, whose placeholders are removed first."""
    wants_form: bool = False


def answer(question: Question) -> Verdict:
    """Returns the verdict on a schema or a text. Runs in a worker process or, for a quick question, in the server."""
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
