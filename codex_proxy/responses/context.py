"""Reads the context of a Responses request (its conversation or previous responses, and its own items), and makes the
turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from typing import TypeAlias

import msgspec

from codex_proxy.admission.admit import Containers
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.items import CODE_CALL, HistoryCall, HistoryItem, HistoryOutput
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn
from codex_proxy.runs.model_items import ModelItem, as_history, with_whole_calls
from codex_proxy.store.health import require_store, store_errors_as_faults
from codex_proxy.store.store import Store
from codex_proxy.store.values import ContextTooLarge, NotFinished, NotStored, StoredItem
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.requests.fields import MAX_NAMED
from codex_proxy.surfaces.responses import conversations as conversation_objects
from codex_proxy.surfaces.responses.client_tools import tools_in
from codex_proxy.surfaces.responses.compaction import compaction_turn
from codex_proxy.surfaces.responses.context import InputEstimate, ParsedContext
from codex_proxy.surfaces.responses.history import (
    HistoryEntry,
    history_entries,
    orphaned_outputs,
    outlasts_compaction,
)
from codex_proxy.surfaces.responses.items import (
    CLIENT_CALLS,
    ItemDict,
    references_of,
    resolve_references,
    with_ids,
)
from codex_proxy.surfaces.responses.output import without_container
from codex_proxy.surfaces.responses.parse import ParsedResponse, turn_of, with_earlier_updates
from codex_proxy.surfaces.responses.response_object import (
    previous_not_found,
    previous_too_large,
    references_too_large,
)
from codex_proxy.surfaces.responses.tools import join_tools

_part_of, _type_of, _model_of = attrgetter("part"), itemgetter("type"), attrgetter("model")
_dict_decoder = msgspec.json.Decoder(dict[str, object])
_model_item_decoder = msgspec.json.Decoder(ModelItem)


class ContextItem(msgspec.Struct, frozen=True):
    """An item as `shown` to clients (None if only the model sees it), and as the `model` generated it (None if not
    stored).
    """

    shown: ItemDict | None
    model: ModelItem | None = None


class Context(msgspec.Struct, frozen=True):
    """What the model gets: `earlier` items, oldest first, and the request's own."""

    earlier: tuple[ContextItem, ...] = ()
    fresh: tuple[ContextItem, ...] = ()
    """The request's own items, with references resolved."""
    input: tuple[StoredItem, ...] = ()
    """The request's own items, if they will be stored."""
    size: int = 0
    """The bytes of the items that were read from the store for it."""
    shortened: bool = False
    """Whether the oldest turns were left out."""


ContextRequest: TypeAlias = ParsedResponse | ParsedContext


async def read_context(
    request: ContextRequest, store: Store | None, owner: str, ids: IdSource, now: float
) -> Context:
    """Returns the context. Raises `Fault` if something is missing, the previous response is running, or the context is
    too large.
    """
    earlier: list[ContextItem] = []
    size = 0

    def visit(stored: StoredItem) -> None:
        nonlocal size
        size += stored.size
        earlier.append(context_item(stored))

    await _visit_earlier(request, store, owner, visit)
    known = {item.shown["id"] for item in earlier if item.shown is not None and "id" in item.shown}
    own = await _own_items(request, known, store, owner, ids)
    keeps = isinstance(request, ParsedResponse) and (request.store or request.conversation is not None)
    fresh: list[ContextItem] = []
    kept: list[StoredItem] = []
    for item, stored in own:
        if stored is None:
            fresh.append(ContextItem(item))
        else:
            fresh.append(msgspec.structs.replace(context_item(stored), shown=item))
            size += stored.size
        if keeps:
            kept.append(stored or StoredItem(item["id"], json_bytes(item), created=now))
    return Context(tuple(earlier), tuple(fresh), tuple(kept), size)


async def measure_context(
    request: ContextRequest, store: Store | None, owner: str, ids: IdSource
) -> tuple[InputEstimate, list[ItemDict]]:
    """Returns an estimate of what the request continues, and its own items, not counted yet. Raises what `read_context`
    raises.
    """
    measure = InputEstimate()
    known: set[str] = set()

    def visit(stored: StoredItem) -> None:
        if stored.visible:
            item = _decode_item(stored)
            known.add(item.get("id", ""))
            measure.add(item)

    await _visit_earlier(request, store, owner, visit)
    return measure, [item for item, _ in await _own_items(request, known, store, owner, ids)]


