"""How JSON differs from a type of an SDK: a field too many, one too few, a value of another type."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typing_extensions import TypeAliasType

MAY_LACK = {
    "Agent": {"compaction", "experimental"},
    "AgentSession": {"prompt_cache_options", "review"},
    "AgentToolResourceFunction": {"async"},
    "PersistedAgentToolResourceFunction": {"async"},
    "Turn": {"prompt_cache_options"},
    "AgentSessionTurnReasoningSummaryPartDoneEvent": {"status"},
}
"""The fields that OpenAI's SDK for JavaScript has as optional: all others have to be there, be it as null. The types
of the SDK for Python do not tell."""

_MAY_BE_NULL: Final[Mapping[str, set[str]]] = {
    "BetaEnvironment": {"archived_at", "description"},
    "BetaManagedAgentsAgent": {"archived_at", "description", "multiagent", "system"},
    "BetaManagedAgentsSession": {"archived_at", "budget", "title"},
    "BetaManagedAgentsSessionAgent": {"description", "multiagent", "system"},
    "BetaManagedAgentsSessionRefusalStopDetails": {"category", "explanation"},
    "BetaManagedAgentsSessionStatusIdleEvent": {"stop_details"},
    "BetaManagedAgentsSessionThread": {
        *("archived_at", "parent_thread_id", "stats", "usage", "workflow_run_id"),
    },
    "BetaManagedAgentsSessionThreadAgent": {"description", "system"},
    "BetaManagedAgentsSessionThreadCreatedEvent": {"workflow_run_id"},
    "BetaManagedAgentsSessionThreadStatusIdleEvent": {"stop_details"},
    "BetaManagedAgentsSpanModelRequestEndEvent": {"is_error"},
    "BetaManagedAgentsWebFetchToolConfig": {"url_sources"},
}
"""The fields that Anthropic's SDK for TypeScript has as required, and as null where there is nothing: they have to be
there, though the types of the SDK for Python give them a default."""


def differences(value: Any, annotation: Any, place: str = "") -> list[str]:
    """Returns what makes a value no value of a type, each with its place."""
    origin = get_origin(annotation)
    if isinstance(annotation, TypeAliasType):
        return differences(value, annotation.__value__, place)
    if origin is Annotated:
        return differences(value, get_args(annotation)[0], place)
    if origin in (Union, types.UnionType):
        members = [each for member in get_args(annotation) for each in _flat(member)]
        return min((differences(value, member, place) for member in _meant(value, members)), key=len)
    if origin is Literal:
        return (
            [] if value in get_args(annotation) else [f"{place}: {value!r} is none of {get_args(annotation)}"]
        )
    if origin is list:
        if not isinstance(value, list):
            return [f"{place}: no list"]
        (member,) = get_args(annotation)
        return [each for i, item in enumerate(value) for each in differences(item, member, f"{place}[{i}]")]
    if origin is dict:
        if not isinstance(value, dict):
            return [f"{place}: no object"]
        _, member = get_args(annotation)
        return [each for key, item in value.items() for each in differences(item, member, f"{place}.{key}")]
    if annotation is object or annotation is Any:
        return []
    if annotation is datetime and isinstance(value, str) and value.endswith("Z"):
        return []
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [*_of_model(value, annotation, place)]
    return [] if type(value) is annotation else [f"{place}: {value!r} is no {annotation}"]


def _of_model(value: Any, model: type[BaseModel], place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place}: no object"
        return
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    if model.__module__.startswith("anthropic."):
        may_lack = {name for name, field in fields.items() if not field.is_required()}
        may_lack -= _MAY_BE_NULL.get(model.__name__, set())
    else:
        may_lack = MAY_LACK.get(model.__name__, set()) | {"obfuscation"}
    for name in value.keys() - fields.keys():
        yield f"{place}.{name}: not in {model.__name__}"
    for name in fields.keys() - value.keys() - may_lack:
        yield f"{place}.{name}: missing in {model.__name__}"
    for name in fields.keys() & value.keys():
        yield from differences(value[name], fields[name].annotation, f"{place}.{name}")


def _flat(member: Any) -> Iterator[Any]:
    """Yields the members of a union inside of a union."""
    if get_origin(member) is Annotated:
        yield from _flat(get_args(member)[0])
    elif get_origin(member) in (Union, types.UnionType):
        for each in get_args(member):
            yield from _flat(each)
    else:
        yield member


def _meant(value: Any, members: list[Any]) -> list[Any]:
    """Returns the members of a union that have the value's `type`, if any has; else all."""
    named = [member for member in members if isinstance(value, dict) and value.get("type") in _types(member)]
    return named or members


def _types(member: Any) -> tuple[Any, ...]:
    if not (isinstance(member, type) and issubclass(member, BaseModel) and "type" in member.model_fields):
        return ()
    return get_args(member.model_fields["type"].annotation)
