"""The registry of agents, and the choice of the server's. A built-in agent is one line (`name: "module:attribute"`, an
`AgentSpec`), imported only when used. A plugin is chosen with `--agent-plugin module:SPEC`, or `--agent NAME` for an
entry point in the group `codex_proxy.agents`; its name must not be a built-in's.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from codex_proxy.agents.agent import Agent
    from codex_proxy.agents.spec import AgentContext, AgentSpec
    from codex_proxy.settings.fields import Settings


BUILT_IN: Final[Mapping[str, str]] = {
    "codex-app-server": "codex_proxy.agents.codex.spec:APP_SERVER",
    "codex-proto": "codex_proxy.agents.codex.spec:PROTO",
    "codex-exec": "codex_proxy.agents.codex.spec:EXEC",
    "claude-code": "codex_proxy.agents.claude_code.spec:SPEC",
    "openai-chat": "codex_proxy.agents.upstream.spec:CHAT_SPEC",
    "openai-responses": "codex_proxy.agents.upstream.spec:RESPONSES_SPEC",
    "gemini": "codex_proxy.agents.acp.spec:GEMINI_SPEC",
    "qwen": "codex_proxy.agents.acp.spec:QWEN_SPEC",
    "opencode": "codex_proxy.agents.acp.spec:OPENCODE_SPEC",
    "copilot": "codex_proxy.agents.acp.spec:COPILOT_SPEC",
    "claude-acp": "codex_proxy.agents.acp.spec:CLAUDE_ACP_SPEC",
    "codex-acp": "codex_proxy.agents.acp.spec:CODEX_ACP_SPEC",
    "acp": "codex_proxy.agents.acp.spec:ACP_SPEC",
    "fake": "codex_proxy.agents.fake.spec:SPEC",
}

DEFAULT: Final = "auto"
"""The default agent: the plugin's if there is one, else that of `DEFAULT_SPEC`."""
DEFAULT_SPEC: Final = "codex_proxy.agents.codex.spec:AUTO"

REPLAY_SPEC: Final = "codex_proxy.cassettes.serving:SPEC"

GROUP: Final = "codex_proxy.agents"


def names() -> tuple[str, ...]:
    """Returns what `--agent` accepts if there is no plugin."""
    return (DEFAULT, *BUILT_IN)


def specs() -> tuple[AgentSpec, ...]:
    return tuple(_load(line) for line in BUILT_IN.values())


def agent_able_to(capability: str) -> str:
    """Returns the first built-in agent with the capability, for advice."""
    return next(spec.name for spec in specs() if capability in spec.capabilities)


def check_name(agent: str, plugin: str | None) -> None:
    """Raises `ValueError`, which lists the known agents, if there is no `plugin` and no agent of that name."""
    if agent not in names() and plugin is None and agent not in _entry_points():
        known = (*names(), *sorted(_entry_points()))
        close = difflib.get_close_matches(agent, known, n=1)
        meant = f" Did you mean {close[0]}?" if close else ""
        raise ValueError(
            f"there is no agent {agent!r}.{meant} The agents are {', '.join(known)}; an agent "
            "from another package is given with --agent-plugin MODULE:SPEC"
        )


def plugin_reference(settings: Settings) -> str | None:
    """Returns the `module:attribute` of the plugin that the settings choose; None for a built-in agent."""
    if settings.agent in BUILT_IN:
        return None
    if settings.agent_plugin is not None or settings.agent == DEFAULT:
        return settings.agent_plugin
    return _entry_points().get(settings.agent)


def chosen_spec(settings: Settings) -> AgentSpec:
    """Returns the spec that the settings choose. Raises `NoAgentError` if the plugin cannot be used."""
    if settings.cassettes.replay is not None:
        return _load(REPLAY_SPEC)
    reference = plugin_reference(settings)
    if reference is None:
        return _load(BUILT_IN.get(settings.agent, DEFAULT_SPEC))
    by_flag = settings.agent_plugin is not None
    wanted = None if by_flag and settings.agent == DEFAULT else settings.agent
    source = (
        "--agent-plugin (PROXY_AGENT_PLUGIN)" if by_flag else f"the entry point of --agent {settings.agent}"
    )
    return load_plugin(reference, source=source, wanted=wanted)


def _load(line: str) -> AgentSpec:
    spec: AgentSpec = pkgutil.resolve_name(line)
    return spec


def _entry_points() -> dict[str, str]:
    return {entry.name: entry.value for entry in importlib.metadata.entry_points(group=GROUP)}


NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def load_plugin(reference: str, *, source: str, wanted: str | None) -> AgentSpec:
    """Imports a plugin's spec. `source` says where `reference` came from, for messages; `wanted` is the name that the
    agent must have. Raises `NoAgentError`.
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
    if not isinstance(spec, AgentSpec):
        raise NoAgentError(
            f"{source}: {reference} is not an AgentSpec but a value of the type "
            f"{type(spec).__name__}. docs/adding-an-agent.md describes what a plugin contains."
        )
    if NAME.fullmatch(spec.name) is None or spec.name in names():
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


def dialects_of(reference: str) -> Mapping[str, type]:
    """Returns the dialects of the plugin that the operator has named, by their names in recordings: the classes in the
    module of its spec that have a dialect's methods. Raises `NoAgentError`.
    """
    load_plugin(reference, source="the agent plugin", wanted=None)
    module_name = reference.partition(":")[0]
    found = (each for each in vars(sys.modules[module_name]).values() if isinstance(each, type))
    return {
        f"{each.__module__}:{each.__qualname__}": each
        for each in found
        if not each.__module__.startswith("codex_proxy.") and set(dir(each)) >= _DIALECT_METHODS
    }


_DIALECT_METHODS: Final = frozenset({"begin", "receive", "eof", "interrupt", "answer"})


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


def code_of(reference: str) -> tuple[str, ...]:
    """Returns the folders (or file) of the plugin's top-level package, which it does not import. No turn may write
    there.
    """
    top = reference.partition(":")[0].partition(".")[0]
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if found is None:
        return ()
    return tuple(found.submodule_search_locations or ((found.origin,) if found.origin else ()))
