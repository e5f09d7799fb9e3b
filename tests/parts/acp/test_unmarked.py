"""Without a marker the fake agent reads what is wanted in an ACP prompt too, where all is one text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy, user

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("before", [[], [{"role": "system", "content": "Be brief."}]])
async def test_an_answer_fits_the_schema(tmp_path: Path, before: list[dict[str, Any]]) -> None:
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    asked = user("Who?", response_format=format)
    async with fake_proxy(tmp_path, fake_dialect="acp") as proxy:
        answer = await proxy.ask({**asked, "messages": [*before, *asked["messages"]]})
    assert answer.status == 200, answer.text
    assert json.loads(answer.body["choices"][0]["message"]["content"]) == {"name": "name"}