async def _own_items(
    request: ContextRequest, known: Collection[str], store: Store | None, owner: str, ids: IdSource
) -> list[tuple[ItemDict, StoredItem | None]]:
    references = references_of(request.input_items)
    if not references:
        return _with_distinct_ids(zip(with_ids(request.input_items, ids), repeat(None)), (), ids)
    given = [
        item for item in request.input_items if not (item["type"] == "item_reference" and item["id"] in known)
    ]
    references = references_of(given)
    found: dict[str, StoredItem] = {}
    if references and store is not None:
        with store_errors_as_faults():
            try:
                found = await store.find_items(owner, references, limited=True)
            except ContextTooLarge as error:
                raise references_too_large(str(error)) from None
    whole = resolve_references(given, {id: _decode_item(item) for id, item in found.items()})
    # An item that only has the id of a stored one is the client's, not the model's.
    stored = [found[item["id"]] if item["type"] == "item_reference" else None for item in given]
    return _with_distinct_ids(zip(with_ids(whole, ids), stored, strict=True), set(references), ids)


def context_item(stored: StoredItem) -> ContextItem:
    return ContextItem(
        _decode_item(stored) if stored.json else None,
        _model_item_decoder.decode(stored.raw) if stored.raw else None,
    )


async def _visit_earlier(
    request: ContextRequest, store: Store | None, owner: str, visit: Callable[[StoredItem], object]
) -> None:
    """Calls `visit` in a worker thread with earlier items, oldest first. Raises what `read_context` raises."""
    if request.conversation is not None:
        with store_errors_as_faults():
            try:
                await require_store(store).scan_conversation(owner, request.conversation, visit)
            except NotStored:
                raise conversation_objects.not_found(request.conversation) from None
            except ContextTooLarge as error:
                raise conversation_objects.too_large(str(error), "conversation") from None
        return
    previous = request.previous_response_id
    if previous is None:
        return
    if store is None:
        raise previous_not_found(previous)
    with store_errors_as_faults():
        try:
            await store.scan_context(owner, previous, visit)
        except NotStored:
            raise previous_not_found(previous) from None
        except NotFinished:
            raise _still_running_fault(previous) from None
        except ContextTooLarge as error:
            raise previous_too_large(str(error)) from None


def _still_running_fault(id: str) -> Fault:
    return bad_request(
        f"Previous response with id '{id}' is still in progress. Continue it when it has ended.",
        "previous_response_id",
        "previous_response_not_finished",
    )


def _decode_item(item: StoredItem) -> ItemDict:
    return _dict_decoder.decode(item.json)


def _with_distinct_ids(
    items: Iterable[tuple[ItemDict, StoredItem | None]], taken: Collection[str], ids: IdSource
) -> list[tuple[ItemDict, StoredItem | None]]:
    """Gives items that are not stored new ids in place of those that are `taken` or that an earlier item has."""
    seen: set[str] = set()
    out = []
    for item, stored in items:
        if item["id"] in seen or (stored is None and item["id"] in taken):
            (item,) = with_ids([{key: value for key, value in item.items() if key != "id"}], ids)
            stored = None
        seen.add(item["id"])
        out.append((item, stored))
    return out


def without_orphans(context: Context) -> tuple[Context, tuple[str, ...]]:
    """Returns the context without outputs whose calls are nowhere, and the names of some of those of the request. A
    context of nothing else stays as it is.
    """
    items = [item.shown for item in (*context.earlier, *context.fresh) if item.shown is not None]
    orphans = {id(items[index]) for index in orphaned_outputs(items)}
    if len(orphans) in (0, len(items)):
        return context, ()
    earlier, fresh = (
        tuple(item for item in part if id(item.shown) not in orphans)
        for part in (context.earlier, context.fresh)
    )
    left_out = [f"input[{index}]" for index, item in enumerate(context.fresh) if id(item.shown) in orphans]
    return msgspec.structs.replace(context, earlier=earlier, fresh=fresh), tuple(left_out[:MAX_NAMED])


def without_containers(context: Context, rights: Containers) -> tuple[Context, tuple[str, ...]]:
    """Returns the context without containers that the request may not name, and the names of these fields of it."""
    keep = partial(_keep_container, rights=rights)
    earlier, fresh = tuple(map(keep, context.earlier)), tuple(map(keep, context.fresh))
    if all(map(is_, (*earlier, *fresh), (*context.earlier, *context.fresh))):
        return context, ()
    named = any(
        item is not given and given.model is None for given, item in zip(context.fresh, fresh, strict=True)
    )
    left_out = ("input[].container_id",) if named else ()
    return msgspec.structs.replace(context, earlier=earlier, fresh=fresh), left_out


