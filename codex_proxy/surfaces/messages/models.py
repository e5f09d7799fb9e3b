"""The lists of models in the form of Anthropic's API.

Input: the catalog of models, and the query parameters of a page. Output: a body as a dict. Raises `Fault`:
MODEL_NOT_FOUND for an unknown name, INVALID_REQUEST for invalid query parameters.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.shown_text import excerpt
from codex_proxy.surfaces.models import ModelCatalog, listed_names, model_of, with_claude_prefix

MAX_PAGE: Final = 1000
DEFAULT_PAGE: Final = 20


class PageQuery(msgspec.Struct, frozen=True):
    """Selects a part of a list: at most `limit` entries after the entry `after_id`, or before the entry
    `before_id`. Both are names of models, and empty if the query does not have them; at most one of them is set.
    """

    limit: int = DEFAULT_PAGE
    after_id: str = ""
    before_id: str = ""


def page_query(limit: str | None, after_id: str | None, before_id: str | None) -> PageQuery:
    """Parses the query parameters of a request for a page of models; None: the parameter is absent. `after_id` and
    `before_id` are names of models. Raises `Fault` INVALID_REQUEST for an invalid `limit`, and if both `after_id`
    and `before_id` are given.
    """
    size = DEFAULT_PAGE
    if limit is not None:
        size = int(limit) if limit.isascii() and limit.isdecimal() and len(limit) <= len(str(MAX_PAGE)) else 0
        if not 1 <= size <= MAX_PAGE:
            raise bad_request(
                f"'limit' is {excerpt(limit)}; it must be a number from 1 to {MAX_PAGE}.", "limit"
            )
    if after_id and before_id:
        raise bad_request("Give 'after_id' or 'before_id', not both.", "before_id")
    return PageQuery(size, after_id or "", before_id or "")


def anthropic_names(catalog: ModelCatalog, env: str) -> list[str]:
    """Returns the names in the list of models. Claude Code only lists names with `claude` or `anthropic` in them,
    so each of the other names is listed a second time with the prefix `claude-`. `env`: see
    `surfaces.models.listed_names`.
    """
    names = listed_names(catalog, env)
    return list(dict.fromkeys([*names, *map(with_claude_prefix, names)]))


def model_body(name: str, catalog: ModelCatalog, created: int) -> dict[str, Any]:
    """Returns the object of one model, with the name that was asked for. `created` is in seconds since 1970. Raises
    `Fault` MODEL_NOT_FOUND if no model has this name, INVALID_REQUEST if models of several agents have it.
    """
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
) -> dict[str, Any]:
    """Returns one page of the models with these names, each of which must be the name of one model. `created` is
    the creation time that each model gets, in seconds since 1970. Raises `Fault` INVALID_REQUEST if `after_id` or
    `before_id` in `query` is none of the names.
    """
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
