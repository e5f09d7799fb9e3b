"""A machine behind the balancer is replaced while requests come."""

from __future__ import annotations

import asyncio
from pathlib import Path

from openai import AsyncOpenAI

from tests.http.serving import fake_proxy, until
from tests.http_responses.asking import prompt_for
from tests.nginx import needs_nginx
from tests.parts.machines.two_servers.balancer import KEY, SETTINGS, balancer
from tests.waiting import PATIENCE

pytestmark = needs_nginx


async def test_no_request_is_refused_while_a_machine_waits_for_its_turns_to_end(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    environment = {"STREAM_RELEASE_FILE": str(tmp_path / "release")}
    settings = {**SETTINGS, "store": "off", "drain_ms": int(PATIENCE * 1000)}
    async with (
        fake_proxy(tmp_path / "one", environment, **settings) as one,
        fake_proxy(tmp_path / "two", environment, **settings) as two,
        balancer(tmp_path, (one.server.port, two.server.port)) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=PATIENCE) as client,
    ):

        async def ask(text: str) -> str:
            answer = await client.chat.completions.create(
                model="codex-5", messages=[{"role": "user", "content": text}]
            )
            return str(answer.choices[0].message.content)

        hello = prompt_for("Hello.")
        await asyncio.gather(*(ask(hello) for _ in range(8)))  # so that connections to both could be kept
        held = [asyncio.create_task(ask('[[fake:text say="Held." hold=1]]')) for _ in range(2)]
        await until(lambda: one.server.runs.running == two.server.runs.running == 1)
        stopping = asyncio.create_task(one.server.stop())
        await until(lambda: one.server.runs.draining)
        assert [await ask(hello) for _ in range(12)] == ["Hello."] * 12
        (tmp_path / "release").touch()
        assert await asyncio.gather(*held) == ["Held.", "Held."]
        await stopping
        assert [await ask(hello) for _ in range(4)] == ["Hello."] * 4
