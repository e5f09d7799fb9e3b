"""A model of llama.cpp's format with random weights, in a file of some 100 KB: what it says means nothing, but its
server is the real one.

    python -m tests.parts.upstream.tiny_model FILE [embeddings]

Writes the file, serves it with llama.cpp's own server (package `xllamacpp`), prints the address, and ends with its
stdin.
Source of the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path
from typing import Any

EMBEDDING, HEADS, FEED_FORWARD, CONTEXT = 32, 2, 64, 2048
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b"]
TYPES = [2, 3, 3, *([6] * 256), 1, 1, 1]
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ALIGNMENT = 32


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """A value with its type."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    first = value[0]
    kind, form = (8, "") if isinstance(first, str) else (6, "<f") if isinstance(first, float) else (5, "<i")
    data = b"".join(struct.pack(form, each) if form else _string(each) for each in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + data


def _tensors() -> dict[str, tuple[int, ...]]:
    """Names and shapes."""
    square, wide, tall = (EMBEDDING, EMBEDDING), (EMBEDDING, FEED_FORWARD), (FEED_FORWARD, EMBEDDING)
    block = {
        "attn_norm": (EMBEDDING,), "attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
        "ffn_norm": (EMBEDDING,), "ffn_gate": wide, "ffn_up": wide, "ffn_down": tall,
    }  # fmt: skip
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (EMBEDDING, len(TOKENS))}
    tensors |= {f"blk.0.{name}.weight": shape for name, shape in block.items()}
    return tensors | {"output_norm.weight": (EMBEDDING,), "output.weight": (EMBEDDING, len(TOKENS))}


def write_model(file: Path) -> None:
    """Writes the model. Its weights are the same each time."""
    fields: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.context_length": CONTEXT,
        "llama.embedding_length": EMBEDDING,
        "llama.block_count": 1,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.rope.dimension_count": EMBEDDING // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(TOKENS),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.scores": [0.0] * len(TOKENS),
        "tokenizer.ggml.token_type": TYPES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }
    chance = random.Random(7)
    infos, data = b"", b""
    tensors = _tensors()
    for name, shape in tensors.items():
        infos += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        weights = [1.0 if len(shape) == 1 else chance.gauss(0, 0.2) for _ in range(count)]
        data += struct.pack(f"<{count}f", *weights)
        data += bytes(-len(data) % ALIGNMENT)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields))
    head += b"".join(_string(name) + _value(value) for name, value in fields.items()) + infos
    file.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def main(file: Path, mode: str = "") -> None:
    import xllamacpp  # type: ignore[import-not-found,import-untyped,unused-ignore]

    write_model(file)
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    params.port = 0
    params.hostnames = ["127.0.0.1"]
    params.warmup = False
    if mode == "embeddings":
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
