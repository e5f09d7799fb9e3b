"""What each path does with each method: one table, in the order of the documentation.

Paths stand without `/v1`; those in `VERSIONED` are served with it too. Which faults an operation may end with is told
by kinds of operation (`Kind`).
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from codex_proxy.core.turn import SANDBOXES
from codex_proxy.http.openapi.answers import COUNT, FLAG, TEXT, array, list_of, one_of, ref
from codex_proxy.http.openapi.bodies import Schema
from codex_proxy.surfaces.errors import TABLE
from codex_proxy.surfaces.lists import MAX_PAGE_ITEMS
from codex_proxy.surfaces.responses.wire import Include
from codex_proxy.surfaces.usage_report import GROUPS, LATEST, WIDTHS

Kind: TypeAlias = Literal["turn", "stored", "read", "open"]
"""A turn of the agent; something that is stored; something that is known; what is told without a key."""

STATUSES: Final[dict[Kind, tuple[int, ...]]] = {
    "open": (403, 500),
    "read": (400, 401, 403, 404, 500),
    "stored": (400, 401, 403, 404, 413, 415, 429, 500, 503),
    "turn": tuple(sorted({row.status for row in TABLE.values()})),
}
"""What an operation of each kind may be refused or fail with."""


class Parameter(NamedTuple):
    """One parameter. A list is given by naming it several times."""

    name: str
    place: Literal["query", "path", "header"]
    schema: Schema
    description: str


class Operation(NamedTuple):
    """One method of one path. `answers` has by status a schema of JSON, or else a type of content."""

    name: str
    summary: str
    kind: Kind
    answers: dict[str, Schema | str]
    parameters: tuple[Parameter, ...] = ()
    body: str | None = None
    body_required: bool = True
    body_words: str = ""
    streams: str = ""
    """The component that a stream's events are; empty where there is no stream."""
    words: str = ""


def _query(name: str, schema: Schema, description: str) -> Parameter:
    return Parameter(name, "query", schema, description)


def _header(name: str, schema: Schema, description: str) -> Parameter:
    return Parameter(name, "header", schema, description)


MODE: Final = _header(
    "X-Codex-Mode",
    one_of("model", "agent", ""),
    "The plain model, or the agent at work in its folder. A request can narrow it.",
)
WORKDIR: Final = _header(
    "X-Codex-Workdir",
    TEXT,
    "Folder in which an agent turn works, inside of the configured roots. `metadata.workdir` does the same.",
)
SANDBOX: Final = _header(
    "X-Codex-Sandbox",
    one_of(*SANDBOXES, ""),
    "What an agent turn's commands may do: no more than the server and the key allow.",
)
ACTIVITY: Final = _header(
    "X-Codex-Activity",
    TEXT,
    "`items`: what the agent does as items of type `codex:activity`, and not as reasoning summaries.",
)
NO_KEEPALIVE: Final = _header("x-no-keepalive", TEXT, "`1`: no comments in a silent stream.")
_INCLUDE: Final = _query(
    "include",
    array(one_of(*get_args(Include))),
    "Accepted; what it names is shown anyway, or is not there to be shown.",
)
_LISTED: Final = (
    _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_ITEMS}, "Items on a page."),
    _query("order", one_of("asc", "desc"), "Newest first (`desc`, the default) or oldest first."),
    _query("after", TEXT, "Id of the last item that the client has."),
    _INCLUDE,
)
_TIME: Final = {"type": "integer", "minimum": 0, "maximum": LATEST}
_RESPONSE_ID: Final = Parameter("id", "path", TEXT, "Id of a response.")
_CONVERSATION_ID: Final = Parameter("id", "path", TEXT, "Id of a conversation.")
_ITEM_ID: Final = Parameter("item_id", "path", TEXT, "Id of an item of this conversation.")

