"""What the README shows works as it is written."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from scripts.bench_lib.servers import Proxy, clean_environment, proxy
from tests.scripts.checkout import ROOT
from tests.waiting import PATIENCE

README = (ROOT / "README.md").read_text("utf-8")
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SAYS = "Hello from the deterministic fake agent."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with proxy(tmp_path_factory.mktemp("readme"), "--agent", "fake") as running:
        yield running


def example(kind: str, beginning: str, server: Proxy) -> str:
    """The example of the README that begins so, with the port of this server."""
    blocks = re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)
    [block] = [block for block in blocks if block.startswith(beginning)]
    assert ":11435/" in block
    return str(block).replace(":11435/", f":{server.port}/")


def run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, env=clean_environment({}), check=True
    )
    return done.stdout


def test_the_curl_line_streams_an_answer(server: Proxy) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    out = run(["bash", "-c", example("sh", "curl", server)])
    pieces = re.findall(r'"delta":\{"content":"([^"]*)"', out)
    assert "".join(pieces) == SAYS
    assert out.endswith("data: [DONE]\n\n")


@pytest.mark.exhaustive
def test_the_sdk_example_prints_an_answer_and_its_tokens(server: Proxy) -> None:
    out = run([sys.executable, "-c", example("python", "from openai", server)])
    assert re.fullmatch(re.escape(SAYS) + r"\n[1-9]\d* tokens\n", out)


def test_no_text_advises_to_install_the_other_project_of_this_name() -> None:
    for document in DOCUMENTS:
        assert not re.search(r"pip install\s+[\"']?codex-proxy", document.read_text("utf-8")), document
