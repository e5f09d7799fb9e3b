"""Records what the real `codex exec --json` prints, into tests/golden/recordings/exec: a file a scenario and release.

    .venv/bin/python -m scripts.record_exec                      # the installed package
    TEST_CODEX=/path/to/codex .venv/bin/python -m scripts.record_exec

The model's answers come from the scripted model server of tests/real, by the marker in the prompt. The process is
started with the arguments that the agent `codex-exec` starts it with. The files are captures (`tests/captures.py`).
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from codex_proxy.agents.codex.program import find_version
from codex_proxy.agents.codex.shadow_home import plan_shadow_home
from codex_proxy.agents.codex.switches import COMMON_SWITCHES, provider_pairs
from codex_proxy.agents.codex_exec.launch import exec_argv
from codex_proxy.agents.dialect import Ended
from codex_proxy.core.turn import Turn
from tests.captures import Capture, CaptureLine, text_of_capture
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
"""The prompt of each scenario; a scenario with `schema` in its name gets an output schema."""


async def record(name: str, prompt: str, home: CodexHome, version: str, model_url: str) -> Capture:
    """Runs the scenario, and returns what the program has printed."""
    schema = home.path / "schema.json"
    schema.write_bytes(SCHEMA)
    turn = Turn(model=MODEL, history=(), workdir=str(home.workdir))
    pairs = [(switch.key, switch.value) for switch in COMMON_SWITCHES]
    pairs += provider_pairs(plan_shadow_home(home.config.read_text()).provider)
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
    shown = {model_url: "http://127.0.0.1:1/v1", str(home.workdir): "<CWD>", str(home.path): "<HOME>"}

    def at() -> int:
        return round((time.monotonic() - started) * 1000)

    def clean(text: str) -> str:
        for own, placeholder in shown.items():
            text = text.replace(own, placeholder)
        return text

    async def read(stream: asyncio.StreamReader) -> list[tuple[int, str]]:
        return [(at(), clean(line.decode().rstrip("\n"))) async for line in stream]

    process.stdin.write(prompt.encode())
    process.stdin.close()
    async with asyncio.timeout(PATIENCE):
        printed, errors = await asyncio.gather(read(process.stdout), read(process.stderr))
        status = await process.wait()
    ended = Ended(code=status, stderr_tail="\n".join(text for _, text in errors))
    lines = [CaptureLine(ms, "from", text.encode()) for ms, text in printed]
    lines.append(CaptureLine(at(), "ended", msgspec.structs.asdict(ended)))
    return Capture(
        name=f"{name}_{version}",
        head={
            "cassette": 1,
            "agent": "codex-exec",
            "version": version,
            "settings": {"argv": ["codex", *map(clean, argv[1:])], "prompt": prompt},
        },
        dialect="exec",
        lines=lines,
    )


async def main() -> None:
    async with model_server() as server:
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".recording-") as folder:
            for name, prompt in SCENARIOS.items():
                home = make_codex_home(Path(folder) / name, server.base_url)
                version = str(await find_version(str(codex_path()), home.environment()))
                found = await record(name, prompt, home, version, server.base_url)
                path = FOLDER / f"{found.name}.jsonl"
                path.write_bytes(text_of_capture(found))
                sys.stdout.write(f"{found.name}: {len(found.lines)} lines\n")


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    asyncio.run(main())
