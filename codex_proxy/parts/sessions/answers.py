"""The handler with which a person answers an agent's question for permission. Unlike the event of OpenAI's API, the
answer tells by a digest what the person was shown, may hold for the session, and may have words for the model.
Source: docs/agents-api.md#approvals.
"""

from __future__ import annotations

from aiohttp import web

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.http.body import name_ignored, parse_body, read_body
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER
from codex_proxy.parts.sessions import wire
from codex_proxy.parts.sessions.approvals import MAY_NOT_APPROVE, Approval
from codex_proxy.parts.sessions.service import SESSIONS


async def answer_ask(request: web.Request) -> web.Response:
    """Answers an approval request, as it was shown.

    The same answer again does nothing. The answer has no body.
    """
    sessions, owner = request.app[SESSIONS], request[OWNER]
    body = await read_body(request)
    given, ignored = await parse_body(
        request, body, lambda body, _: wire.parse_body_of(wire.AnswerBody, body)
    )
    name_ignored(request, ignored)
    approval = _approval(request.match_info["request_id"], given)
    session = await sessions.session(owner, request.match_info["id"])
    request[NOTES] |= {"session": session.id}
    require_right_to_answer(request)
    await sessions.run(sessions.submit(owner, session.id, [approval], None))
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
    return Approval(request_id, given.decision, words, digest=given.digest, for_session=for_session)


def require_right_to_answer(request: web.Request) -> None:
    """Raises `Fault` NOT_ALLOWED unless the client of a request may answer approval requests."""
    if not request[CLIENT].may_approve:
        raise Fault(MAY_NOT_APPROVE)
