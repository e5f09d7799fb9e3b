"""What an agent asks permission for, as a form for the person at the MCP client (an elicitation), where the client has
such forms. No tool answers: the model that calls never sees the form. With the handshake of 2025 the form stays open
while waits come and go; in the protocol of 2026 the wait's own answer asks for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakSet

import structlog
from mcp.server.context import ServerRequestContext
from mcp_types import ElicitRequest, ElicitRequestFormParams, ElicitResult, InputRequiredResult
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from codex_proxy.agents.shared.forms import form_schema
from codex_proxy.core.faults import Fault
from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.shown_text import escape, escape_json, excerpt
from codex_proxy.parts.mcp_server.waiting import StateReader, wait, works
from codex_proxy.parts.mcp_server.work import WAIT_SECONDS, Caller, Result, Tell, report
from codex_proxy.parts.sessions.approvals import Approval, Ask
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.sessions.summaries import title_of

log = structlog.get_logger(__name__)

MAX_SHOWN: Final = 20_000
"""Maximum characters of a form's text. What is longer is decided where it can be read whole."""
MAX_KEPT: Final = 1_000
"""How many questions are remembered that were put to a person."""
SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "Whether the agent may do exactly this, once.",
            "enum": ["approve", "deny"],
        }
    },
    "required": ["decision"],
}

_LISTS_SINCE: Final = "2025-11-25"
DECISION, VALUES = "decision", "values"
"""What a form asks for."""

Context: TypeAlias = ServerRequestContext[Any, Any]


def text_of(session: Session, ask: Ask, trouble: str = "") -> str:
    """Returns the text of a form: what is asked, to the letter, and its digest. Empty if it is too long. `trouble`: why
    the answer before had no effect.
    """
    again = f"{escape(trouble)}\n" if trouble else ""
    if ask.fields:
        text = (
            f"{again}The agent of the session {escape(title_of(session))!r} asks you for values.\n"
            f"{escape(ask.arguments['message'])}\nSHA-256: {ask.digest}"
        )
        return text if len(text) + len(encode_json(schema_of(ask))) <= MAX_SHOWN else ""
    arguments = escape_json(encode_json(ask.arguments).decode())
    text = (
        f"{again}The agent of the session {escape(title_of(session))!r} asks for permission.\n"
        f"{escape(ask.server_label)}.{escape(ask.name)}\n{arguments}\nSHA-256: {ask.digest}"
    )
    return text if len(text) <= MAX_SHOWN else ""


def schema_of(ask: Ask) -> dict[str, Any]:
    """Returns what a form asks for: a decision, or the values that the agent wants."""
    return form_schema(ask.fields) if ask.fields else SCHEMA


def can_show(ask: Ask, version: str) -> bool:
    """Whether a client of this version of MCP knows all that the form has: lists and titles of options are newer."""
    return version >= _LISTS_SINCE or not any(
        {"items", "oneOf"} & property.keys() for property in schema_of(ask)["properties"].values()
    )


def has_forms(context: Context, caller: Caller) -> bool:
    """Whether questions go to the person at a client: it has forms, its key may answer, and it is no agent itself."""
    declared = context.session.client_capabilities
    forms = None if declared is None else declared.elicitation
    if forms is None or (forms.form is None and forms.url is not None):
        return False
    reachable = context.session.can_send_request or context.protocol_version in MODERN_PROTOCOL_VERSIONS
    return reachable and caller.client.may_approve and not caller.by_agent


