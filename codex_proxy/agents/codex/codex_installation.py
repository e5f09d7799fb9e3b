"""What is known of the installed Codex without a start of its app-server."""

from __future__ import annotations

import os

import msgspec

from codex_proxy.agents.codex.checks import login_command
from codex_proxy.agents.codex.codex_specs import CodexAgentName
from codex_proxy.agents.codex.plain_home import user_config
from codex_proxy.agents.codex.program import NEWEST_WITH_PROTO, find_codex, find_version, refusal_of_old
from codex_proxy.agents.spec import AgentContext
from codex_proxy.core.faults import Fault
from codex_proxy.core.installation import Installation


async def installation(agent: CodexAgentName, context: AgentContext) -> Installation:
    """Returns the Codex that the agent would start, with its release, and whether its home has a sign-in."""
    settings = context.settings
    proto = agent == "codex-proto"
    package = f"@openai/codex@{NEWEST_WITH_PROTO}" if proto else "@openai/codex@latest"
    missing = Installation(installed=False, install=f"npm install -g {package}")
    program = find_codex(settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        return missing
    try:
        version = await find_version(program, context.child_environment())
    except Fault as fault:
        return msgspec.structs.replace(missing, program=program, trouble=str(fault))
    if version[:2] > NEWEST_WITH_PROTO[:2] if proto else refusal_of_old(version):
        return missing
    return Installation(
        installed=True,
        program=program,
        version=str(version),
        signed_in=_has_sign_in(context),
        sign_in=f"Run `{login_command(program, settings, context.environ)}`.",
    )


def _has_sign_in(context: AgentContext) -> bool | None:
    """Looks for the file of the sign-in and for the variables of the user's provider; None if neither tells."""
    home = context.settings.codex_home
    try:
        provider = user_config(home).provider
    except Fault:
        return None  # `doctor` says what is wrong with the configuration
    if provider.custom:
        return (
            None if provider.token_command else all(context.environ.get(name) for name in provider.env_names)
        )
    return True if (home / "auth.json").is_file() else None if provider.keyring else False