def _keep_container(item: ContextItem, rights: Containers) -> ContextItem:
    """Returns the item if it names no container or an allowed one; else without container and the model's form."""
    if item.model is not None:
        kind = item.model.head.type if item.shown is None else item.shown["type"]
        is_own = item.model.model.partition(MODEL_SEPARATOR)[0] == rights.agent
        if kind != CODE_CALL or (is_own and rights.allowed != "none"):
            return item
    elif item.shown is None or item.shown["type"] != CODE_CALL or rights.allowed == "any":
        return item
    shown = None if item.shown is None else without_container(item.shown)
    return item if shown is item.shown and item.model is None else ContextItem(shown)


# --- the turn -----------------------------------------------------------------------------------


def turn_in_context(
    parsed: ParsedResponse, context: Context, identity: Callable[[], str]
) -> tuple[Turn, tuple[HistoryItem, ...] | None]:
    """Returns the turn, and its history as the model generated it (None if not stored), without items encrypted for
    models other than the one that `identity` returns.
    """
    earlier = [item.shown for item in context.earlier if item.shown is not None]
    fresh = [item.shown for item in context.fresh if item.shown is not None]
    entries = history_entries([*earlier, *fresh], earlier=len(earlier))
    turn = with_earlier_updates(turn_of(parsed, tuple(map(_part_of, entries))), [*earlier, *fresh])
    if parsed.compacts:
        return compaction_turn(turn, turn.history), None
    earlier_tools = (
        tools_in(earlier) if earlier else ()
    )  # those of the request's own items are offered already
    if earlier_tools or not CLIENT_CALLS.isdisjoint(map(_type_of, earlier)):
        tools, mode = join_tools(turn.tools, earlier_tools), parsed.mode_after_calls
        turn = msgspec.structs.replace(turn, tools=tools, mode=mode)
    items = (*context.earlier, *context.fresh)
    if not any(map(_model_of, items)):
        return turn, None
    lead = turn_of(parsed, ()).history
    return turn, (*lead, *history_with_model_items(items, entries, identity()))


def history_with_model_items(
    items: Sequence[ContextItem], entries: Sequence[HistoryEntry], identity: str
) -> tuple[HistoryItem, ...]:
    """Returns the history, with stored items as the model generated them. `entries` has the items in the API's form."""
    parts: dict[int, list[HistoryItem]] = {}
    for index, part in entries:
        parts.setdefault(index, []).append(part)
    calls = _ModelCalls(items)
    history: list[HistoryItem] = []
    visible, kind = 0, ""
    for item in items:
        raw = None if item.model is None else as_history(item.model, identity)
        if raw is not None:
            history.append(raw)
        if item.shown is not None:
            kind, before = item.shown["type"], kind
            if kind == "compaction" and before == "compaction_trigger":
                history = [each for each in history if outlasts_compaction(each)]
            history += calls.new_entries(parts.get(visible, ()), item.model)
            visible += 1
    return with_whole_calls(history)


class _ModelCalls:
    """Tracks calls and outputs that the history has in the model's form, so that none is added twice."""

    def __init__(self, items: Sequence[ContextItem]) -> None:
        heads = [(item.model.head, item.shown) for item in items if item.model is not None]
        self._calls = Counter(
            head.call_id or "" for head, shown in heads if head.kind == "call" and shown is None
        )
        """Calls that the client does not see, by call id."""
        self._outputs = Counter(head.call_id or "" for head, _ in heads if head.kind == "output")
        self._renamed: dict[str, str] = {}

    def new_entries(self, parts: Iterable[HistoryItem], model: ModelItem | None) -> Iterator[HistoryItem]:
        for part in parts:
            if isinstance(part, HistoryCall):
                if not self._has_call(part, model):
                    yield part
            elif isinstance(part, HistoryOutput):
                call_id = self._renamed.get(part.call_id, part.call_id)
                if not _count_down(self._outputs, call_id):
                    yield msgspec.structs.replace(part, call_id=call_id)
            elif model is None:
                yield part

    def _has_call(self, call: HistoryCall, model: ModelItem | None) -> bool:
        if model is not None and model.head.kind == "call":
            self._renamed[call.call_id] = model.head.call_id or ""
            return True
        return _count_down(self._calls, call.call_id)


def _count_down(kept: Counter[str], call_id: str) -> bool:
    there = kept[call_id] > 0
    kept[call_id] -= there
    return there
