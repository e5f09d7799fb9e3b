"""Lists of models in Anthropic's form. Raises `Fault`: MODEL_NOT_FOUND, or INVALID_REQUEST for the query."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypedDict

from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.answers.renderer import Count
from codex_proxy.surfaces.models import ModelCatalog, listed_names, model_of, with_claude_prefix
from codex_proxy.surfaces.requests.body import integer_in

MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 20


class AnthropicModel(TypedDict):
    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: Count | None
    max_tokens: None


class AnthropicModelList(TypedDict):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


def anthropic_names(catalog: ModelCatalog, env: str) -> list[str]:
    """Returns all names; one without `claude` or `anthropic` also with `claude-` in front."""
    names = listed_names(catalog, env)
    # Claude Code lists no other names.
    return list(dict.fromkeys([*names, *map(with_claude_prefix, names)]))


def model_body(name: str, catalog: ModelCatalog, created: int) -> AnthropicModel:
    """Returns the object of a model. `created`: seconds since 1970."""
    model = model_of(name, catalog)
    shown = (model.display_name if model is not None else "") or name
    return {
        "type": "model",
        "id": name,
        "display_name": shown,
        "created_at": datetime.datetime.fromtimestamp(created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": model.context_window if model is not None else None,
        "max_tokens": None,
    }


def models_page(
    names: Sequence[str], query: Mapping[str, str], catalog: ModelCatalog, created: int
) -> AnthropicModelList:
    """Returns the page that `query` asks for: at most `limit` models after `after_id`, or before `before_id`.
    `created`: the time of each model.
    """
    limit = integer_in("limit", query["limit"], 1, MAX_PAGE) if "limit" in query else DEFAULT_PAGE
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise bad_request("Give 'after_id' or 'before_id', not both.", "before_id")
    first, last = 0, len(names)
    if after:
        first = _place(names, after, "after_id") + 1
    if before:
        last = _place(names, before, "before_id")
        first = max(first, last - limit)
    shown = names[first : min(last, first + limit)]
    return {
        "data": [model_body(name, catalog, created) for name in shown],
        "has_more": first > 0 if before else last - first > limit,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _place(names: Sequence[str], cursor: str, param: str) -> int:
    try:
        return names.index(cursor)
    except ValueError:
        message = f"'{param}' is {excerpt(cursor)}, which is not a model of this list."
        raise bad_request(message, param) from None
