"""Lists of models in Anthropic's form. Raises `Fault`: MODEL_NOT_FOUND, or INVALID_REQUEST for the query."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Final, Literal, TypedDict

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.answer_types import Count
from codex_proxy.surfaces.body import integer_in
from codex_proxy.surfaces.models import ModelCatalog, listed_names, model_of, with_claude_prefix

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


class PageQuery(msgspec.Struct, frozen=True):
    """A request for at most `limit` models after `after_id`, or before `before_id`."""

    limit: int = DEFAULT_PAGE
    after_id: str = ""
    before_id: str = ""


def page_query(limit: str | None, after_id: str | None, before_id: str | None) -> PageQuery:
    size = DEFAULT_PAGE if limit is None else integer_in("limit", limit, 1, MAX_PAGE)
    if after_id and before_id:
        raise bad_request("Give 'after_id' or 'before_id', not both.", "before_id")
    return PageQuery(size, after_id or "", before_id or "")


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
    names: Sequence[str], query: PageQuery, catalog: ModelCatalog, created: int
) -> AnthropicModelList:
    """Returns a page of models. `created`: the time of each model."""
    first, last = 0, len(names)
    if query.after_id:
        first = _place(names, query.after_id, "after_id") + 1
    if query.before_id:
        last = _place(names, query.before_id, "before_id")
        first = max(first, last - query.limit)
    shown = names[first : min(last, first + query.limit)]
    return {
        "data": [model_body(name, catalog, created) for name in shown],
        "has_more": first > 0 if query.before_id else last - first > query.limit,
        "first_id": shown[0] if shown else None,
        "last_id": shown[-1] if shown else None,
    }


def _place(names: Sequence[str], cursor: str, param: str) -> int:
    try:
        return names.index(cursor)
    except ValueError:
        message = f"'{param}' is {excerpt(cursor)}, which is not a model of this list."
        raise bad_request(message, param) from None