class Persons:
    """The persons at MCP clients."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, str], bool] = {}
        """The questions that were put to a person, by key and id, the oldest first, with whether the form is open or
        was answered. Nobody is asked twice.
        """
        self._troubles: dict[tuple[str, str], tuple[str, str]] = {}
        """Of the questions whose form had no effect the session, and why: the next wait asks them again."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._forms: dict[tuple[str, str], tuple[str, asyncio.Task[None]]] = {}
        """The open forms of 2025, by key and id of the question, with its session."""
        self._readers: WeakSet[StateReader] = WeakSet()
        """What the waits read."""

    async def wait(
        self, context: Context, caller: Caller, id: str, tell: Tell, answers: Mapping[str, Any] | None
    ) -> Result | InputRequiredResult:
        """Waits for a session as wait_session does. `answers`: those of the forms that the wait before has asked for
        (2026), by their names. Raises `Fault`.
        """
        sessions, owner = caller.sessions, caller.owner
        asks, modern = has_forms(context, caller), context.protocol_version in MODERN_PROTOCOL_VERSIONS
        for name, answer in (answers or {}).items() if asks else ():
            question, _, wants = name.rpartition(".")
            request_id, _, digest = question.rpartition(".")
            try:
                await _answer(caller, id, request_id, digest, answer, has_fields=wants == VALUES)
            except Fault as fault:  # another one has answered, or the values do not fit
                self._note((owner, excerpt(request_id)), id, fault)
        for key, (of, _) in self._troubles.items():
            if key[0] == owner and of == id:
                self._asked.pop(key, None)

        def goes_on(session: Session) -> bool:
            self._withdraw(owner, session)
            return works(session) or (asks and not modern and self._put(context, caller, session))

        session = await wait(sessions, owner, id, tell, WAIT_SECONDS, goes_on, self._reader)
        if asks and modern and not answers and (forms := self._requests(owner, session)):
            return InputRequiredResult(input_requests=forms)
        return await report(caller, session)

    def _put(self, context: Context, caller: Caller, session: Session) -> bool:
        """Puts each question of a session that nobody was asked to the person; returns whether a form is open."""
        keys = [(caller.owner, ask.request_id) for ask in session.open_asks]
        for key, ask in zip(keys, session.open_asks, strict=True):
            if key in self._asked or not can_show(ask, context.protocol_version):
                continue
            if text := text_of(session, ask, self._trouble(key)):
                self._asked[key] = True
                work = self._ask(context, caller, session.id, ask, text)
                self._forms[key] = session.id, keep_until_done(self._tasks, asyncio.create_task(work))
        while len(self._asked) > MAX_KEPT:
            del self._asked[next(iter(self._asked))]
        return any(self._asked.get(key, False) for key in keys)

    def _requests(self, owner: str, session: Session) -> dict[str, ElicitRequest]:
        """Returns a form for each open question, by a name that has its id, its digest, and what it asks for."""
        found = [(ask, self._trouble((owner, ask.request_id))) for ask in session.open_asks]
        return {
            f"{ask.request_id}.{ask.digest}.{VALUES if ask.fields else DECISION}": ElicitRequest(
                params=ElicitRequestFormParams(message=text, requested_schema=schema_of(ask))
            )
            for ask, trouble in found
            if (text := text_of(session, ask, trouble))
        }

    def _note(self, key: tuple[str, str], session: str, error: Exception) -> None:
        """Remembers why a form had no effect."""
        log.info("form_without_effect", session=session, reason=type(error).__name__)
        self._troubles[key] = session, error.failure.message if isinstance(error, Fault) else ""
        while len(self._troubles) > MAX_KEPT:
            del self._troubles[next(iter(self._troubles))]

    def _trouble(self, key: tuple[str, str]) -> str:
        """Returns, once, why the form before had no effect; empty if that is not known."""
        return self._troubles.pop(key, ("", ""))[1]

    def _withdraw(self, owner: str, session: Session) -> None:
        """Closes the forms with questions of a session that are no longer open."""
        still = {(owner, ask.request_id) for ask in session.open_asks}
        for key, (id, task) in self._forms.items():
            if id == session.id and key[0] == owner and key not in still:
                task.cancel()

    def _reader(self, *given: Any) -> StateReader:
        made = StateReader(*given)
        self._readers.add(made)
        return made

    async def _ask(self, context: Context, caller: Caller, session: str, ask: Ask, text: str) -> None:
        """Puts a question to the person, for as long as the client is connected."""
        key, answered = (caller.owner, ask.request_id), True
        try:
            answer = await context.session.elicit_form(text, schema_of(ask), context.request_id)
            answered = await _answer(
                caller, session, ask.request_id, ask.digest, answer, has_fields=bool(ask.fields)
            )
        except Exception as error:  # noqa: BLE001 - the client has left or broken MCP, or another one has answered
            answered = False  # the same client would at once answer the same
            self._note(key, session, error)
        finally:
            self._forms.pop(key, None)
            # Kept also if it was answered: a wait may have read the session before, and would ask once more.
            self._asked[key] = answered
        for reader in self._readers:
            reader.look()  # no form is open any more for which the wait goes on

    async def close(self) -> None:
        """Ends all forms."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _answer(
    caller: Caller, session: str, request_id: str, digest: str, answer: object, *, has_fields: bool
) -> bool:
    """Passes on what a person has decided, and the values if the form `has_fields`; returns whether anything was.
    Raises `Fault`, also for a question that is not the one that was shown, and for values that do not fit.
    """
    if not isinstance(answer, ElicitResult) or answer.action == "cancel":
        return False
    choice = _choice(answer, has_fields=has_fields)
    given = answer.content or {}
    fills_in = has_fields and choice == "approve"
    # Some clients give null for a field that was left empty.
    content = {name: value for name, value in given.items() if value is not None} if fills_in else {}
    approval = Approval(
        request_id, choice, digest=digest, content=content, by_approver=caller.client.may_approve
    )
    await caller.sessions.run(caller.sessions.submit(caller.owner, session, [approval], None))
    return True


def _choice(answer: ElicitResult, *, has_fields: bool) -> Literal["approve", "deny"]:
    decided = has_fields or (answer.content or {}).get("decision") == "approve"
    return "approve" if answer.action == "accept" and decided else "deny"
