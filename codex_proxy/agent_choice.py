"""Which agent serves: settings and what is installed become an `Agent` that is ready to be started.

Part of the wiring, like `app`: it may read the environment and know every layer.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from codex_proxy import __version__
from codex_proxy.agents.base import Capability
from codex_proxy.agents.codex_app_server.catalog import CatalogModel
from codex_proxy.agents.codex_app_server.launch import Version, refusal
from codex_proxy.agents.codex_app_server.shadow_home import ConfigError, ProviderConfig, provider_config
from codex_proxy.agents.codex_proto import CodexProto, proto_argv
from codex_proxy.config import Settings, split_list
from codex_proxy.core.ids import Clock
from codex_proxy.core.models import AgentModel
from codex_proxy.process.child import Command
from codex_proxy.process.environment import child_environment
from codex_proxy.process.limits import ChildLimits
from codex_proxy.process.plan import Limits
from codex_proxy.runs.agent import Agent
from codex_proxy.runs.app_server_agent import AppServerAgent, AppServerProcesses
from codex_proxy.runs.codex_binary import find_codex
from codex_proxy.runs.codex_setup import CodexPlaces, find_version, misconfigured, prepare_app_server
from codex_proxy.runs.proto_agent import ProtoAgent, ProtoChildren

NO_AGENT = (
    "No Codex was found. Install it (`npm install -g @openai/codex`, or the extra `codex-openai-proxy[codex]`), "
    "give its path with --codex-bin, or try the embedded fake agent with --agent fake."
)

FAKE_CAPABILITIES: frozenset[Capability] = AppServerAgent.capabilities - {"tool_replies", "web_search"}
"""Of the fake agent where it speaks proto: there a turn ends with its calls, as the transcripts want it."""
PROTO_CAPABILITIES: frozenset[Capability] = frozenset({"text_deltas", "images", "cancellation"})


class NoAgentError(Exception):
    """There is no agent to serve with. The text says what to do."""


async def choose_agent(settings: Settings, environ: Mapping[str, str], clock: Clock) -> Agent:
    """The agent that the settings ask for. Raises `NoAgentError`, or `Fault` where Codex cannot be used."""
    if settings.agent == "fake":
        return _fake(settings, environ, clock)
    program = find_codex(settings.codex_bin, environ.get("PATH", os.defpath))
    if program is None:
        raise NoAgentError(NO_AGENT)
    kind = settings.agent
    if kind == "auto":
        version = await find_version(program, child_environment(environ))
        fits_proto = refusal("codex-proto", version) is None
        kind = "codex-proto" if fits_proto else "codex-app-server"
    if kind == "codex-proto":
        return await _proto(program, settings, environ)
    return await _app_server(program, settings, environ, clock)


def limits_of(settings: Settings) -> Limits:
    """The pool's limits, as the settings have them."""
    return Limits(
        max_processes=settings.app_server_processes,
        max_age=settings.app_server_max_age,
        max_turns_served=settings.app_server_max_turns,
        max_memory=settings.app_server_max_memory,
    )


def child_limits(settings: Settings) -> ChildLimits:
    """What each child may take of the machine, as the settings have it."""
    return ChildLimits(
        open_files=settings.child_open_files,
        address_space=settings.child_address_space,
        processes=settings.child_processes,
    )


async def _app_server(
    program: str, settings: Settings, environ: Mapping[str, str], clock: Clock
) -> AppServerAgent:
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise misconfigured(f"the state folder {settings.state_dir} cannot be made: {error}") from error
    places = CodexPlaces(program, str(settings.codex_home), str(settings.state_dir), str(settings.workdir))
    # The default home may be missing: nobody has used Codex here yet, and it makes its home itself.
    if "codex_home" in settings.model_fields_set and not settings.codex_home.is_dir():
        raise misconfigured(
            f"Codex's home {settings.codex_home} is not a folder: make it and run `codex login`, or name another "
            "one with --codex-home."
        )
    setup = await prepare_app_server(places, environ, split_list(settings.child_env), settings.codex_lite)
    limits = child_limits(settings)
    processes = AppServerProcesses(
        name="codex-app-server",
        version=str(setup.version),
        plain=msgspec.structs.replace(setup.plain, limits=limits),
        agent=msgspec.structs.replace(setup.agent, limits=limits),
        empty_folder=setup.empty_folder,
        models=tuple(_model(model) for model in setup.models),
        any_model=setup.provider.custom,
        sign_in_file=str(settings.codex_home / "auth.json"),
        start_mark=setup.start_mark,
    )
    warm_plain = settings.builtin_tools == "never"
    return AppServerAgent(processes, limits_of(settings), clock, warm_plain=warm_plain)


def _model(model: CatalogModel) -> AgentModel:
    return AgentModel(
        id=model.slug,
        display_name=model.display_name,
        context_window=model.context_window,
        input_modalities=model.input_modalities,
        efforts=model.efforts,
        default_effort=model.default_effort,
        hidden=not model.listed,
        native=model.native,
    )


async def _proto(program: str, settings: Settings, environ: Mapping[str, str]) -> ProtoAgent:
    version: Version = await find_version(program, child_environment(environ))
    fault = refusal("codex-proto", version)
    if fault is not None:
        raise misconfigured(fault)
    provider = _provider(settings.codex_home / "config.toml")
    env = child_environment(environ, extra=split_list(settings.child_env), env_keys=provider.env_names) | {
        "CODEX_HOME": str(settings.codex_home)
    }
    argv = proto_argv(
        (program,),
        custom_provider=provider.id if provider.custom else None,
        parallel_tool_calls=settings.enable_parallel_tool_calls,
    )
    limits = child_limits(settings)
    return ProtoAgent(
        ProtoChildren(
            name="codex-proto",
            version=str(version),
            command=lambda turn: Command(argv, env, turn.workdir or str(settings.workdir), limits=limits),
            dialect=CodexProto,
            capabilities=PROTO_CAPABILITIES,
            models=(),
            any_model=True,
        )
    )


def _provider(config: Path) -> ProviderConfig:
    try:
        return provider_config(config.read_text("utf-8") if config.exists() else "")
    except (ConfigError, OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise misconfigured(f"{config} cannot be used: {error}") from error


def _fake(settings: Settings, environ: Mapping[str, str], clock: Clock) -> Agent:
    env = child_environment(environ, extra=split_list(settings.child_env))
    limits = child_limits(settings)
    # -P: a json.py in the workspace must not stand in for the standard library.
    program = (sys.executable, "-P", "-m", "fake_proto")
    models = (
        AgentModel(id="fake-model", display_name="Fake", is_default=True, efforts=("low", "medium", "high")),
    )
    if settings.fake_dialect == "app-server":
        command = Command((*program, "app-server"), env, str(settings.workdir), limits=limits)
        processes = AppServerProcesses(
            name="fake",
            version=__version__,
            plain=command,
            agent=None,
            empty_folder="",
            models=models,
            any_model=True,
        )
        return AppServerAgent(processes, limits_of(settings), clock, warm_plain=True)
    argv = proto_argv(program, parallel_tool_calls=settings.enable_parallel_tool_calls)
    return ProtoAgent(
        ProtoChildren(
            name="fake",
            version=__version__,
            command=lambda turn: Command(argv, env, turn.workdir or str(settings.workdir), limits=limits),
            dialect=lambda: CodexProto(extended=True),
            capabilities=FAKE_CAPABILITIES,
            models=models,
            any_model=True,
        )
    )
