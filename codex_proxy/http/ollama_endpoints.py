"""The endpoints of Ollama's API, for `http/endpoints.py`."""

from __future__ import annotations

from typing import Any, Final

from codex_proxy.http.endpoint import Endpoint
from codex_proxy.http.ollama import chat, embed, embeddings, generate, ps, show, tags, version
from codex_proxy.http.sse import NDJSON
from codex_proxy.surfaces.ollama.answer import OllamaAnswer, OllamaModel, OllamaModels, OllamaVersion

_WORDS: Final = (
    "Details: docs/ollama.md. The answer is streamed as lines of JSON, unless `stream` is false. A request without a "
    "prompt runs no turn."
)

OLLAMA_ENDPOINTS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        method="POST",
        path="/api/chat",
        handler=chat,
        name="ollama_chat",
        chapter="Ollama",
        kind="turn",
        errors="ollama",
        versioned=False,
        summary="Creates an answer to a conversation, in the form of Ollama's API.",
        description=_WORDS,
        body="OllamaChatRequest",
        answers={"200": OllamaAnswer},
        streams=OllamaAnswer,
        stream_type=NDJSON,
    ),
    Endpoint(
        method="POST",
        path="/api/generate",
        handler=generate,
        name="ollama_generate",
        chapter="Ollama",
        kind="turn",
        errors="ollama",
        versioned=False,
        summary="Creates an answer to a prompt, in the form of Ollama's API.",
        description=_WORDS,
        body="OllamaGenerateRequest",
        answers={"200": OllamaAnswer},
        streams=OllamaAnswer,
        stream_type=NDJSON,
    ),
    *(
        Endpoint(
            method="POST",
            path=path,
            handler=handler,
            name=f"ollama_{path.rpartition('/')[2]}",
            chapter="Ollama",
            kind="turn",
            errors="ollama",
            versioned=False,
            summary="Returns embeddings of an upstream.",
            body=body,
            answers={"200": dict[str, Any]},
        )
        for path, handler, body in (
            ("/api/embed", embed, "OllamaEmbedRequest"),
            ("/api/embeddings", embeddings, "OllamaEmbeddingsRequest"),
        )
    ),
    Endpoint(
        method="GET",
        path="/api/version",
        handler=version,
        name="ollama_version",
        chapter="Ollama",
        kind="read",
        errors="ollama",
        versioned=False,
        summary="Returns the version of Ollama whose API is served.",
        answers={"200": OllamaVersion},
    ),
    Endpoint(
        method="GET",
        path="/api/tags",
        handler=tags,
        name="ollama_tags",
        chapter="Ollama",
        kind="read",
        errors="ollama",
        versioned=False,
        summary="Lists the models.",
        answers={"200": OllamaModels},
    ),
    Endpoint(
        method="GET",
        path="/api/ps",
        handler=ps,
        name="ollama_ps",
        chapter="Ollama",
        kind="read",
        errors="ollama",
        versioned=False,
        summary="Lists the models in memory: always none.",
        answers={"200": OllamaModels},
    ),
    Endpoint(
        method="POST",
        path="/api/show",
        handler=show,
        name="ollama_show",
        chapter="Ollama",
        kind="read",
        errors="ollama",
        versioned=False,
        counted=False,
        summary="Returns what a model can do, and the length of its context.",
        body="OllamaShowRequest",
        answers={"200": OllamaModel},
    ),
)
