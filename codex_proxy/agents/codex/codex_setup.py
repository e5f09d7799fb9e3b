"""What the set-up of agents that run Codex shares: program, protocol, paths, provider."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec

from codex_proxy.agents.codex.codex_specs import CodexAgentName
from codex_proxy.agents.codex.command_sandbox import HOME_ADVICE, home_fault
from codex_proxy.agents.codex.plain_home import CodexPaths, user_config
from codex_proxy.agents.codex.process_config import Profiles, ProviderConfig
from codex_proxy.agents.codex.program import Version, find_codex, output_of, refusal_of_old
from codex_proxy.agents.codex_app_server.binary_check import BinaryCheck
from codex_proxy.agents.confinement.confinement_setup import plain_confinement, state_folders
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.spec import AgentContext, NoAgentError
from codex_proxy.core.faults import Fault, misconfigured
from codex_proxy.files.private import make_folder
from codex_proxy.settings.protected_paths import safe_write_policy, unreadable_paths

NO_CODEX = (
    "Codex was not found. Install it (`npm install -g @openai/codex`, or `pip install 'codex-openai-proxy[codex]'`), "
    "give its path with {}, or try the embedded fake agent with --agent fake."
)

NO_PROTO = (
    "Codex {version} has no `codex proto`, which only releases up to 0.42 have. Omit --agent, "
    "or use --agent codex-app-server."
)

EXEC_IS_OLD = "codex-exec is an old name, which now starts an app-server for each turn."


def codex_program(context: AgentContext) -> str:
    """Returns the Codex to start. Raises `NoAgentError`."""
    program = find_codex(context.settings.codex_bin, context.environ.get("PATH", os.defpath))
    if program is None:
        raise NoAgentError(NO_CODEX.format(context.where_set("codex_bin")))
    return program


def codex_paths(context: AgentContext) -> CodexPaths:
    """Returns the paths of Codex's program, homes and folders, and creates the state folder. Raises `NoAgentError`,
    `Fault` or `OSError`.
    """
    program, settings = codex_program(context), context.settings
    make_folder(context.state_dir)
    user = user_config(settings.codex_home)
    # The default home may be missing: nobody has used Codex here yet, and it makes its home itself.
    if "codex_home" in settings.model_fields_set and not settings.codex_home.is_dir():
        raise misconfigured(
            f"Codex's home {settings.codex_home} is not a folder: create it and run `codex "
            "login`, or set another one with --codex-home."
        )
    policy = safe_write_policy(user.write_policy, settings, context.environ)
    # A project's config.toml could change profiles whose names it can guess.
    profiles = Profiles(f"codex_proxy_{secrets.token_hex(8)}", unreadable_paths(settings), policy)
    return CodexPaths(
        program, str(settings.codex_home), str(context.state_dir), str(settings.workdir), user, profiles
    )


async def codex_confinement(context: AgentContext, provider: ProviderConfig) -> PlainConfinement:
    """Returns what confines plain-model processes, which may use the user's sign-in. Raises `NoAgentError`."""
    settings = context.settings
    if provider.token_command and settings.agent_confinement == "auto":
        why = f"the token of the model provider {provider.id} comes from a command, which may read what it likes"
        return PlainConfinement("Codex", None, why=why)
    written = (*state_folders(context, "", ()), str(settings.codex_home / "auth.json"))
    read = [str(context.state_dir / "catalogs")]
    if provider.id == "amazon-bedrock":
        read.append(os.path.join(context.environ.get("HOME", ""), ".aws"))
    return await plain_confinement(
        context,
        "Codex",
        written=written,
        read=tuple(read),
        unusable={"codex": "Codex could not renew its sign-in in it"},
    )


def exec_notice(context: AgentContext) -> str:
    """Returns what the operator should know who has chosen `codex-exec`."""
    return f"{EXEC_IS_OLD} {exec_advice(context)}"


def exec_advice(context: AgentContext) -> str:
    if context.name:
        return f'Write `agent = "codex-app-server"` and `kept_threads = 0` in [agents.{context.name}].'
    return "Write --agent codex-app-server and PROXY_KEPT_THREADS=0 (`kept_threads = 0`)."


async def home_notices(program: str, context: AgentContext) -> tuple[str, ...]:
    """Returns a sentence for the banner if Codex cannot confine commands because of the place of its home."""
    if context.settings.sandbox == "danger-full-access":
        return ()
    fault = await home_fault(program, context.settings.codex_home, context.environ)
    return (f"{fault} {HOME_ADVICE}",) if fault else ()


class CodexProtocol(msgspec.Struct, frozen=True):
    """How an installed Codex is driven, or why it cannot be (`fault`)."""

    agent: CodexAgentName
    check: BinaryCheck | None = None
    fault: str = ""
    """Why it cannot be driven, with what to do; else empty."""


async def protocol_of(
    program: str,
    version: Version,
    agent: Literal["auto"] | CodexAgentName,
    check: Callable[[], Awaitable[BinaryCheck]],
    environment: Mapping[str, str],
) -> CodexProtocol:
    """Returns how the program is driven; for `auto` by app-server, or by proto if it supports that alone.
    `check` asks what its app-server supports.
    """
    if agent == "codex-proto":
        spoken = await speaks_proto(program, environment)
        return CodexProtocol(agent, fault="" if spoken else NO_PROTO.format(version=version))
    checked, fault = None, refusal_of_old(version)
    try:
        checked = None if fault else await check()
    except Fault as error:
        fault = f"The app-server protocol of Codex {version} could not be read ({error})."
    if checked is not None:
        fault = f"Codex {version} {checked.contract.refusal}" if checked.contract.refusal else ""
    if fault and agent == "auto" and await speaks_proto(program, environment):
        return CodexProtocol("codex-proto")
    return CodexProtocol("codex-app-server", checked, fault)


async def speaks_proto(program: str, environment: Mapping[str, str]) -> bool:
    """Looks in the program's help: a release without `codex proto` would take the word as a prompt."""
    try:
        return b"codex proto" in await output_of((program, "proto", "--help"), dict(environment))
    except Fault:
        return False
