"""What a command of the agent can do, whoever has talked the model into it: what SECURITY.md says of sandboxes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.real.model_scenarios import items_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, ask
from tests.real.shared import Proxies

SECRET = "the private file says this"


async def ran(proxy: Proxy, model: ModelServer, command: str) -> str:
    """What a command said, which the model has asked for."""
    await proxy.client.chat.completions.create(**ask(f'[[model:shell cmd="{command}"]]'))
    return str(items_of(model.calls[-1].body)[-1]["output"])


@pytest.mark.parametrize(
    ("sandbox", "workspace", "elsewhere", "network"),
    [
        ("read-only", False, False, False),
        ("workspace-write", True, False, False),
        ("danger-full-access", True, True, True),
    ],
)
async def test_a_sandbox_keeps_a_command_from_writing_and_from_the_network_and_from_no_file_to_read(
    proxies: Proxies,
    model_server: ModelServer,
    sandbox: str,
    workspace: bool,
    elsewhere: bool,
    network: bool,
) -> None:
    private = proxies.home.user / "private"
    private.write_text(SECRET)
    proxy = await proxies.of(sandbox=sandbox)
    # Codex counts /tmp to what may be written; this folder is as far from the workspace as any other.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        output = await ran(
            proxy,
            model_server,
            f"cat {private}; touch within; touch {outside}/made; "
            f"(exec 3<>/dev/tcp/127.0.0.1/{proxy.server.port}) && echo CONNECTED",
        )
        assert any(Path(outside).iterdir()) is elsewhere
    assert SECRET in output, "no sandbox of Codex keeps a command from reading"
    assert (proxies.home.workdir / "within").exists() is workspace
    assert ("CONNECTED" in output) is network
