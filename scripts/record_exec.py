"""Records what the real `codex exec --json` prints, into tests/golden/recordings/exec: a file a scenario and release.

    .venv/bin/python -m scripts.record_exec                      # the installed package
    TEST_CODEX=/path/to/codex .venv/bin/python -m scripts.record_exec

The model's answers come from the scripted model server of tests/real, by the marker in the prompt. The process is
started with the arguments that the agent `codex-exec` starts it with. Lines are in the form of the other recordings:
`{"t": ms, "dir": "meta|out|err|exit", "line": text}`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from codex_proxy.agents.codex.program import find_version
from codex_proxy.agents.codex.shadow_home import provider_config
from codex_proxy.agents.codex.switches import COMMON_SWITCHES, provider_pairs
from codex_proxy.agents.codex_exec.launch import exec_argv
from codex_proxy.core.turn import Turn
from tests.real.codex_home import MODEL, CodexHome, make_codex_home
from tests.real.model_server import model_server
from tests.real.release import codex_path
from tests.waiting import PATIENCE

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "recordings" / "exec"

SCHEMA = b'{"type":"object","properties":{"answer":{"type":"string"}},"required":["answer"]}'

SCENARIOS: dict[str, str] = {
    "text": "[[model:text say='Hello there, you.']]",
    "reasoning": "[[model:reasoning]]",
    "shell": "[[model:shell cmd='echo one; exit 3']]",
    "multi": "[[model:multi]]",
    "schema": """[[model:json body='{"answer": "42"}']]""",
    "refusal": "[[model:refusal]]",
    "incomplete_max_tokens": "[[model:incomplete why=max_output_tokens]]",
    "incomplete_filter": "[[model:incomplete why=content_filter]]",
    "http_401": "[[model:http status=401 msg='Missing bearer authentication in header']]",
    "http_404_model": "[[model:http status=404 code=model_not_found msg='The model m does not exist']]",
    "http_429": "[[model:http status=429]]",
    "http_429_usage_limit": "[[model:http status=429 type=usage_limit_reached]]",
    "http_500": "[[model:http status=500]]",
    "failed_context": "[[model:failed n=2 code=context_length_exceeded msg='too long']]",
    "drop": "[[model:drop n=3]]",
    "empty_prompt": "",
}
"""The prompt of each scenario; with `schema` in its name it gets an output schema."""


async def record(name: str, prompt: str, home: CodexHome, version: str) -> list[dict[str, Any]]:
    """Runs the scenario, and returns its rows."""
    schema = home.path / "schema.json"
    schema.write_bytes(SCHEMA)
    turn = Turn(model=MODEL, history=(), workdir=str(home.workdir))
    pairs = [(switch.key, switch.value) for switch in COMMON_SWITCHES]
    pairs += provider_pairs(provider_config(home.config.read_text()))
    argv = exec_argv(str(codex_path()), turn, pairs, schema=str(schema) if "schema" in name else None)
    started = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=home.environment(),
        cwd=home.workdir,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    said = {"argv": ["codex", *argv[1:]], "codex": version, "prompt": prompt}
    rows = [{"t": 0, "dir": "meta", "line": json.dumps(said)}]

    async def read(kind: str, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            at = round((time.monotonic() - started) * 1000)
            rows.append({"t": at, "dir": kind, "line": line.decode().rstrip("\n")})

    process.stdin.write(prompt.encode())
    process.stdin.close()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(read("out", process.stdout), read("err", process.stderr))
        status = await process.wait()
    at = round((time.monotonic() - started) * 1000)
    return [*rows, {"t": at, "dir": "exit", "line": json.dumps({"rc": status})}]


async def main() -> None:
    async with model_server() as server:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            for name, prompt in SCENARIOS.items():
                home = make_codex_home(Path(folder) / name, server.base_url)
                version = str(await find_version(str(codex_path()), home.environment()))
                rows = await record(name, prompt, home, version)
                text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
                text = text.replace(server.base_url, "http://127.0.0.1:1/v1")
                for path, shown in ((home.workdir, "<CWD>"), (home.path, "<HOME>")):
                    text = text.replace(str(path), shown)
                (FOLDER / f"{name}_{version}.jsonl").write_text(text, encoding="utf-8")
                sys.stdout.write(f"{name}_{version}: {rows[-1]['line']}\n")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    asyncio.run(main())
