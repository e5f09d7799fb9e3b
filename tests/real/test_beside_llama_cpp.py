"""The real Codex and llama.cpp's own server behind one base URL, as an editor uses them."""

from __future__ import annotations

from pathlib import Path

from tests.parts.upstream.test_llama_cpp import NEEDS_LLAMA, beside_llama, use_as_an_editor
from tests.real.codex_home import CodexHome
from tests.real.model_plans import plan, say
from tests.real.proxy import proxy

pytestmark = NEEDS_LLAMA


async def test_one_base_url_has_an_editors_completion_its_embeddings_and_its_chat_with_codex(
    codex_home: CodexHome, tmp_path: Path
) -> None:
    async with beside_llama(tmp_path) as tables, proxy(codex_home, upstreams=tables) as running:
        assert await use_as_an_editor(running.url, plan([say("Hello.")])) == "Hello."
