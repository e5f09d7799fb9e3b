"""The handler with which a person answers an agent's question for permission. Unlike the event of OpenAI's API, the
answer tells by a digest what the person was shown, may hold for the session, and may have words for the model.
Source: docs/agents-api.md#approvals.
"""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from msgspec.structs import replace

from codex_proxy.core.faults import bad_request
from codex_proxy.http.middleware.request_context import CLIENT, NOTES
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.approvals import Approval
from codex_proxy.parts.sessions.commands import Submitted
from codex_proxy.parts.sessions.request_values import id_in, parse, sessions_at


async def answer_ask(request: web.Request) -> web.Response:
    """Answers an approval request, as it was shown.

    The same answer again does nothing. The answer has no body.
    """
    sessions, owner = sessions_at(request)
    given, _ = await parse(request, wire.AnswerBody)
    approval = _approval(request.match_info["request_id"], given)
    session = await sessions.session(owner, id_in(request))
    request[NOTES] |= {"session": session.id}
    await sessions.run(sessions.submit(owner, session.id, marked([approval], request), None))
    return web.Response(status=202)


def _approval(request_id: str, given: wire.AnswerBody) -> Approval:
    words, for_session = given.message or "", bool(given.for_session)
    if given.decision == "approve" and words:
        raise bad_request(
            "The model is told words only of a denial: send them as a message to the session.", "message"
        )
    if given.decision == "deny" and for_session:
        raise bad_request(
            "Only an approval can hold for the session: leave 'for_session' out.", "for_session"
        )
    return Approval(
        request_id,
        given.decision,
        words,
        digest=given.digest,
        for_session=for_session,
        content=given.content or {},
    )


def marked(changes: Iterable[Submitted], request: web.Request) -> list[Submitted]:
    """Returns a client's events, of which the answers to approval requests say whether the client may approve."""
    may = request[CLIENT].may_approve
    return [replace(each, by_approver=may) if isinstance(each, Approval) else each for each in changes]
