"""Every endpoint of the server, in the order of the documentation: one `Endpoint` record each.

The routes, `GET /openapi.json`, docs/api.md, the format of errors, and the list of paths that need no key are
made from this table.
"""

from __future__ import annotations

from typing import Final, get_args

from codex_proxy.core.turn import SANDBOXES
from codex_proxy.http import conversations, responses
from codex_proxy.http.chat import chat_completions
from codex_proxy.http.endpoint import (
    COUNT,
    FLAG,
    TEXT,
    Endpoint,
    Parameter,
    Schema,
    array,
    list_of,
    one_of,
    ref,
)
from codex_proxy.http.listing import MAX_PAGE_ITEMS
from codex_proxy.http.messages import count_message_tokens, messages
from codex_proxy.http.metrics import METER, metrics
from codex_proxy.http.responses import compact, count_input_tokens, create_response
from codex_proxy.http.server_info import healthz, index, list_models, livez, one_model, openapi, readyz, root
from codex_proxy.http.stream_slots import TEST_ENDPOINTS, open_streams, release_streams
from codex_proxy.http.usage import limits, usage
from codex_proxy.http.websocket import responses_socket
from codex_proxy.surfaces.messages.models import MAX_PAGE
from codex_proxy.surfaces.responses.wire import Include
from codex_proxy.surfaces.usage_report import GROUPS, LATEST, WIDTHS


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
HOPS: Final = _header(
    "X-Codex-Hops",
    TEXT,
    "The servers that the request has come through; one that finds itself there refuses it.",
)
NO_KEEPALIVE: Final = _header("x-no-keepalive", TEXT, "`1`: no comments in a silent stream.")
_ANTHROPIC_VERSION: Final = _header(
    "anthropic-version", TEXT, "Any: the answer, and an error, have the shape of Anthropic's API."
)
BETA: Final = _query("beta", TEXT, "Accepted; what it asks for is decided by the fields of the body.")
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
    "One of `input`, `previous_response_id` and `conversation` is required; the last two exclude each other."
)

ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="POST",
        path="/chat/completions",
        handler=chat_completions,
        name="create_chat_completion",
        chapter="Chat Completions",
        kind="turn",
        summary="An answer to a conversation, whole or streamed.",
        description="docs/contract.md has the whole contract.",
        parameters=(
            MODE,
            WORKDIR,
            SANDBOX,
            NO_KEEPALIVE,
            HOPS,
            _query("no_keepalive", TEXT, "As the header `x-no-keepalive`."),
        ),
        body="ChatRequest",
        body_description="Refused, too: names of tools that are taken twice, choices of tools that are not offered, "
        "outputs without their call and calls without their output, both `tools` and `functions`, `stream_options` "
        "without `stream`, images that are neither data nor web addresses, and what the serving agent cannot do.",
        answers={"200": ref("ChatCompletion")},
        streams="ChatCompletionChunk",
    ),
    Endpoint(
        method="POST",
        path="/messages",
        handler=messages,
        name="create_message",
        chapter="Messages",
        kind="turn",
        errors="messages",
        summary="An answer in the form of Anthropic's API, whole or streamed.",
        description="docs/messages.md says what a client may count on. Any `anthropic-version` and `anthropic-beta` is "
        "taken, and a key in `x-api-key` or as a bearer.",
        parameters=(MODE, WORKDIR, SANDBOX, HOPS, BETA),
        body="MessagesRequest",
        body_description="Refused: tools that only Anthropic's servers run, names of tools that are taken twice, "
        "choices of tools that are not offered, images of the newest message that cannot be shown, and what the "
        "serving agent cannot do. Nothing else that the messages say is refused, and no unknown field.",
        answers={"200": ref("Message")},
        streams="MessageEvent",
    ),
    Endpoint(
        method="POST",
        path="/messages/count_tokens",
        handler=count_message_tokens,
        name="count_message_tokens",
        chapter="Messages",
        kind="read",
        errors="messages",
        counted=False,
        summary="How many tokens a request of this API has at most.",
        description="An estimate that is not below the model's own count of code, data and prose, since a client that "
        "is told too few does not shorten its conversation in time. No turn is run, and it counts against no limit.",
        parameters=(BETA,),
        body="MessagesRequest",
        answers={"200": ref("MessageTokens")},
    ),
    Endpoint(
        method="GET",
        path="/models",
        handler=list_models,
        name="list_models",
        chapter="Models",
        kind="read",
        also_anthropic=True,
        summary="The models that can be asked for.",
        description="With a header `anthropic-version`, or a key in `x-api-key` alone, it is Anthropic's list.",
        parameters=(
            _ANTHROPIC_VERSION,
            _query("limit", TEXT, f"Of Anthropic's: entries on a page, from 1 to {MAX_PAGE}."),
            _query("after_id", TEXT, "Of Anthropic's: the entry before the page."),
            _query("before_id", TEXT, "Of Anthropic's: the entry behind the page."),
            _query(
                "client_version",
                TEXT,
                "Codex as a client names its version, and gets its own shape of the list.",
            ),
        ),
        answers={"200": {"anyOf": [ref("ModelList"), ref("CodexModelList"), ref("AnthropicModelList")]}},
    ),
    Endpoint(
        method="GET",
        path="/models/{id}",
        match="/models/{id:.+}",
        handler=one_model,
        name="retrieve_model",
        chapter="Models",
        kind="read",
        also_anthropic=True,
        summary="One model.",
        parameters=(
            Parameter("id", "path", TEXT, "A name of the list; it may hold slashes."),
            _ANTHROPIC_VERSION,
        ),
        answers={"200": {"anyOf": [ref("Model"), ref("AnthropicModel")]}},
    ),
    Endpoint(
        method="POST",
        path="/responses",
        handler=create_response,
        name="create_response",
        chapter="Responses",
        kind="turn",
        errors="responses",
        summary="An answer that is stored, whole, streamed, or in the background.",
        description="docs/responses.md says what a client may count on.",
        parameters=(MODE, WORKDIR, SANDBOX, ACTIVITY, HOPS),
        body="ResponseRequest",
        body_description="Refused, too: `background` with `store: false`, `previous_response_id` with `conversation`, "
        "an empty `input` with neither of them, `stream_options` without `stream`, tools that are named twice or "
        "chosen without being there, outputs of unknown calls, and what the serving agent cannot do.",
        answers={"200": ref("Response")},
        streams="ResponseEvent",
    ),
    Endpoint(
        method="GET",
        path="/responses",
        handler=responses_socket,
        name="open_responses_socket",
        chapter="Responses",
        kind="turn",
        errors="responses",
        head=False,
        summary="A WebSocket: turns one after the other, their events as frames.",
        description='Frames of the client are `{"type": "response.create", ...}` with the fields of `POST /responses`, '
        "but for `background`; those of the server are its events, without `[DONE]`. A refusal is "
        '`{"type": "error", "status": ..., "error": {...}}`. Without an upgrade: 405.',
        parameters=(MODE, WORKDIR, SANDBOX, ACTIVITY),
        answers={"101": ""},
    ),
    Endpoint(
        method="POST",
        path="/responses/compact",
        handler=compact,
        name="compact_response",
        chapter="Responses",
        kind="turn",
        errors="responses",
        summary="A summary of a context, as the beginning of a new one.",
        body="CompactRequest",
        body_description=_CONTEXT_WORDS,
        answers={"200": ref("Compaction")},
    ),
    Endpoint(
        method="POST",
        path="/responses/input_tokens",
        handler=count_input_tokens,
        name="count_input_tokens",
        chapter="Responses",
        kind="turn",
        errors="responses",
        summary="How many tokens a context has: an estimate.",
        body="ContextFields",
        body_description=_CONTEXT_WORDS,
        answers={"200": ref("InputTokens")},
    ),
    Endpoint(
        method="GET",
        path="/responses/{id}",
        handler=responses.retrieve,
        name="retrieve_response",
        chapter="Responses",
        kind="stored",
        errors="responses",
        summary="A stored response, or the stream of one in the background.",
        parameters=(
            _RESPONSE_ID,
            _query(
                "stream",
                FLAG,
                "The events of a response that was created in the background with `stream: true`.",
            ),
            _query("starting_after", COUNT, "`sequence_number` of the last event that the client has."),
            _INCLUDE,
        ),
        answers={"200": ref("Response")},
        streams="ResponseEvent",
    ),
    Endpoint(
        method="DELETE",
        path="/responses/{id}",
        handler=responses.delete,
        name="delete_response",
        chapter="Responses",
        kind="stored",
        errors="responses",
        summary="Deletes a response; one that runs is stopped.",
        parameters=(_RESPONSE_ID,),
        answers={"200": ref("ResponseDeleted")},
    ),
    Endpoint(
        method="GET",
        path="/responses/{id}/input_items",
        handler=responses.list_input_items,
        name="list_input_items",
        chapter="Responses",
        kind="stored",
        errors="responses",
        summary="What a response was asked with.",
        parameters=(_RESPONSE_ID, *_LISTED),
        answers={"200": list_of("StoredItem")},
    ),
    Endpoint(
        method="POST",
        path="/responses/{id}/cancel",
        handler=responses.cancel,
        name="cancel_response",
        chapter="Responses",
        kind="stored",
        errors="responses",
        summary="Stops a response in the background.",
        parameters=(_RESPONSE_ID,),
        answers={"200": ref("Response")},
    ),
    Endpoint(
        method="POST",
        path="/conversations",
        handler=conversations.create,
        name="create_conversation",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="A conversation that several turns share.",
        body="CreateBody",
        body_required=False,
        answers={"200": ref("Conversation")},
    ),
    Endpoint(
        method="GET",
        path="/conversations/{id}",
        handler=conversations.retrieve,
        name="retrieve_conversation",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="One conversation.",
        parameters=(_CONVERSATION_ID,),
        answers={"200": ref("Conversation")},
    ),
    Endpoint(
        method="POST",
        path="/conversations/{id}",
        handler=conversations.update,
        name="update_conversation",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="Merges metadata; null deletes a key.",
        parameters=(_CONVERSATION_ID,),
        body="UpdateBody",
        answers={"200": ref("Conversation")},
    ),
    Endpoint(
        method="DELETE",
        path="/conversations/{id}",
        handler=conversations.delete,
        name="delete_conversation",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="Deletes a conversation.",
        parameters=(_CONVERSATION_ID,),
        answers={"200": ref("ConversationDeleted")},
    ),
    Endpoint(
        method="GET",
        path="/conversations/{id}/items",
        handler=conversations.list_items,
        name="list_conversation_items",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="Its items.",
        parameters=(_CONVERSATION_ID, *_LISTED),
        answers={"200": list_of("ConversationItem")},
    ),
    Endpoint(
        method="POST",
        path="/conversations/{id}/items",
        handler=conversations.create_items,
        name="create_conversation_items",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="Adds at most 20 items, all or none.",
        parameters=(_CONVERSATION_ID, _INCLUDE),
        body="AddItemsBody",
        answers={"200": list_of("ConversationItem")},
    ),
    Endpoint(
        method="GET",
        path="/conversations/{id}/items/{item_id}",
        handler=conversations.retrieve_item,
        name="retrieve_conversation_item",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="One item.",
        parameters=(_CONVERSATION_ID, _ITEM_ID, _INCLUDE),
        answers={"200": ref("ConversationItem")},
    ),
    Endpoint(
        method="DELETE",
        path="/conversations/{id}/items/{item_id}",
        handler=conversations.delete_item,
        name="delete_conversation_item",
        chapter="Conversations",
        kind="stored",
        errors="responses",
        summary="Takes an item out of this conversation.",
        parameters=(_CONVERSATION_ID, _ITEM_ID),
        answers={"200": ref("Conversation")},
    ),
    Endpoint(
        method="GET",
        path="/usage",
        handler=usage,
        name="retrieve_usage",
        chapter="Usage",
        kind="stored",
        summary="What the turns of the key that asks have cost, by hour or day.",
        description="Without a key it is for this machine only. `key` and `model` are null unless they are grouped by.",
        parameters=(
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
        answers={"200": ref("UsagePage")},
    ),
    Endpoint(
        method="GET",
        path="/usage/limits",
        handler=limits,
        name="retrieve_usage_limits",
        chapter="Usage",
        kind="read",
        summary="What the agent's account may still use, as the agent tells it.",
        description="`limits` is null, with the `reason`, where the agent has told none. No turn is run to find out. "
        "Without a key it is for this machine only. Of several agents it is a list.",
        answers={"200": {"anyOf": [ref("UsageLimits"), ref("UsageLimitsList")]}},
    ),
    Endpoint(
        method="GET",
        path="/v1",
        handler=index,
        name="index",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="Which program answers here, and what it serves.",
        answers={"200": ref("Index")},
    ),
    Endpoint(
        method="GET",
        path="/",
        handler=root,
        name="root",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="There is a server: what Anthropic's clients ask for before they begin.",
        answers={"200": ref("Hello")},
    ),
    Endpoint(
        method="GET",
        path="/api/hello",
        handler=root,
        name="hello",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="The same, at the path of Claude Code.",
        answers={"200": ref("Hello")},
    ),
    Endpoint(
        method="GET",
        path="/healthz",
        handler=healthz,
        name="healthz",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="What serves here, and whether a turn would work.",
        answers={"200": ref("Health")},
    ),
    Endpoint(
        method="GET",
        path="/livez",
        handler=livez,
        name="livez",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="The process answers.",
        answers={"200": ref("Live")},
    ),
    Endpoint(
        method="GET",
        path="/readyz",
        handler=readyz,
        name="readyz",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="Whether a turn would work.",
        answers={"200": ref("Ready"), "503": ref("Unready")},
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        handler=openapi,
        name="openapi",
        chapter="The server itself",
        kind="open",
        versioned=False,
        summary="This document.",
        answers={"200": {"type": "object"}},
    ),
    Endpoint(
        method="GET",
        path="/metrics",
        handler=metrics,
        name="metrics",
        chapter="The server itself",
        kind="open",
        versioned=False,
        needs=METER,
        summary="Counters for Prometheus, where PROXY_METRICS is on.",
        answers={"200": "text/plain"},
    ),
    Endpoint(
        method="GET",
        path="/__test/conc",
        handler=open_streams,
        name="open_streams",
        chapter="The server itself",
        kind="read",
        versioned=False,
        counted=False,
        needs=TEST_ENDPOINTS,
        summary="How many streams are open, where PROXY_TEST_ENDPOINTS is on.",
        answers={"200": ref("OpenStreams")},
    ),
    Endpoint(
        method="POST",
        path="/__test/conc/release",
        handler=release_streams,
        name="release_streams",
        chapter="The server itself",
        kind="read",
        versioned=False,
        counted=False,
        needs=TEST_ENDPOINTS,
        summary="Lets held turns of the fake agent go on.",
        answers={"200": ref("Released")},
    ),
)
