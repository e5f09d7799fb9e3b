"""A `Turn`: what a client asks for, whatever surface it came through. A value; it decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.items import HistoryItem, Tool

Mode = Literal["model", "agent"]
"""`model`: the plain model; the client is the agent. `agent`: Codex works in its workspace."""

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]

SANDBOXES: Final[tuple[Sandbox, ...]] = get_args(Sandbox)
"""From the narrowest to the widest."""


class NamedTools(msgspec.Struct, frozen=True):
    """Only these tools may be called; `required`: one of them must be."""

    names: tuple[str, ...]
    required: bool = False


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTools


class Origin(msgspec.Struct, frozen=True):
    """What an agent that passes a request on to another server has to know of how it came here."""

    hops: tuple[str, ...] = ()
    """Servers like this one that it has passed, oldest first."""
    key: str = ""
    """The client's own key; empty unless the operator wants it passed on."""

    def __repr__(self) -> str:
        return f"Origin(hops={self.hops!r})"


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of Chat Completions that goes to the agent's server as it came, and whose answer comes back as its
    bytes: nothing in it is for this server to do."""

    fields: Mapping[str, msgspec.Raw]
    """Its JSON, field by field, each as the client wrote it."""
    stream: bool
    include_usage: bool
    """The client wants usage in its stream."""
    model_asked: str
    """What the client calls the model: the name to answer with, where the server has another one for it."""

    def __repr__(self) -> str:
        return f"ForwardedRequest(stream={self.stream!r})"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client. Everything an agent needs to know of it, and nothing of HTTP."""

    model: str
    """The agent's own name of the model; empty for its default."""
    history: tuple[HistoryItem, ...]
    """All of it, oldest first, the newest message last."""
    mode: Mode = "agent"
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    web_search: bool = False
    """The model is offered the agent's own search, which its provider runs."""
    max_server_steps: int = 25
    """The most steps of the model in which this server runs calls. In the next step the model is told to answer."""
    max_server_calls: int | None = None
    """How many calls it may run in all."""
    output_schema: msgspec.Raw | None = None
    """A JSON schema that the answer's text must follow."""
    workdir: str = ""
    sandbox: Sandbox = "read-only"
    confine_reads: bool = False
    """The agent's commands are kept from reading what this server stores, where the agent can do that."""
    permissions: str | None = None
    """The agent's own name for what its commands may do; None: what `sandbox` says. The agent's side sets it."""
    choices: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    json_object: bool = False
    """The answer's text must be a JSON object; the model is told so, and its answer is checked. Whoever makes the
    attempt sets it."""
    origin: Origin = Origin()
    instructions_in_outputs: bool = False
    """What the developer says right behind the outputs of calls may be told within the last of them, so that a thread
    which waits for them can go on."""
    sampling: Mapping[str, Any] = {}
    """How the model is to choose its words (`temperature`, `seed`, ...): fields as they came, by name. Only an agent
    that can set them reads them."""
    passed_fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the request that nothing else of the turn tells, as they came. Only for agents that can do
    `forwarding`."""
    forwarded: ForwardedRequest | None = None
    """All of the request, where it goes on as it came; the turn has no history, tools and schema then."""


def without_content(turn: Turn) -> Turn:
    """The turn's settings without its history, tools and schema: for whoever keeps it longer than it runs."""
    return msgspec.structs.replace(turn, history=(), tools=(), output_schema=None, forwarded=None)
