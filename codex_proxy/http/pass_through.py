"""Requests that are no turns (embeddings, completions, ranking, audio, images, moderation): sends them on as they are
to the upstream that has the model, and its answers back as they come.

The model decides which upstream that is. If no upstream has the model, the first one whose settings name the path gets
the request, with the model's name as it is.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from codex_proxy.admission.clients import model_not_allowed
from codex_proxy.agents.agent import agent_for
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.passing import PassedAnswer, PassedRequest, PassesOn
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import RUNS
from codex_proxy.http.body import read_body
from codex_proxy.http.middleware.access import FORM, origin_of
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, REPLY_HEADERS
from codex_proxy.surfaces.models import DEFAULT_NAME, resolve
from codex_proxy.surfaces.passed_bodies import PassedBody, form_body, json_body

NO_UPSTREAM: Final = (
    "{path} is served by model servers only, and the model '{model}' is not one of theirs. Add a table to the settings "
    'file, such as [upstreams.local] with url = "http://127.0.0.1:8080/v1" and paths = ["{path}"], or name a model '
    "of an upstream."
)


async def pass_through(request: web.Request) -> web.StreamResponse:
    """Any path of `PASSED_PATHS`. Raises `Fault`: NOT_FOUND if no upstream serves the path, NOT_ALLOWED if the key may
    not use the model, or the failure of the upstream.
    """
    body = await read_body(request)
    kind = request.headers.get("Content-Type", "application/json")
    passed = form_body(body, kind) if request.content_type == FORM else json_body(body)
    return await send_on(request, passed, request.path.removeprefix("/v1"), kind)


async def send_on(
    request: web.Request, passed: PassedBody, path: str, content_type: str
) -> web.StreamResponse:
    """Sends a body on to the upstream for it, and returns its answer, which was sent to the client."""
    return await _sent(request, await _asked(request, passed, path, content_type))


async def ask_upstream(request: web.Request, body: bytes, path: str) -> PassedAnswer:
    """Sends a JSON body to the upstream that has its model, for an endpoint that reads the answer itself. The caller
    must close the answer. Raises `Fault` as `pass_through` does.
    """
    return await _asked(request, json_body(body), path, "application/json")


async def _asked(request: web.Request, passed: PassedBody, path: str, kind: str) -> PassedAnswer:
    found = upstream_for(request, passed.model, path)
    if found is None:
        message = NO_UPSTREAM.format(path=path, model=passed.model or DEFAULT_NAME)
        raise Fault(Failure(kind=FaultKind.NOT_FOUND, message=message, param="model"))
    upstream, model = found
    answer = await upstream.pass_on(
        PassedRequest(
            path=path, model=model, content_type=kind, body_for=passed.with_model, origin=origin_of(request)
        )
    )
    request[NOTES]["attempts"] = answer.attempts
    request[REPLY_HEADERS]["x-codex-attempts"] = str(answer.attempts)
    if answer.upstream:
        request[REPLY_HEADERS]["x-codex-upstream"] = request[NOTES]["upstream"] = answer.upstream
    return answer


def upstream_for(request: web.Request, asked: str | None, path: str) -> tuple[PassesOn, str] | None:
    """Returns the upstream for a request, and the upstream's name of the model that the client asks for (None: it
    names none); None if no upstream is for it. Raises `Fault` if the key may not use the model, or several agents have
    it.
    """
    client, agent = request[CLIENT], request.app[RUNS].agent
    name = asked or DEFAULT_NAME
    request[NOTES]["model"] = name
    try:
        resolved = resolve(name, client.catalog)
    except Fault as fault:
        if fault.failure.kind is not FaultKind.MODEL_NOT_FOUND:
            raise
    else:
        found = agent_for(agent, resolved.agent_model)
        if isinstance(found, PassesOn) and (found.passed_paths is None or path in found.passed_paths):
            if not client.may_use(name):
                raise model_not_allowed(name)
            own = resolved.agent_model
            return found, own.partition(MODEL_SEPARATOR)[2] if agent.members else own
    for member in (agent.members or {agent.name: agent}).values():
        allowed = client.catalog.only is None or member.name in client.catalog.only
        if allowed and isinstance(member, PassesOn) and path in (member.passed_paths or ()):
            return member, asked or ""
    return None


async def _sent(request: web.Request, answer: PassedAnswer) -> web.StreamResponse:
    """Sends the answer's bytes as they come. If it breaks off, so does the connection, since its status was sent."""
    response = web.StreamResponse(headers={**answer.headers, "Cache-Control": "no-cache"})
    try:
        async for chunk in answer.chunks():
            if not response.prepared:
                await response.prepare(request)
            await response.write(chunk)
        if not response.prepared:
            await response.prepare(request)
        await response.write_eof()
    except Fault as fault:
        request[NOTES]["error"] = fault.failure.kind.value
        if not response.prepared:
            raise
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionError("the upstream's answer broke off") from None
    finally:
        await answer.close()
    return response
