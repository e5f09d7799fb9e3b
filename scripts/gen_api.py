"""Writes docs/api.md from the OpenAPI document and the table of faults; a test fails while they differ.

.venv/bin/python scripts/gen_api.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.http.endpoint import Endpoint, Parameter
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.openapi.document import STATUSES, document
from codex_proxy.surfaces.errors import TABLE, row_of

TARGET = Path(__file__).resolve().parent.parent / "docs" / "api.md"
MAX_CHOICES = 5
"""The default of PROXY_MAX_CHAT_CHOICES."""

HEAD = """# API reference

*Written by `scripts/gen_api.py` from the OpenAPI document: change `codex_proxy/http/endpoints.py`, then run it.*

A server publishes the document of what it serves at `/openapi.json` (OpenAPI 3.1; no key needed). Its schemas of
request bodies are made from the very models that read them; tests hold the server to it.

- **Base**: `http://127.0.0.1:11435/v1`. Every path below is served with `/v1` and without it, but for those of the
  [server itself](#the-server-itself).
- **Key**: `Authorization: Bearer KEY`, where the server wants one. A key sees only what it has made itself.
- **Bodies** are `application/json`. Unknown fields are ignored; null is as good as leaving a field out.
- **Streams** are server-sent events. Chat: `data:` lines, at the end `data: [DONE]`. Responses: `event:` and `data:`,
  at the end `event: done`. Lines that begin with a colon are comments that keep a silent connection open.

What each surface promises in particular, with the tests: [contract.md](contract.md),
[responses.md](responses.md), [tools.md](tools.md).
"""

SENT = (
    ("`Authorization`", "`Bearer KEY`"),
    (
        "`x-request-id`",
        "the client's own name for the request, up to 128 visible ASCII characters; it comes back, and is in the log",
    ),
    (
        "`X-Codex-Mode`",
        "`model`: the plain model; `agent`: the agent at work in its folder. It never widens what the server allows",
    ),
    (
        "`X-Codex-Workdir`",
        "the folder in which an agent turn works, inside of the configured roots; another one is a 400",
    ),
    (
        "`X-Codex-Sandbox`",
        "what an agent turn's commands may do, no more than the server and the key allow",
    ),
    ("`X-Codex-Activity`", "`items`: what the agent does as items of type `codex:activity` (Responses)"),
    ("`x-no-keepalive`", "`1`: no comments in a silent stream (chat; also the query `no_keepalive=1`)"),
)
TOLD = (
    ("`x-request-id`", "with every reply"),
    (
        "`x-codex-agent`",
        "the agent that the turn was asked of, with the answers of turns and with the errors of turns that failed; "
        "of an upstream that has a `fallback`, `x-codex-upstream` names the one that answered",
    ),
    (
        "`x-codex-mode`",
        "`agent`: the agent has no plain model, so the request with tools was a read-only agent turn",
    ),
    ("`x-codex-ignored-params`", "parameters that were accepted and change nothing, separated by commas"),
    (
        "`x-codex-passed-params`",
        "parameters that this server does not know and has passed on to the agent's server, separated by commas",
    ),
    (
        "`x-codex-estimated`",
        "`true`: the answer of `count_tokens` is an estimate, and no less than the truth",
    ),
    (
        "`x-codex-history`",
        "`flattened`: the agent takes no history, so it was told as one text; `system-as-user`: the model takes no "
        "system prompt, so the user says it",
    ),
    (
        "`x-codex-uncertain`",
        "what the agent does not vouch for: `usage` may be an estimate, `finish_reason` is `stop` also where the "
        "answer was cut, `sandbox`: none of the system held what an agent turn ran",
    ),
    (
        "`x-codex-empty`",
        "why an answer that did not fail has no text, refusal or call: `no-output` (the model said nothing), "
        "`reasoning-only`, `activity-only` (the agent worked, and said nothing), `stop-sequence` (the answer began "
        "with it). Without a reason an empty answer is an error. Not sent with a stream that has begun",
    ),
    ("`x-codex-upstream`", "of several upstreams the one whose answer this is"),
    ("`x-codex-attempts`", "requests to upstreams that this answer took"),
    (
        "`x-ratelimit-limit-requests`, `x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests`",
        "where there is a limit of requests a minute",
    ),
    ("`Retry-After`", "seconds, with a 429 or 503 whose end is known"),
    ("`Allow`", "the methods of the path, with a 405"),
    (
        "`X-Conc-Before`, `X-Conc-After`, `X-Conc-Limit`",
        "the guard of streams, where PROXY_TEST_ENDPOINTS is on",
    ),
)

DOCUMENT = document(ENDPOINTS, max_choices=MAX_CHOICES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


# --- a schema in words ----------------------------------------------------------------------------


def words_of(schema: dict[str, Any]) -> str:
    """What a value may be, in words; null is left out, since it may stand everywhere."""
    if "anyOf" in schema:
        kinds = [words_of(each) for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return _named(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " ".join(f"`{word}`" for word in schema["enum"] if word != "")
    if "const" in schema:
        return f"`{str(schema['const']).lower() if isinstance(schema['const'], bool) else schema['const']}`"
    kind = str(schema.get("type", "anything"))
    if kind == "array":
        return f"array of {words_of(schema['items'])}" + _bounds(schema, "Items")
    if kind in ("integer", "number"):
        return kind + _range(schema)
    if kind == "string":
        pattern = f" like `{schema['pattern']}`" if "pattern" in schema else ""
        return f"string{pattern}" + _bounds(schema, "Length")
    return kind


def _named(name: str) -> str:
    """A component: by its `type` or `role` where it has one, as its bare kind where it has none."""
    schema = SCHEMAS[name]
    for field in ("type", "role"):
        marker = schema.get("properties", {}).get(field)
        if marker is not None and field in schema.get("required", ()):
            return words_of(marker)
    fields = ", ".join(f"`{field}`" for field in schema.get("properties", {}))
    return f"object ({fields})" if fields else "object"


def _range(schema: dict[str, Any]) -> str:
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if abs(most) >= 2**31 - 1:
        return f" from {least:g}" if abs(least) < 2**31 else ""
    return f" from {least:g} to {most:g}"


def _bounds(schema: dict[str, Any], what: str) -> str:
    most = schema.get(f"max{what}")
    return "" if most is None else f", at most {most}"


# --- the parts of the page ------------------------------------------------------------------------


def title(endpoint: Endpoint) -> str:
    """The method and the path, with `/v1` where it is served so."""
    return f"`{endpoint.method} {'/v1' if endpoint.versioned else ''}{endpoint.path}`"


def section(endpoint: Endpoint) -> str:
    """One endpoint."""
    parts = [
        f"### {title(endpoint)}",
        endpoint.summary + (f" {endpoint.description}" if endpoint.description else ""),
    ]
    if endpoint.parameters:
        rows = [_parameter(each) for each in endpoint.parameters]
        parts.append(table(("parameter", "in", "values", "meaning"), rows))
    if endpoint.body is not None:
        parts.append(_body(endpoint))
    return "\n\n".join(parts)


def _parameter(parameter: Parameter) -> tuple[str, ...]:
    return f"`{parameter.name}`", parameter.place, words_of(parameter.schema), parameter.description


def _body(endpoint: Endpoint) -> str:
    schema = SCHEMAS[endpoint.body or ""]
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", words_of(each), "yes" if name in required else "")
        for name, each in schema["properties"].items()
    ]
    optional = "" if endpoint.body_required else " It may be left out."
    words = f"{endpoint.body_description}{optional}".strip()
    return table(("field", "values", "required"), rows) + (f"\n\n{words}" if words else "")


def overview() -> str:
    rows = [(title(each), each.summary) for each in ENDPOINTS]
    return table(("", ""), rows)


def errors() -> str:
    rows = []
    for kind in TABLE:
        chat, other = (row_of(Failure(kind=kind, message=""), surface) for surface in ("chat", "responses"))
        status = (
            str(chat.status) if chat.status == other.status else f"{chat.status} (Responses: {other.status})"
        )
        type_ = f"`{chat.type}`" if chat.type == other.type else f"`{chat.type}` (Responses: `{other.type}`)"
        rows.append((status, type_, f"`{chat.code}`" if chat.code else "the field's own", MEANINGS[kind]))
    return table(("status", "type", "code", "means"), rows)


MEANINGS = {
    FaultKind.INVALID_REQUEST: "the request is wrong; `param` names the field",
    FaultKind.REJECTED_BY_PROVIDER: "the model's provider refuses what is asked",
    FaultKind.CONTEXT_LENGTH_EXCEEDED: "the conversation is too long for the model",
    FaultKind.INVALID_API_KEY: "no key, or one that is not this server's",
    FaultKind.AGENT_NOT_AUTHENTICATED: "nobody is signed in to the agent: `codex login`",
    FaultKind.NOT_ALLOWED: "the key, the host name, the web page or the reverse proxy may not do this",
    FaultKind.MODEL_NOT_FOUND: "there is no such model",
    FaultKind.NOT_FOUND: "there is no such path or object, or it is another key's",
    FaultKind.METHOD_NOT_ALLOWED: "the path does not take this method",
    FaultKind.REQUEST_TOO_LARGE: "the body is larger than PROXY_BODY_LIMIT",
    FaultKind.HEADERS_TOO_LARGE: "the head of the request is too large",
    FaultKind.UNSUPPORTED_MEDIA_TYPE: "the body is not `application/json`",
    FaultKind.RATE_LIMITED: "too many requests a minute",
    FaultKind.CONCURRENCY_EXCEEDED: "too many at once",
    FaultKind.AGENT_RATE_LIMITED: "the agent's provider wants a pause",
    FaultKind.USAGE_LIMIT_REACHED: "the agent's account is used up for now: see `GET /v1/usage/limits`",
    FaultKind.INSUFFICIENT_QUOTA: "the agent's account has no credit",
    FaultKind.SPAWN_FAILED: "the agent cannot be started",
    FaultKind.AGENT_CRASHED: "the agent ended in the middle of a turn",
    FaultKind.AGENT_PROTOCOL: "the agent said something that it should not",
    FaultKind.AGENT_MISCONFIGURED: "the agent's own configuration is wrong",
    FaultKind.INTERNAL: "a fault of this server; the log has it under the request's id",
    FaultKind.UPSTREAM_UNAUTHORIZED: "the provider refuses the agent's sign-in",
    FaultKind.UPSTREAM_ERROR: "the provider failed",
    FaultKind.UPSTREAM_DISCONNECTED: "the provider ended the connection",
    FaultKind.UPSTREAM_UNREACHABLE: "the provider cannot be reached",
    FaultKind.UNAVAILABLE: "not now: the store is locked, its disk is full, or the agent is not there",
    FaultKind.STOPPING: "the server stops; it begins no further turn",
    FaultKind.UPSTREAM_TIMEOUT: "the provider took too long",
    FaultKind.TIMED_OUT: "the turn took too long",
}


def page() -> str:
    """The whole file."""
    parts = [HEAD, overview()]
    for chapter in dict.fromkeys(each.chapter for each in ENDPOINTS):
        parts.append(f"## {chapter}")
        parts += [section(each) for each in ENDPOINTS if each.chapter == chapter]
    turn = ", ".join(map(str, STATUSES["turn"]))
    parts += [
        "## Headers\n\nOf a request:\n\n" + table(("header", "meaning"), SENT),
        "Of a reply:\n\n" + table(("header", "meaning"), TOLD),
        "## Errors\n\n"
        'Every refusal is `{"error": {"message", "type", "param", "code"}}`, with all four keys. Before the first '
        f"byte it has a status ({turn}), for streams too; after it, it is a frame: of chat the same object and then "
        "`[DONE]`, of Responses the events `error` and `response.failed`. Where the provider gave a code of its own, "
        "that one is told. Bytes that are not HTTP get the same shape, and the connection is closed.",
        errors(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), "utf-8")
