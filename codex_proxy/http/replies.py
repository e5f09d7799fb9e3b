"""Makes responses: JSON, errors in OpenAI's or Anthropic's format, and the headers of a turn."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
import structlog
from aiohttp import web

from codex_proxy.admission.admit import FieldNames
from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import HistoryMessage
from codex_proxy.core.shown_text import trace_of
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.http.endpoint import ENDPOINT, REQUEST_ID
from codex_proxy.surfaces.errors import Surface, error_body, forbids_retry, retry_after, status_of

log = structlog.get_logger("codex_proxy.http")

CHALLENGE: Final = 'Bearer realm="codex-proxy"'
"""The value of `WWW-Authenticate`, for clients that send a key only after a challenge (RFC 6750)."""


def json_response(value: object, status: int = 200) -> web.Response:
    """Returns a response with the value as its JSON body. A lone surrogate, which a name of an agent may contain,
    becomes a question mark.
    """
    try:
        body = msgspec.json.encode(value)
    except UnicodeEncodeError:
        body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    return web.Response(body=body, content_type="application/json", status=status)


def log_unforeseen(error: BaseException) -> None:
    """Logs the type and place of an unexpected error. Its message is not logged, because it may contain a part of
    the request.
    """
    log.error("internal_error", **trace_of(error))


def errors_of(request: web.BaseRequest) -> Surface:
    """Returns the API (`chat`, `messages`, ...) in whose format an error of this request is answered."""
    endpoint = request.get(ENDPOINT)
    if (endpoint is None or endpoint.also_anthropic) and asks_anthropic(request):
        return "messages"
    return "chat" if endpoint is None else endpoint.errors


def asks_anthropic(request: web.BaseRequest) -> bool:
    """Whether the client uses Anthropic's API: the request has that API's version header, or its key in that API's
    header.
    """
    headers = request.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "Authorization" not in headers)


def fault_response(
    failure: Failure, request: web.BaseRequest, *, allow: str | None = None, request_id: str = ""
) -> web.Response:
    """Returns `failure` as a JSON error in the format of the request's endpoint, with its HTTP status and its
    headers (`Retry-After` and others). `allow` is the value of the header `Allow`, None to leave it out.
    `request_id` is used if the request has no id yet.
    """
    surface = errors_of(request)
    headers = {}
    seconds = retry_after(failure)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if forbids_retry(failure, surface):
        headers["x-should-retry"] = "false"
    if failure.kind is FaultKind.INVALID_API_KEY:
        headers["WWW-Authenticate"] = CHALLENGE
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status_of(failure, surface),
        body=error_body(failure, surface, request.get(REQUEST_ID, request_id)),
        content_type="application/json",
        headers=headers,
    )


def agent_headers(
    agent: Agent,
    turn: Turn,
    fields: FieldNames,
    ignored: Sequence[str],
    *,
    web_search: bool,
    parallel_calls: bool = False,
    continued: bool,
) -> dict[str, str]:
    """Returns the `x-codex-*` headers about how the agent ran a turn: the request fields that have no effect
    (`-ignored-params`), in which form the history reached the agent (`-history`), that a request with tools became
    an agent turn (`-mode`), and what the agent does not guarantee about the answer (`-uncertain`).

    `ignored` are fields that have no effect with any agent. Those of `fields` that the request uses and the agent
    does not support are added to them; `web_search` and `parallel_calls` (several tool calls in one answer) say
    whether the request uses these features. `continued`: the agent's session has already seen the earlier messages.
    """
    agent = agent_for(agent, turn.model)
    capabilities = agent.capabilities
    named = [name for name in ignored if not ("sampling" in capabilities and name in turn.sampling)]
    if web_search and not (turn.web_search and "web_search" in capabilities):
        named.append(fields.web_search)
    if turn.verbosity is not None and not ("verbosity" in capabilities and _model_of(turn, agent).verbosity):
        named.append(fields.verbosity)
    if parallel_calls and turn.tools and "parallel_calls" not in capabilities:
        named.append(fields.parallel_calls)
    if turn.model and "model_choice" not in capabilities and turn.model not in _own_models(agent):
        named.append("model")
    if "effort" in agent.missing_features:
        asked = {fields.effort: turn.effort or turn.summary, "service_tier": turn.service_tier}
        named += [field for field, value in asked.items() if value is not None]
    headers = {}
    if named:
        headers["x-codex-ignored-params"] = ", ".join(named)
    if "history" not in capabilities and not continued and _history_becomes_text(turn, capabilities):
        headers["x-codex-history"] = "flattened"
    elif "history" in capabilities and "system_prompt" not in capabilities and _has_instructions(turn):
        headers["x-codex-history"] = "system-as-user"
    if turn.tools and "client_tools" in capabilities and "plain_model" not in capabilities:
        headers["x-codex-mode"] = "agent"
    uncertain = _uncertain(turn, capabilities)
    if uncertain:
        headers["x-codex-uncertain"] = ", ".join(uncertain)
    return headers


def _model_of(turn: Turn, agent: Agent) -> AgentModel:
    """Returns the agent's model of a turn; if it is not listed, one of which nothing is known."""
    wanted = turn.model.removeprefix(f"{agent.name}{MODEL_SEPARATOR}")
    for model in agent.models():
        if model.id == wanted or (not wanted and (model.is_default or model.serves_unnamed)):
            return model
    return AgentModel(id=wanted)


def _own_models(agent: Agent) -> set[str]:
    """Returns the names with which requests can name the agent's models: each id, with and without the agent's name
    before it.
    """
    return {
        name for model in agent.models() for name in (model.id, f"{agent.name}{MODEL_SEPARATOR}{model.id}")
    }


def _uncertain(turn: Turn, capabilities: Collection[str]) -> list[str]:
    """Returns which properties of the answer the agent does not guarantee: `usage`, `finish_reason`, `sandbox`.
    Returns none of them for an answer that is sent to the client unchanged.
    """
    if turn.forwarded is not None:
        return []
    lacks = {
        "usage": "exact_usage" not in capabilities,
        "finish_reason": "stop_reasons" not in capabilities,
        "sandbox": turn.mode == "agent" and "sandbox" not in capabilities,
    }
    return [name for name, lacking in lacks.items() if lacking]


def _has_instructions(turn: Turn) -> bool:
    return any(isinstance(item, HistoryMessage) and item.role == "developer" for item in turn.history)


def _history_becomes_text(turn: Turn, capabilities: Collection[str]) -> bool:
    """For an agent that takes no history: whether earlier messages or instructions of this turn become a part of
    the prompt's text. A leading system prompt does not, if the agent takes one. `capabilities` are the agent's.
    """
    rest = list(turn.history)
    while (
        "system_prompt" in capabilities
        and rest
        and isinstance(rest[0], HistoryMessage)
        and rest[0].role == "developer"
    ):
        rest.pop(0)
    return len(rest) > 1


def agent_note(agent: Agent, turn: Turn) -> dict[str, object]:
    """Returns the name of the turn's agent as the log field `agent`; an empty dict if the server has a single
    agent.
    """
    return {"agent": agent_for(agent, turn.model).name} if agent.members else {}
