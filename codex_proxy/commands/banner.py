"""What a person sees when a server is up: where it serves, who answers, what to beware of, and what to try."""

from __future__ import annotations

from typing import Any

from codex_proxy import __version__


def banner(server: Any) -> str:
    """What a person needs to see when the server is up."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    base = f"http://{host}:{server.port}/v1"
    settings = server.settings
    key = " -H 'Authorization: Bearer KEY'" if settings.wants_key else ""
    spec = server.agent_spec
    sandbox = (
        f"sandbox: {settings.sandbox}" if spec.confined else "no sandbox: what this agent runs, runs as you"
    )
    lines = [
        f"codex-proxy {__version__} serves on {base}",
        f"  agent      {server.agent.name} {server.agent.version}",
    ]
    if spec.plain_only:
        lines.append(
            f"  models     {len(server.agent.models()) or 'any name'} (plain models: nothing runs here)"
        )
    else:
        lines.append(f"  workspace  {settings.workdir} ({sandbox})")
    lines += [
        f"  off        {feature}: this release has no {', no '.join(names)}"
        for feature, names in server.agent.off.items()
    ]
    trouble = server.agent.trouble()
    if trouble is not None:
        lines.append(f"  TROUBLE    {trouble.message}")
    if settings.log_content:
        lines += [
            "",
            "  *** PROMPTS AND ANSWERS ARE LOGGED (--log-content): whoever reads the log reads them.   ***",
            "  *** Meant for finding a fault. Start without it, and remove the log, when that is done. ***",
        ]
    if spec.made_up:
        lines += [
            "",
            "  *** This is the embedded FAKE agent: its answers are made up. ***",
            "  *** For a real one install Codex, sign in, and start again.   ***",
        ]
    lines += [
        "",
        "Try it:",
        f"  curl -N {base}/chat/completions{key} -H 'Content-Type: application/json' \\",
        """    -d '{"model": "codex-5", "stream": true, "messages": [{"role": "user", "content": "Say hello."}]}'""",
        "",
    ]
    return "\n".join(lines)
