"""Uploaded files beside other parts: requests for model servers that name one, and copies of stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts import absent_parts

if {"files", "upstream", "machines"} & absent_parts().keys():
    pytest.skip("needs the parts files, upstream and machines", allow_module_level=True)

from codex_proxy.parts.machines.store_copy import copy_store
from tests.http.serving import Proxy, fake_proxy, settings_of
from tests.model_server import Upstream
from tests.parts.files.sending import uploaded
from tests.parts.upstream.conftest import proxy, server
from tests.weather_tool import CHAT_WEATHER

__all__ = ["proxy", "server"]


@pytest.mark.parametrize("tools", [[], [CHAT_WEATHER]], ids=["passed on", "told anew"])
async def test_a_model_server_gets_the_content_of_an_uploaded_file_and_its_own_ids_as_they_are(
    proxy: Proxy, server: Upstream, tools: list[Any]
) -> None:
    id = await uploaded(proxy, data=b"Hello.", filename="a.txt", media_type="text/plain")
    own = {"type": "file", "file": {"file_id": "file-of-the-upstream"}}
    content = [{"type": "text", "text": "?"}, {"type": "file", "file": {"file_id": id}}, own]
    body = {"model": "small", "messages": [{"role": "user", "content": content}]}
    answer = await proxy.ask(body | ({"tools": tools} if tools else {}))
    assert answer.status == 200, answer.text
    given = {"filename": "a.txt", "file_data": "data:text/plain;base64,SGVsbG8u"}
    assert server.requests[-1].body["messages"][-1]["content"] == [
        content[0],
        {"type": "file", "file": given},
        own,
    ]


async def test_a_copy_of_a_store_says_where_the_bytes_of_its_files_are(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        await uploaded(proxy)
    source, target = str(tmp_path / "state" / "store.sqlite3"), str(tmp_path / "other.sqlite3")
    said = await copy_store(settings_of(tmp_path), source, target, lambda table, count: None)
    assert said.endswith(f". Copy the uploaded files, too: {source}.files to {target}.files")
