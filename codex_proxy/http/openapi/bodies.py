"""The JSON schemas of request bodies, from the pydantic models, without values that are always refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, get_args

from pydantic import BaseModel

from codex_proxy.core.options import OPTIONS, Api, Option
from codex_proxy.http.endpoint import NULL, Schema
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.conversations import AddItemsBody, CreateBody, UpdateBody
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.ollama.embeddings import OllamaEmbeddingsRequest, OllamaEmbedRequest
from codex_proxy.surfaces.ollama.wire import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from codex_proxy.surfaces.responses.parse import CONVERSATION_PREFIX
from codex_proxy.surfaces.responses.wire import CompactRequest, ContextFields, Include, ResponseRequest

ALWAYS_REFUSED: Final = frozenset(
    {"ChatAudioPart", "AudioPart", "ChatOtherPart", "ChosenOpenAIs", "ContainerEnvironment", "OpenAIsTool"}
)
"""Members of unions that exist only for errors."""

_CONVERSATION_ID: Final[Schema] = {"type": "string", "pattern": f"^{CONVERSATION_PREFIX}"}
_CONVERSATION: Final[Schema] = {
    "anyOf": [_CONVERSATION_ID, {"$ref": "#/components/schemas/ConversationId"}, NULL]
}
_INCLUDES: Final = [name for name in get_args(Include) if name != "message.output_text.logprobs"]

CHANGED_SCHEMAS: Final[dict[tuple[str, str], Schema]] = {
    ("ChatRequest", "logprobs"): {"anyOf": [{"const": False}, {"const": 0}, NULL]},
    ("ChatRequest", "top_logprobs"): NULL,
    ("ChatRequest", "audio"): NULL,
    ("ChatRequest", "modalities"): {"anyOf": [{"type": "array", "items": {"const": "text"}}, NULL]},
    ("ChatGivenFile", "file_id"): NULL,
    ("FilePart", "file_id"): NULL,
    ("FilePart", "file_url"): NULL,
    ("ChatGivenFile", "file_data"): {"type": "string"},
    ("FilePart", "file_data"): {"type": "string"},
    ("ConversationId", "id"): _CONVERSATION_ID,
    ("ResponseRequest", "conversation"): _CONVERSATION,
    ("ContextFields", "conversation"): _CONVERSATION,
    ("CompactRequest", "conversation"): _CONVERSATION,
    ("ResponseRequest", "include"): {"anyOf": [{"type": "array", "items": {"enum": _INCLUDES}}, NULL]},
    ("ResponseRequest", "top_logprobs"): {"anyOf": [{"type": "integer", "const": 0}, NULL]},
    # Without a type an item that has a role or content is a message, so it is no reference.
    ("ItemReference", "type"): {"anyOf": [{"const": "item_reference"}, NULL]},
}
"""Schemas that differ from the model's, by schema and property."""

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
        found[name]["required"] = [*found[name].get("required", ()), "file_data"]
    found["ChatRequest"]["properties"]["n"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": max_choices}, NULL]
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
