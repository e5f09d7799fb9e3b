"""Codex as a client of the proxy whose agent is the real binary, too: what it brings for itself works through us.

The model is the scripted one behind the proxy's own Codex. Each test runs `codex exec` once for a model name whose
requests have another form: plain tools, deferred ones (`tool_search`), or all of them in an `additional_tools` item.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.tool_names import offered_name
from codex_proxy.http import body
from codex_proxy.http.body import Coding
from tests.fuzz.requests import PIXEL
from tests.real.codex_home import make_codex_home, run_exec, sign_in_with_chatgpt
from tests.real.model_plans import call, plan, say
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy
from tests.real.release import since
from tests.real.shared import Proxies, living_on

PLAIN, DEFERRED, LITE = "scripted-model", "gpt-5.5", "gpt-6-sol"
"""Names by which Codex chooses the form of its requests."""
MCP_PROGRAM = Path(__file__).parents[1] / "mcp" / "program.py"
PATCH = "*** Begin Patch\n*** Add File: made.txt\n+made by a patch\n*** End Patch\n"


@dataclass
class Session:
    """One run of `codex exec`."""

    items: list[dict[str, Any]]
    """What it did, as `--json` prints it."""
    folder: Path

    @property
    def answer(self) -> str:
        """The last thing that it said."""
        said: str = [item for item in self.items if item["type"] == "agent_message"][-1]["text"]
        return said


@dataclass(frozen=True)
class Chain:
    """A proxy on the real agent, and the folder for clients of it."""

    proxy: Proxy
    model: ModelServer
    folder: Path

    async def session(self, model: str, prompt: str, *, image: Path | None = None) -> Session:
        """Runs a client Codex that has an MCP server of its own."""
        home = make_codex_home(self.folder / "client", f"{self.proxy.url}/v1")
        home.config.write_text(
            home.config.read_text().replace(PLAIN, model)
            + f"[mcp_servers.files]\ncommand = {json.dumps(sys.executable)}\nrequired = true\n"
            f'args = [{json.dumps(str(MCP_PROGRAM))}, "stdio", "--only", "echo"]\n'
        )
        pictures = ["--image", str(image)] if image else []
        said = await run_exec(home, "--json", "--sandbox", "workspace-write", prompt, *pictures)
        events = [json.loads(line) for line in said.splitlines()]
        items = [event["item"] for event in events if event["type"] == "item.completed"]
        return Session(items, home.workdir)

    def offered(self, index: int = -1) -> set[str]:
        """The names of the tools that the model was offered."""
        return {inner["name"] for _, inner in tools_in(self.model.calls[index].body) if "name" in inner}


def tools_in(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the tools in a request, each with its namespace."""
    items = [item for item in body["input"] if item.get("type") == "additional_tools"]
    for tool in [*body.get("tools", ()), *(tool for item in items for tool in item["tools"])]:
        for inner in tool.get("tools", [tool]):
            yield ("" if inner is tool else tool["name"]), inner


@living_on()
async def chain(tmp_path: Path, proxies: Proxies, model_server: ModelServer) -> Chain:
    aliases = ",".join(f"{name}={PLAIN}" for name in (DEFERRED, LITE))
    return Chain(await proxies.of(model_aliases=aliases), model_server, tmp_path)


@pytest.mark.exhaustive
async def test_a_patch_is_applied_under_a_model_name_with_a_patch_tool(chain: Chain) -> None:
    done = await chain.session(DEFERRED, plan([call("apply_patch", input=PATCH)], [say("Patched.")]))
    assert (done.folder / "made.txt").read_text() == "made by a patch\n"
    assert done.answer == "Patched."


@pytest.mark.exhaustive
async def test_a_patch_is_applied_by_a_script_under_a_newer_model_name(chain: Chain) -> None:
    script = f"text(await tools.apply_patch({json.dumps(PATCH)}));"
    done = await chain.session(LITE, plan([call("exec", input=script)], [say("Patched.")]))
    assert (done.folder / "made.txt").read_text() == "made by a patch\n"
    assert done.answer == "Patched."


@pytest.mark.exhaustive
async def test_a_tool_of_its_mcp_server_is_called_under_a_plain_model_name(chain: Chain) -> None:
    name = offered_name("mcp__files", "echo")
    done = await chain.session(PLAIN, plan([call(f"client_{name}", text="seen")], [say("Called.")]))
    (called,) = [item for item in done.items if item["type"] == "mcp_tool_call"]
    assert (called["server"], called["tool"], called["status"]) == ("files", "echo", "completed")
    assert done.answer == "Called."


@pytest.mark.exhaustive
async def test_a_deferred_tool_of_its_mcp_server_is_found_and_called(chain: Chain) -> None:
    name = f"client_{offered_name('mcp__files', 'echo')}"
    done = await chain.session(
        DEFERRED, plan([call("tool_search", query="echo")], [call(name, text="seen")], [say("Called.")])
    )
    (called,) = [item for item in done.items if item["type"] == "mcp_tool_call"]
    assert (called["tool"], called["status"]) == ("echo", "completed")
    assert name not in chain.offered(0)
    assert name in chain.offered()


@pytest.mark.exhaustive
async def test_a_script_calls_its_mcp_server_under_a_newer_model_name(chain: Chain) -> None:
    script = 'text(await tools.mcp__files__echo({"text": "seen"}));'
    done = await chain.session(LITE, plan([call("exec", input=script)], [say("Called.")]))
    (called,) = [item for item in done.items if item["type"] == "mcp_tool_call"]
    assert (called["tool"], called["status"]) == ("echo", "completed")


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", [PLAIN, DEFERRED, LITE])
async def test_an_image_reaches_the_model(chain: Chain, tmp_path: Path, model: str) -> None:
    picture = tmp_path / "pixel.png"
    picture.write_bytes(base64.b64decode(PIXEL.partition(",")[2]))
    done = await chain.session(model, "[[model:text say=Seen.]]", image=picture)
    assert done.answer == "Seen."
    parts = [part for item in chain.model.calls[-1].body["input"] for part in item.get("content", ())]
    assert [part for part in parts if part["type"] == "input_image"]


@pytest.mark.exhaustive
@since("0.163", "it packs no requests")
async def test_a_codex_with_a_sign_in_of_chatgpt_packs_its_requests(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[Coding] = []

    unpack = body.decompress

    def decompress(given: bytes, coding: Coding, limit: int) -> bytes:
        packed.append(coding)
        return unpack(given, coding, limit)

    monkeypatch.setattr(body, "decompress", decompress)
    home = make_codex_home(chain.folder / "client", "")
    sign_in_with_chatgpt(home, f"{chain.proxy.url}/v1")
    said = await run_exec(home, "[[model:text say=Unpacked.]]")
    assert said.decode().strip().endswith("Unpacked.")
    assert set(packed) == {"zstd"}
