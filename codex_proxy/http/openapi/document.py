"""The OpenAPI document, put together from the table of operations, the models of bodies, and the answers' schemas.

In: the routes that a server has, and what of its settings shows in the schemas. Out: the document as a dict.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus
from typing import Any, Final

from codex_proxy import __version__
from codex_proxy.http.openapi.answers import TEXT, answer_schemas, ref
from codex_proxy.http.openapi.bodies import Schema, body_schemas
from codex_proxy.http.openapi.operations import OPERATIONS, ROOT_ONLY, STATUSES, Operation, Parameter

BOTH: Final = [
    {"url": "/v1", "description": "As OpenAI's clients have it."},
    {"url": "/", "description": "The same, for clients that leave `/v1` out."},
]
ROOT: Final = [{"url": "/"}]

_DESCRIPTION: Final = (
    "A local coding agent as an OpenAI endpoint. Unknown fields of bodies are accepted and ignored; null is as good as "
    "leaving a field out. A fault of a stream that has begun is a frame of it: see docs/api.md."
)
_TURN_HEADERS: Final = {
    "x-codex-agent": "The agent that answers.",
    "x-codex-ignored-params": "Parameters of the request that were accepted and change nothing.",
    "x-codex-history": "`flattened`: the agent takes no history, so it was told as one text.",
}
_LIMIT_HEADERS: Final = {
    "x-ratelimit-limit-requests": "Requests a minute, where there is a limit.",
    "x-ratelimit-remaining-requests": "What is left of them.",
    "x-ratelimit-reset-requests": "Until all of them are back: `1m30s`, `12.5s`, `340ms`.",
}
_WAITING: Final = (429, 503)


def document(served: Collection[tuple[str, str]], *, most_choices: int) -> Schema:
    """Of the operations in `served` (method and path, without `/v1`)."""
    paths: dict[str, Schema] = {}
    for (method, path), operation in OPERATIONS.items():
        if (method, path) not in served:
            continue
        item = paths.setdefault(path, {"servers": ROOT} if path in ROOT_ONLY else {})
        item[method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "codex-proxy", "version": __version__, "description": _DESCRIPTION},
        "servers": BOTH,
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": body_schemas(most_choices=most_choices) | answer_schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of this server's, where it wants one.",
                }
            },
            "headers": {"x-request-id": _header("The client's own, or one of ours: the log has it.")},
        },
    }


def _operation(operation: Operation) -> Schema:
    found: Schema = {"operationId": operation.name, "summary": operation.summary}
    if operation.words:
        found["description"] = operation.words
    if operation.kind == "open":
        found["security"] = []
    if operation.parameters:
        found["parameters"] = [_parameter(each) for each in operation.parameters]
    if operation.body is not None:
        found["requestBody"] = {
            "required": operation.body_required,
            **({"description": operation.body_words} if operation.body_words else {}),
            "content": {"application/json": {"schema": ref(operation.body)}},
        }
    found["responses"] = _answers(operation)
    return found


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        "schema": parameter.schema,
    }


def _answers(operation: Operation) -> dict[str, Schema]:
    found = {status: _answer(operation, schema) for status, schema in operation.answers.items()}
    for status in STATUSES[operation.kind]:
        found.setdefault(str(status), _refusal(status))
    return found


def _answer(operation: Operation, schema: Schema | str) -> Schema:
    content: dict[str, Any] = {}
    if isinstance(schema, str):
        content = {schema: {"schema": TEXT}} if schema else {}
    else:
        content["application/json"] = {"schema": schema}
    if operation.streams:
        # OpenAPI 3.1 has no word for the shape of one event.
        content["text/event-stream"] = {"x-event-schema": ref(operation.streams)}
    headers = (
        {name: _header(words) for name, words in _TURN_HEADERS.items()} if operation.kind == "turn" else {}
    )
    if operation.kind == "turn":
        headers |= {name: _header(words) for name, words in _LIMIT_HEADERS.items()}
    return {
        "description": operation.summary,
        "headers": {"x-request-id": {"$ref": "#/components/headers/x-request-id"}, **headers},
        **({"content": content} if content else {}),
    }


def _refusal(status: int) -> Schema:
    headers: Schema = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    if status in _WAITING:
        headers["Retry-After"] = _header("Seconds until it makes sense to try again.")
    return {
        "description": HTTPStatus(status).phrase,
        "headers": headers,
        "content": {"application/json": {"schema": ref("Error")}},
    }


def _header(words: str) -> Schema:
    return {"description": words, "schema": TEXT}
