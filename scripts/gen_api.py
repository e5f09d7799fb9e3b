"""Writes docs/api.md from the OpenAPI document and the table of faults; a test fails while they differ.

.venv/bin/python scripts/gen_api.py
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.http.endpoint import Endpoint, Parameter
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.openapi import STATUSES, TURN_HEADERS, document
from codex_proxy.surfaces.answers.fault_table import TABLE
from codex_proxy.surfaces.errors import row_of

TARGET = Path(__file__).resolve().parent.parent / "docs" / "api.md"
MAX_CHOICES = 5
"""The default of PROXY_MAX_CHAT_CHOICES."""

HEAD = """# API reference

*Written by `scripts/gen_api.py` from the OpenAPI document: change `codex_proxy/http/endpoints.py`, then run it.*

A server describes its API at `/openapi.json` (OpenAPI 3.1; no key needed). Tests compare its answers with it.

- **Base URL**: `http://127.0.0.1:11435/v1`. Every path works with and without `/v1`, except those of the
  [server itself](#the-server-itself).
- **Key**: `Authorization: Bearer KEY`, if the server requires one. A key sees only the objects that it created.
- **Bodies** are `application/json`. Unknown fields are ignored, and named in `x-codex-ignored-params`. Null means
  the same as a missing field.
- **Streams** are server-sent events. Lines that begin with a colon are comments that keep the connection open.
- **Headers and shared parameters** are explained [once](#parameters), at the end.

Each API's own page: [Chat Completions](chat-completions.md), [Responses](responses.md),
[the Agents API](agents-api.md), [Messages](messages.md), [tools](tools.md).
"""

SENT = (
    ("`Authorization`", "`Bearer KEY`"),
    ("`OpenAI-Beta`", "`agents=v1`, with every request of the [Agents API](#agents)."),
    (
        "`x-request-id`",
        "The client's id of the request, for answer and log: up to 128 visible ASCII characters.",
    ),
)
ANSWERED = (
    ("`x-request-id`", "With every answer."),
    *((f"`{name}`", meaning) for name, meaning in TURN_HEADERS.items()),
    ("`x-codex-estimated`", "`true`: the count of `count_tokens` is an estimate."),
    (
        "`x-ratelimit-limit-requests`, `x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests`",
        "If there is a limit of requests per minute.",
    ),
    ("`Retry-After`", "Seconds to wait, with a 429, 503 or 529 if the time is known."),
    ("`x-should-retry`", "`false`: the same request would fail again, or for more than a minute."),
    ("`Allow`", "The methods of the path, with a 405."),
    ("`X-Conc-Before`, `X-Conc-After`, `X-Conc-Limit`", "Open streams, if PROXY_TEST_ENDPOINTS is on."),
)


@cache
def whole_document() -> dict[str, Any]:
    """Returns the OpenAPI document of a server with every endpoint."""
    return document(ENDPOINTS, max_choices=MAX_CHOICES)


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = whole_document()["components"]["schemas"]
    return schemas


NOT_LISTED = "The page"
"""The chapter of endpoints that change with the page; the OpenAPI document has them."""

MANY = 10
"""A choice of more schemas than this is the one of input items, which has a section of its own."""

FEW = 3
"""A body with fewer fields has a table of its own, even if another endpoint's body has the same fields."""

EMPTY: dict[str, Any] = {}
"""The schema of an empty value: one of those of a field that is refused unless it is empty."""


def entries(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"- {name}: {meaning}" for name, meaning in rows)


# --- a schema in words ----------------------------------------------------------------------------


def words_of(schema: dict[str, Any]) -> str:
    """Returns in words what a value may be, without null, which every field may be."""
    if len(schema.get("anyOf", ())) > MANY and "$ref" in schema["anyOf"][0]:
        return "[item](#items)"
    return _in_words(schema)


def _in_words(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = [words_of(each) for each in schema["anyOf"] if each != {"type": "null"}]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in schema:
        return _component_name(schema["$ref"].rpartition("/")[2])
    if EMPTY in schema.get("enum", ()):
        return "null or empty"
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


def _component_name(name: str) -> str:
    """Returns the words for a component: its `type` or `role` if it has one, else its kind."""
    schema = _schemas()[name]
    for field in ("type", "role"):
        marker = schema.get("properties", {}).get(field)
        if marker is not None and marker.keys() & {"enum", "const"} and field in schema.get("required", ()):
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
    """Returns method and path, with `/v1` if the path has it."""
    return f"`{endpoint.method} {'/v1' if endpoint.versioned else ''}{endpoint.path}`"


def chapter(endpoints: Sequence[Endpoint]) -> Iterator[str]:
    """Yields the sections of the endpoints; consecutive ones with the same text share a section."""
    for text, alike in itertools.groupby(endpoints, text_of):
        yield "\n".join(f"### {title(each)}" for each in alike) + f"\n\n{text}"


def text_of(endpoint: Endpoint) -> str:
    """Returns the text about an endpoint: what it does, its parameters, and the fields of its body."""
    words = endpoint.summary + (f" {endpoint.description}" if endpoint.description else "")
    body = "" if endpoint.body is None else _body(endpoint)
    return "\n\n".join(filter(None, (words, _parameters(endpoint), body)))


def _is_shared(parameter: Parameter) -> bool:
    """Whether several endpoints have the parameter, so that it is described in a section of its own."""
    return sum(parameter in each.parameters for each in ENDPOINTS) > 1


def _parameters(endpoint: Endpoint) -> str:
    """Returns the names of the shared parameters, and a line for each of the endpoint's own."""
    listed = endpoint.parameters
    shared = ", ".join(f"`{each.name}`" for each in listed if _is_shared(each))
    own = [
        f"- `{each.name}` ({_values(each)}): {each.description}" for each in listed if not _is_shared(each)
    ]
    return "\n\n".join(filter(None, (f"Parameters: {shared}".strip(), "\n".join(own)))) if listed else ""


def _values(parameter: Parameter) -> str:
    return f"{parameter.place}, {words_of(parameter.schema)}"


def shared_parameters() -> str:
    """Returns the table of the parameters that several endpoints have."""
    shared = dict.fromkeys(
        (each.name, _values(each), each.description)
        for endpoint in ENDPOINTS
        for each in endpoint.parameters
        if _is_shared(each)
    )
    return "\n".join(f"- `{name}` ({values}): {meaning}" for name, values, meaning in shared)


def _fields(schema: dict[str, Any]) -> dict[str, str]:
    """Returns what the value of each field may be; required fields first."""
    required = schema.get("required", ())
    fields = {
        name: words_of(each) + (" (required)" if name in required else "")
        for name, each in schema["properties"].items()
    }
    return dict(sorted(fields.items(), key=lambda field: field[0] not in required))


def _body(endpoint: Endpoint) -> str:
    """Returns the fields of the body: those of one type together, or only the names if another endpoint has them
    too."""
    fields = _fields(_schemas()[endpoint.body_name])
    optional = "" if endpoint.body_required else " The body may be left out."
    words = f"{endpoint.body_description}{optional}".strip()
    before = [each for each in ENDPOINTS[: ENDPOINTS.index(endpoint)] if each.body]
    larger = [each for each in before if _has_fields(each, fields)]
    same = next((each for each in larger if len(_own_fields(each)) == len(fields)), None)
    if same is not None and same.body_description == endpoint.body_description:
        words = ""
    if not larger or len(fields) < FEW:
        kinds = {kind: [name for name in fields if fields[name] == kind] for kind in fields.values()}
        rows = [(", ".join(f"`{name}`" for name in names), kind) for kind, names in kinds.items()]
        fields_text = "Fields:\n\n" + "\n".join(f"- {names}: {kind}" for names, kind in rows)
    elif same is not None:
        left_out = [
            f"`{name}` may be left out." for name in fields if _own_fields(same)[name] != fields[name]
        ]
        fields_text = " ".join([f"The body is that of {title(same)}.", *left_out])
    else:
        names = ", ".join(f"`{name}`" for name in fields)
        fields_text = f"Fields, as of {title(larger[0])}: {names}."
    return fields_text + (f"\n\n{words}" if words else "")


def _own_fields(endpoint: Endpoint) -> dict[str, str]:
    return _fields(_schemas()[endpoint.body_name])


def _has_fields(endpoint: Endpoint, fields: dict[str, str]) -> bool:
    """Whether the endpoint's body has all of these fields, with the same values."""
    own = {name: kind.removesuffix(" (required)") for name, kind in _own_fields(endpoint).items()}
    return all(own.get(name) == kind.removesuffix(" (required)") for name, kind in fields.items())


def items() -> str:
    """Returns the sentence that lists the types of input items."""
    schema = _schemas()["AddItemsBody"]["properties"]["items"]["items"]
    return "An input item has one of these roles or types: " + _in_words(schema).replace(" or ", ", ") + "."


def errors() -> str:
    """Returns a line for each status and type, with its codes."""
    rows: dict[tuple[str, str], list[str]] = {}
    for kind in TABLE:
        chat, other = (row_of(Failure(kind=kind, message=""), surface) for surface in ("chat", "responses"))
        assert chat.status == other.status
        type_ = f"`{chat.type}`" if chat.type == other.type else f"`{chat.type}` (Responses: `{other.type}`)"
        code = f"`{chat.code}`: " if chat.code else ""
        rows.setdefault((str(chat.status), type_), []).append(code + MEANINGS[kind])
    return "\n".join(f"- {status} {type_}: {'; '.join(codes)}" for (status, type_), codes in rows.items())


MEANINGS = {
    FaultKind.INVALID_REQUEST: "`param` names the field",
    FaultKind.REJECTED_BY_PROVIDER: "the model's provider refused the request",
    FaultKind.CONTEXT_LENGTH_EXCEEDED: "the conversation is too long for the model",
    FaultKind.INVALID_API_KEY: "the key is missing or wrong",
    FaultKind.AGENT_NOT_AUTHENTICATED: "the agent is not signed in: `codex login`",
    FaultKind.NOT_ALLOWED: "not allowed for this key, host name, web page or reverse proxy",
    FaultKind.MODEL_NOT_FOUND: "the model does not exist",
    FaultKind.NOT_FOUND: "the path or object does not exist, or belongs to another key",
    FaultKind.METHOD_NOT_ALLOWED: "the path has other methods",
    FaultKind.CONFLICT: "the state of the object does not allow it",
    FaultKind.REQUEST_TOO_LARGE: "the body is larger than PROXY_BODY_LIMIT",
    FaultKind.HEADERS_TOO_LARGE: "more than 100 headers, or 32 KiB",
    FaultKind.UNSUPPORTED_MEDIA_TYPE: "the body is not `application/json`",
    FaultKind.RATE_LIMITED: "too many requests per minute",
    FaultKind.CONCURRENCY_EXCEEDED: "too many requests or streams at once",
    FaultKind.AGENT_RATE_LIMITED: "the agent's provider limits the rate",
    FaultKind.USAGE_LIMIT_REACHED: "the account's limit is reached: see `GET /v1/usage/limits`",
    FaultKind.INSUFFICIENT_QUOTA: "the account has no credit",
    FaultKind.CANCELLED: "the operator has cancelled the turn; do not send it again",
    FaultKind.SPAWN_FAILED: "the agent cannot be started",
    FaultKind.AGENT_CRASHED: "the agent's process ended during a turn",
    FaultKind.AGENT_PROTOCOL: "the agent sent an invalid message",
    FaultKind.AGENT_MISCONFIGURED: "the agent's configuration is wrong",
    FaultKind.INTERNAL: "a fault of this server; see its log",
    FaultKind.UPSTREAM_UNAUTHORIZED: "the provider refused the agent's credentials",
    FaultKind.UPSTREAM_ERROR: "the provider failed",
    FaultKind.UPSTREAM_DISCONNECTED: "the provider ended the connection",
    FaultKind.UPSTREAM_UNREACHABLE: "the provider cannot be reached",
    FaultKind.UNAVAILABLE: "the store is locked, its disk is full, or the agent is not available",
    FaultKind.STOPPING: "the server is stopping",
    FaultKind.UPSTREAM_TIMEOUT: "the provider took too long",
    FaultKind.TIMED_OUT: "the turn took too long",
}


def page() -> str:
    """Returns the whole file."""
    parts = [HEAD]
    listed = [each for each in ENDPOINTS if each.chapter != NOT_LISTED]
    for name in dict.fromkeys(each.chapter for each in listed):
        parts.append(f"## {name}")
        parts += chapter([each for each in listed if each.chapter == name])
    turn = ", ".join(map(str, STATUSES["turn"]))
    parts += [
        "## Items\n\n" + items(),
        "## Parameters\n\n" + shared_parameters(),
        "## Headers\n\nHeaders of requests, besides the parameters above:\n\n" + entries(SENT),
        "Headers of answers:\n\n" + entries(ANSWERED),
        "## Errors\n\n"
        'An error is `{"error": {"message", "type", "param", "code"}}`, always with all four keys. Before the first '
        f"byte of the answer it has a status ({turn}), also for streams. Later it is sent in the stream: in Chat "
        "Completions the same object and then `[DONE]`, in Responses the events `error` and `response.failed`. If the "
        "model's provider gave a code, `code` is that one. The [Agents API](agents-api.md#errors) has types and codes "
        "of its own.",
        errors(),
    ]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), "utf-8")
