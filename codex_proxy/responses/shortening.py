"""`truncation: auto`: the oldest turns are left out once, when the model says that its context is too long.

In: what a turn goes on from. Out: the same with the older half of it gone, cut in front of something that a user said,
so that no call loses its output. What was asked last is never left out.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.responses.context import Context, ContextItem
from codex_proxy.surfaces.responses.parse import ParsedResponse


def may_shorten(parsed: ParsedResponse, context: Context, failure: Failure | None) -> bool:
    """Whether a turn that failed like this is to be tried again with less."""
    return (
        failure is not None
        and failure.kind is FaultKind.CONTEXT_LENGTH_EXCEEDED
        and parsed.truncation == "auto"
        and shortened(context) is not None
    )


def shortened(context: Context) -> Context | None:
    """None where there is nothing to leave out, or something was left out already."""
    items = (*context.earlier, *context.fresh)
    cuts = [place for place, item in enumerate(items) if place and _is_users(item)]
    if not cuts or context.shortened:
        return None
    sizes = [_size(item) for item in items]
    half = sum(sizes) / 2
    cut = next((place for place in cuts if sum(sizes[:place]) >= half), cuts[-1])
    kept = len(context.earlier)
    return msgspec.structs.replace(
        context, earlier=context.earlier[cut:], fresh=context.fresh[max(0, cut - kept) :], shortened=True
    )


def _is_users(item: ContextItem) -> bool:
    return item.shown is not None and item.shown.get("role") == "user"


def _size(item: ContextItem) -> int:
    if item.model is not None:
        return len(bytes(item.model.item))
    return len(str(item.shown))
