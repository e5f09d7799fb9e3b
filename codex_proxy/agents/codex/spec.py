"""The parts that are common to the declarations of all agents that run Codex: finding its program, its protocol,
and its model provider.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.faults import Fault

if TYPE_CHECKING:
    from codex_proxy.agents.codex.program import Version
    from codex_proxy.agents.codex.shadow_home import ProviderConfig
    from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck
    from codex_proxy.agents.plain_confinement import PlainConfinement


CodexAgentName = Literal["codex-app-server", "codex-proto", "codex-exec"]
"""The names of the agents that run Codex, one for each of its protocols."""

CODEX_SETTINGS = frozenset({"codex_bin", "codex_home", "codex_model", "codex_lite", "child_env"})
PLAIN_CODEX_SETTINGS = CODEX_SETTINGS | {"agent_confinement", "agent_state_folders"}
"""The settings that each Codex may have for itself, if the server has several agents; the second set is for those
with plain-model turns."""

NO_CODEX = (
    "Codex was not found. Install it (`npm install -g @openai/codex`, or the extra "
    "`codex-openai-proxy[codex]`), give its path with {}, or try the embedded fake agent with "
    "--agent fake."
)

NO_PROTO = (
    "Codex {version} has no `codex proto`, which only releases up to 0.42 have. Omit --agent, "
    "or use --agent codex-app-server."
)

NO_EXEC = (
    "Codex {version} cannot be used through `codex exec`: its help does not list {missing}. "
    "Omit --agent, or install a newer release of Codex."
)

EXEC_INSTEAD = (
    "{reason} It is used through `codex exec` instead, with limitations: requests with tools "
    "are refused, a conversation is passed on as one text, and answers are not streamed."
)


def codex_program(context: AgentContext) -> str:
    """Returns the path of the Codex program to start. Raises `NoAgentError` if none is found."""
    from codex_proxy.agents.codex.program import find_codex

    program = find_codex(context.settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        raise NoAgentError(NO_CODEX.format(context.where_set("codex_bin")))
    return program


async def codex_confinement(context: AgentContext, provider: ProviderConfig) -> PlainConfinement:
    """Returns what keeps plain-model processes from reading the user's files. They have a home of their own (its
    variables name it); of the user's they may only read and write the sign-in. Raises `NoAgentError` if the
    mechanism in the settings cannot be used.
    """
    from codex_proxy.agents.confinement_setup import plain_confinement, state_folders
    from codex_proxy.agents.plain_confinement import NO_RENEWAL, TOKEN_COMMAND, PlainConfinement

    settings = context.settings
    if provider.token_command and settings.agent_confinement == "auto":
        return PlainConfinement("Codex", None, why=TOKEN_COMMAND.format(provider.id))
    written = (*state_folders(context, "", ()), str(settings.codex_home / "auth.json"))
    read = [str(context.state_dir / "catalogs")]
    if provider.id == "amazon-bedrock":
        read.append(os.path.join(context.environ.get("HOME", ""), ".aws"))
    return await plain_confinement(
        context, "Codex", written=written, read=tuple(read), unusable={"codex": NO_RENEWAL}
    )


class CodexProtocol(msgspec.Struct, frozen=True):
    """The protocol by which this server drives an installed Codex (`agent` is the name of the agent for it), or why
    it cannot (`fault`).
    """

    agent: CodexAgentName
    check: BinaryCheck | None = None
    """What the program's app-server supports, if that protocol is used; else None."""
    fault: str = ""
    """Why Codex cannot be used, and what to do; empty if it can."""
    warning: str = ""
    """Why a protocol with fewer capabilities than the app-server's is used, if the operator has not asked for it;
    else empty."""


async def protocol_of(
    program: str,
    version: Version,
    agent: Literal["auto"] | CodexAgentName,
    check: Callable[[], Awaitable[BinaryCheck]],
    environment: Mapping[str, str],
) -> CodexProtocol:
    """Returns the protocol of `agent`, the agent in the settings; for `auto`, the first one of app-server, proto
    and exec that the program supports. If the program does not support the protocol (for `auto`: none of them), the
    result's `fault` says so.

    `check` asks the program what its app-server supports; if it raises `Fault`, app-server counts as not supported.
    `environment` is that of the program.
    """
    if agent == "codex-proto":
        spoken = await speaks_proto(program, environment)
        return CodexProtocol(agent, fault="" if spoken else NO_PROTO.format(version=version))
    if agent == "codex-exec":
        missing = await lacks_for_exec(program, environment)
        return CodexProtocol(agent, fault=NO_EXEC.format(version=version, missing=missing) if missing else "")
    checked, fault = None, ""
    try:
        checked = await check()
    except Fault as error:
        fault = f"The app-server protocol of Codex {version} could not be read ({error})."
    if checked is not None:
        fault = f"Codex {version} {checked.contract.refusal}" if checked.contract.refusal else ""
    if fault and agent == "auto":
        if await speaks_proto(program, environment):
            return CodexProtocol("codex-proto")
        if not await lacks_for_exec(program, environment):
            return CodexProtocol("codex-exec", warning=EXEC_INSTEAD.format(reason=fault))
    return CodexProtocol("codex-app-server", checked, fault)


async def speaks_proto(program: str, environment: Mapping[str, str]) -> bool:
    """Runs `codex proto --help`, and returns whether the program has the command `codex proto`. False if the
    program cannot be run. (A release without the command would take the word as a prompt.)
    """
    from codex_proxy.agents.codex.program import output_of

    try:
        return b"codex proto" in await output_of((program, "proto", "--help"), dict(environment))
    except Fault:
        return False


async def lacks_for_exec(program: str, environment: Mapping[str, str]) -> str:
    """Returns the options of `codex exec` that this server needs and the program's help does not list, separated by
    commas; empty if it lists all. All are missing if the program cannot be run.
    """
    from codex_proxy.agents.codex.program import output_of
    from codex_proxy.agents.codex_exec.launch import missing_options

    try:
        told = await output_of((program, "exec", "--help"), dict(environment))
    except Fault:
        told = b""
    return ", ".join(missing_options(told.decode(errors="replace")))


def provider_of(config: Path) -> ProviderConfig:
    """Reads the model provider from the file `config`, the user's config.toml, which need not exist. Raises
    `ValueError`, whose text says what is wrong, if the file cannot be used.
    """
    from codex_proxy.agents.codex.shadow_home import ConfigError, provider_config

    try:
        return provider_config(config.read_text("utf-8") if config.exists() else "")
    except (ConfigError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{config} cannot be used: {error}") from error