_CONTEXT_WORDS: Final = (
    "An `input`, a `previous_response_id` or a `conversation` has to be there; not the last two at once."
)

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("POST", "/chat/completions"): Operation(
        "create_chat_completion",
        "An answer to a conversation, whole or streamed.",
        "turn",
        {"200": ref("ChatCompletion")},
        (
            MODE,
            WORKDIR,
            SANDBOX,
            NO_KEEPALIVE,
            _query("no_keepalive", TEXT, "As the header `x-no-keepalive`."),
        ),
        "ChatRequest",
        body_words="Refused, too: names of tools that are taken twice, choices of tools that are not offered, outputs "
        "without their call and calls without their output, both `tools` and `functions`, `stream_options` without "
        "`stream`, images that are neither data nor web addresses, and what the serving agent cannot do.",
        streams="ChatCompletionChunk",
        words="docs/contract.md has the whole contract.",
    ),
    ("GET", "/models"): Operation(
        "list_models",
        "The models that can be asked for.",
        "read",
        {"200": {"anyOf": [ref("ModelList"), ref("CodexModelList")]}},
        (
            _query(
                "client_version",
                TEXT,
                "Codex as a client names its version, and gets its own shape of the list.",
            ),
        ),
    ),
    ("GET", "/models/{id}"): Operation(
        "retrieve_model",
        "One model.",
        "read",
        {"200": ref("Model")},
        (Parameter("id", "path", TEXT, "A name of the list; it may hold slashes."),),
    ),
    ("POST", "/responses"): Operation(
        "create_response",
        "An answer that is stored, whole, streamed, or in the background.",
        "turn",
        {"200": ref("Response")},
        (MODE, WORKDIR, SANDBOX, ACTIVITY),
        "ResponseRequest",
        body_words="Refused, too: `background` with `store: false`, `previous_response_id` with `conversation`, an "
        "empty `input` with neither of them, `stream_options` without `stream`, tools that are named twice or chosen "
        "without being there, outputs of unknown calls, and what the serving agent cannot do.",
        streams="ResponseEvent",
        words="docs/responses.md says what a client may count on.",
    ),
    ("GET", "/responses"): Operation(
        "open_responses_socket",
        "A WebSocket: turns one after the other, their events as frames.",
        "turn",
        {"101": ""},
        (MODE, WORKDIR, SANDBOX, ACTIVITY),
        words='Frames of the client are `{"type": "response.create", ...}` with the fields of `POST /responses`, but '
        "for `background`; those of the server are its events, without `[DONE]`. A refusal is "
        '`{"type": "error", "status": ..., "error": {...}}`. Without an upgrade: 405.',
    ),
    ("POST", "/responses/compact"): Operation(
        "compact_response",
        "A summary of a context, as the beginning of a new one.",
        "turn",
        {"200": ref("Compaction")},
        (),
        "CompactRequest",
        body_words=_CONTEXT_WORDS,
    ),
    ("POST", "/responses/input_tokens"): Operation(
        "count_input_tokens",
        "How many tokens a context has: an estimate.",
        "turn",
        {"200": ref("InputTokens")},
        (),
        "ContextFields",
        body_words=_CONTEXT_WORDS,
    ),
    ("GET", "/responses/{id}"): Operation(
        "retrieve_response",
        "A stored response, or the stream of one in the background.",
        "stored",
        {"200": ref("Response")},
        (
            _RESPONSE_ID,
            _query(
                "stream",
                FLAG,
                "The events of a response that was created in the background with `stream: true`.",
            ),
            _query("starting_after", COUNT, "`sequence_number` of the last event that the client has."),
            _INCLUDE,
        ),
        streams="ResponseEvent",
    ),
    ("DELETE", "/responses/{id}"): Operation(
        "delete_response",
        "Deletes a response; one that runs is stopped.",
        "stored",
        {"200": ref("ResponseDeleted")},
        (_RESPONSE_ID,),
    ),
    ("GET", "/responses/{id}/input_items"): Operation(
        "list_input_items",
        "What a response was asked with.",
        "stored",
        {"200": list_of("StoredItem")},
        (_RESPONSE_ID, *_LISTED),
    ),
    ("POST", "/responses/{id}/cancel"): Operation(
        "cancel_response",
        "Stops a response in the background.",
        "stored",
        {"200": ref("Response")},
        (_RESPONSE_ID,),
    ),
    ("POST", "/conversations"): Operation(
        "create_conversation",
        "A conversation that several turns share.",
        "stored",
        {"200": ref("Conversation")},
        (),
        "CreateBody",
        body_required=False,
    ),
    ("GET", "/conversations/{id}"): Operation(
        "retrieve_conversation",
        "One conversation.",
        "stored",
        {"200": ref("Conversation")},
        (_CONVERSATION_ID,),
    ),
    ("POST", "/conversations/{id}"): Operation(
        "update_conversation",
        "Merges metadata; null deletes a key.",
        "stored",
        {"200": ref("Conversation")},
        (_CONVERSATION_ID,),
        "UpdateBody",
    ),
    ("DELETE", "/conversations/{id}"): Operation(
        "delete_conversation",
        "Deletes a conversation.",
        "stored",
        {"200": ref("ConversationDeleted")},
        (_CONVERSATION_ID,),
    ),
    ("GET", "/conversations/{id}/items"): Operation(
        "list_conversation_items",
        "Its items.",
        "stored",
        {"200": list_of("ConversationItem")},
        (_CONVERSATION_ID, *_LISTED),
    ),
    ("POST", "/conversations/{id}/items"): Operation(
        "create_conversation_items",
        "Adds at most 20 items, all or none.",
        "stored",
        {"200": list_of("ConversationItem")},
        (_CONVERSATION_ID, _INCLUDE),
        "AddItemsBody",
    ),
    ("GET", "/conversations/{id}/items/{item_id}"): Operation(
        "retrieve_conversation_item",
        "One item.",
        "stored",
        {"200": ref("ConversationItem")},
        (_CONVERSATION_ID, _ITEM_ID, _INCLUDE),
    ),
    ("DELETE", "/conversations/{id}/items/{item_id}"): Operation(
        "delete_conversation_item",
        "Takes an item out of this conversation.",
        "stored",
        {"200": ref("Conversation")},
        (_CONVERSATION_ID, _ITEM_ID),
    ),
    ("GET", "/usage"): Operation(
        "retrieve_usage",
        "What the turns of the key that asks have cost, by hour or day.",
        "stored",
        {"200": ref("UsagePage")},
        (
            _query(
                "start_time", _TIME, "Seconds since 1970; the bucket that it falls into is there as a whole."
            ),
            _query("end_time", _TIME, "Seconds since 1970, not included; now by default."),
            _query("bucket_width", one_of(*WIDTHS), "`1d` by default."),
            _query("group_by", array(one_of(*GROUPS)), "What the sums are told apart by."),
            _query(
                "limit",
                {"type": "integer", "minimum": 1},
                "Buckets: at most 31 days (7 by default), 168 hours (24).",
            ),
            _query("page", TEXT, "`next_page` of the answer before, to the same question."),
        ),
        words="Without a key it is for this machine only. `key` and `model` are null unless they are grouped by.",
    ),
    ("GET", "/usage/limits"): Operation(
        "retrieve_usage_limits",
        "What the agent's account may still use, as the agent tells it.",
        "read",
        {"200": ref("UsageLimits")},
        words="`limits` is null, with the `reason`, where the agent has told none. No turn is run to find out. "
        "Without a key it is for this machine only.",
    ),
    ("GET", "/healthz"): Operation(
        "healthz", "What serves here, and whether a turn would work.", "open", {"200": ref("Health")}
    ),
    ("GET", "/livez"): Operation("livez", "The process answers.", "open", {"200": ref("Live")}),
    ("GET", "/readyz"): Operation(
        "readyz", "Whether a turn would work.", "open", {"200": ref("Live"), "503": ref("Unready")}
    ),
    ("GET", "/openapi.json"): Operation("openapi", "This document.", "open", {"200": {"type": "object"}}),
    ("GET", "/metrics"): Operation(
        "metrics", "Counters for Prometheus, where PROXY_METRICS is on.", "open", {"200": "text/plain"}
    ),
    ("GET", "/__test/conc"): Operation(
        "open_streams",
        "How many streams are open, where PROXY_TEST_ENDPOINTS is on.",
        "read",
        {"200": ref("OpenStreams")},
    ),
    ("POST", "/__test/conc/release"): Operation(
        "release_streams", "Lets held turns of the fake agent go on.", "read", {"200": ref("Released")}
    ),
}

ROOT_ONLY: Final = frozenset(
    {"/healthz", "/livez", "/readyz", "/openapi.json", "/metrics", "/__test/conc", "/__test/conc/release"}
)
"""Paths that are not served under `/v1`."""
