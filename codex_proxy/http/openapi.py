"""The OpenAPI document. The schemas of request bodies are made from the pydantic models, without values that are
always refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec
from pydantic import BaseModel

from codex_proxy import __version__
from codex_proxy.core.options import OPTIONS, Api, Option
from codex_proxy.http.endpoint import (
    NULL_SCHEMA,
    TEXT_SCHEMA,
    AnswerType,
    Endpoint,
    Kind,
    Parameter,
    Schema,
    ref,
)
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.errors import Error, statuses
from codex_proxy.surfaces.messages.answer import AnthropicError
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.ollama.answer import OllamaError
from codex_proxy.surfaces.ollama.embeddings import OllamaEmbeddingsRequest, OllamaEmbedRequest
from codex_proxy.surfaces.ollama.wire import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from codex_proxy.surfaces.responses.conversations import AddItemsBody, CreateBody, UpdateBody
from codex_proxy.surfaces.responses.parse import CONVERSATION_PREFIX
from codex_proxy.surfaces.responses.wire import CompactRequest, ContextFields, Include, ResponseRequest

SERVERS: Final = [
    {"url": "/v1", "description": "The base URL that OpenAI's clients use."},
    {"url": "/", "description": "The same endpoints, for clients that leave out `/v1`."},
]
ROOT: Final = [{"url": "/"}]

STATUSES: Final[dict[Kind, tuple[int, ...]]] = {
    "open": (403, 500),
    "read": (400, 401, 403, 404, 500),
    "stored": (400, 401, 403, 404, 413, 415, 429, 500, 503),
    "turn": statuses("chat"),
}
"""Error statuses of each kind of endpoint in OpenAI's APIs; Anthropic's may have any."""
_ERRORS: Final[dict[str, AnswerType]] = {"messages": AnthropicError, "ollama": OllamaError}
"""Error types of the APIs that do not use OpenAI's."""
_OVERLOADED: Final = 529
_PHRASES: Final = {499: "Cancelled", _OVERLOADED: "Overloaded"}
"""Phrases of statuses for which HTTP has none."""

_DESCRIPTION: Final = (
    "Local coding agents behind the APIs of OpenAI, Anthropic and Ollama. Unknown fields of bodies are ignored; null "
    "means the same as a missing field. After a stream has begun, an error is sent as an event of it: see docs/api.md."
)
TURN_HEADERS: Final = {
    "x-codex-agent": "The agent that ran the turn.",
    "x-codex-ignored-params": "Parameters of the request that have no effect, separated by commas; on a WebSocket "
    "a field of the last event.",
    "x-codex-mode": "`agent`: the agent has no plain model, so a request with tools was run as a read-only agent turn.",
    "x-codex-passed-params": "Unknown parameters that were passed to the upstream, separated by commas.",
    "x-codex-changed-params": "What the upstream refused, so that it was left out or sent in another form, "
    "separated by commas.",
    "x-codex-history": "`flattened`: the agent accepts no history, so the conversation was sent as one prompt. "
    "`system-as-user`: the model accepts no system prompt, so it was sent as a user message.",
    "x-codex-uncertain": "What is uncertain about the answer. `usage`: the token counts may be estimates; what is "
    "known only at the end of a stream, `estimated` in its usage says, in Ollama's API a field of the last line. "
    "`finish_reason`: it is `stop` even if the answer was cut off. `sandbox`: no sandbox confined the agent's "
    "commands.",
    "x-codex-empty": "Why a successful answer is empty: `no-output` (the model wrote nothing), `reasoning-only`, "
    "`activity-only` (the agent only ran tools), `stop-sequence` (the answer began with one). Also with a text: "
    "`cancelled` (the agent itself ended its turn early; what it had written is the answer). In a stream that has "
    "begun, a comment has the reason, on a WebSocket and in Ollama's API a field of the last event or line.",
    "x-codex-declined": "What the agent asked permission for and did not get, separated by commas: `command`, "
    "`file_change`, `mcp` (a tool of an MCP server), `permission` (anything else), `form`. In a stream that has begun, "
    "a comment has it, on a WebSocket and in Ollama's API a field of the last event or line.",
    "x-codex-same-folder": "At the creation of a session: other sessions of the key in the same folder, the newest "
    "first, separated by commas. They may change each other's files.",
    "x-codex-upstream": "The upstream that answered, if there are several.",
    "x-codex-route": "The table `[routes.NAME]` of the settings that chose the model.",
    "x-codex-attempts": "The number of requests to upstreams for this answer.",
}
_CHOICE: Final = (
    "With `OpenAI-Beta` OpenAI's API answers, with `anthropic-version` or `x-api-key` Anthropic's."
)
_LIMIT_HEADERS: Final = {
    "x-ratelimit-limit-requests": "Maximum requests per minute, if there is a limit.",
    "x-ratelimit-remaining-requests": "Requests left in this minute.",
    "x-ratelimit-reset-requests": "Time until the limit is fully available again: `1m30s`, `12.5s`, `340ms`.",
}
_WAITING: Final = (429, 503, _OVERLOADED)


