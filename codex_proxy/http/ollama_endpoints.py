"""The endpoints of Ollama's API, for `http/endpoints.py`."""

from __future__ import annotations

from typing import Any, Final, Literal

from codex_proxy.http.endpoint import AnswerType, Endpoint, Handler
from codex_proxy.http.ollama import chat, embed, embeddings, generate, ps, show, tags, version
from codex_proxy.http.sse import NDJSON
from codex_proxy.surfaces.ollama.answer import OllamaAnswer, OllamaModel, OllamaModels, OllamaVersion

_WORDS: Final = (
    "Details: docs/ollama.md. It is a stream of lines of JSON, unless `stream` is false. "
    "Without a prompt no turn is run."
)


def _endpoint(
    method: Literal["GET", "POST"],
    kind: Literal["turn", "read"],
    handler: Handler,
    name: str,
    answer: AnswerType,
    summary: str,
    body: str | None = None,
    **more: Any,
) -> Endpoint:
    return Endpoint(
        f"{method} /api/{name}",
        handler,
        operation_id=f"ollama_{name}",
        chapter="Ollama",
        kind=kind,
        errors="ollama",
        versioned=False,
        summary=summary,
        body=body,
        answers={"200": answer},
        **more,
    )


def _turn(handler: Handler, name: str, summary: str, body: str) -> Endpoint:
    more = {"description": _WORDS, "streams": OllamaAnswer, "stream_type": NDJSON}
    return _endpoint("POST", "turn", handler, name, OllamaAnswer, summary, body, **more)


_CHAT: Final = "Creates an answer to a conversation."
_GENERATE: Final = "Creates an answer to a prompt."
_EMBED: Final = "Returns embeddings, which an upstream makes."
_VERSION: Final = "Returns the version of Ollama whose API is served."
_SHOW: Final = "Returns what a model can do, and the length of its context."

OLLAMA_ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _turn(chat, "chat", _CHAT, "OllamaChatRequest"),
    _turn(generate, "generate", _GENERATE, "OllamaGenerateRequest"),
    _endpoint("POST", "turn", embed, "embed", dict[str, Any], _EMBED, "OllamaEmbedRequest"),
    _endpoint("POST", "turn", embeddings, "embeddings", dict[str, Any], _EMBED, "OllamaEmbeddingsRequest"),
    _endpoint("GET", "read", version, "version", OllamaVersion, _VERSION),
    _endpoint("GET", "read", tags, "tags", OllamaModels, "Lists the models."),
    _endpoint("GET", "read", ps, "ps", OllamaModels, "Lists the models in memory: always none."),
    _endpoint("POST", "read", show, "show", OllamaModel, _SHOW, "OllamaShowRequest", counted=False),
)
