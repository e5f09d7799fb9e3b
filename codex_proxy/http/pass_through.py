"""Sends requests that are no turns (embeddings, completions) on to the upstream that has the model, else to the first
one whose settings name the path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from codex_proxy.admission.clients import model_not_allowed
from codex_proxy.agents.agent import agent_for
from codex_proxy.core.events import Spending, Usage
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.passing import PassedAnswer, PassedRequest, PassingAgent, RestOfBody
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import RUNS, USAGE
from codex_proxy.http.endpoint import of_absent_part
from codex_proxy.http.middleware.access import origin_of
from codex_proxy.http.middleware.request_context import CLIENT, NOTES, OWNER, REPLY_HEADERS
from codex_proxy.surfaces.models import DEFAULT_NAME, resolve
from codex_proxy.surfaces.requests.body import missing_parameter
from codex_proxy.surfaces.requests.passed import PassedBody, json_body

NO_UPSTREAM: Final = (
    "{path} is served by model servers only, and the model '{model}' is not one of theirs. Add a table to the settings "
    'file, such as [upstreams.local] with url = "http://127.0.0.1:8080/v1" and paths = ["{path}"], or name a model '
    "of an upstream."
)


async def send_on(
    request: web.Request, passed: PassedBody, path: str, rest: RestOfBody | None = None
) -> web.StreamResponse:
    """Sends a body, and the `rest` behind it, on, and the answer's bytes to the client as they come. If the answer
    breaks off, so does the connection.
    """
    response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
    try:
        async with _open_answer(request, passed, path, rest) as answer:
            response.headers.update(answer.headers)
            async for chunk in answer.chunks():
                if not response.prepared:
                    await response.prepare(request)
                await response.write(chunk)
            if not response.prepared:
                await response.prepare(request)
            await response.write_eof()
    except (Fault, web.HTTPException) as error:
        if not response.prepared:
            raise
        kind = error.failure.kind if isinstance(error, Fault) else FaultKind.REQUEST_TOO_LARGE
        request[NOTES]["error"] = kind.value
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionError("the upstream's answer broke off") from None
    return response


async def ask_upstream(request: web.Request, body: bytes, path: str) -> bytes:
    """Returns the whole answer to a JSON body. Raises what `serving_upstream` does, and `Fault`: NOT_ALLOWED for the
    key, or the upstream's failure.
    """
    async with _open_answer(request, json_body(body), path, None) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


class _SpentTokens:
    """The tokens of a request that is sent on."""

    usage: Usage | None = None

    def spending(self) -> Spending:
        return Spending(self.usage or Usage())


@asynccontextmanager
async def _open_answer(
    request: web.Request, passed: PassedBody, path: str, rest: RestOfBody | None
) -> AsyncIterator[PassedAnswer]:
    upstream, model = serving_upstream(request, passed.model, path)
    client = request[CLIENT]
    client.check_models(upstream.name, passed.other_models())
    if client.models is not None and passed.model is None:
        passed = passed.naming(model)  # else the upstream would choose one
    app, spent, limit = request.app, _SpentTokens(), asyncio.timeout(upstream.total_timeout)
    billed = model or DEFAULT_NAME
    if app[RUNS].agent.members:
        billed = f"{upstream.name}{MODEL_SEPARATOR}{billed}"
    outgoing = PassedRequest(
        path=path,
        model=model,
        content_type=passed.content_type,
        body_for=passed.with_model,
        origin=origin_of(request),
        rest=rest,
    )
    with app[USAGE].turn(request[OWNER], billed, spent):
        try:
            async with limit:
                answer = await upstream.pass_on(outgoing)
                _note_attempts(request, answer)
                try:
                    yield answer
                finally:
                    spent.usage = answer.usage
                    await answer.close()
        except TimeoutError:
            if not limit.expired():
                raise
            raise Fault(_timeout_failure(upstream)) from None
    if spent.usage is not None:
        request[NOTES] |= {"input_tokens": spent.usage.input, "output_tokens": spent.usage.output}


def _note_attempts(request: web.Request, answer: PassedAnswer) -> None:
    request[NOTES]["attempts"] = answer.attempts
    request[REPLY_HEADERS]["x-codex-attempts"] = str(answer.attempts)
    if answer.upstream:
        request[REPLY_HEADERS]["x-codex-upstream"] = request[NOTES]["upstream"] = answer.upstream


def _timeout_failure(upstream: PassingAgent) -> Failure:
    message = (
        f"The model server took longer than {upstream.total_timeout:g} s for the whole answer. Try again, or raise "
        "the time limit (total_timeout)."
    )
    return Failure(FaultKind.TIMED_OUT, message)


def serving_upstream(request: web.Request, model: str | None, path: str) -> tuple[PassingAgent, str]:
    """Returns and raises what `upstream_for` does; also raises `Fault` if no upstream serves the request: NOT_FOUND, or
    INVALID_REQUEST if it names no model.
    """
    found = upstream_for(request, model, path)
    if found is None:
        message = of_absent_part(path)
        if not (message or model):
            raise missing_parameter("model")
        message = message or NO_UPSTREAM.format(path=path, model=model)
        raise Fault.of(FaultKind.NOT_FOUND, message, param="model")
    return found


def upstream_for(request: web.Request, model: str | None, path: str) -> tuple[PassingAgent, str] | None:
    """Returns the upstream that has the client's model, and its name for it. Raises `Fault` if the key may not use the
    model, or several agents have it.
    """
    client, agent = request[CLIENT], request.app[RUNS].agent
    name = model or DEFAULT_NAME
    request[NOTES]["model"] = name
    try:
        resolved = resolve(name, client.catalog)
    except Fault as fault:
        if fault.failure.kind is not FaultKind.MODEL_NOT_FOUND:
            raise
    else:
        found = agent_for(agent, resolved.agent_model)
        if isinstance(found, PassingAgent) and (found.passed_paths is None or path in found.passed_paths):
            if not client.may_use(name):
                raise model_not_allowed(name)
            own = resolved.agent_model
            return found, own.partition(MODEL_SEPARATOR)[2] if agent.members else own
    for member in (agent.members or {agent.name: agent}).values():
        allowed = client.catalog.only is None or member.name in client.catalog.only
        if allowed and isinstance(member, PassingAgent) and path in (member.passed_paths or ()):
            client.check_models(member.name, [("model", name)])
            return member, model or ""
    return None
