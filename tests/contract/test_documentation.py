"""docs/chat-completions.md names the parameters that the code ignores."""

from __future__ import annotations

import re
from pathlib import Path

from codex_proxy.core.options import SAMPLING
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.field_lists import Ignored

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat-completions.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_parameters_that_are_ignored_are_all_named() -> None:
    paragraph = section("What is ignored").strip().split("\n\n")[1]
    ignored = [
        name
        for name, field in ChatRequest.model_fields.items()
        if name in SAMPLING["chat"] or any(isinstance(mark, Ignored) for mark in field.metadata)
    ]
    assert sorted(re.findall(r"`(\w+)`", paragraph)) == sorted(ignored)