def document(endpoints: Iterable[Endpoint], *, max_choices: int) -> Schema:
    """Returns the OpenAPI document. `max_choices` is the largest `n`."""
    endpoints = tuple(endpoints)
    types = [Error, AnthropicError, *(each for endpoint in endpoints for each in _types_of(endpoint))]
    schemas, components = _answer_schemas(types)
    paths: dict[str, Schema] = {}
    for endpoint in endpoints:
        item = paths.setdefault(endpoint.path, {} if endpoint.versioned else {"servers": ROOT})
        method = endpoint.method.lower()
        operation = _operation(endpoint, schemas)
        item[method] = _of_both(item[method], operation) if method in item else operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "codex-proxy", "version": __version__, "description": _DESCRIPTION},
        "servers": SERVERS,
        "security": [{"bearer": []}, {"api_key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": body_schemas(max_choices=max_choices) | _own_bodies(endpoints) | components,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of this server, if it requires one.",
                },
                "api_key": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "x-api-key",
                    "description": "The same key, in the header that Anthropic's clients use.",
                },
            },
            "headers": {
                "x-request-id": _header("The client's own id, or one that the server made. It is in the log.")
            },
        },
    }


def _own_bodies(endpoints: Iterable[Endpoint]) -> dict[str, Schema]:
    """Returns the schemas of the bodies of parts, whose inner names begin with the chapter."""
    found: dict[str, Schema] = {}
    for endpoint in endpoints:
        if isinstance(endpoint.body, type):
            found |= _schemas_of(endpoint.body, endpoint.chapter.replace(" ", ""))
    return found


def _answer_schemas(types: Iterable[AnswerType]) -> tuple[dict[AnswerType, Schema], dict[str, Schema]]:
    known = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(known, ref_template="#/components/schemas/{name}")
    for component in components.values():
        component.pop("title", None)
        if "description" in component:
            component["description"] = " ".join(component["description"].split())
    return dict(zip(known, schemas, strict=True)), components


def _types_of(endpoint: Endpoint) -> Iterator[AnswerType]:
    for answer in endpoint.answers.values():
        if not isinstance(answer, str):
            yield from answer if isinstance(answer, tuple) else (answer,)
    if endpoint.streams is not None:
        yield endpoint.streams
    if endpoint.errors in _ERRORS:
        yield _ERRORS[endpoint.errors]


def _operation(endpoint: Endpoint, schemas: dict[AnswerType, Schema]) -> Schema:
    found: Schema = {"operationId": endpoint.name, "summary": endpoint.summary}
    if endpoint.description:
        found["description"] = endpoint.description
    if endpoint.kind == "open":
        found["security"] = []
    parameters = [_parameter(each) for each in endpoint.all_parameters]
    if endpoint.beta:
        parameters.append(_beta(endpoint.beta))
    if parameters:
        found["parameters"] = parameters
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": endpoint.body_required,
            **({"description": endpoint.body_description} if endpoint.body_description else {}),
            "content": {_body_type(endpoint): {"schema": ref(endpoint.body_name)}},
        }
    found["responses"] = _answers(endpoint, schemas)
    return found


