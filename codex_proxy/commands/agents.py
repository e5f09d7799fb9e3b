"""`codex-proxy agents`: the agents that the server knows by name, what is installed, and how to get the others. No
agent is started, and nobody is asked over a network.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Final, get_args

import msgspec
from pydantic import BaseModel

from codex_proxy.agents.configured.agents import (
    ConfiguredAgent,
    configured_agents,
    context_of,
    settings_for_one,
)
from codex_proxy.agents.names import entry_points
from codex_proxy.agents.registry import plugin_reference, specs
from codex_proxy.agents.spec import AgentContext, AgentSpec
from codex_proxy.app.system import SystemClock
from codex_proxy.core.checks import Installation
from codex_proxy.core.options import Capability
from codex_proxy.core.shown_text import one_line
from codex_proxy.settings.fields import Settings

WORDS: Final[Mapping[Capability, str]] = {
    "history": "roles",
    "client_tools": "tools",
    "structured_output": "schemas",
    "images": "images",
    "web_search": "web search",
    "sandbox": "sandbox",
    "stored_sessions": "own sessions",
    "steering": "steering",
    "subagents": "subagents",
}
"""What a user chooses an agent by, of all capabilities; docs/agents.md explains each."""
SCHEMA: Final = 1
"""The version of the JSON: one more when a key is removed or changes its meaning."""


class KnownAgent(msgspec.Struct, frozen=True, kw_only=True):
    """One agent in the list."""

    name: str
    """The name for `--agent`."""
    summary: str
    installed: bool | None
    """None: not known, for an agent of another package."""
    program: str = ""
    version: str = ""
    signed_in: bool | None = None
    serves_as: tuple[str, ...] = ()
    """The names under which a server with these settings has the agent; the only agent's is its own."""
    capabilities: tuple[str, ...] = ()
    install: str = ""
    sign_in: str = ""
    trouble: str = ""

    @property
    def can(self) -> str:
        return ", ".join(word for name, word in WORDS.items() if name in self.capabilities)


async def known_agents(settings: Settings, environ: Mapping[str, str]) -> list[KnownAgent]:
    """Returns the agents in the order in which they are documented, then those of other packages, of whose code only
    that is imported which the settings choose. Raises `NoAgentError` for settings that choose no agent.
    """
    serving, context = configured_agents(settings), AgentContext(settings, environ, SystemClock())
    found = await asyncio.gather(
        *(_known(spec, serving, context) for spec in specs() if spec.installation is not None)
    )
    others = {
        name: KnownAgent(name=name, summary=f"of another package, {reference}", installed=None)
        for name, reference in sorted(entry_points().items())
    }
    for each in serving:
        if plugin_reference(each.settings) is not None:
            others[each.spec.name] = KnownAgent(
                name=each.spec.name,
                summary=each.spec.summary,
                installed=None,
                serves_as=(each.name or each.spec.name,),
                capabilities=_in_order(each.spec.possible_capabilities(each.settings)),
            )
    return [*found, *others.values()]


def _in_order(able: frozenset[Capability]) -> tuple[str, ...]:
    return tuple(name for name in get_args(Capability) if name in able)


async def _known(spec: AgentSpec, serving: Sequence[ConfiguredAgent], context: AgentContext) -> KnownAgent:
    assert spec.installation is not None
    own = [each for each in serving if spec.name in (each.spec.name, *each.spec.variants)]
    there: Installation = await spec.installation(
        context_of(own[0], context) if own else _not_served(spec, context)
    )
    able = there.capabilities or spec.possible_capabilities(context.settings)
    return KnownAgent(
        name=spec.name,
        summary=spec.summary,
        installed=there.installed,
        program=there.program,
        version=there.version,
        signed_in=there.signed_in,
        serves_as=tuple(each.name or spec.name for each in own if there.installed or each.spec is spec),
        capabilities=_in_order(able),
        install=there.install,
        sign_in="" if there.signed_in else there.sign_in,
        trouble=one_line(there.trouble),
    )


def _not_served(spec: AgentSpec, context: AgentContext) -> AgentContext:
    """Returns the context of an agent that the settings do not choose: a table of settings that names a program is that
    of the agents that they choose.
    """
    defaults = {name: Settings.model_fields[name].default for name in spec.settings}
    tables = {name: value for name, value in defaults.items() if isinstance(value, BaseModel)}
    settings = settings_for_one(context.settings, agent=spec.name, **tables)
    return msgspec.structs.replace(context, settings=settings)


def as_json(agents: Sequence[KnownAgent]) -> str:
    return json.dumps({"schema": SCHEMA, "agents": msgspec.to_builtins(agents)}, indent=2, ensure_ascii=False)


HEADS: Final = ("AGENT", "INSTALLED", "SIGNED IN", "CAN")
ANSWERS: Final = {True: "yes", False: "no", None: "?"}


def as_text(agents: Sequence[KnownAgent]) -> str:
    """Returns the table, and what to do for the agents that are not ready."""
    rows = [HEADS, *map(_row, agents)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADS) - 1)]
    lines = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    name_width = widths[0]
    for title, told in (
        ("To install:", [(each.name, each.install) for each in agents if each.install]),
        ("To sign in:", [(each.name, each.sign_in) for each in agents if each.installed and each.sign_in]),
        ("Not as it should be:", [(each.name, each.trouble) for each in agents if each.trouble]),
    ):
        if told:
            lines += ["", title, *(f"  {name:{name_width}}  {text}" for name, text in told)]
    lines += ["", *_end(agents)]
    return "\n".join(lines)


def _row(agent: KnownAgent) -> tuple[str, ...]:
    mark = "*" if agent.serves_as else ""
    installed = (agent.version or "yes") if agent.installed else ANSWERS[agent.installed]
    needs_sign_in = agent.installed and (agent.sign_in or agent.signed_in is not None)
    signed_in = ANSWERS[agent.signed_in] if needs_sign_in else "-"
    return f"{agent.name}{mark}", installed, signed_in, agent.can or agent.summary


def _end(agents: Sequence[KnownAgent]) -> list[str]:
    lines = ["Serve one with `codex-proxy serve --agent NAME`; `codex-proxy doctor --agent NAME` checks it."]
    if any(each.serves_as for each in agents):
        lines.insert(0, "* is what the settings choose.")
    return lines
