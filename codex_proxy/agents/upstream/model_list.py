"""Reads a server's list of models: OpenAI's shape, and what others add."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final, TypeGuard

import msgspec

from codex_proxy.core.account import AgentModel
from codex_proxy.core.json_cost import is_too_costly
from codex_proxy.core.json_values import UNREADABLE, count_at, value_at

MAX_MODELS: Final = 5_000
_MAX_NAME_CHARS: Final = 200


def models_in(body: bytes) -> tuple[AgentModel, ...] | None:
    """Returns the models, the first as the default; None if the body is no list, or costs too much to decode."""
    if is_too_costly(body):
        return None
    try:
        value = json.loads(body)
    except UNREADABLE:
        return None
    listed = value.get("data") if isinstance(value, dict) else value
    if not isinstance(listed, list):
        return None
    models: dict[str, AgentModel] = {}
    for each in listed[:MAX_MODELS]:
        id = value_at(each, "id")
        if _is_name(id):
            owner = each.get("owned_by")
            models.setdefault(
                id,
                AgentModel(
                    id=id,
                    owned_by=owner if _is_name(owner) else "upstream",
                    context_window=_window_of(each),
                    is_default=not models,
                ),
            )
    return tuple(models.values())


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value.strip()) <= _MAX_NAME_CHARS and value.isprintable()


def _window_of(model: dict[str, Any]) -> int | None:
    names = ("max_model_len", "context_length", "max_context_length")
    found = (*(count_at(model, name) for name in names), count_at(model.get("meta"), "n_ctx"))
    return next(filter(None, found), None)


def models_of(wanted: Sequence[str], listed: Sequence[AgentModel]) -> tuple[AgentModel, ...]:
    """Returns the models to serve, the default first. `wanted`: names, and patterns with `*` for `listed`; empty:
    `listed`.
    """
    if not wanted:
        return tuple(listed)
    known = {model.id: model for model in listed}
    found: dict[str, AgentModel] = {}
    for name in wanted:
        fitting = [id for id in known if fnmatchcase(id, name)] if "*" in name else [name]
        for id in fitting:
            found.setdefault(id, known.get(id) or AgentModel(id=id, owned_by="upstream"))
    return tuple(
        msgspec.structs.replace(model, is_default=not index) for index, model in enumerate(found.values())
    )