def _of_both(first: Schema, second: Schema) -> Schema:
    """Returns the operation of two vendors that have the same path: what one of them takes and answers."""
    parameters: dict[tuple[str, str], Schema] = {}
    for each in (*first.get("parameters", ()), *second.get("parameters", ())):
        key = each["name"], each["in"]
        # The vendor that has no such parameter takes any value.
        loose = {"required": False, "schema": TEXT_SCHEMA} if each["in"] != "path" else {}
        parameters[key] = parameters[key] | {"schema": each["schema"]} if key in parameters else each | loose
    bodies = [each["requestBody"] for each in (first, second) if "requestBody" in each]
    return {
        **first,
        "description": f"{_CHOICE} {first['summary']} {second['summary']}",
        "parameters": [*parameters.values()],
        **({"requestBody": {**bodies[0], "content": _one_content(bodies)}} if bodies else {}),
        "responses": {
            status: _one_response(
                [each["responses"][status] for each in (first, second) if status in each["responses"]]
            )
            for status in sorted({*first["responses"], *second["responses"]})
        },
    }


def _one_response(responses: list[Schema]) -> Schema:
    headers = {name: each for response in responses for name, each in response["headers"].items()}
    return {
        "description": responses[0]["description"],
        "headers": headers,
        "content": _one_content(responses),
    }


