"""The choice of the server's agent: a built-in one, imported only when used, or a plugin, chosen with
`--agent-plugin MODULE:NAME` or by its entry point; its name must not be a built-in's. What the plugin names is an
`AgentSpec`, or a `Part` with agents.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from codex_proxy.agents.names import BUILT_IN, DEFAULT_AGENT, entry_points, names
from codex_proxy.core.faults import UserError
from codex_proxy.parts import Part, declared

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.spec import AgentContext, AgentSpec
    from codex_proxy.settings.fields import Settings


DEFAULT_SPEC: Final = "codex_proxy.agents.codex.codex_specs:AUTO"


def specs() -> tuple[AgentSpec, ...]:
    return tuple(_load(line) for line in BUILT_IN.values())


def agent_able_to(capability: str) -> str:
    """Returns the first built-in agent with the capability, for advice."""
    return next(spec.name for spec in specs() if capability in spec.capabilities)


def plugin_reference(settings: Settings) -> str | None:
    """Returns the `module:attribute` of the plugin that the settings choose; None for a built-in agent."""
    if settings.agent in BUILT_IN:
        return None
    if settings.agent_plugin is not None or settings.agent == DEFAULT_AGENT:
        return settings.agent_plugin
    return entry_points().get(settings.agent)


def spec_in_place_of_all(settings: Settings) -> AgentSpec | None:
    """Returns the spec of the agent that a part of the program serves in place of all that are configured."""
    return next((_load(line) for choose in declared("chosen_agent") if (line := choose(settings))), None)


def chosen_spec(settings: Settings) -> AgentSpec:
    """Returns the spec that the settings choose. Raises `NoAgentError` if the plugin cannot be used."""
    if (spec := spec_in_place_of_all(settings)) is not None:
        return spec
    reference = plugin_reference(settings)
    if reference is None:
        return _load(BUILT_IN.get(settings.agent, DEFAULT_SPEC))
    by_flag = settings.agent_plugin is not None
    wanted = None if by_flag and settings.agent == DEFAULT_AGENT else settings.agent
    source = (
        "--agent-plugin (PROXY_AGENT_PLUGIN)" if by_flag else f"the entry point of --agent {settings.agent}"
    )
    return load_plugin(reference, source=source, wanted=wanted)


def _load(line: str) -> AgentSpec:
    spec: AgentSpec = pkgutil.resolve_name(line)
    return spec


PLUGIN_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def load_plugin(reference: str, *, source: str, wanted: str | None, in_part: bool = False) -> AgentSpec:
    """Imports a plugin, and returns its spec. `source` says where `reference` came from, for messages; `wanted` is the
    name that the agent must have. `in_part`: a part names it as its agent. Raises `NoAgentError`.
    """
    from codex_proxy.agents.spec import AgentSpec, NoAgentError

    module_name, _, attribute = reference.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", reference):
        raise NoAgentError(f"{source} is {reference!r}: write MODULE:SPEC, like `my_package.agent:SPEC`.")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise NoAgentError(
            f"{source}: the agent plugin {reference} cannot be imported ({type(error).__name__}: {error}). Install "
            f"the package of {reference} into the Python environment of this server, or fix it."
        ) from error
    if not hasattr(module, attribute):
        raise NoAgentError(
            f"{source}: the module {module_name} has no {attribute}. Name the AgentSpec in it: {module_name}:NAME."
        )
    spec = getattr(module, attribute)
    if isinstance(spec, Part) and spec.agents and not in_part:
        of_agent = spec.agents.get(wanted or "", next(iter(spec.agents.values())))
        return load_plugin(of_agent, source=source, wanted=wanted, in_part=True)
    if not isinstance(spec, AgentSpec):
        raise NoAgentError(
            f"{source}: {reference} is not an AgentSpec (nor a Part with agents) but a value of the type "
            f"{type(spec).__name__}. docs/adding-an-agent.md describes what a plugin contains."
        )
    if PLUGIN_NAME.fullmatch(spec.name) is None or spec.name in names():
        raise NoAgentError(
            f"{source}: the agent of {reference} is called {spec.name!r}. Give it a name in lower-case letters that no "
            f"built-in agent has ({', '.join(names())})."
        )
    if wanted is not None and spec.name != wanted:
        raise NoAgentError(
            f"{source}: {reference} is the agent {spec.name}, but --agent is {wanted}. Use "
            f"--agent {spec.name}."
        )
    return spec


def plugin_part(reference: str) -> Part | None:
    """Returns the `Part` that the plugin `reference` names. None if it names something else, or cannot be imported:
    the reason is raised when its agent is made.
    """
    try:
        found = pkgutil.resolve_name(reference)
    except Exception:  # noqa: BLE001  (a plugin's code may raise anything)
        return None
    return found if isinstance(found, Part) else None


def call_plugin_part(
    part: Part, what: Literal["checks", "server"], settings: Settings, environ: Mapping[str, str]
) -> Any:
    """Returns what a function that a plugin's part declares returns; None if it declares none. Raises `UserError`, for
    any other error in the plugin `NoAgentError`.
    """
    from codex_proxy.agents.spec import NoAgentError

    reference = getattr(part, what)
    try:
        return pkgutil.resolve_name(reference)(settings, environ) if reference else None
    except UserError:
        raise
    except Exception as error:
        raise NoAgentError(
            f"{reference} (`{what}` of the part {part.name}) failed ({type(error).__name__}: {error}). This is a bug "
            "in the plugin."
        ) from error


async def make_plugin_agent(spec: AgentSpec, reference: str, context: AgentContext) -> Agent:
    """Makes a plugin's agent. Raises `Fault`, or `NoAgentError`, also for any other error in the plugin."""
    from codex_proxy.agents.spec import NoAgentError
    from codex_proxy.core.faults import Fault

    try:
        return await spec.make(context)
    except (NoAgentError, Fault):
        raise
    except Exception as error:
        raise NoAgentError(
            f"The agent plugin {reference} failed while its agent was made "
            f"({type(error).__name__}: {error}). This is a bug in the plugin."
        ) from error
