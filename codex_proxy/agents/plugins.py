"""Loads agents from other packages, and explains what is wrong with one that cannot be used."""

from __future__ import annotations

import importlib
import importlib.util
import re

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.registry import names
from codex_proxy.agents.spec import AgentContext, AgentSpec, NoAgentError
from codex_proxy.core.faults import Fault

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


def load_plugin(reference: str, *, source: str, wanted: str | None) -> AgentSpec:
    """Imports the spec that `reference` (`module:attribute`) names.

    `source` says where the reference came from, for messages; `wanted` is the name that the agent must have, None for
    any. Raises `NoAgentError`.
    """
    module_name, _, attribute = reference.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+", reference):
        raise NoAgentError(f"{source} is {reference!r}: write MODULE:SPEC, like `my_package.agent:SPEC`.")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise NoAgentError(
            f"{source}: the agent plugin {reference} cannot be imported ({type(error).__name__}: {error}). Install "
            "its package into the Python environment of this server, or mend it."
        ) from error
    if not hasattr(module, attribute):
        raise NoAgentError(
            f"{source}: the module {module_name} has no {attribute}. Name the AgentSpec in it: {module_name}:NAME."
        )
    spec = getattr(module, attribute)
    if not isinstance(spec, AgentSpec):
        raise NoAgentError(
            f"{source}: {reference} is no AgentSpec but a value of the type {type(spec).__name__}. "
            "docs/adding-an-agent.md says what a plugin holds."
        )
    if NAME.fullmatch(spec.name) is None or spec.name in names():
        raise NoAgentError(
            f"{source}: the agent of {reference} is called {spec.name!r}. Give it a name in small letters that no "
            f"built-in agent has ({', '.join(names())})."
        )
    if wanted is not None and spec.name != wanted:
        raise NoAgentError(
            f"{source}: {reference} is the agent {spec.name}, but --agent asks for {wanted}. Give --agent {spec.name}."
        )
    return spec


async def make_plugin_agent(spec: AgentSpec, reference: str, context: AgentContext) -> Agent:
    """Makes the agent of a plugin. Raises `NoAgentError` or `Fault`; any other error in the plugin becomes a
    `NoAgentError`."""
    try:
        return await spec.make(context)
    except (NoAgentError, Fault):
        raise
    except Exception as error:
        raise NoAgentError(
            f"The agent plugin {reference} failed while its agent was made ({type(error).__name__}: {error}): "
            "that is a fault of the plugin."
        ) from error


def code_of(reference: str) -> tuple[str, ...]:
    """Returns the folders of the plugin's top package, or its file, without importing it."""
    top = reference.partition(":")[0].partition(".")[0]
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return ()
    if found is None:
        return ()
    return tuple(found.submodule_search_locations or ((found.origin,) if found.origin else ()))