def _one_content(given: list[Schema]) -> Schema:
    """Returns the content of either."""
    schemas = [each["content"]["application/json"]["schema"] for each in given]
    return {"application/json": {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def _body_type(endpoint: Endpoint) -> str:
    return (
        "multipart/form-data"
        if endpoint.takes_form and isinstance(endpoint.body, type)
        else "application/json"
    )


def _parameter(parameter: Parameter) -> Schema:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.description,
        # An object in the query is one parameter for each of its keys: `name[key]=value`.
        **({"style": "deepObject"} if parameter.schema.get("type") == "object" else {}),
        "schema": parameter.schema,
    }


def _beta(value: str) -> Schema:
    return {
        "name": "OpenAI-Beta",
        "in": "header",
        "required": True,
        "description": "The API is in beta. The official SDKs send the header.",
        "schema": {"const": value},
    }


def _answers(endpoint: Endpoint, schemas: dict[AnswerType, Schema]) -> dict[str, Schema]:
    found = {status: _answer(endpoint, answer, schemas) for status, answer in endpoint.answers.items()}
    anthropic = endpoint.errors == "messages"
    body = schemas[_ERRORS.get(endpoint.errors, Error)]
    if endpoint.also_anthropic:
        body = {"anyOf": [body, schemas[AnthropicError]]}
    for status in statuses("messages") if anthropic else _statuses(endpoint):
        found.setdefault(str(status), _refusal(status, body))
    return found


def _statuses(endpoint: Endpoint) -> tuple[int, ...]:
    """Returns the error statuses of an endpoint in OpenAI's format. In the Agents API a body that cannot be read is a
    400, what is at work or archived cannot be changed or deleted, and a key of a request serves no other one.
    """
    found = STATUSES[endpoint.kind]
    if endpoint.errors != "agents":
        return found
    has_key = any(each.name == "Idempotency-Key" for each in endpoint.parameters)
    conflict = (409,) if endpoint.method != "GET" and ("{" in endpoint.path or has_key) else ()
    return tuple(sorted({*found, *conflict} - {413, 415}))


def _answer(endpoint: Endpoint, answer: AnswerType, schemas: dict[AnswerType, Schema]) -> Schema:
    content: dict[str, Any] = {}
    if isinstance(answer, str):
        content = {answer: {"schema": TEXT_SCHEMA}} if answer else {}
    elif isinstance(answer, tuple):
        content["application/json"] = {"schema": {"anyOf": [schemas[each] for each in answer]}}
    else:
        content["application/json"] = {"schema": schemas[answer]}
    if endpoint.streams is not None:
        # OpenAPI 3.1 cannot describe the schema of one event.
        content[endpoint.stream_type] = {"x-event-schema": schemas[endpoint.streams]}
    named = TURN_HEADERS if endpoint.kind == "turn" else ("x-codex-ignored-params",) if endpoint.body else ()
    headers = {name: _header(TURN_HEADERS[name]) for name in named}
    if endpoint.kind == "turn":
        headers |= {name: _header(words) for name, words in _LIMIT_HEADERS.items()}
    return {
        "description": endpoint.summary,
        "headers": {"x-request-id": {"$ref": "#/components/headers/x-request-id"}, **headers},
        **({"content": content} if content else {}),
    }


def _refusal(status: int, body: Schema) -> Schema:
    headers: Schema = {"x-request-id": {"$ref": "#/components/headers/x-request-id"}}
    if status in _WAITING:
        headers["Retry-After"] = _header("Seconds to wait before the next attempt.")
    return {
        "description": _PHRASES.get(status) or HTTPStatus(status).phrase,
        "headers": headers,
        "content": {"application/json": {"schema": body}},
    }


def _header(words: str) -> Schema:
    return {"description": words, "schema": TEXT_SCHEMA}


ALWAYS_REFUSED: Final = frozenset(
    {"ChatAudioPart", "AudioPart", "ChatOtherPart", "ChosenOpenAIs", "ContainerEnvironment", "OpenAIsTool"}
)
"""Members of unions that exist only for errors."""

_CONVERSATION_ID: Final[Schema] = {"type": "string", "pattern": f"^{CONVERSATION_PREFIX}"}
_CONVERSATION: Final[Schema] = {
    "anyOf": [_CONVERSATION_ID, {"$ref": "#/components/schemas/ConversationId"}, NULL_SCHEMA]
}
_INCLUDES: Final = [name for name in get_args(Include) if name != "message.output_text.logprobs"]

CHANGED_SCHEMAS: Final[dict[tuple[str, str], Schema]] = {
    ("ChatRequest", "logprobs"): {"anyOf": [{"const": False}, {"const": 0}, NULL_SCHEMA]},
    ("ChatRequest", "top_logprobs"): NULL_SCHEMA,
    ("ChatRequest", "audio"): NULL_SCHEMA,
    ("ChatRequest", "modalities"): {"anyOf": [{"type": "array", "items": {"const": "text"}}, NULL_SCHEMA]},
    ("FilePart", "file_url"): NULL_SCHEMA,
    ("ConversationId", "id"): _CONVERSATION_ID,
    ("ResponseRequest", "conversation"): _CONVERSATION,
    ("ContextFields", "conversation"): _CONVERSATION,
    ("CompactRequest", "conversation"): _CONVERSATION,
    ("ResponseRequest", "include"): {"anyOf": [{"type": "array", "items": {"enum": _INCLUDES}}, NULL_SCHEMA]},
    ("ResponseRequest", "top_logprobs"): {"anyOf": [{"type": "integer", "const": 0}, NULL_SCHEMA]},
    # Without a type an item that has a role or content is a message, so it is no reference.
    ("ItemReference", "type"): {"anyOf": [{"const": "item_reference"}, NULL_SCHEMA]},
}
"""Schemas that differ from the model's, by schema and property."""

_GIVEN_DATA, _GIVEN_ID = (
    {"properties": {name: TEXT_SCHEMA}, "required": [name]} for name in ("file_data", "file_id")
)
NOT_WITHOUT_TYPE: Final[Schema] = {
    "anyOf": [
        {"properties": {"type": {"const": "item_reference"}}, "required": ["type"]},
        {"not": {"anyOf": [{"required": ["role"]}, {"required": ["content"]}]}},
    ]
}


REQUESTS: Final[Mapping[Api, tuple[str, ...]]] = {
    "chat": ("ChatRequest",),
    "responses": ("ResponseRequest",),
    "messages": ("MessagesRequest",),
    "ollama": ("OllamaChatRequest", "OllamaGenerateRequest"),
}
"""The schemas of requests for turns, without the one that is passed on."""


def body_schemas(*, max_choices: int) -> dict[str, Schema]:
    """Returns the schemas by name. `max_choices` is the largest `n`."""
    found: dict[str, Schema] = {}
    for model, prefix in (
        (ChatRequest, "Chat"),
        (MessagesRequest, "Messages"),
        (OllamaChatRequest, "Ollama"),
        (OllamaGenerateRequest, "Ollama"),
        (OllamaShowRequest, "Ollama"),
        (OllamaEmbedRequest, "Ollama"),
        (OllamaEmbeddingsRequest, "Ollama"),
        (ResponseRequest, ""),
        (ContextFields, ""),
        (CompactRequest, ""),
        (CreateBody, ""),
        (UpdateBody, ""),
        (AddItemsBody, ""),
    ):
        found |= _schemas_of(model, prefix)
    found["PassedBody"] = {"type": "object", "properties": {"model": {"type": "string"}}}
    for (name, field), schema in CHANGED_SCHEMAS.items():
        found[name]["properties"][field] = schema
    found["ItemReference"] |= NOT_WITHOUT_TYPE
    for name in ("ChatGivenFile", "FilePart"):
        found[name]["anyOf"] = [_GIVEN_DATA, _GIVEN_ID]
    found["ChatRequest"]["properties"]["n"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": max_choices}, NULL_SCHEMA]
    }
    for name in ALWAYS_REFUSED:
        del found[name]
    for option in OPTIONS:
        if option.needs and option.field != "model":
            _describe(option, found)
    return found


def _describe(option: Option, found: dict[str, Schema]) -> None:
    """Says, where the requests have the option, what an agent needs for it."""
    able = " or ".join(f"`{each}`" for each in option.needs)
    for api, name in option.names.items():
        path = f"options.{name}" if api == "ollama" and option.field == "sampling" else name
        for model in REQUESTS.get(api, ()):
            place = property_at(path, found[model], found)
            if place is not None:
                place["description"] = (
                    f"Needs an agent with the capability {able}; else `x-codex-ignored-params` names it."
                )


def property_at(path: str, schema: Schema, found: dict[str, Schema]) -> Schema | None:
    """Returns the schema of the field at a path; None where there is none, as in a model's name."""
    name, _, rest = path.partition(".")
    place: Schema | None = schema.get("properties", {}).get(name)
    if place is None or not rest:
        return place
    inner = [found[each["$ref"].rpartition("/")[2]] for each in place.get("anyOf", ()) if "$ref" in each]
    return property_at(rest, inner[0], found) if inner else None


def _schemas_of(model: type[BaseModel], prefix: str) -> dict[str, Schema]:
    whole = model.model_json_schema(ref_template="#/components/schemas/{model}")
    parts = {prefix + name: schema for name, schema in whole.pop("$defs", {}).items()}
    parts[model.__name__] = whole
    for schema in parts.values():
        for node in _nodes(schema):
            _adapt(node, prefix)
    return parts


def _nodes(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from _nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from _nodes(child)


def _adapt(node: Schema, prefix: str) -> None:
    if isinstance(node.get("title"), str):
        del node["title"]
    if node.get("default", 0) is None:
        del node["default"]  # null is what absence means, and not a value that is filled in
    if isinstance(node.get("$ref"), str):
        head, _, name = node["$ref"].rpartition("/")
        node["$ref"] = f"{head}/{prefix}{name}"
    # The members of a union are told apart by a word in them; several may fit an object that has none.
    members = node.pop("oneOf", None)
    if members is not None:
        node["anyOf"] = [
            each
            for each in members
            if prefix + str(each.get("$ref", "")).rpartition("/")[2] not in ALWAYS_REFUSED
        ]
