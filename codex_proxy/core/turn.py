"""A `Turn`: what a client asks for, whichever API the request came through. The module has values only, without
behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from codex_proxy.core.items import HistoryItem, Tool

Mode = Literal["model", "agent"]
"""`model`: the plain model answers and the client is the agent. `agent`: Codex works in its workspace."""

Sandbox = Literal["read-only", "workspace-write", "danger-full-access"]

SANDBOXES: Final[tuple[Sandbox, ...]] = get_args(Sandbox)
"""The sandboxes, from the narrowest to the widest."""


class NamedTools(msgspec.Struct, frozen=True):
    """A `tool_choice` that names the only tools that the model may call. `required`: the model must call one of
    them.
    """

    names: tuple[str, ...]
    required: bool = False


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTools


class Origin(msgspec.Struct, frozen=True):
    """Where a request came from. Only an agent that sends the request on to another server (an upstream) uses it."""

    hops: tuple[str, ...] = ()
    """The servers of this kind that the request has already passed, oldest first."""
    key: str = ""
    """The client's own API key; empty unless the settings say that it is passed on."""
    headers: Mapping[str, str] = {}
    """The headers, by lower-case name, that the settings pass on to some upstream."""

    def __repr__(self) -> str:
        return f"Origin(hops={self.hops!r})"


class ForwardedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A Chat Completions request that is sent to the agent's model server unchanged, and whose answer is sent to
    the client unchanged, because it needs nothing that only this server can do.
    """

    fields: Mapping[str, msgspec.Raw]
    """The fields of the request's JSON object, each as the client wrote it."""
    stream: bool
    include_usage: bool
    """Whether the client asked for the usage in its stream."""
    model_asked: str
    """The client's name of the model. The answer has this name, also where the agent's server has another one for
    it."""

    def __repr__(self) -> str:
        return f"ForwardedRequest(stream={self.stream!r})"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a client: everything that an agent needs to know, and nothing of HTTP. The agent chooses for
    itself what is None here.
    """

    model: str
    """The agent's name of the model; empty for the agent's default."""
    history: tuple[HistoryItem, ...]
    """All items of the conversation, oldest first, the newest message last."""
    mode: Mode = "agent"
    effort: str | None = None
    summary: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    web_search: bool = False
    """Whether the model is offered the agent's own web search, which its provider runs."""
    max_server_steps: int = 25
    """The most steps of the model in which this server runs calls. In the next step the model is instructed to
    answer."""
    max_server_calls: int | None = None
    """The most calls that this server runs in the whole turn; None for any number."""
    output_schema: msgspec.Raw | None = None
    """A JSON schema that the answer's text must follow; None if there is none."""
    workdir: str = ""
    sandbox: Sandbox = "read-only"
    confine_reads: bool = False
    """Whether the agent's commands are kept from reading this server's stored data, where the agent can do that."""
    permissions: str | None = None
    """The agent's own name of what its commands may do; None where `sandbox` decides. Only the agent's side sets it."""
    choices: int = 1
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    json_object: bool = False
    """Whether the answer's text must be a JSON object. If so, the model is instructed accordingly and its answer is
    checked."""
    origin: Origin = Origin()
    instructions_in_outputs: bool = False
    """Whether developer messages directly after tool outputs may be put into the last of these outputs, so that a
    kept thread that waits for the outputs can continue.
    """
    sampling: Mapping[str, Any] = {}
    """The sampling parameters of the request (`temperature`, `seed`, ...) by name, with the client's values. Agents
    that cannot set them ignore them."""
    passed_fields: Mapping[str, msgspec.Raw] = {}
    """Fields of the request that no other attribute of the turn represents, unchanged. Only for agents that can do
    `forwarding`."""
    forwarded: ForwardedRequest | None = None
    """The whole request, where it is sent to the agent's server unchanged; the turn then has no history, tools and
    schema. None for any other turn."""


def without_content(turn: Turn) -> Turn:
    """Returns the turn without its history, tools and schema, and so small enough to be kept after the turn has
    ended.
    """
    return msgspec.structs.replace(turn, history=(), tools=(), output_schema=None, forwarded=None)
