"""The endpoints of Ollama's API, for `http/endpoints.py`."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.http.endpoint import AnswerType, Endpoint, Handler
from codex_proxy.http.ollama import chat, embed, embeddings, generate, ps, show, tags, version
from codex_proxy.http.sse import NDJSON
from codex_proxy.surfaces.ollama.answer import OllamaAnswer, OllamaModel, OllamaModels, OllamaVersion

_WORDS: Final = (
    "Details: docs/ollama.md. It is a stream of lines of JSON, unless `stream` is false. "
    "Without a prompt no turn is run."
)


def _endpoint(route: str, handler: Handler, answer: AnswerType, **more: Any) -> Endpoint:
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


def _turn(route: str, handler: Handler, body: str) -> Endpoint:
    more = {"description": _WORDS, "streams": OllamaAnswer, "stream_type": NDJSON}
    return _endpoint(route, handler, OllamaAnswer, kind="turn", body=body, **more)


OLLAMA_ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    _turn("POST /api/chat", chat, "OllamaChatRequest"),
    _turn("POST /api/generate", generate, "OllamaGenerateRequest"),
    _endpoint("POST /api/embed", embed, dict[str, Any], kind="turn", body="OllamaEmbedRequest"),
    _endpoint(
        "POST /api/embeddings", embeddings, dict[str, Any], kind="turn", body="OllamaEmbeddingsRequest"
    ),
    _endpoint("GET /api/version", version, OllamaVersion, kind="read"),
    _endpoint("GET /api/tags", tags, OllamaModels, kind="read"),
    _endpoint("GET /api/ps", ps, OllamaModels, kind="read"),
    _endpoint("POST /api/show", show, OllamaModel, kind="read", body="OllamaShowRequest", counted=False),
)
