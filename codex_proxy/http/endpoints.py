"""The endpoints, in the order of the documentation."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, get_args

from codex_proxy.core.turn import SANDBOXES
from codex_proxy.http import conversations, ollama, page, responses, server_info
from codex_proxy.http.chat import completions, create_chat_completion
from codex_proxy.http.endpoint import (
    COUNT_SCHEMA,
    FLAG_SCHEMA,
    TEXT_SCHEMA,
    AnswerType,
    Endpoint,
    Handler,
    Parameter,
    Schema,
    array,
    one_of,
)
from codex_proxy.http.listing import MAX_PAGE_ITEMS
from codex_proxy.http.messages import count_message_tokens, create_message
from codex_proxy.http.metrics import METER, metrics
from codex_proxy.http.sse import NDJSON, TEST_ENDPOINTS, OpenStreams, Released, open_streams, release_streams
from codex_proxy.http.usage import retrieve_usage, retrieve_usage_limits
from codex_proxy.http.websocket import open_responses_socket
from codex_proxy.parts import declared
from codex_proxy.surfaces.answers.codex_models import CodexModelList
from codex_proxy.surfaces.answers.renderer import ItemList
from codex_proxy.surfaces.answers.usage_report import (
    END_OF_9999,
    GROUPS,
    WIDTHS,
    UsageLimits,
    UsageLimitsList,
    UsagePage,
)
from codex_proxy.surfaces.chat.choice import ChatCompletion, ChatCompletionChunk
from codex_proxy.surfaces.messages.answer import (
    MAX_PAGE,
    AnthropicModel,
    AnthropicModelList,
    Message,
    MessageEvent,
    MessageTokens,
)
from codex_proxy.surfaces.models import Model, ModelList
from codex_proxy.surfaces.ollama.answer import OllamaAnswer, OllamaModel, OllamaModels, OllamaVersion
from codex_proxy.surfaces.responses.conversations import Conversation, ConversationDeleted, ConversationItem
from codex_proxy.surfaces.responses.response_object import (
    Compaction,
    InputTokens,
    Response,
    ResponseDeleted,
    ResponseEvent,
    StoredItem,
)
from codex_proxy.surfaces.responses.wire import Include


def _query(name: str, schema: Schema, description: str) -> Parameter:
    return Parameter(name, "query", schema, description)


def _header(name: str, schema: Schema, description: str) -> Parameter:
    return Parameter(name, "header", schema, description)


MODE: Final = _header(
    "X-Codex-Mode",
    one_of("model", "agent", ""),
    "`model`: the plain model. `agent`: the agent works in a folder. Cannot allow more than the settings do.",
)
WORKDIR: Final = _header(
    "X-Codex-Workdir",
    TEXT_SCHEMA,
    "The folder of an agent turn, inside a configured root. `metadata.workdir` does the same.",
)
SANDBOX: Final = _header(
    "X-Codex-Sandbox",
    one_of(*SANDBOXES, ""),
    "What the commands of an agent turn may do; at most what the server and the key allow.",
)
ACTIVITY: Final = _header(
    "X-Codex-Activity",
    TEXT_SCHEMA,
    "`items`: show what the agent does as `codex:activity` items, not as reasoning summaries.",
)
HOPS: Final = _header(
    "X-Codex-Hops",
    TEXT_SCHEMA,
    "Ids of the servers that forwarded the request; one with the server's own id is refused.",
)
NO_KEEPALIVE: Final = _header("x-no-keepalive", TEXT_SCHEMA, "`1`: send no keepalive comments in the stream.")
_ANTHROPIC_VERSION: Final = _header(
    "anthropic-version",
    TEXT_SCHEMA,
    "If sent, answers and errors have the form of Anthropic's API. Any version is accepted.",
)
BETA: Final = _query("beta", TEXT_SCHEMA, "Accepted, no effect.")
_INCLUDE: Final = _query(
    "include", array(one_of(*get_args(Include))), "Accepted, no effect: these fields are always included."
)
_AFTER: Final = _query("after", TEXT_SCHEMA, "Id of the last item on the previous page.")
_LISTED: Final = (
    _query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_ITEMS},
        "Maximum number of items on a page.",
    ),
    _query("order", one_of("asc", "desc"), "`desc` (default): newest first. `asc`: oldest first."),
    _AFTER,
    _INCLUDE,
)
_TIME: Final = {"type": "integer", "minimum": 0, "maximum": END_OF_9999}

_CONTEXT_WORDS: Final = (
    "`input`, `previous_response_id` or `conversation` is required. The last two cannot be combined."
)

_response: Final = partial(Endpoint, chapter="Responses", errors="responses", ids={"id": "Id of a response."})
_conversation: Final = partial(
    Endpoint,
    chapter="Conversations",
    kind="stored",
    errors="responses",
    ids={"id": "Id of a conversation.", "item_id": "Id of an item of this conversation."},
)
_model: Final = partial(
    Endpoint,
    chapter="Models",
    kind="read",
    also_anthropic=True,
    ids={"id": "A name from the list. It may contain slashes."},
)
_server: Final = partial(Endpoint, chapter="The server itself", kind="open", versioned=False)
_test: Final = partial(
    Endpoint, chapter="The server itself", kind="read", versioned=False, counted=False, needs=TEST_ENDPOINTS
)
_message: Final = partial(Endpoint, chapter="Messages", errors="messages")

_OLLAMA_WORDS: Final = (
    "Details: docs/ollama.md. It is a stream of lines of JSON, unless `stream` is false. "
    "Without a prompt no turn is run."
)

_page: Final = partial(
    Endpoint, chapter="The page", versioned=False, needs=page.PAGE, ids={"id": "Number of a turn."}
)


def _ollama(route: str, handler: Handler, answer: AnswerType, **more: Any) -> Endpoint:
    return Endpoint(
        route,
        handler,
        answer,
        operation_id=f"ollama_{route.rpartition('/')[2]}",
        chapter="Ollama",
        errors="ollama",
        versioned=False,
        **more,
    )


def _ollama_turn(route: str, handler: Handler, body: str) -> Endpoint:
    more = {"description": _OLLAMA_WORDS, "streams": OllamaAnswer, "stream_type": NDJSON}
    return _ollama(route, handler, OllamaAnswer, kind="turn", body=body, **more)


def _page_file(name: str) -> Endpoint:
    id = f"ui_{name.replace('.', '_')}"
    return _page(f"GET /ui/{name}", page.ui_file, page.FILES[name], operation_id=id, kind="open")


def _page_api(path: str, handler: Handler, *parameters: Parameter, **more: Any) -> Endpoint:
    return _page(f"GET /ui/api/{path}", handler, dict[str, Any], kind="read", parameters=parameters, **more)


ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        "POST /chat/completions",
        create_chat_completion,
        ChatCompletion,
        chapter="Chat Completions",
        kind="turn",
        description="Details: docs/chat-completions.md.",
        parameters=(
            MODE,
            WORKDIR,
            SANDBOX,
            NO_KEEPALIVE,
            HOPS,
            _query("no_keepalive", TEXT_SCHEMA, "The same as the header `x-no-keepalive`."),
        ),
        body="ChatRequest",
        body_description="Also a 400: two tools with one name, a `tool_choice` that is not in `tools`, a tool call "
        "without its output or an output without its call, `tools` with `functions`, `stream_options` without "
        "`stream`, an image that is neither a data URL nor a web address, what the agent does not support.",
        streams=ChatCompletionChunk,
    ),
    _message(
        "POST /messages",
        create_message,
        Message,
        kind="turn",
        description="Details: docs/messages.md. Any `anthropic-version` and `anthropic-beta` is accepted. The key may "
        "be in `x-api-key` or a bearer token.",
        parameters=(MODE, WORKDIR, SANDBOX, HOPS, BETA),
        body="MessagesRequest",
        body_description="Also a 400: tools that only Anthropic's servers run, two tools with one name, a "
        "`tool_choice` that is not in `tools`, an unreadable image in the newest message, what the agent does not "
        "support, a field of a wrong type in `system`, `tools` or the newest message. No other content of messages is "
        "an error, and unknown fields are ignored.",
        streams=MessageEvent,
    ),
    _message(
        "POST /messages/count_tokens",
        count_message_tokens,
        MessageTokens,
        kind="read",
        counted=False,
        description="The estimate is an upper bound, so that clients shorten their conversations in time. No turn is "
        "run, and no limit applies.",
        parameters=(BETA,),
        body="MessagesRequest",
    ),
    _model(
        "GET /models",
        server_info.list_models,
        (ModelList, CodexModelList, AnthropicModelList),
        description="The list has Anthropic's form if the request has `anthropic-version` or `anthropic-beta`, or a "
        "key only in `x-api-key`.",
        parameters=(
            _ANTHROPIC_VERSION,
            _query("limit", TEXT_SCHEMA, f"Anthropic's form: entries on a page, 1 to {MAX_PAGE}."),
            _query("after_id", TEXT_SCHEMA, "Anthropic's form: id of the entry before the page."),
            _query("before_id", TEXT_SCHEMA, "Anthropic's form: id of the entry after the page."),
            _query(
                "client_version", TEXT_SCHEMA, "Sent by Codex. The list then has the form that Codex reads."
            ),
        ),
    ),
    _model(
        "GET /models/{id}",
        server_info.retrieve_model,
        (Model, AnthropicModel),
        match="/models/{id:.+}",
        parameters=(_ANTHROPIC_VERSION,),
    ),
    _response(
        "POST /responses",
        responses.create_response,
        Response,
        kind="turn",
        description="Details: docs/responses.md.",
        parameters=(MODE, WORKDIR, SANDBOX, ACTIVITY, HOPS),
        body="ResponseRequest",
        body_description="Also a 400: `background` with `store: false`, `previous_response_id` with `conversation`, "
        "an empty `input` with neither of them, `stream_options` without `stream`, two tools with one name, a "
        "`tool_choice` that is not in `tools`, the output of an unknown call, what the agent does not support.",
        streams=ResponseEvent,
    ),
    _response(
        "GET /responses",
        open_responses_socket,
        None,
        kind="turn",
        head=False,
        description='The client sends `{"type": "response.create", ...}` with the fields of `POST /responses` except '
        "`background`, and gets the events of the stream. An error is "
        '`{"type": "error", "status": ..., "error": {...}}`.',
        parameters=(MODE, WORKDIR, SANDBOX, ACTIVITY),
        more_answers={"101": ""},
    ),
    _response(
        "POST /responses/compact",
        responses.compact_response,
        Compaction,
        kind="turn",
        body="CompactRequest",
        body_description=_CONTEXT_WORDS,
    ),
    _response(
        "POST /responses/input_tokens",
        responses.count_input_tokens,
        InputTokens,
        kind="turn",
        body="ContextFields",
        body_description=_CONTEXT_WORDS,
    ),
    _response(
        "GET /responses/{id}",
        responses.retrieve_response,
        Response,
        kind="stored",
        parameters=(
            _query(
                "stream",
                FLAG_SCHEMA,
                "Return the events. For a background response created with `stream: true`.",
            ),
            _query(
                "starting_after",
                COUNT_SCHEMA,
                "`sequence_number` of the last event that the client received.",
            ),
            _INCLUDE,
        ),
        streams=ResponseEvent,
    ),
    _response("DELETE /responses/{id}", responses.delete_response, ResponseDeleted, kind="stored"),
    _response(
        "GET /responses/{id}/input_items",
        responses.list_input_items,
        ItemList[StoredItem],
        kind="stored",
        parameters=_LISTED,
    ),
    _response("POST /responses/{id}/cancel", responses.cancel_response, Response, kind="stored"),
    _conversation(
        "POST /conversations",
        conversations.create_conversation,
        Conversation,
        body="CreateBody",
        body_required=False,
    ),
    _conversation("GET /conversations/{id}", conversations.retrieve_conversation, Conversation),
    _conversation(
        "POST /conversations/{id}",
        conversations.update_conversation,
        Conversation,
        body="UpdateBody",
    ),
    _conversation("DELETE /conversations/{id}", conversations.delete_conversation, ConversationDeleted),
    _conversation(
        "GET /conversations/{id}/items",
        conversations.list_conversation_items,
        ItemList[ConversationItem],
        parameters=_LISTED,
    ),
    _conversation(
        "POST /conversations/{id}/items",
        conversations.create_conversation_items,
        ItemList[ConversationItem],
        parameters=(_INCLUDE,),
        body="AddItemsBody",
    ),
    _conversation(
        "GET /conversations/{id}/items/{item_id}",
        conversations.retrieve_conversation_item,
        ConversationItem,
        parameters=(_INCLUDE,),
    ),
    _conversation(
        "DELETE /conversations/{id}/items/{item_id}",
        conversations.delete_conversation_item,
        Conversation,
    ),
    _ollama_turn("POST /api/chat", ollama.chat, "OllamaChatRequest"),
    _ollama_turn("POST /api/generate", ollama.generate, "OllamaGenerateRequest"),
    _ollama("POST /api/embed", ollama.embed, dict[str, Any], kind="turn", body="OllamaEmbedRequest"),
    _ollama(
        "POST /api/embeddings", ollama.embeddings, dict[str, Any], kind="turn", body="OllamaEmbeddingsRequest"
    ),
    _ollama("GET /api/version", ollama.version, OllamaVersion, kind="read"),
    _ollama("GET /api/tags", ollama.tags, OllamaModels, kind="read"),
    _ollama("GET /api/ps", ollama.ps, OllamaModels, kind="read"),
    _ollama("POST /api/show", ollama.show, OllamaModel, kind="read", body="OllamaShowRequest", counted=False),
    Endpoint(
        "POST /completions",
        completions,
        Any,
        operation_id="pass_completions",
        chapter="Model servers",
        kind="turn",
        body="PassedBody",
    ),
    Endpoint(
        "GET /usage",
        retrieve_usage,
        UsagePage,
        chapter="Usage",
        kind="stored",
        description="If the server requires no key, only clients on this machine may read it. `key` and `model` are "
        "null unless `group_by` names them.",
        parameters=(
            _query(
                "start_time", _TIME, "Seconds since 1970. The bucket with this time is included as a whole."
            ),
            _query("end_time", _TIME, "Seconds since 1970, exclusive. Default: now."),
            _query("bucket_width", one_of(*WIDTHS), "Default: `1d`."),
            _query("group_by", array(one_of(*GROUPS)), "Return one sum for each value."),
            _query(
                "limit",
                {"type": "integer", "minimum": 1},
                "Number of buckets: up to 31 days (default 7) or 168 hours (default 24).",
            ),
            _query("page", TEXT_SCHEMA, "`next_page` of the previous answer to the same query."),
        ),
    ),
    Endpoint(
        "GET /usage/limits",
        retrieve_usage_limits,
        (UsageLimits, UsageLimitsList),
        chapter="Usage",
        kind="read",
        description="If the agent reported none, `limits` is null and `reason` says why. If the server requires no "
        "key, only clients on this machine may read it. With several agents, the answer is a list.",
    ),
    _server("GET /v1", server_info.index, server_info.Index),
    _server("GET /", page.home, server_info.Hello, operation_id="root"),
    _server("GET /api/hello", server_info.root, server_info.Hello, operation_id="hello"),
    _server("GET /healthz", server_info.healthz, server_info.Health),
    _server("GET /livez", server_info.livez, server_info.Live),
    _server("GET /readyz", server_info.readyz, server_info.Ready, more_answers={"503": server_info.Unready}),
    _server("GET /openapi.json", server_info.openapi, dict[str, Any]),
    _server("GET /metrics", metrics, "text/plain", needs=METER),
    _test("GET /__test/conc", open_streams, OpenStreams),
    _test("POST /__test/conc/release", release_streams, Released),
    *(_page_file(name) for name in page.FILES if name != "index.html"),
    _page_api("state", page.ui_state),
    _page_api("choices", page.ui_choices),
    _page_api("turns", page.ui_turns),
    _page_api("turns/{id}", page.ui_turn),
    _page("GET /ui/api/turns/{id}/cassette", page.ui_cassette, "application/x-ndjson", kind="read"),
    _page_api("live", page.ui_live, head=False),
    _page_api(
        "stored",
        page.ui_stored,
        _query("search", TEXT_SCHEMA, "A text that the id or the response has, in any case."),
        _AFTER,
    ),
    _page_api("stored/{id}/tree", page.ui_tree, ids={"id": "Id of a response."}),
    _page_api(
        "conversations",
        page.ui_conversations,
        _query("search", TEXT_SCHEMA, "A text that the id or the metadata have, in any case."),
        _AFTER,
    ),
    _page_api("connect", page.ui_connect),
    _page("POST /ui/api/turns/{id}/cancel", page.ui_cancel, dict[str, Any], kind="read", counted=False),
    *(each for of_part in declared("endpoints") for each in of_part),
)
