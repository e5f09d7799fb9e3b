"""The command `codex-proxy mcp`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click

from codex_proxy.process.launch import AGENT_MARK

KEY_VARIABLE = "CODEX_PROXY_KEY"
"""The variable with the key for `--base-url`: the key of the settings goes to the server of the settings alone."""


def commands(_say: Callable[..., None], settings_option: Callable[..., Any]) -> list[click.Command]:
    """Returns the command."""

    @click.command(short_help="Let an MCP client start agents of the running server, over stdin and stdout.")
    @click.option("--base-url", metavar="URL", help="Address of the server (default: that of the settings).")
    @click.option(
        "--key",
        metavar="KEY",
        envvar=KEY_VARIABLE,
        help=f"API key to send, also in {KEY_VARIABLE} (default: that of the settings, PROXY_API_KEY).",
    )
    @click.option("--by-agent", envvar=AGENT_MARK, is_flag=True, hidden=True)
    @settings_option
    def mcp(base_url: str | None, key: str | None, by_agent: bool, settings: Any) -> None:
        """Connect an MCP client, over stdin and stdout, to the running server.

        The client's model can then start agents as sessions, follow them and stop them.

        \b
        claude mcp add codex-proxy -- codex-proxy mcp
        codex mcp add codex-proxy -- codex-proxy mcp
        """
        if find_spec("mcp") is None:
            raise click.ClickException(
                "`codex-proxy mcp` needs the extra `mcp`: install it with `pip install 'codex-openai-proxy[mcp]'`."
            )
        from codex_proxy.parts.mcp_server.stdio import run

        if key is None and base_url is None:
            key = settings.default_key
        url = (base_url or settings.server_url).rstrip("/").removesuffix("/v1")
        run(f"{url}/mcp", key, by_agent=by_agent)

    return [mcp]
