"""Converts Ollama's requests for embeddings and OpenAI's answers. Raises `Fault`: INVALID_REQUEST, or UPSTREAM_ERROR
for a wrong answer.
"""

from __future__ import annotations

import base64
import math
import struct
from typing import Annotated, Any, Final

import msgspec
from pydantic import Field

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.surfaces.answers.renderer import json_bytes, raw_text
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.ollama.parse import known_name
from codex_proxy.surfaces.ollama.render import NOT_AS_EXPECTED, TurnTimes
from codex_proxy.surfaces.ollama.wire import KeepAlive, ModelName
from codex_proxy.surfaces.requests.body import RequestModel, parse_as
from codex_proxy.surfaces.requests.fields import ByKind, FieldNotes, Ignored, ignored_fields

_NO_EMBEDDINGS: Final = Failure(FaultKind.UPSTREAM_ERROR, "The model server's answer has no embeddings.")
_NO_NUMBERS: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The model server's embeddings have NaN or Infinity in place of a number."
)
_NOT_EACH: Final = Failure(
    FaultKind.UPSTREAM_ERROR, "The model server's answer has not one embedding for each text of the input."
)


class OllamaEmbedRequest(RequestModel):
    """The body of `POST /api/embed`."""

    model: ModelName
    input: Annotated[str | list[str], ByKind()] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    truncate: Annotated[Any, Ignored()] = None
    options: Annotated[Any, Ignored()] = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(RequestModel):
    """The body of `POST /api/embeddings`, the older form of `/api/embed`."""

    model: ModelName
    prompt: str | None = None
    options: Annotated[Any, Ignored()] = None
    keep_alive: KeepAlive | None = None


class EmbeddingsRequest(msgspec.Struct, frozen=True):
    """A request for embeddings. `body`: the body in OpenAI's form; empty if there is nothing to embed, which Ollama
    answers with nothing. `count`: how many texts are embedded; `model`: the client's name of the model;
    `known`: this server's.
    """

    body: bytes
    count: int
    model: str
    known: str
    ignored: tuple[str, ...]


def read_embed(body: bytes, catalog: ModelCatalog) -> EmbeddingsRequest:
    request, notes = parse_as(OllamaEmbedRequest, body)
    given = request.input or []
    given = [given] if isinstance(given, str) else given
    return _make_request(request.model, catalog, given, request.dimensions, notes)


def read_embeddings(body: bytes, catalog: ModelCatalog) -> EmbeddingsRequest:
    request, notes = parse_as(OllamaEmbeddingsRequest, body)
    return _make_request(request.model, catalog, [request.prompt] if request.prompt else [], None, notes)


def _make_request(
    model: str, catalog: ModelCatalog, given: list[str], dimensions: int | None, notes: FieldNotes
) -> EmbeddingsRequest:
    known = known_name(model, catalog)
    body = {"model": raw_text(known), "input": [raw_text(text) for text in given]}
    more = {} if dimensions is None else {"dimensions": dimensions}
    made = json_bytes({**body, **more}) if given else b""
    return EmbeddingsRequest(made, len(given), model, known, ignored_fields(notes))


def embed_body(answer: bytes, request: EmbeddingsRequest, times: TurnTimes) -> bytes:
    """Converts OpenAI's `answer` to Ollama's."""
    vectors, tokens = _read(answer, request.count)
    figures = {"total_duration": times.total, "load_duration": times.load, "prompt_eval_count": tokens}
    return json_bytes({"model": raw_text(request.model), "embeddings": vectors, **figures})


def embeddings_body(answer: bytes) -> bytes:
    vectors, _ = _read(answer, 1)
    return json_bytes({"embedding": vectors[0]})


def nothing_embedded(model: str) -> bytes:
    """Returns Ollama's answer to `/api/embed` without an input."""
    return json_bytes({"model": raw_text(model), "embeddings": []})


NOTHING_EMBEDDED: Final = b'{"embedding":[]}'
"""Ollama's answer to `/api/embeddings` without a prompt."""


def _read(answer: bytes, count: int) -> tuple[list[list[float]], int]:
    """Returns the `count` embeddings, in the order of the input, and the input's tokens."""
    try:
        value = msgspec.json.decode(answer)
        given = value["data"]
        found = {entry.get("index", place): _vector(entry["embedding"]) for place, entry in enumerate(given)}
        tokens = int((value.get("usage") or {}).get("prompt_tokens") or 0)
    except (*NOT_AS_EXPECTED, struct.error) as error:
        raise Fault(_NO_EMBEDDINGS) from error
    if len(given) != count or found.keys() != set(range(count)):
        raise Fault(_NOT_EACH)
    return [found[index] for index in range(count)], tokens


def _vector(given: Any) -> list[float]:
    if isinstance(given, str):  # base64 of 32-bit floats
        data = base64.b64decode(given)
        vector = list(struct.unpack(f"<{len(data) // 4}f", data))
    else:
        vector = [float(number) for number in given]
    if not all(map(math.isfinite, vector)):
        raise Fault(_NO_NUMBERS)
    return vector
